"""FedAvg by BlazeFL's own classes (`blazefl.contrib.fedavg`): in one process, a pool of processes, or of threads.

Threads compute side by side on a Python without a global lock (3.14t), for which BlazeFL is made; on others the pool of
processes with shared memory is its fastest mode. Data are in-memory tensors, read through its `DataLoader`s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from common import Clock, arrays, network, scored, settings, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Selector:
    """Makes the network with the first weights, as BlazeFL asks for it."""

    def __init__(self, s: dict[str, Any]) -> None:
        self._s = s

    def select_model(self, model_name: str) -> nn.Module:
        return network(self._s)


class Parts:
    """The clients' samples as BlazeFL asks for them."""

    def __init__(self, s: dict[str, Any]) -> None:
        x, y = (t.clone() for t in arrays(s, "train"))
        self._sets = [TensorDataset(x[i], y[i]) for i in range(s["clients"])]

    def get_dataset(self, type_: Any, cid: int | None) -> TensorDataset:
        assert cid is not None
        return self._sets[cid]

    def set_dataset(self, type_: Any, cid: int | None, dataset: TensorDataset) -> None:
        """Nothing has changed."""

    def get_dataloader(self, type_: Any, cid: int | None, batch_size: int | None = None, generator: Any = None) -> Any:
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=True, generator=generator)


def trainer(s: dict[str, Any], selector: Selector, parts: Parts) -> Any:
    """BlazeFL's trainer of the mode that is asked for."""
    common: dict[str, Any] = {
        "model_selector": selector, "model_name": s["model"], "dataset": parts, "device": "cpu", "epochs": 1,
        "num_clients": s["clients"], "batch_size": s["batch"], "lr": s["lr"], "seed": 0,
    }  # fmt: skip
    place = Path(s["place"])
    if s["mode"] == "processes":
        return FedAvgProcessPoolClientTrainer(
            **common, num_parallels=s["parallel"], ipc_mode=IPCMode.SHARED_MEMORY,
            share_dir=place / "share", state_dir=place / "state",
        )  # fmt: skip
    if s["mode"] == "threads":
        return FedAvgThreadPoolClientTrainer(**common, num_parallels=s["parallel"])
    return FedAvgBaseClientTrainer(**common)


def main() -> None:
    s = settings()
    torch.manual_seed(0)
    torch.set_num_threads(s["threads"])
    selector, parts = Selector(s), Parts(s)
    server = FedAvgBaseServerHandler(
        model_selector=selector, model_name=s["model"], dataset=parts, global_round=s["rounds"], device="cpu",
        num_clients=s["clients"], sample_ratio=s["cohort"] / s["clients"], batch_size=s["batch"], seed=0,
    )  # fmt: skip
    clients = trainer(s, selector, parts)
    clock = Clock(s)
    clock.start()
    while not server.if_stop():
        clients.local_process(server.downlink_package(), server.sample_clients())
        for package in clients.uplink_package():
            server.load(package)
        clock.round(server.model)
    tell(clock.ends, ("blazefl",), **scored(server.model, s), **clock.found)


if __name__ == "__main__":
    main()
