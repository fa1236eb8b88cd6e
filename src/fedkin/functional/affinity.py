"""How much two clients' class counts complement each other (DA-PFL, Eqs. 3-6).

`_entries` is the paper: the counts of the classes that both have (Eqs. 3-4) and the affinity from the cosine of these
counts about their common mean (Eqs. 5-6). The rest computes it in blocks, and finds the least entry among all clients
without computing all entries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK, _PART = 1 << 20, 1 << 14  # pairs of clients looked at together; of which entries are computed together
_ROUNDED = 1 - 1e-12


def affinity(counts: Tensor, *, single: str = "floor", floor: float = 0.9, least: float | None = None) -> Tensor:
    """Affinity c ``[m, m]`` of class counts ``[m, C]`` (Eqs. 5-6): (e/C) (2 - cos) over the e common classes.

    Pairs without a common class get ``floor`` times the smallest computed entry, diagonal included; so do pairs with
    one, unless ``single`` is "formula". If nothing can be computed all entries are equal.

    Args:
        least: the smallest computed entry among all clients, 0 if there is none; by default that among these.
    """
    a = counts.double().T[:, :, None]
    rows = [_entries(some, a.mT) for some in a.split(max(1, _PART // max(1, len(counts))), dim=1)]
    out, e = (torch.cat(parts) for parts in zip(*rows, strict=True))
    computed = e >= _enough(single)
    if least is None:
        least = float(out[computed].min()) if bool(computed.any()) else 0.0
    return torch.where(computed, out, floor * least if least else 1.0)


def least_entry(counts: Tensor, new: Tensor, known: Tensor, *, single: str) -> Tensor:
    """The smallest computed entry among all of ``counts [K, C]``, 0 if there is none, float64 ``[]``.

    Work: K products of C numbers for each newcomer, and entries of those pairs only that could be smaller.

    Args:
        new: ids of newcomers, ascending, later than all others.
        known: that among the others.
    """
    least, has = float(known) or math.inf, (counts > 0).double()
    for some in new.split(max(1, _BLOCK // max(1, len(counts)))) if len(new) else ():
        least = _least(counts, has, some, least, _enough(single))
    return torch.tensor(0.0 if least == math.inf else least, dtype=torch.float64)


def _least(counts: Tensor, has: Tensor, new: Tensor, known: float, enough: int) -> float:
    """The smaller of ``known`` and the least entry of newcomers with all up to themselves; an entry is at least e/C."""
    e, classes = has[new] @ has[: int(new[-1]) + 1].T, counts.shape[1]
    i, j = ((e >= enough) & (e < known * classes * _ROUNDED)).nonzero(as_tuple=True)
    for part in e[i, j].argsort().split(_PART):  # the fewest common classes first: after these there is little left
        part = part[e[i[part], j[part]] < known * classes * _ROUNDED]
        if len(part):
            entries, _ = _entries(counts[new[i[part]]].T, counts[j[part]].T)
            known = min(known, float(entries.min()))
    return known


def _enough(single: str) -> int:
    """Common classes from which an affinity is computed."""
    return 1 if single == "formula" else 2


def _entries(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 5-6 for pairs of class counts ``a`` and ``b [C, ...]``, broadcast; and how many classes are common."""
    both = (a > 0) & (b > 0)  # Eqs. 3-4
    u, v, e = a * both, b * both, both.double().sum(0)
    long = (u.square().sum(0) * v.square().sum(0)).sqrt()
    centre = (u.sum(0) + v.sum(0)) / (2 * e.clamp(min=1))  # the mean of all 2e counts, in Eqs. 5-6
    u, v = (u - centre) * both, (v - centre) * both
    size = (u.square().sum(0) * v.square().sum(0)).sqrt()
    flat = size <= 1e-12 * long  # no spread: the neutral, lowest factor
    cos = torch.where(flat, 1.0, (u * v).sum(0) / torch.where(flat, 1.0, size))
    return e / a.shape[0] * (2 - cos), e
