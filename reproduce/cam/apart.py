"""A control for IFCA-CAM: as many models per client, trained apart instead of with their outputs added."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin import Bundle, Client, Method, Net, Round, Train, to_all
from fedkin.capabilities import Grouped, Uploads
from fedkin.core import Download, Work
from fedkin.core.rows import grow


@dataclass(frozen=True)
class Apart(Method):
    """FedAvg's global model next to IFCA's cluster models; a client predicts by the mean of both models' probabilities.

    The global model and the cluster models are those of FedAvg and of IFCA with the same cohorts: each is trained with
    its own loss, as often as in IFCA-CAM, and a client chooses the cluster model of least loss on its training data.
    """

    family = "clusters"

    clusters: int = 3
    """Number of cluster models."""

    def init(self, r: Round) -> Bundle:
        centres = torch.stack([r.fresh(i) for i in range(self.clusters)])
        return Bundle(model=r.w0, centres=centres, labels=torch.empty(0, dtype=torch.int64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        return s.but(labels=grow(s.labels, len(r.roster), torch.tensor(-1)))

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model, centres=s.centres)

    def client_update(self, c: Client) -> Work:
        k = _nearest(c)
        model, centre = yield (Train(c.received.model), Train(c.received.centres[k]))
        return Bundle(model=model, centre=centre, cluster=torch.tensor(k))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        labels = s.labels.clone()
        labels[r.ids] = up.cluster
        centres = r.group_mean(up.centre, up.cluster, s.centres)
        return Bundle(model=r.mean(up.model), centres=centres, labels=labels)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        return s.labels

    def _count(self, s: Bundle, r: Round) -> int:
        return self.clusters

    def personalize(self, c: Client) -> Bundle:
        k = _nearest(c)
        return Bundle(model=c.received.model, centre=c.received.centres[k], cluster=torch.tensor(k))

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        both = torch.stack([net(b.model, x), net(b.centre, x)])
        return both.log_softmax(2).logsumexp(0)  # up to a constant the log of the mean probability

    can = (
        Uploads("a global model, a cluster model and its cluster", "the cluster it chose by its training samples"),
        Grouped(_labels, _count),
    )


def _nearest(c: Client) -> int:
    """The cluster model with the least loss on the client's training data; ties go to the first."""
    losses = [c.loss(w) for w in c.received.centres]
    return losses.index(min(losses))
