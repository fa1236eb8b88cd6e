"""PACFL: clients whose inputs span similar subspaces, class by class, form clusters before training; each is FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, Logs, Presets, PrivateSums, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_each
from fedkin.core.rows import grow, side_by_side
from fedkin.functional.grouping import first_argmin
from fedkin.functional.linkage import Linkage, agglomerate

Measure = Literal["smallest", "vectors"]
_NEW = -1  # label of a client that is not placed yet
_BLOCK = 128  # clients whose vectors are held in float64 at a time
_PART = 16  # and of those that they are compared with
_RANK = 1e-6  # a direction below this fraction of the longest is rounding: vectors are sent as float32


_PRESETS: Table = {
    "code": {  # MMorafah/PACFL, scripts/pacfl.sh: CIFAR-10, two classes per client
        "threshold": 4.9,
        "training": {"lr": 0.01, "momentum": 0.5, "epochs": 10, "batch_size": 10},
    },
}


@dataclass(frozen=True)
class PACFL(Method):
    """Clusters are made once, by the angles between the main directions of clients' inputs; each is FedAvg."""

    paper = (
        "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in "
        "Clustered FL via Principal Angles Between Client Data Subspaces, AAAI 2023"
    )
    family = "clusters"
    tuned: ClassVar = {"threshold": "log:4..40"}

    vectors: int = 3
    """Principal vectors of each class that a client sends."""
    threshold: float = 13.0
    """Largest angle, in degrees, at which two clusters are joined: 0 joins equal clients alone, 90 all."""
    measure: Measure = "vectors"
    """The angle of two clients: the smallest of two of their vectors, as in the authors' program, or the smallest
    principal angle of the subspaces that all vectors of each span."""
    linkage: Linkage = "average"
    """The angle of two clusters: that of their nearest clients, of their farthest, or the mean over all pairs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "vectors", at_least=1)
        in_range(self, "threshold", at_least=0, at_most=90)

    def describe(self, c: Client) -> Bundle:
        """Return the client's principal vectors ``[C, p, D]``; rows of zeros where a class has fewer directions."""
        x, width = c.data.x.flatten(1), c.data.x[:1].numel()
        signature = torch.zeros(c.net.classes, self.vectors, width)
        for k in c.data.y.unique().tolist():
            u = principal_vectors(x[c.data.y == k], self.vectors)
            signature[k, : len(u)] = u
        return Bundle(signature=signature)

    def init(self, r: Round) -> Bundle:
        """Return no clusters; they are made of the clients that join first."""
        return Bundle(centres=torch.empty(0, r.net.size), labels=torch.empty(0, dtype=torch.int64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Cluster the first clients by their angles; place later ones, each in the nearest cluster or in a new one."""
        apart = angles(r.roster.described.signature, r.ids, self.measure)
        labels = grow(s.labels, len(r.roster), torch.tensor(_NEW))
        if len(s.labels) == 0:
            labels[r.ids] = agglomerate(apart[:, r.ids], 1, self.linkage, within=self.threshold)
        else:
            for i, row in zip(r.ids.tolist(), apart, strict=True):
                labels[i] = self._place(row, labels)
        return Bundle(centres=grow(s.centres, int(labels.max()) + 1, r.fresh(0)), labels=labels)

    def _place(self, row: Tensor, labels: Tensor) -> int:
        """Return the cluster nearest to a client at angles ``row [K]``, or the next number if none is near enough."""
        away = []
        for k in range(int(labels.max()) + 1):
            d = row[labels == k]
            away.append(d.min() if self.linkage == "single" else d.max() if self.linkage == "complete" else d.mean())
        k = int(first_argmin(torch.stack(away)[None]))
        return k if float(away[k]) <= self.threshold else len(away)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its cluster's model."""
        return to_each(model=s.centres[s.labels[r.ids]])

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return each cluster's mean of the trained models, weighted by samples."""
        return s.but(centres=r.group_mean(up.model, s.labels[r.ids], s.centres))

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool for each cluster."""
        return Bundle(group=s.labels[r.ids], weight=r.weight)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the cluster of each client, int64 ``[K]``."""
        return s.labels

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of clusters."""
        return len(s.centres)

    def _caveat(self, net: Net, s: Bundle) -> str:
        """Return that all clients are one cluster, or each one of its own: then it is another method."""
        clusters, clients = len(s.centres), len(s.labels)
        if clients < 2 or 1 < clusters < clients:
            return ""
        what, mend = f"one cluster of all {clients} clients, so it is FedAvg here", "smaller"
        if clusters > 1:
            what, mend = f"a cluster for each of {clients} clients, so it is Local here", "larger"
        return f"PACFL made {what}; try a {mend} threshold than {self.threshold:g} degrees"

    can = (
        RobustMeans(),
        PrivateSums(_pools),
        Uploads(
            "a few principal vectors of its inputs of each class, and its model",
            "principal vectors of its inputs, once",
        ),
        Grouped(_labels, _count, of_models=True),
        Logs(caveat=_caveat),
        Presets(_PRESETS),
    )


def principal_vectors(x: Tensor, count: int) -> Tensor:
    """Return the first principal vectors of samples ``x [n, D]`` (not centred), float32 ``[min(rank, count), D]``.

    These are left singular vectors of the data matrix with a column per sample, of length 1.
    """
    _, size, axes = torch.linalg.svd(x.double(), full_matrices=False)
    basis: Tensor = axes[:count][size[:count] > _RANK * size[0]].float()
    return basis


def angles(signature: Tensor, ids: Tensor, measure: Measure) -> Tensor:
    """Return the angles of the clients ``ids [m]`` to all clients, in degrees, float64 ``[m, K]``, from 0 to 90.

    Args:
        signature: vectors of length 1 or 0, ``[K, C, p, D]``.
        measure: "smallest": ``arccos`` of the largest singular value of ``Q_i' Q_j``, Q an orthonormal basis of the
            span; "vectors": of the largest ``|u'v|``. A singular vector's sign means nothing.
    """
    out = torch.full((len(ids), len(signature)), -1.0, dtype=torch.float64)
    left = torch.ones(len(signature), dtype=torch.bool)
    for rows in torch.arange(len(ids)).split(_BLOCK):
        mine, others = _frames(signature[ids[rows]], measure), left.nonzero()[:, 0]
        spans = [slice(start, start + _PART) for start in range(0, len(others), _PART)]
        parts = side_by_side(partial(_between, mine, signature, others, measure), spans, mine.numel() * len(others))
        out[rows[:, None], others] = torch.cat(list(parts), 1)
        left[ids[rows]] = False  # later rows have their angles to these clients from here
    among = out[:, ids]
    out[:, ids] = torch.maximum(among, among.T)
    return out


def _between(mine: Tensor, signature: Tensor, others: Tensor, measure: Measure, span: slice) -> Tensor:
    """Return the angles of clients with frames ``mine [a, r, D]`` to a span of others, float64 ``[a, b]``."""
    theirs = _frames(signature[others[span]], measure)
    products = (mine.flatten(0, 1) @ theirs.flatten(0, 1).T).view(*mine.shape[:2], *theirs.shape[:2])
    if measure == "vectors":
        cosine = products.abs().amax((1, 3))
    else:
        cosine = torch.linalg.matrix_norm(products.transpose(1, 2), ord=2)
    cosine[~mine.any(2).any(1)[:, None] & ~theirs.any(2).any(1)] = 1  # all inputs of both are 0
    return cosine.clamp(max=1).arccos().rad2deg()


def _frames(signature: Tensor, measure: Measure) -> Tensor:
    """Return what angles are measured between, float64 ``[k, r, D]``: vectors, or orthonormal bases of their spans."""
    rows = signature.flatten(1, 2).double()
    if measure == "vectors":
        return rows
    _, size, axes = torch.linalg.svd(rows, full_matrices=False)
    there = size > _RANK * size[:, :1]
    bases: Tensor = (axes * there[..., None])[:, : max(1, int(there.sum(1).max()))]
    return bases
