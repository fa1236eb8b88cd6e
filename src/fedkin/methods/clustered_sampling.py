"""Clustered sampling: every slot of the cohort is drawn from another group of clients; the estimate stays unbiased.

A table int64 ``[m, K]`` holds the distributions of the m slots: slot j draws client i with probability
``table[j, i] / M``, where M is the sum of the clients' sizes n_i (0 or more each, their sum above 0). Rows sum to M and
columns to ``m n_i``, exactly, so that client i is expected ``m n_i / M`` times for any rows
(Proposition 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.capabilities import RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all, to_each
from fedkin.core.rows import grow, put, weighted_mean
from fedkin.functional.grouping import ward_groups
from fedkin.functional.pairs import cosines_from, differences_from, distances_from, renewed, widened


@dataclass(frozen=True)
class ClusteredSampling(Method):
    """One global model; each slot of a cohort draws from another group of clients, alike in updates or size."""

    paper = "Fraboni, Vidal, Kameni, Lorenzi: Clustered Sampling, Low-Variance and Improved Representativity, ICML 2021"
    family = "one global model"

    by: Literal["similarity", "size"] = "similarity"
    """Property that clients of one slot share: the direction of their last updates (Algorithm 2), or their number of
    samples (Algorithm 1), for which the server need not store updates."""
    measure: Literal["angle", "l2", "l1"] = "angle"
    """Distance of two updates: the angle between them, their squared distance, or the sum of absolute differences."""
    linkage_input: Literal["rows", "condensed"] = "rows"
    """Input of Ward's dendrogram: each client's row of the matrix of distances, taken as a point (the authors'
    program), or the distances themselves."""

    @property
    def title(self) -> str:
        """The name of the method, with "(size)" for Algorithm 1."""
        return "Clustered Sampling" + (" (size)" if self.by == "size" else "")

    @property
    def summary(self) -> str:
        """What the method does in one sentence, with what the clients of a group have in common."""
        groups = "of similar size" if self.by == "size" else "with similar updates"
        return f"Cohorts drawn from groups of clients {groups}, without bias; one model."

    def init(self, r: Round) -> Bundle:
        """Return the common start; for `by` "similarity" with empty records of updates and their distances."""
        s = Bundle(model=r.w0)
        if self.by == "size":
            return s
        # every client's last update, and how unlike any two of them are
        return s.but(updates=torch.empty(0, r.net.params.stop), unlike=torch.empty(0, 0, dtype=torch.float64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with an update of zeros; nothing for `by` "size"."""
        if self.by == "size" or len(r.ids) == 0:
            return s
        k, updates = len(s.updates), grow(s.updates, len(r.roster), torch.zeros(r.net.params.stop))
        row = unlikeness(updates[: k + 1], torch.tensor([k]), self.measure)[0, :k]  # joining clients have none yet
        return s.but(updates=updates, unlike=widened(s.unlike, len(r.roster), row))

    def sample(self, s: Bundle, r: Round) -> Bundle:
        """Draw a client for each slot from the table's distributions; return them with how often each was drawn."""
        rng = r.rng
        drawn = r.ids[draw_slots(self.table(s, r, rng), rng)]
        ids, times = drawn.unique(return_counts=True)
        return Bundle(ids=ids, times=times)

    def table(self, s: Bundle, r: Round, rng: torch.Generator) -> Tensor:
        """Return the distribution of each slot of this round, int64 ``[slots, m]`` (see the top of this file)."""
        sizes = r.weight.long()
        if self.by == "size":
            return table_by_size(sizes, r.cohort)
        d = s.unlike[r.ids][:, r.ids]
        pairs = torch.pdist(d) if self.linkage_input == "rows" else d[torch.triu(torch.ones_like(d), 1) > 0]
        group = ward_groups(pairs, left_over(sizes, r.cohort), int(sizes.sum()))
        return table_by_group(sizes, r.cohort, group, rng)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model, and to each participant how often it was drawn."""
        return to_all(model=s.model) | to_each(times=self._times(r))

    def _times(self, r: Round) -> Tensor:
        """Return how often each of ``r.ids`` was drawn; once where no client was drawn."""
        return r.drawn.get("times", torch.ones_like(r.ids))

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every client."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model once per slot that drew the client and return the mean."""
        runs = int(c.received.times)
        trained = yield tuple(Train(c.received.model) for _ in range(runs))
        return Bundle(model=weighted_mean(torch.stack(trained), torch.ones(runs)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean over slots, 1/m sum_j w_(l_j), and store the participants' updates for the next table."""
        # every slot has the same weight: the draw already depends on the sizes
        s_new = s.but(model=r.mean(up.model, self._times(r)))
        if self.by == "size":
            return s_new
        moved = up.model[:, r.net.params] - s.model[r.net.params]
        updates = put(s.updates, r.ids, moved)
        return s_new.but(updates=updates, unlike=renewed(s.unlike, r.ids, unlikeness(updates, r.ids, self.measure)))

    can = (RobustMeans(), Uploads("its model"))


# ---- the distributions of the slots ---------------------------------------------------------------------------------
def table_by_size(sizes: Tensor, slots: int) -> Tensor:
    """Put clients of similar size into one slot (Algorithm 1): the largest first, into one slot after another.

    Args:
        sizes: int64 ``[K]``; slots: m.

    Returns:
        The table ``[m, K]``; equal sizes are taken in the order of ids.
    """
    order = sizes.sort(descending=True, stable=True).indices
    table = torch.zeros(slots, len(sizes), dtype=torch.int64)
    table[:, order] = _pour(slots * sizes[order], sizes.sum().expand(slots))
    return table


def table_by_group(sizes: Tensor, slots: int, group: Tensor, rng: torch.Generator) -> Tensor:
    """Put similar clients into one slot (Algorithm 2): the heaviest groups get a slot each, others fill these up.

    A client that is due in every round (``m n_i >= M``) first gets slots of its own; what is `left_over` of it is
    treated like the others.

    Args:
        sizes: int64 ``[K]``; slots: m.
        group: int64 ``[K]``, groups numbered by their first client, each with at most M left over.
        rng: the order inside the groups that are divided.

    Returns:
        The table ``[m, K]``: own slots, then groups from light to heavy.
    """
    total, rest = sizes.sum(), left_over(sizes, slots)
    own = torch.arange(len(sizes)).repeat_interleave(slots * sizes // total)
    table = torch.zeros(slots, len(sizes), dtype=torch.int64)
    table[torch.arange(len(own)), own] = total
    free = slots - len(own)
    if free == 0:
        return table
    weight = torch.zeros(int(group.max()) + 1, dtype=torch.int64).index_add_(0, group, rest)
    order = weight.sort(stable=True).indices
    kept, divided = order[-free:], order[:-free]
    table[len(own) :] = torch.where(group == kept[:, None], rest, 0)
    members = group.sort(stable=True).indices.split(torch.bincount(group).tolist())
    queue = torch.cat([group[:0], *(_shuffled(members[g], rng) for g in divided.tolist())])
    table[len(own) :, queue] += _pour(rest[queue], total - weight[kept])
    return table


def left_over(sizes: Tensor, slots: int) -> Tensor:
    """Return the rest of each client's mass ``m n_i`` after slots of its own, int64 ``[K]``, each below M."""
    return slots * sizes % sizes.sum()


def draw_slots(table: Tensor, rng: torch.Generator) -> Tensor:
    """Draw one client for each slot of a table ``[m, K]``, independently: int64 ``[m]``, repeats are possible."""
    ticket = torch.randint(int(table[0].sum()), (len(table), 1), generator=rng)
    return torch.searchsorted(table.cumsum(1), ticket, right=True)[:, 0]


def unlikeness(updates: Tensor, ids: Tensor, measure: str) -> Tensor:
    """Return distances of the last updates of ``ids [m]`` to all ``updates [K, P]``, float64 ``[m, K]``, 0 to itself.

    Args:
        measure: ``angle`` between updates, in radians, 0 from and to a client without an update yet; ``l2``, the
            squared Euclidean distance; ``l1``, the sum of absolute differences.
    """
    if measure == "l2":
        return distances_from(updates, ids)
    if measure == "l1":
        return differences_from(updates, ids, 1)
    moved = updates.any(1)
    # of parallel updates a cosine may be rounded to more than 1, where arccos is NaN: `cosines_from` keeps it within
    return torch.where(moved[ids, None] & moved, cosines_from(updates, ids).arccos(), 0.0)


def _pour(mass: Tensor, room: Tensor) -> Tensor:
    """Fill masses ``[n]`` in order into bins of capacities ``[b]`` and return the amounts, ``[b, n]``."""
    filled, full = mass.cumsum(0), room.cumsum(0)[:, None]
    above = torch.minimum(filled, full)
    below = torch.maximum(filled - mass, full - room[:, None])
    return (above - below).clamp(min=0)


def _shuffled(ids: Tensor, rng: torch.Generator) -> Tensor:
    return ids[torch.randperm(len(ids), generator=rng)]
