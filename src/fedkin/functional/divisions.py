"""The tree that repeated division of clusters makes, as a vector of numbers.

At first there is one cluster, number 0. Division i divides cluster ``splits[i]``: its first half keeps the number, its
second half becomes cluster i + 1. A client has the number of a cluster and has ``passed`` N divisions; it is at home if
that cluster was not divided after these.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import Round


def fork(splits: Tensor, labels: Tensor, passed: Tensor) -> Tensor:
    """Return the division at which each client still has to find its side, int64 ``[m]``; -1 for clients at home.

    Args:
        splits: int64 ``[S]``.
        labels, passed: int64 ``[m]``, the number of each client's cluster and of the divisions that it has passed.
    """
    if len(splits) == 0:
        return torch.full_like(labels, -1)
    numbers = torch.arange(len(splits))
    ahead = (splits == labels[:, None]) & (numbers >= passed[:, None])
    return torch.where(ahead.any(1), ahead.to(torch.uint8).argmax(1), -1)


def within_reach(splits: Tensor, label: int, passed: int) -> list[int]:
    """Return the clusters, ascending, that a client at ``label`` can still end up in; only its own if it is at home."""
    labels = [label]
    for i, divided in enumerate(splits.tolist()[passed:], passed):
        if divided in labels:
            labels.append(i + 1)
    return labels


def largest_within_reach(splits: Tensor, labels: Tensor, passed: Tensor, ids: Tensor) -> Tensor:
    """Return for each of ``ids [m]`` the largest cluster that it can still end up in, int64 ``[m]``.

    The size of a cluster is the number of clients at home in it.
    """
    home = labels[fork(splits, labels, passed) < 0]
    size = torch.bincount(home, minlength=len(splits) + 1).tolist()
    places, mine = torch.stack([labels[ids], passed[ids]], 1).unique(dim=0, return_inverse=True)  # few, as clusters are
    best = [max(within_reach(splits, at, after), key=size.__getitem__) for at, after in places.tolist()]
    return torch.tensor(best, dtype=torch.int64)[mine]


def more_like_second(rows: Tensor, pairs: Tensor) -> Tensor:
    """Return whether each of ``rows [m, P]`` has the larger cosine with the second of its ``pairs [m, 2, P]``."""
    alike = F.cosine_similarity(rows[:, None].double(), pairs.double(), dim=2)
    return alike[:, 1] > alike[:, 0]


def mean_of(bank: Tensor, ids: Tensor, r: Round) -> Tensor:
    """Return the mean of the rows ``ids [m]`` of ``bank [K, P]`` by the run's rule and weights, ``[P]``.

    If they are most of all rows, they are not copied.
    """
    if 2 * len(ids) <= len(bank):
        return r.but(ids=ids).mean(bank[ids])
    weight = torch.zeros(len(bank), dtype=torch.float64).index_copy_(0, ids, r.but(ids=ids).weight)
    return r.mean(bank, weight)


def rows_or_mean(bank: Tensor, record: Tensor, blank: Tensor | float, r: Round) -> Tensor:
    """Return the rows of ``r.ids``, ``[m, P]``; for clients that have not taken part yet the mean of all that have.

    The common start would not fit models that others have trained; while no client has taken part, rows stay unchanged.

    Args:
        bank, record: a row for each client, ``[K, P]`` and ``[K, Q]``; that of the record is ``blank`` until then.
        blank: ``[Q]``, or one number.
        r: the round, whose rule and weights make the mean.
    """
    rows, new = bank[r.ids], (record[r.ids] == blank).all(1)
    if bool(new.any()):  # only then are all rows read, one at a time, as there may be many
        seen = torch.tensor([bool((row != blank).any()) for row in record]).nonzero()[:, 0]
        rows[new] = mean_of(bank, seen, r) if len(seen) else rows[new]
    return rows
