"""Clustered sampling: every slot of the cohort is drawn from another group of clients; the estimate stays unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all, to_each
from fedkin.core.rows import grow, put, weighted_mean
from fedkin.functional.grouping import ward_groups
from fedkin.functional.pairs import renewed, widened
from fedkin.functional.sampling import draw_slots, left_over, table_by_group, table_by_size, unlikeness


@dataclass(frozen=True)
class ClusteredSampling(Method):
    """One global model; each slot of a cohort draws from clients of its own, alike in their updates or in size."""

    paper = "Fraboni, Vidal, Kameni, Lorenzi: Clustered Sampling, Low-Variance and Improved Representativity, ICML 2021"
    family = "one global model"
    reveals = "its model"
    beside_training = ""
    robust = True
    secure_aggregation = property(lambda m: m.by == "size")

    by: Literal["similarity", "size"] = "similarity"
    """What clients of one slot have in common: the direction of their last updates (Algorithm 2), or their number of
    samples (Algorithm 1), for which the server need not remember anybody's update."""
    measure: Literal["angle", "l2", "l1"] = "angle"
    """How unlike two updates are: the angle between them, their squared distance, or the sum of their differences."""
    linkage_input: Literal["rows", "condensed"] = "rows"
    """What Ward's dendrogram is made of: each client's row of the matrix of distances, taken for a point (the authors'
    program), or the distances themselves."""
    dedupe: Literal["train", "weight"] = "train"
    """A client that is drawn twice trains twice, on different batches, or trains once and weighs double."""

    def init(self, r: Round) -> Bundle:
        s = Bundle(model=r.w0)
        if self.by == "size":
            return s
        # every client's last update, and how unlike any two of them are
        return s.but(updates=torch.empty(0, r.net.params.stop), unlike=torch.empty(0, 0, dtype=torch.float64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        if self.by == "size" or len(r.ids) == 0:
            return s
        k, updates = len(s.updates), grow(s.updates, len(r.roster), torch.zeros(r.net.params.stop))
        row = unlikeness(updates[: k + 1], torch.tensor([k]), self.measure)[0, :k]  # newcomers are all without one
        return s.but(updates=updates, unlike=widened(s.unlike, len(r.roster), row))

    def sample(self, s: Bundle, r: Round) -> Bundle:
        rng = r.rng
        drawn = r.ids[draw_slots(self.table(s, r, rng), rng)]
        ids, times = drawn.unique(return_counts=True)
        return Bundle(ids=ids, times=times)

    def table(self, s: Bundle, r: Round, rng: torch.Generator) -> Tensor:
        """What each slot of this round draws from, int64 ``[slots, m]`` (see `fedkin.functional.sampling`)."""
        sizes = r.weight.long()
        if self.by == "size":
            return table_by_size(sizes, r.cohort)
        d = s.unlike[r.ids][:, r.ids]
        pairs = torch.pdist(d) if self.linkage_input == "rows" else d[torch.triu(torch.ones_like(d), 1) > 0]
        group = ward_groups(pairs, left_over(sizes, r.cohort), int(sizes.sum()))
        return table_by_group(sizes, r.cohort, group, rng)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model) | to_each(times=self._times(r))

    def _times(self, r: Round) -> Tensor:
        """How often each of ``r.ids`` was drawn; once where nobody was."""
        return r.drawn.get("times", torch.ones_like(r.ids))

    def pools(self, s: Bundle, r: Round) -> Bundle:
        return Bundle(group=torch.zeros_like(r.ids), weight=self._times(r))

    def deliver(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        runs = int(c.received.times) if self.dedupe == "train" else 1
        trained = yield tuple(Train(c.received.model) for _ in range(runs))
        return Bundle(model=weighted_mean(torch.stack(trained), torch.ones(runs)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        # every slot counts the same: sizes have had their say in the draw
        s_new = s.but(model=r.mean(up.model, self._times(r)))
        if self.by == "size":
            return s_new
        moved = up.model[:, r.net.params] - s.model[r.net.params]
        updates = put(s.updates, r.ids, moved)
        return s_new.but(updates=updates, unlike=renewed(s.unlike, r.ids, unlikeness(updates, r.ids, self.measure)))
