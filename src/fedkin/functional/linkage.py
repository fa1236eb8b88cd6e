"""Hierarchical grouping from pairwise distances or similarities, deterministic: ties break to the lowest indices."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedkin.core.rows import gram

Linkage = Literal["single", "complete", "average"]


def agglomerate(distance: Tensor, groups: int, linkage: Linkage) -> Tensor:
    """Labels int64 ``[m]`` of ``groups`` groups: the two nearest are joined until so many are left.

    Groups are numbered by their first members; with fewer points than groups each point is one. Written out because
    scipy and scikit-learn promise no order among ties, and a cut at a height may give fewer groups than asked for.

    Args:
        distance: symmetric ``[m, m]``.
        groups: how many, at least 1.
        linkage: the distance of two groups is that of their nearest pair ("single"), their farthest ("complete") or
            the mean over all pairs ("average", UPGMA).
    """
    m = len(distance)
    d = torch.maximum(distance, distance.T).double().fill_diagonal_(math.inf)
    group, size = torch.arange(m), torch.ones(m, dtype=torch.float64)
    for _ in range(m - groups):
        i, j = divmod(int((d == d.min()).flatten().to(torch.uint8).argmax()), m)  # the first smallest, so i < j
        if linkage == "single":
            joined = torch.minimum(d[i], d[j])
        elif linkage == "complete":
            joined = torch.maximum(d[i], d[j])
        else:
            joined = (size[i] * d[i] + size[j] * d[j]) / (size[i] + size[j])
        d[i], d[:, i] = joined, joined
        d[i, i] = d[j] = d[:, j] = math.inf
        group[group == j] = i
        size[i] += size[j]
    return by_first_member(group)


def by_first_member(labels: Tensor) -> Tensor:
    """The same groups, numbered in the order of their first members: int64 ``[m]`` from any labels ``[m]``."""
    names, group = labels.unique(return_inverse=True)
    firsts = torch.tensor([int((group == j).to(torch.uint8).argmax()) for j in range(len(names))], dtype=torch.int64)
    return firsts.argsort().argsort()[group]


def bipartition(alike: Tensor, linkage: Linkage = "single") -> tuple[Tensor, float]:
    """Two groups that are as unlike as can be, and how alike they still are.

    By single linkage this is the exact minimum, over all ways to make two groups, of the largest similarity of a pair
    across (Sattler et al. 2021, Algorithm 1): pairs are joined by falling similarity until two groups are left, so any
    other way to divide parts a pair that was joined, which is at least as similar as any pair across.

    Args:
        alike: symmetric similarities ``[m, m]``, m at least 2.
        linkage: "complete" is what the authors' program does; it does not reach the minimum.

    Returns:
        The group without the first point, bool ``[m]``, and the largest similarity across.
    """
    second = agglomerate(-alike, 2, linkage) == 1
    return second, float(alike[second][:, ~second].max())


def cosines(rows: Tensor) -> Tensor:
    """Cosine similarities of all pairs of ``rows [m, P]``, float64 ``[m, m]``: 1 on the diagonal, 0 with a zero row.

    Exactly 1 for rows that are parallel up to rounding, so that no distance between equal rows remains.
    """
    products = gram(rows)
    length = products.diagonal().sqrt()
    size = length[:, None] * length
    out = torch.where(size > 0, products / torch.where(size > 0, size, 1.0), 0.0)
    return torch.where(out > 1 - 1e-12, 1.0, out.clamp(min=-1.0)).fill_diagonal_(1.0)


def lengths(rows: Tensor) -> Tensor:
    """Euclidean norms of ``rows [m, P]``, summed in float64: float64 ``[m]``."""
    out: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return out
