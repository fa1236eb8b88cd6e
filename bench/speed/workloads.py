"""What is run: networks, batches and sizes of the papers, on made-up data of the right shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Workload:
    """A federation of equal clients and what is trained on it.

    Attributes:
        about: one line for tables.
        model: a name from ``fedkin list models``.
        clients, cohort: how many there are, and how many of them a round samples.
        samples, tests: of each client; ``samples`` is a multiple of ``batch``, so that every program takes equal steps.
        rounds: how many are timed in one run; one more goes before them and one after.
        paper: the method that the workload comes from, run beside FedAvg; with its fields.
        trainings: models that each client of ``paper`` trains in a round.
        share: goal, of the machine's matmul peak; ratios: goals, times as fast as each peer; with
            ", several", as its fastest setting of several processes.
        target: accuracy to which the time is measured; None: it is not.
    """

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    cohort: int
    samples: int
    tests: int
    batch: int
    lr: float
    rounds: int
    paper: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    trainings: int = 1
    share: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    target: float | None = None

    @property
    def steps(self) -> int:
        """SGD steps of one client in a round: one epoch."""
        return self.samples // self.batch

    def quick(self) -> Workload:
        """The same with so little data that a run takes seconds: to see whether everything works."""
        batch, clients = min(self.batch, 8), min(self.clients, 4)
        cohort = min(self.cohort, clients)
        return replace(self, clients=clients, cohort=cohort, samples=2 * batch, tests=8, batch=batch, rounds=1)

    def goal(self, peer: str, setting: Mapping[str, Any]) -> float | None:
        """Return the goal of a pair: times as fast as a peer in a setting."""
        several = f"{peer}, several" if setting.get("processes", 1) > 1 else peer
        return self.ratios.get(several)

    def described(self) -> dict[str, Any]:
        """Its settings, for the lines."""
        goals = ("about", "share", "ratios", "fields", "paper", "trainings", "target")
        return {name: value for name, value in asdict(self).items() if name not in goals}


_CIFAR, _IMAGES = (3, 32, 32), (1, 28, 28)

WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1a", "CNN 6-16, batch 10 (DA-PFL)", "cam-lenet", _CIFAR, 10, clients=8, cohort=8, samples=2000, tests=200,
            batch=10, lr=0.05, rounds=3, paper="da-pfl", share=0.35,
            ratios={"pfl-research": 12, "pfl-research, several": 7, "pfllib": 3.5, "flower": 10}, target=0.9,
        ),
        Workload(
            "W1b", "CNN 64-64, batch 10 (DA-PFL)", "dapfl-cnn", _CIFAR, 10, clients=8, cohort=8, samples=300, tests=100,
            batch=10, lr=0.05, rounds=3, paper="da-pfl", share=0.80,
        ),
        Workload(
            "W1c", "CNN 64-128, batch 10 (DA-PFL)", "dapfl-cnn100", _CIFAR, 20, clients=8, cohort=8, samples=300,
            tests=100, batch=10, lr=0.05, rounds=3,
        ),
        Workload(
            "W2", "CNN 32-64, batch 100 (PFedCS)", "pfedcs-cnn", _CIFAR, 10, clients=20, cohort=20, samples=300,
            tests=100, batch=100, lr=0.05, rounds=2, paper="pfedcs", share=0.80,
            ratios={"pfl-research": 2, "pfl-research, several": 1.9, "pfllib": 1.5, "flower": 3},
        ),
        Workload(
            "W3", "two CNNs 32-64 added, batch 32 (Fed-CAM)", "pfedcs-cnn", _IMAGES, 10, clients=10, cohort=10,
            samples=320, tests=100, batch=32, lr=0.05, rounds=2, paper="ifca-cam", fields={"warmup": 0}, trainings=2,
            share=0.75,
        ),
        Workload(
            "W4", "MLP 200-100, batch 10 (FEMNIST)", "mlp", _IMAGES, 62, clients=100, cohort=20, samples=200, tests=40,
            batch=10, lr=0.05, rounds=30, share=0.50,
            ratios={"pfl-research": 9, "pfl-research, several": 4.5, "pfllib": 7, "flower": 25}, target=0.8,
        ),
        Workload(
            "W5", "ResNet-18, batch 100 (Tiny-ImageNet)", "resnet18", (3, 64, 64), 200, clients=2, cohort=2,
            samples=100, tests=20, batch=100, lr=0.05, rounds=1, share=0.80,
        ),
    )
}  # fmt: skip
