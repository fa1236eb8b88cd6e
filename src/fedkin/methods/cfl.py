"""CFL: FedAvg that divides a cluster in two once its mean update is small but single updates are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, Logs, Presets, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_each
from fedkin.core.rows import grow, put
from fedkin.functional.divisions import fork, largest_within_reach, mean_of, more_like_second
from fedkin.functional.linkage import bipartition, cosines, lengths

_MEASURED = 5  # rounds that determine the scale of relative thresholds


_PRESETS: Table = {
    "code": {  # the authors' notebook, EMNIST over 10 clients; it weighs all clients equally
        "linkage": "complete",
        "training": {"epochs": 1, "batch_size": 128, "lr": 0.1, "schedule": "step@factor=0.99", "momentum": 0.9},
    },
}


@dataclass(frozen=True)
class CFL(Method):
    """FedAvg that divides its clients in two, again and again, where updates point apart at a stationary model.

    The paper's two criteria and its bipartition (Algorithm 1) are in `_divide`; between divisions every cluster is
    FedAvg among its members. The rest keeps track of clients that join later or were absent at a division (Algorithm
    4): a client belongs to a cluster, and trains from its centre, once its side of all divisions on the way there is
    known (``passed``); until then it is at a fork.
    """

    paper = "Sattler, Müller, Samek: Clustered Federated Learning, IEEE TNNLS 32(8), 2021"
    family = "clusters"
    tuned: ClassVar = {"eps1": "log:0.04..4", "eps2": "log:0.16..16"}

    eps1: float = 0.4
    """A cluster is at rest when the norm of its mean update is below this."""
    eps2: float = 1.6
    """A cluster at rest is divided if the norm of a member's update is above this."""
    eps: Literal["absolute", "relative"] = "absolute"
    """Both as norms, or in quarters of the largest norm of the first five rounds (then 0.4 is a tenth of it)."""
    after: int = 20
    """Rounds in which no cluster is divided yet."""
    gamma: float = 0.0
    """Minimum of sqrt((1 - cosine)/2) for the two halves' most similar members; 0: any."""
    linkage: Literal["single", "complete"] = "single"
    """How a cluster is divided in two: exactly as in the paper, or as in the authors' program."""
    split_requires: Literal["all", "reported"] = "all"
    """A division waits until all members have trained since the last one, or uses those that have; the others
    are then assigned like joining clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eps1", "eps2", "after"):
            in_range(self, name, at_least=0)
        in_range(self, "gamma", at_least=0, below=1)

    def init(self, r: Round) -> Bundle:
        """Return one cluster at the common start, without divisions."""
        return Bundle(
            centres=r.fresh(0)[None].clone(),
            labels=torch.empty(0, dtype=torch.int64),
            passed=torch.empty(0, dtype=torch.int64),  # divisions that the client has its side of
            updates=torch.empty(0, r.net.params.stop),  # the newest of every client, how long it is,
            long=torch.empty(0, dtype=torch.float64),
            fresh=torch.empty(0, dtype=torch.bool),  # and whether it is younger than its cluster
            splits=torch.empty(0, dtype=torch.int64),  # division i: the cluster divided; its second half became i + 1
            roots=torch.empty(0, r.net.size),  # the model at which it was divided
            ways=torch.empty(0, 2, r.net.params.stop),  # both halves' mean updates there
            norms=torch.zeros(1, 2),  # of every cluster: the length of the mean update and of the longest
            scale=torch.empty(0, dtype=torch.float64),  # the longest update of each of the first rounds
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients at the first cluster, before any division."""
        k = len(r.roster)
        return s.but(
            labels=grow(s.labels, k, torch.tensor(0)),
            passed=grow(s.passed, k, torch.tensor(0)),
            updates=grow(s.updates, k, torch.zeros(s.updates.shape[1])),
            long=grow(s.long, k, torch.tensor(0.0)),
            fresh=grow(s.fresh, k, torch.tensor(False)),
        )

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its cluster's model, or the model at which the next division on its way was made."""
        return to_each(model=self._starts(s, r.ids))

    def _starts(self, s: Bundle, ids: Tensor) -> Tensor:
        """Return the model of each one's cluster; for a joining client that of the next division on its way."""
        at, rows = fork(s.splits, s.labels[ids], s.passed[ids]), s.centres[s.labels[ids]]
        rows[at >= 0] = s.roots[at[at >= 0]]
        return rows

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send each client its cluster's model; at a fork that of the largest cluster it can still reach."""
        return to_each(model=s.centres[largest_within_reach(s.splits, s.labels, s.passed, r.ids)])

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the state after the round: clients at a fork assigned, clusters divided and averaged.

        Clients at a fork take the next side of their way (Algorithm 4). Every cluster with participants is tested by
        the two criteria and divided where they hold (Algorithm 1); then each moves to the mean of its members' models.
        """
        home = self._labels(s, r)[r.ids] >= 0  # those at no fork
        update = (up.model - self._starts(s, r.ids))[:, r.net.params]
        s = self._walk(s, r.ids[~home], update[~home])
        if not bool(home.any()):
            return s
        r, long = r.among(r.ids[home]), lengths(update[home])
        s = s.but(
            updates=put(s.updates, r.ids, update[home]),
            long=put(s.long, r.ids, long),
            fresh=put(s.fresh, r.ids, torch.tensor(True)),
            scale=s.scale if len(s.scale) == _MEASURED else torch.cat([s.scale, long.max()[None]]),
        )
        for c in s.labels[r.ids].unique().tolist():
            s = self._divide(s, r, c)
        return s.but(centres=r.group_mean(up.model[home], s.labels[r.ids], s.centres))

    def _walk(self, s: Bundle, ids: Tensor, update: Tensor) -> Bundle:
        """Move joining clients past one more division, to the half that is more like their update (Algorithm 4)."""
        at = fork(s.splits, s.labels[ids], s.passed[ids])
        side = torch.where(more_like_second(update, s.ways[at]), at + 1, s.labels[ids])
        return s.but(labels=put(s.labels, ids, side), passed=put(s.passed, ids, at + 1))

    def _divide(self, s: Bundle, r: Round, c: int) -> Bundle:
        """Return the state with cluster c measured and, if it is at rest while a member is not, divided in two."""
        members = (self._labels(s, r) == c).nonzero().flatten()
        ids = members[s.fresh[members]]
        mean, longest = mean_of(s.updates, ids, r).double().norm(), s.long[ids].max()
        s = s.but(norms=put(s.norms, torch.tensor([c]), torch.stack([mean, longest])))
        unit = float(s.scale.max()) / 4 if self.eps == "relative" else 1.0
        # the paper's two criteria: the cluster is at rest, a member is not
        apart = float(mean) < self.eps1 * unit and float(longest) > self.eps2 * unit
        waits = len(ids) < len(members) and self.split_requires == "all"
        if r.index <= self.after or waits or len(ids) <= 2 or not apart:
            return s
        # Algorithm 1: the halves whose largest similarity across is smallest
        second, across = bipartition(cosines(s.updates[ids]), self.linkage)
        if ((1 - across) / 2) ** 0.5 <= self.gamma:
            return s
        model, i = s.centres[[c]], len(s.splits)
        ways = [mean_of(s.updates, ids[half], r) for half in (~second, second)]
        return s.but(
            labels=put(s.labels, ids[second], torch.tensor(i + 1)),
            passed=put(s.passed, ids, torch.tensor(i + 1)),
            fresh=put(s.fresh, ids, torch.tensor(False)),
            splits=torch.cat([s.splits, torch.tensor([c])]),
            **{name: torch.cat([s[name], model]) for name in ("centres", "roots")},
            ways=torch.cat([s.ways, torch.stack(ways)[None]]),
            norms=torch.cat([s.norms, torch.zeros(1, 2)]),
        )

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the cluster of each client, int64 ``[K]``; -1 for a client at a fork."""
        return torch.where(fork(s.splits, s.labels, s.passed) < 0, s.labels, -1)

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of clusters."""
        return len(s.centres)

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the number of clusters, and both norms of the cluster nearest to a division."""
        mean, longest = max(s.norms.tolist(), key=lambda n: n[1] / max(n[0], 1e-30))  # the nearest to a division
        return {"clusters": len(s.centres), "mean_update": mean, "longest_update": longest}

    can = (
        RobustMeans(),
        Uploads("its model"),
        Grouped(_labels, _count, of_models=True),
        Logs(_numbers),
        Presets(_PRESETS),
    )
