"""The race of bench/race.py by pfl-research's own simulation: the same clients, network and settings, the same device.

    python bench/race_peer.py --data noise --rounds 30                  # one process
    python bench/race_peer.py --data noise --rounds 30 --processes 5    # as its authors ran it

It needs pfl-research (``pip install pfl``) beside fedkin. Data are tensors on the device, as its guide advises. Several
processes share one GPU by gloo, which its code replaces by NCCL where there is a GPU: NCCL refuses two on one device.
Seconds of a round are the median, without the first two; each run is a line in bench/results/race.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from bench.race import BATCH, COHORT, EVERY, LINES, STEP_SIZE, SimpleCNN, dealt, noise
from bench.speed import machine
from torch import Tensor, nn

import fedkin

_RANK, _ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Model(nn.Module):
    """The network with the two functions that pfl asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SimpleCNN()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.inner(x)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch in training."""
        self.train()
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return sums over a batch in evaluation."""
        from pfl.metrics import Weighted

        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def race(federation: fedkin.Federation, rounds: int, device: torch.device) -> dict[str, Any]:
    """Return the median seconds of a round and the accuracy at the end."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    module, ends = Model().to(device), list[float]()
    test = torch.cat([c.test.x for c in federation.clients]).to(device)
    labels = torch.cat([c.test.y for c in federation.clients]).to(device)
    batches = list(zip(test.split(2500), labels.split(2500), strict=True))

    def accuracy() -> float:
        module.eval()
        with torch.no_grad():
            right = sum(int((module(x).argmax(1) == y).sum()) for x, y in batches)
        return right / len(labels)

    class Watch(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, _aggregate: Any, _model: Any, *, central_iteration: int, **_: Any) -> Any:
            if (central_iteration + 1) % EVERY == 0:
                accuracy()
            if device.type == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
            return False, Metrics()

    users = {
        i: PyTorchTensorDataset((c.train.x.to(device), c.train.y.to(device)), user_id=str(i))
        for i, c in enumerate(federation.clients)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    begun = time.perf_counter()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=STEP_SIZE, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Watch()],
        send_metrics_to_platform=False,
    )
    each = [b - a for a, b in pairwise(ends[1:])]
    return {
        "seconds": round(time.perf_counter() - begun, 2),
        "round_s": {"round": round(statistics.median(each), 5)},
        "accuracy": round(accuracy(), 4),
    }


def others(count: int) -> list[subprocess.Popen[bytes]]:
    """Start the processes beside this one, with the variables that pfl reads in all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ[_ADDRESSES] = ",".join(f"127.0.0.1:{port + i}" for i in range(count))
    os.environ[_RANK] = "0"
    return [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, _RANK: str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(1, count)
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Run and write a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--data", default="cifar10", help="as of fedkin run --data, or noise: random images")
    parser.add_argument("--lines", type=Path, default=LINES)
    args = parser.parse_args(words)
    first = _RANK not in os.environ
    started = others(args.processes) if args.processes > 1 and first else []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda **given: begin(**{**given, "backend": "gloo"})
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  pfl draws from it, and all processes must draw the same
    data = noise(50 * args.clients, 10 * args.clients) if args.data == "noise" else fedkin.load(args.data)
    found = race(dealt(data, args.clients, 50, 10), args.rounds, device)
    if first:
        about = {"data": args.data, "day": date.today().isoformat(), "engine": "pfl-research"}
        line = {**about, "processes": args.processes, "clients": args.clients, "rounds": args.rounds, **found}
        line |= {"machine": machine.described(), "versions": {**machine.versions(), "pfl": metadata.version("pfl")}}
        args.lines.parent.mkdir(parents=True, exist_ok=True)
        with args.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line, indent=2))
    for process in started:
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
