"""Clustered sampling: every slot of a cohort has a distribution of its own, and the plain mean over slots is unbiased.

A table int64 ``[m, K]`` holds these distributions: slot j draws client i with chance ``table[j, i] / M``, M being the
sum of the clients' sizes n_i (0 or more each, their sum above 0). Rows sum to M and columns to ``m n_i``, exactly, so
that client i is expected ``m n_i / M`` times whatever the rows look like (Fraboni et al., ICML 2021, Proposition 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.functional.pairs import cosines_from, differences_from, distances_from


def table_by_size(sizes: Tensor, slots: int) -> Tensor:
    """Clients of similar size in one slot (Algorithm 1): the largest first, poured into one slot after another.

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
    """Similar clients in one slot (Algorithm 2): the heaviest groups get a slot each, the others fill these up.

    A client that is due in every round (``m n_i >= M``) first gets slots of its own; what is `left_over` of it is dealt
    with like the others.

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
    """What is left of each client's mass ``m n_i`` beside slots of its own, int64 ``[K]``, each below M."""
    return slots * sizes % sizes.sum()


def draw_slots(table: Tensor, rng: torch.Generator) -> Tensor:
    """One client for each slot of a table ``[m, K]``, independently: positions int64 ``[m]``, some perhaps twice."""
    ticket = torch.randint(int(table[0].sum()), (len(table), 1), generator=rng)
    return torch.searchsorted(table.cumsum(1), ticket, right=True)[:, 0]


def unlikeness(updates: Tensor, ids: Tensor, measure: str) -> Tensor:
    """How unlike the last updates of ``ids [m]`` are to all ``updates [K, P]``, float64 ``[m, K]``, 0 to itself.

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
    """Masses ``[n]`` poured in order into bins with this room ``[b]``, in order: what came from where, ``[b, n]``."""
    filled, full = mass.cumsum(0), room.cumsum(0)[:, None]
    above = torch.minimum(filled, full)
    below = torch.maximum(filled - mass, full - room[:, None])
    return (above - below).clamp(min=0)


def _shuffled(ids: Tensor, rng: torch.Generator) -> Tensor:
    return ids[torch.randperm(len(ids), generator=rng)]
