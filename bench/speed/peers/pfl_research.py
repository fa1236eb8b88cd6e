"""FedAvg by pfl-research's own simulation: `SimulatedBackend`, in one process or, as its guide says, in several.

Several processes are rank 0, this one, and others that it starts with the environment variables of pfl's guide "Fast
distributed simulations". Data are in-memory tensors (`PyTorchTensorDataset`, its guide's advice), kept per user. pfl
goes through a user's samples in their order, without shuffling.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import Clock, arrays, network, scored, settings, tell
from torch import Tensor, nn

_RANK, _ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Model(nn.Module):
    """The network with the two functions that pfl asks of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval()
        return {"loss": Weighted(float(F.cross_entropy(self(x), y, reduction="sum")), len(y))}


def users(s: dict[str, Any]) -> Any:
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler

    x, y = (t.clone() for t in arrays(s, "train"))
    made = {i: PyTorchTensorDataset((x[i], y[i]), user_id=str(i)) for i in range(s["clients"])}
    return FederatedDataset(made.__getitem__, get_user_sampler("minimize_reuse", list(made)))


def train(s: dict[str, Any]) -> tuple[Clock, nn.Module]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    clock = Clock(s)

    class Watch(TrainingProcessCallback):  # type: ignore[misc]
        def on_train_begin(self, *, model: Any) -> Any:
            clock.start()
            return Metrics()

        def after_central_iteration(self, *_args: Any, **_more: Any) -> Any:
            clock.round(inner)
            return False, Metrics()

    inner = network(s)
    module = Model(inner)
    data = users(s)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=s["rounds"],
            evaluation_frequency=10**9,
            train_cohort_size=s["cohort"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=s["lr"], local_batch_size=s["batch"]),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Watch()],
        send_metrics_to_platform=False,
    )
    return clock, inner


def others(count: int) -> list[subprocess.Popen[bytes]]:
    """The processes beside this one; sets the variables that pfl reads in all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ[_ADDRESSES] = ",".join(f"127.0.0.1:{port + i}" for i in range(count))
    os.environ[_RANK] = "0"
    return [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, _RANK: str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(1, count)
    ]


def main() -> None:
    s = settings()
    started = others(s["processes"]) if s["processes"] > 1 and _RANK not in os.environ else []
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    torch.set_num_threads(s["threads"])
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  pfl draws from it, and all processes must draw the same
    clock, module = train(s)
    if os.environ.get(_RANK, "0") == "0":
        tell(clock.ends, ("pfl",), **scored(module, s), **clock.found)
    for process in started:
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
