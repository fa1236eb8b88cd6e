"""FedProx: FedAvg with a proximal term that pulls clients back to the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with the term mu/2 ||w - w_received||^2 in every client's loss."""

    paper = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020"
    family = "one global model"
    tuned: ClassVar = {"mu": [0.001, 0.01, 0.1, 0.5, 1.0]}  # the grid of the authors

    mu: float = 0.01
    """Weight of the proximal term; the authors tune it in {0.001, 0.01, 0.1, 0.5, 1}."""
    straggler_fraction: float = 0.0
    """Probability that a client completes only a random 1 .. E-1 of its E epochs; its partial work counts. It has
    no effect with one epoch, or where training is counted in steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "mu", at_least=0)
        in_range(self, "straggler_fraction", at_least=0, at_most=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Minimise F_k(w) + mu/2 ||w - w_received||^2 from the received model and return w."""
        w = yield Train(c.received.model, center=c.received.model, mu=self.mu, epochs=self._epochs(c))
        return Bundle(model=w)

    def _epochs(self, c: Client) -> int | None:
        full = c.training.epochs
        if (
            c.training.steps is not None
            or full < 2
            or float(torch.rand((), generator=c.rng)) >= self.straggler_fraction
        ):
            return None
        return int(torch.randint(1, full, (), generator=c.rng))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    can = (RobustMeans(alone=True), PrivateSums(), Uploads("its model"))
