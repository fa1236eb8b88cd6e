"""Distances and cosines between all pairs of clients, kept up to date: only changed pairs are computed again.

A round changes m of K rows, so m K pairs instead of K^2. All sums run in float64, in blocks of rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 1 << 20  # elements of float64 held at a time
_WIDTH = 1 << 10  # columns in a block
_NOISE = 1e-13  # a squared distance below this fraction of both squared norms is rounding


def distances_from(rows: Tensor, ids: Tensor) -> Tensor:
    """Return squared Euclidean distances of the rows ``ids [m]`` to all ``rows [K, P]``, float64 ``[m, K]``.

    The mean of the chosen rows is subtracted first: on close models inner products lose every digit without it. Equal
    rows are at distance 0.
    """
    products, squares = _products(rows, ids, centred=True)
    both = squares[ids, None] + squares
    d = both - 2 * products
    return torch.where(d > _NOISE * both, d, 0.0).scatter_(1, ids[:, None], 0.0)


def cosines_from(rows: Tensor, ids: Tensor) -> Tensor:
    """Return cosine similarities of the rows ``ids [m]`` with all ``rows [K, P]``, float64 ``[m, K]``.

    1 with itself and, exactly, with rows that are parallel up to rounding; 0 with a zero row.
    """
    products, squares = _products(rows, ids, centred=False)
    return cosines_of(products, squares[ids], squares).scatter_(1, ids[:, None], 1.0)


def cosines_of(products: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return cosines ``[m, K]`` of inner products ``[m, K]`` and squared lengths ``a [m]`` and ``b [K]``, in -1..1.

    0 with a row of length 0; exactly 1 for rows that are parallel up to rounding, so that equal rows have
    distance 0.
    """
    size = a.sqrt()[:, None] * b.sqrt()
    cos = torch.where(size > 0, products / torch.where(size > 0, size, 1.0), 0.0)
    return torch.where(cos > 1 - 1e-12, 1.0, cos.clamp(min=-1.0))


def differences_from(rows: Tensor, ids: Tensor, order: int) -> Tensor:
    """Return ``sum |a - b|^order`` of the rows ``ids [m]`` and all ``rows [K, P]``, float64 ``[m, K]``.

    The sum runs over columns.

    Computed from differences, for order 1 and 2: only equal rows are at 0. This takes at least three times the
    work of products, so it is for classifiers, not for whole models.
    """
    out = torch.zeros(len(ids), len(rows), dtype=torch.float64)
    for some, columns in _blocks(rows):
        away = torch.cdist(
            rows[ids, columns].double(),
            rows[some, columns].double(),
            p=order,
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        out[:, some] += away if order == 1 else away.square_()
    return out


def widened(pairs: Tensor, total: int, row: Tensor) -> Tensor:
    """Return ``pairs [k, k]`` with clients added up to ``total``: 0 among the new, ``row [k]`` to each known one."""
    k = len(pairs)
    out = pairs.new_zeros(total, total)
    out[:k, :k] = pairs
    out[k:, :k], out[:k, k:] = row, row[:, None]
    return out


def renewed(pairs: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of the symmetric ``pairs [K, K]`` with other ``rows [m, K]`` for the clients ``ids [m]``."""
    out = pairs.clone()
    out[ids], out[:, ids] = rows, rows.T
    among = rows[:, ids]
    out[ids[:, None], ids] = (among + among.T) / 2  # either way round is right to rounding; both must be the same
    return out


def median_above_zero(pairs: Tensor, among: Tensor) -> float:
    """Return the median of the entries above 0 of ``pairs [K, K]`` ``among [K]`` clients; 0 if there is none."""
    d = pairs if bool(among.all()) else pairs[among][:, among]
    above = d[d.tril() > 0]  # each pair once, which leaves the median where it is
    return float(above.median()) if len(above) else 0.0


def _products(rows: Tensor, ids: Tensor, *, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the inner products of some rows with all, ``[m, K]``, and squared norms of all ``[K]``."""
    products = torch.zeros(len(ids), len(rows), dtype=torch.float64)
    squares = torch.zeros(len(rows), dtype=torch.float64)
    for some, columns in _blocks(rows):
        mine, x = rows[ids, columns].double(), rows[some, columns].double()
        if centred and len(ids):
            centre = mine.mean(0)
            mine, x = mine - centre, x - centre
        products[:, some] += mine @ x.T
        squares[some] += x.square().sum(1)
    return products, squares


def _blocks(rows: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield spans of rows and columns of ``rows [K, P]`` that fit into a block in float64."""
    width = min(_WIDTH, max(1, rows.shape[1]))
    for left in range(0, rows.shape[1], width):
        for top in range(0, len(rows), _BLOCK // width):
            yield slice(top, top + _BLOCK // width), slice(left, left + width)


def key(who: Tensor, whom: Tensor) -> Tensor:
    """Return one number for a pair of clients, int64: pairs in the order of the first, then the second."""
    return (who << 32) + whom


def recalled(known: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """Return the values of pairs, 0 for pairs that are not known: float64 ``[...]``.

    Args:
        known: keys of pairs, ascending, int64 ``[n]``; values: float64 ``[n]``.
        wanted: keys ``[...]``.
    """
    if len(known) == 0:
        return torch.zeros(wanted.shape, dtype=torch.float64)
    at = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return torch.where(known[at] == wanted, values[at], 0.0)


def added(known: Tensor, values: Tensor, more: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the record with ``amounts [a]`` added to the values of the pairs ``more [a]``, known or not."""
    keys, place = torch.cat([known, more]).unique(return_inverse=True)
    sums = torch.zeros(len(keys), dtype=torch.float64)
    return keys, sums.index_add_(0, place, torch.cat([values, amounts]))
