"""Collaborators of a client and their weights, from distances of classifiers (PFedCS).

The paper numbers the threshold (Eq. 4), the collaborators (Eq. 5: candidates within it), the customised classifier
(Eq. 6) and its weights (Eqs. 7-8); distances and the mixture of two normals have no number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.functional.grouping import two_gaussians, two_means, two_ward
from fedkin.functional.pairs import differences_from


def row_distances(heads: Tensor, me: Tensor) -> Tensor:
    """Squared distances of the classifiers ``me [m]`` to all ``heads [a, H]``, each row divided by its largest.

    Float64 ``[m, a]``. From differences: equal classifiers are at distance 0 exactly. All zero if all are equal.
    """
    u = differences_from(heads, me, 2)
    largest = u.max(1, keepdim=True).values
    return torch.where(largest > 0, u / largest, u)


def candidates(d: Tensor, rule: str, fixed: float = 0.5) -> Tensor:
    """The nearer of two groups of the others' distances in every row ``d [..., n]``; ``fixed``: those up to a distance.

    Bool ``[..., n]``. One other is a candidate; so are all if their distances are equal, or so nearly equal (within
    about 1e-3, the root of the mixture's least variance) that a mixture of two finds nobody in its nearer half.
    """
    if rule == "fixed":
        return d <= fixed
    if d.shape[-1] < 2 or d.numel() == 0:
        return torch.ones_like(d, dtype=torch.bool)
    rows = d.reshape(-1, d.shape[-1])
    out = torch.ones_like(rows, dtype=torch.bool)
    low, high = rows.aminmax(dim=1)
    apart = high - low > 1e-12 * high.clamp(min=1)
    nearer = {"gmm": two_gaussians, "kmeans": two_means, "hier": two_ward}[rule](rows[apart])
    out[apart] = nearer | ~nearer.any(1, keepdim=True)
    return out.reshape(d.shape)


def threshold(d: Tensor, t: int, beta: int) -> Tensor:
    """Eq. 4 for every row ``d [..., n]``, ``[...]``: from the mean, in beta steps, to the least in round beta.

    A convex sum, one step from the mean in round 1. The printed form avg + (t/beta)(min - avg) is one rounding step
    below the minimum in every second case, and no client would pass it. 0 without others.
    """
    if d.shape[-1] == 0:
        return d.new_zeros(d.shape[:-1])
    r = min(1.0, t / beta)
    return (1 - r) * d.mean(-1) + r * d.amin(-1)


def customised_weights(d: Tensor, chosen: Tensor, me: Tensor, sizes: Tensor, lam: float, reading: str) -> Tensor:
    """Weights of all pooled classifiers in those customised for the clients ``me``, float64 ``[m, a]`` (Eqs. 7-8).

    Rows sum to 1. Eq. 6 sums over the collaborators and the client, Eqs. 7-8 give weights of the collaborators alone;
    ``reading`` says how the two are brought together.

    Args:
        d: relative distances ``[m, a]``, 0 from a client to itself.
        chosen: the collaborators of each, bool ``[m, a]``, without itself.
        me: int64 ``[m]``, where each client's own classifier is.
        sizes: training samples ``[a]``.
        lam: similarity against size.
        reading: "union" (collaborators and the client), "others" (collaborators) or "literal-norm" (the printed
            weights, which do not sum to 1, divided by their sum).
    """
    member, alone = chosen.scatter(1, me[:, None], True), ~chosen.any(1, keepdim=True)
    base = member if reading == "union" else chosen | (alone & member)
    if reading == "literal-norm":  # where all are equally far, the printed weights are 0/0
        least, largest = _range(d, base)
        base = torch.where(least == largest, member, base)
    (least, largest), count = _range(d, base), base.sum(1, keepdim=True).double()
    mean = torch.where(base, d, 0.0).sum(1, keepdim=True) / count
    even = (least == largest) | (mean >= largest)
    # Eqs. 7-8: similarity and size, added up by lam
    similar = torch.where(even, 1 / count, (largest - d) / (count * torch.where(even, 1.0, largest - mean)))
    of_size = sizes.double() / torch.where(base, sizes.double(), 0.0).sum(1, keepdim=True)
    receives = chosen if reading == "others" else member
    p = torch.where(receives, lam * similar + (1 - lam) * of_size, 0.0)
    return torch.where(alone, member.double(), p / p.sum(1, keepdim=True))


def _range(d: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest distance among ``base``, ``[m, 1]`` each."""
    least = torch.where(base, d, torch.inf).amin(1, keepdim=True)
    return least, torch.where(base, d, -torch.inf).amax(1, keepdim=True)
