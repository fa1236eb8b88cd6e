"""The shortest combination of vectors with weights on a simplex, each weight within its own bounds."""

from __future__ import annotations

import torch
from torch import Tensor

_SLACK = 1e-14  # a slope below this is rounding
_FEW = 128  # weights that start from the middle of their boxes: one after another they soon meet their bounds


def shortest(products: Tensor, lower: Tensor, upper: Tensor, *, ridge: float = 1e-9) -> Tensor:
    """Return the weights x ``[m]``, float64, that minimise ``x' products x`` with ``sum x = 1`` and within their
    bounds.

    A primal active-set method (Nocedal and Wright, Numerical Optimization, 16.5): the exact minimum over the weights
    between their bounds, then the one weight whose release lowers the value most is released, until there is none. The
    value falls with every release, so it ends; a limit on releases, which only rounding could reach, leaves weights
    that keep their bounds. Work: one linear system of at most m + 1 equations per weight that meets its bound; so where
    there are many, an interior-point method first finds out which will.

    Args:
        products: inner products of the vectors ``[m, m]``, see `fedkin.core.rows.gram`.
        lower, upper: bounds ``[m]``; ``sum lower <= 1 <= sum upper``.
        ridge: times the largest squared length, added to the diagonal. It makes the minimum unique where vectors are
            equal or more than their dimensions: of all shortest combinations the one with the least ``x'x``.

    Raises:
        ValueError: no weights between the bounds sum to 1.
    """
    low, high = lower.double(), upper.double()
    if bool((low > high).any()) or float(low.sum()) > 1 + 1e-9 or float(high.sum()) < 1 - 1e-9:
        raise ValueError("no weights between these bounds sum to 1")
    q = products.double()
    longest = float(q.diagonal().max())
    q = q / (longest if longest > 0 else 1.0) + ridge * torch.eye(len(q), dtype=torch.float64)
    room = high - low
    share = (1 - low.sum()) / room.sum() if float(room.sum()) > 0 else torch.zeros((), dtype=torch.float64)
    x = (low + share.clamp(0, 1) * room).clamp(low, high)
    free = (x > low) & (x < high)
    if len(q) > _FEW and bool((room > 0).all()) and float(low.sum()) < 1 < float(high.sum()):
        x, free = _interior(q, x, low, high)
    for _ in range(10 * len(q) + 10):
        x, free = _least(q, x, low, high, free)
        released = _release(q @ x, x, low, high, free) & ~free  # a free one: what is left is rounding
        if not bool(released.any()):
            break
        free = free | released
    return x


def _interior(q: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return nearly the minimum, and the weights that are between their bounds there; the others are exactly at them.

    A primal-dual interior-point method (Nocedal and Wright, 16.6) from ``x`` in the middle: about 20 linear systems
    of m equations, for any number of weights that meet their bounds.
    """
    up, down = x - low, high - x  # stored separately: near a bound a difference has no precision
    above, below = torch.ones_like(x), torch.ones_like(x)  # the prices of the lower and the upper bounds
    level = torch.zeros((), dtype=torch.float64)  # and of the sum
    for _ in range(100):
        gap = float((up @ above + down @ below) / (2 * len(x)))
        if gap < 1e-26:
            break
        goal = 0.1 * gap
        factor, fault = torch.linalg.cholesky_ex(q + torch.diag(above / up + below / down))
        if int(fault):  # rounding
            break
        sides = torch.stack([level - q @ x + goal / up - goal / down, torch.ones_like(x)], 1)
        own, shared = torch.cholesky_solve(sides, factor).unbind(1)
        rise = (1 - x.sum() - own.sum()) / shared.sum()
        way = own + rise * shared
        more = goal / up - above - above / up * way, goal / down - below + below / down * way
        reach = 1.0
        for value, change in ((up, way), (down, -way), (above, more[0]), (below, more[1])):
            reach = min(reach, 0.99 / max(1e-300, float((-change / value).max())))
        x, level = x + reach * way, level + reach * rise
        up, down = up + reach * way, down - reach * way
        above, below = above + reach * more[0], below + reach * more[1]
    at_low, at_high = up < above, down < below
    x = torch.where(at_low, low, torch.where(at_high, high, x))
    return x, ~at_low & ~at_high


def _least(q: Tensor, x: Tensor, low: Tensor, high: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum over the free weights; a weight that meets a bound on the way stays there and is not free."""
    while int(free.sum()) > 1:
        f = free.nonzero()[:, 0]
        system = torch.ones(len(f) + 1, len(f) + 1, dtype=torch.float64)
        system[:-1, :-1], system[-1, -1] = q[f][:, f], 0
        way = torch.linalg.solve(system, torch.cat([-(q[f] @ x), (1 - x.sum())[None]]))[:-1]
        bound = torch.where(way < 0, low[f], high[f])
        far = torch.where(way == 0, torch.inf, (bound - x[f]) / way)  # of the way, until it meets its bound
        reach = far.min().clamp(max=1.0)
        met = far <= reach
        x, free = x.clone(), free.clone()
        x[f] = torch.where(met, bound, x[f] + reach * way)
        free[f] = ~met
        if not bool(met.any()):
            break
    return x, free


def _release(slope: Tensor, x: Tensor, low: Tensor, high: Tensor, free: Tensor) -> Tensor:
    """Return the weight to release from its bound, bool ``[m]``: its slope is farthest from that of the free ones.

    Where none is free it takes two weights, one to grow and one to shrink: first the latter, next time the former.
    """
    rises = torch.where(x < high, slope, torch.inf)  # what one more of this weight costs
    falls = torch.where(x > low, slope, -torch.inf)  # what one less of it gains
    up, down = rises.argmin(), falls.argmax()
    out = torch.zeros_like(free)
    if float(falls[down] - rises[up]) > _SLACK:
        level = slope[free].mean() if bool(free.any()) else rises[up]
        out[up if level - rises[up] >= falls[down] - level else down] = True
    return out
