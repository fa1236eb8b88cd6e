"""IFCA: several models; every client trains the one that fits its own training data best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, robust, to_all
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow
from fedkin.functional.grouping import moved_by_share

_REDRAWS = 50  # of the start models at most


@dataclass(frozen=True)
class IFCA(Method):
    """Several cluster models; each client picks the one with the least loss on its own training data."""

    paper = "Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020"
    family = "clusters"
    tuned: ClassVar = {"clusters": "int:2..5"}

    clusters: int = 3
    """Number of cluster models; all are sent to every participant."""
    average: Literal["models", "gradients"] = "models"
    """New cluster model: the mean of its members, or the old one plus the members' changes over all participants."""
    share_body: bool = False
    """Average the body over all participants and only the head per cluster (the paper's weight sharing)."""
    choose_by: Literal["loss", "accuracy"] = "loss"
    """A client's cluster: least mean loss, ties to the first; or most right answers, ties to the last (fedbase)."""
    assign: Literal["before", "after"] = "before"
    """Choose before training; or after it, for the upload and the next round, first from a random start (fedbase)."""
    init_min_share: float = 0.0
    """Redraw all start models, up to 50 times, while a cluster attracts a smaller share of a round's clients; each
    redraw costs the round. A round with fewer clients than clusters ends the search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "clusters", at_least=1)
        in_range(self, "init_min_share", at_least=0, at_most=1 / self.clusters)

    def init(self, r: Round) -> Bundle:
        """Return independent random centres ``[clusters, P]``."""
        return Bundle(centres=self._starts(r, 0), labels=torch.empty(0, dtype=torch.int64), redraws=torch.tensor(0))

    def _starts(self, r: Round, draw: int) -> Tensor:
        # independent starts: from equal ones every client would pick the first in every round
        centres = torch.stack([r.fresh(draw * self.clusters + i) for i in range(self.clusters)])
        if self.share_body:
            centres[:, r.net.body] = r.w0[r.net.body]
        return centres

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients without a cluster."""
        return s.but(labels=grow(s.labels, len(r.roster), torch.tensor(-1)))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send all centres to every participant; with `share_body` one body and all heads."""
        if self.share_body:
            return to_all(body=s.centres[0, r.net.body], heads=s.centres[:, r.net.head])
        return to_all(centres=s.centres)

    def client_update(self, c: Client) -> Work:
        """Choose a centre by its loss on the training data, train it and return it with its number (Algorithm 1)."""
        centres, k = self._choose(c)
        start = centres[k]
        if self.assign == "after":
            start = centres[int(c.state.cluster)] if "cluster" in c.state else c.net.fresh("own", c.id)
            c.state = Bundle(cluster=torch.tensor(k))
        w = yield Train(start)
        return Bundle(model=w, cluster=torch.tensor(k))

    def _choose(self, c: Client) -> tuple[Tensor, int]:
        centres = c.received.get("centres")
        if centres is None:
            heads, body = c.received.heads, c.received.body
            centres = torch.cat([heads, body.expand(len(heads), -1)], dim=1)
        if self.choose_by == "accuracy":
            right = [c.accuracy(w) for w in centres]
            return centres, max(k for k, share in enumerate(right) if share == max(right))
        losses = [c.loss(w) for w in centres]
        return centres, losses.index(min(losses))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return each centre's new model from its members (Algorithm 1), by models or by gradients."""
        labels = s.labels.clone()
        labels[r.ids] = up.cluster
        # the authors' program looks for good starts; not in the paper, off by default
        smallest = float(torch.bincount(up.cluster, minlength=self.clusters).min()) / len(r.ids)
        searching = 0 <= int(s.redraws) < _REDRAWS and len(r.ids) >= self.clusters
        if searching and smallest < self.init_min_share:
            draw = int(s.redraws) + 1
            return Bundle(centres=self._starts(r, draw), labels=labels, redraws=torch.tensor(draw))
        if self.average == "models":  # Algorithm 1, model averaging
            centres = r.group_mean(up.model, up.cluster, s.centres)
        else:  # gradient averaging: c + sum_{k in j} n_k (w_k - c) / sum_k n_k = (1 - s) c + s mean
            means = robust.group_mean(r.aggregation, up.model, r.weight, up.cluster, s.centres)
            centres = moved_by_share(r, means, up.cluster, s.centres)
        if self.share_body:
            centres[:, r.net.body] = r.mean(up.model)[r.net.body]
        return Bundle(centres=centres, labels=labels, redraws=torch.tensor(-1))  # these starts are kept

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if the cluster's number is out of range."""
        return outside("cluster", int(up.cluster), 0, self.clusters - 1)

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return each client's cluster in its last participation, int64 ``[K]``; -1 before the first."""
        return s.labels

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of clusters."""
        return self.clusters

    def personalize(self, c: Client) -> Bundle:
        """Return the centre that the client chooses by its training data now, and its number."""
        centres, k = self._choose(c)
        k = int(c.state.get("cluster", k))  # what it is until its next round, if it is chosen after training
        return Bundle(model=centres[k], cluster=torch.tensor(k))

    can = (
        RobustMeans(),
        Uploads("its model and its cluster", "the cluster it chose by its training samples", refuses=_refuses),
        Grouped(_labels, _count),
    )
