"""FeSEM: several centres; the server groups clients by their models and each trains its group's centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_each
from fedkin.core.rows import grow, put, weighted_mean
from fedkin.functional.grouping import kmeans, lloyd


@dataclass(frozen=True)
class FeSEM(Method):
    """Several cluster models; the server assigns each client to the nearest by K-means on the uploaded models."""

    paper = "Long, Xie, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning, World Wide Web 26, 2023"
    family = "clusters"
    tuned = property(lambda m: {"clusters": "int:2..5"} | ({"lam": [0.001, 0.01, 0.1]} if m.lam else {}))

    clusters: int = 3
    """Number of cluster models."""
    feature: Literal["fc", "all", "head"] = "fc"
    """Part of a model for K-means: weights and biases of all linear layers, all parameters, or the head's weight."""
    lam: float = 0.0
    """Weight of lam/2 ||w - centre||^2 in every client's loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "clusters", at_least=1)
        in_range(self, "lam", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return all centres at the common start."""
        # one common start: the mean of differently initialised networks is useless
        centres = r.fresh(0).expand(self.clusters, -1).clone()
        width = r.net.select(centres, self.feature).shape[1]
        return Bundle(
            centres=centres,
            labels=torch.empty(0, dtype=torch.int64),
            features=torch.empty(0, width),
            seen=torch.empty(0, dtype=torch.bool),
            grouped=torch.tensor(False),
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients without a cluster."""
        return s.but(
            labels=grow(s.labels, len(r.roster), torch.tensor(-1)),
            features=grow(s.features, len(r.roster), torch.zeros(s.features.shape[1])),
            seen=grow(s.seen, len(r.roster), torch.tensor(False)),
        )

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its cluster's centre; to clients without a cluster the mean centre."""
        labels = s.labels[r.ids]
        rows = s.centres[labels.clamp(min=0)]
        if bool((labels < 0).any()):  # not grouped yet: the average centre, which at the start is the common start
            known = s.labels[s.labels >= 0]
            size = torch.bincount(known, minlength=self.clusters) if len(known) else torch.ones(self.clusters)
            rows[labels < 0] = weighted_mean(s.centres, size)
        return to_each(model=rows)

    def client_update(self, c: Client) -> Work:
        """Train the received centre, with lam/2 ||w - centre||^2 in the loss, and return it."""
        w = yield Train(c.received.model, center=c.received.model, mu=self.lam)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Group all clients by K-means on their last models; return each centre's mean over its participants."""
        features = put(s.features, r.ids, r.net.select(up.model, self.feature))
        seen = s.seen.clone()
        seen[r.ids] = True
        points, labels = features if bool(seen.all()) else features[seen], s.labels.clone()
        labels[seen] = self._group(s, r, points, r.roster.size[seen])
        centres = r.group_mean(up.model, labels[r.ids], s.centres)
        return Bundle(centres=centres, labels=labels, features=features, seen=seen, grouped=torch.tensor(True))

    def _group(self, s: Bundle, r: Round, points: Tensor, sizes: Tensor) -> Tensor:
        """Return the clusters of the clients; the first are those of the best of five K-means runs."""
        if bool(s.grouped):  # from the centres as they are, so that a cluster keeps its number
            return lloyd(points, sizes, r.net.select(s.centres, self.feature))[0]
        return kmeans(points, sizes, self.clusters, r.rng)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the cluster of each client, int64 ``[K]``; -1 for clients not grouped yet."""
        return s.labels

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of clusters."""
        return self.clusters

    can = (RobustMeans(), Uploads("its model"), Grouped(_labels, _count, of_models=True))
