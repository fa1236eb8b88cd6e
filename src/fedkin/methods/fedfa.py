"""FedFa: clients weigh by the information in their accuracy and in how often they took part; momentum on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Needs, Presets, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow

_PRESETS: Table = {
    "cfic-table": {"training": {"epochs": 5, "batch_size": 64, "lr": 0.01}},  # FLGo's; that CFIC ran on it is inferred
    "three-rounds": {"client_momentum": 0.5, "every": 3},  # another implementation's, on FedLab
}


@dataclass(frozen=True)
class FedFa(Method):
    """One global model; clients weigh by accuracy and participation instead of samples; momentum on both sides."""

    paper = "Huang, Li, Wang, Du, Zhang: Fairness and Accuracy in Federated Learning, arXiv 2012.10069"
    family = "one global model"
    tuned: ClassVar = {"accuracy_share": "0..1", "client_momentum": "0..0.95"}

    accuracy_share: float = 0.5
    """Fraction of a client's weight given by its accuracy (alpha); the rest is given by participation (beta)."""
    memory: float = 0.9
    """Factor on the server's momentum of the round before (gamma)."""
    eta: float = 0.01
    """Factor on the server's momentum; implementations take the clients' step size."""
    sign: Literal["minus", "plus"] = "minus"
    """Subtract the momentum from the mean, a small step back, as implementations do; or add it (heavy ball)."""
    every: int = 1
    """Rounds between two uses of the server's momentum (b)."""
    client_momentum: float = 0.9
    """Momentum of the clients' SGD, instead of the run's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "accuracy_share", at_least=0, at_most=1)
        in_range(self, "memory", at_least=0, below=1)
        in_range(self, "eta", at_least=0)
        in_range(self, "every", at_least=1)
        in_range(self, "client_momentum", at_least=0, below=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start and a server momentum of zeros."""
        m = torch.zeros(len(r.w0[r.net.params]))
        return Bundle(model=r.w0, m=m, count=torch.empty(0, dtype=torch.int64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with a participation count of 0."""
        return s.but(count=grow(s.count, len(r.roster), torch.tensor(0)))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model with momentum `client_momentum`; return it with the received one's accuracy."""
        w = yield Train(c.received.model, momentum=self.client_momentum)
        return Bundle(model=w, accuracy=torch.tensor(c.accuracy(c.received.model), dtype=torch.float64))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean by `information_weights`, moved by the server's momentum every `every` rounds."""
        params = r.net.params
        count = s.count.clone()
        count[r.ids] += 1
        mean = r.mean(up.model, information_weights(up.accuracy, count[r.ids], self.accuracy_share))
        m = self.memory * s.m + (1 - self.memory) * (mean - s.model)[params]
        model = mean.clone()
        if r.index % self.every == 0:
            model[params] += (1 if self.sign == "plus" else -1) * self.eta * m
        return Bundle(model=model, m=m, count=count)

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if the accuracy is not within 0..1."""
        return outside("accuracy", float(up.accuracy), 0, 1)

    can = property(
        lambda m: (
            RobustMeans(),
            Uploads(
                "its model, its training accuracy and how often it takes part",
                "its training accuracy",
                frozenset({"scores"}),
                refuses=FedFa._refuses,
            ),
            Needs(sgd=f"client_momentum is {m.client_momentum}, not 0" if m.client_momentum else ""),
            Presets(_PRESETS),
        )
    )


def information_weights(accuracy: Tensor, count: Tensor, accuracy_share: float) -> Tensor:
    """Return weights ``[m]``, float64, sum 1, from accuracies ``[m]`` and participation counts ``[m]`` of a round.

    ``I = -log2(accuracy share)`` is large where the model is bad; ``J = -log2(1 - participation share)`` where the
    client often took part: clients that are rarely seen get *less*. Each is normalised; one that is all zero counts as
    uniform, as do accuracies that are all zero.
    """
    right = accuracy.double()
    a = right / right.sum() if float(right.sum()) > 0 else torch.full_like(right, 1 / len(right))
    f = count.double() / count.double().sum()
    i, j = -(a + 1e-6).log2(), -(1 - f + 1e-5).log2()
    return accuracy_share * _shares(i) + (1 - accuracy_share) * _shares(j)


def _shares(v: Tensor) -> Tensor:
    v = v.clamp(min=0)
    total = float(v.sum())
    return v / total if total > 0 else torch.full_like(v, 1 / len(v))
