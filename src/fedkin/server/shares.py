"""Limit on the fraction of a round's samples that a client can claim."""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor


def limited(claimed: Tensor, most: float) -> Tensor:
    """Return the claimed numbers of samples, lowered so that none is more than a fraction ``most`` of their sum.

    The highest claims are lowered to one common number, rounded down, and no further than needed; with ``most`` = 0.5
    that is one client, which then has as many samples as all others together. ``1 / most`` clients or fewer cannot all
    be below ``most``: their claims stay, as do claims within the limit.

    Args:
        claimed: int64 ``[m]``, at least 1 each.
        most: above 0, at most 1.

    Returns:
        ``claimed`` itself if no claim is too high.
    """
    # of the decimal number that was given: 0.1 as a binary fraction is above a tenth
    share, sizes = Fraction(str(most)), sorted(claimed.tolist(), reverse=True) if most < 1 else []
    if len(sizes) * share <= 1:
        return claimed
    rest = sum(sizes)
    for lowered, size in enumerate(sizes):
        # with `lowered` clients at the number n: n = share (rest + lowered n)
        highest = share * rest / (1 - lowered * share)
        if size <= highest:
            return claimed if lowered == 0 else claimed.clamp(max=int(highest))
        rest -= size
    return claimed
