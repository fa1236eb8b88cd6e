"""What every program on a workload shares: its settings, its data, the network with its first weights, its last line.

The programs are run by interpreters of other environments: here are only torch, numpy and fedkin's networks.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.models.registry import get_model


def settings(path: str | None = None) -> dict[str, Any]:
    """Of this run: the workload's and those of the program."""
    found: dict[str, Any] = json.loads(Path(path or sys.argv[1]).read_text(encoding="utf-8"))
    return found


def arrays(s: dict[str, Any], part: str, client: int | None = None) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all clients ``[clients, n, ...]``, or of one ``[n, ...]``; pages are read when used."""
    x, y = (np.load(Path(s["folder"]) / f"{part}_{name}.npy", mmap_mode="c") for name in ("x", "y"))
    if client is not None:
        x, y = np.array(x[client]), np.array(y[client])
    return torch.from_numpy(x), torch.from_numpy(y)


def network(s: dict[str, Any]) -> nn.Module:
    """The network with the first weights that all programs share."""
    module = get_model(s["model"], tuple(s["shape"]), s["classes"])
    with np.load(Path(s["folder"]) / "start.npz") as start:
        values = {name: torch.from_numpy(start[name]) for name in start.files}
    absent, unknown = module.load_state_dict(values, strict=False)
    if unknown or any(not name.endswith("num_batches_tracked") for name in absent):
        raise SystemExit(f"the first weights do not fit the network: {absent} {unknown}")
    return module


def epoch(module: nn.Module, x: Tensor, y: Tensor, s: dict[str, Any]) -> None:
    """One epoch of SGD as one writes it by hand, in the fastest plain way: batches by index, no DataLoader."""
    optimiser = torch.optim.SGD(module.parameters(), lr=s["lr"])
    module.train()
    for index in torch.randperm(len(y)).split(s["batch"]):
        optimiser.zero_grad()
        F.cross_entropy(module(x[index]), y[index]).backward()
        optimiser.step()


def scored(module: nn.Module, s: dict[str, Any]) -> dict[str, float]:
    """Accuracy and mean loss on the test samples of all clients together."""
    x, y = arrays(s, "test")
    right, loss = 0, 0.0
    module.eval()
    with torch.no_grad():
        for client in range(len(y)):
            out = module(x[client])
            right += int((out.argmax(1) == y[client]).sum())
            loss += float(F.cross_entropy(out, y[client], reduction="sum"))
    return {"accuracy": right / y.numel(), "loss": loss / y.numel()}


class Clock:
    """Times of the ends of rounds. With a target each round ends after an evaluation on all clients' test samples.

    Attributes:
        ends: start of the first round, then the end of each round.
        accuracies: after each round, if there is a target.
    """

    def __init__(self, s: dict[str, Any]) -> None:
        self._s = s
        self.ends, self.accuracies = list[float](), list[float]()

    def start(self) -> None:
        """Note the start of the first round."""
        self.ends.append(time.time())

    def round(self, module: nn.Module) -> None:
        """Note the end of a round, after which the server's model is ``module``."""
        if self._s.get("target"):
            self.accuracies.append(scored(module, self._s)["accuracy"])
        self.ends.append(time.time())

    @property
    def found(self) -> dict[str, Any]:
        """What a run with a target tells in addition."""
        return {"times": self.ends, "accuracies": self.accuracies} if self.accuracies else {}


def tell(ends: list[float], packages: tuple[str, ...], **found: Any) -> None:
    """Prints a run's line; ``ends`` begins with the start of the first round, then has the end of each round.

    The first round is left out, which warms up, and the last, after which fedkin evaluates.
    """
    rounds = [b - a for a, b in pairwise(ends[1:])][:-1]
    versions = {name: metadata.version(name) for name in (*packages, "torch", "numpy")}
    print(json.dumps({"speed": {"round_s": rounds, "first": ends[0], "versions": versions, **found}}), flush=True)
