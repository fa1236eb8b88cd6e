"""Who collaborates, and with what weight, from distances of classifiers (PFedCS, Eqs. 2-8)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.functional.grouping import two_gaussians, two_means, two_ward


def row_distances(heads: Tensor, k: int) -> Tensor:
    """Squared distances of classifier k to all ``heads [a, H]``, divided by the largest; float64 ``[a]``.

    From differences: equal classifiers are at distance 0 exactly. All zero if all are equal.
    """
    u = (heads.double() - heads[k].double()).square().sum(1)
    largest = u.max()
    return u / largest if largest > 0 else u


def candidates(d: Tensor, rule: str, fixed: float = 0.5) -> Tensor:
    """The nearer of two groups of the others' distances ``d [a-1]``, bool ``[a-1]``; ``fixed``: those up to a distance.

    One other is a candidate; so are all if their distances are equal, or so nearly equal (within about 1e-3, the root
    of the mixture's least variance) that a mixture of two finds nobody in its nearer half.
    """
    if rule == "fixed":
        return d <= fixed
    everybody = torch.ones(len(d), dtype=torch.bool)
    if len(d) < 2 or float(d.max() - d.min()) <= 1e-12 * max(1.0, float(d.max())):
        return everybody
    nearer = {"gmm": two_gaussians, "kmeans": two_means, "hier": two_ward}[rule](d)
    return nearer if bool(nearer.any()) else everybody


def threshold(d: Tensor, t: int, beta: int) -> float:
    """Eq. 4: from the mean distance in round 1 down to the least in round beta, as a convex sum.

    The printed form avg + (t/beta)(min - avg) is one rounding step below the minimum in every second case, and nobody
    would pass it.
    """
    if len(d) == 0:
        return 0.0
    r = min(1.0, t / beta)
    return (1 - r) * float(d.mean()) + r * float(d.min())


def customised_weights(d: Tensor, chosen: Tensor, k: int, sizes: Tensor, lam: float, reading: str) -> Tensor:
    """Weights of all pooled classifiers in the customised one of client k, float64 ``[a]``, summing to 1 (Eqs. 6-8).

    Args:
        d: relative distances to k ``[a]``, 0 at k.
        chosen: the collaborators, bool ``[a]``, without k.
        sizes: training samples ``[a]``.
        lam: similarity against size.
        reading: "union" (collaborators and k), "others" (collaborators) or "literal-norm" (the printed weights, which
            do not sum to 1, divided by their sum).
    """
    member = chosen.clone()
    member[k] = True
    if not bool(chosen.any()):
        return member.double()
    base = member if reading == "union" else chosen
    mean, largest = float(d[base].mean()), float(d[base].max())
    if reading == "literal-norm" and largest == mean:  # the printed weights are 0/0 here
        base, mean, largest = member, float(d[member].mean()), float(d[member].max())
    receives = chosen if reading == "others" else member
    count = int(base.sum())
    even = torch.full_like(d, 1 / count)
    similar = even if largest == mean else (largest - d) / (count * (largest - mean))
    p = (lam * similar + (1 - lam) * sizes.double() / float(sizes[base].sum())) * receives
    return p / p.sum()
