"""Rules that stand in for the weighted mean of stacked models, so that a few false rows cannot carry it away.

All work on ``rows [m, P]`` with non-negative ``weights [a, m]``, once for each row of weights, in float64 and in blocks
of columns. A row that weighs nothing takes no part. Equal rows give that row; their order does not matter beyond
rounding. Majorities are counted in weight, except by Krum, which counts rows.

- ``median``: the weighted median of each coordinate, the mean of the two middle values where the weights below and
  above are equal (Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018).
- ``trimmed``: the weighted mean of each coordinate without ``fraction`` of the total weight at both ends
  (same paper); a row on the border counts with what is left of its weight.
- ``krum``: Multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017): the
  weighted mean of the m - f rows with the least sum of squared distances to their m - f - 2 nearest ones, and of those
  equally good. f is ``floor(fraction m)``, or the most that m allows if that is less (m >= 2 f + 3): up to
  four rows it is 0 and Krum is the mean.
- ``norm``: the weighted mean of rows whose differences to the coordinate median of all are shortened to at most
  ``bound`` times the weighted median length of these differences. Sun, Kairouz, Suresh, McMahan (Can You Really
  Backdoor Federated Learning?, 2019) bound the difference to the model that was sent; but clients with models of their
  own start from many, and an update that is turned round has the right length.

One row is itself under every rule. Two rows of equal weight have no majority and give their mean; of two others the
heavier is the median, bounds the other, and weighs more after trimming.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedkin.core import rows as algebra
from fedkin.core.errors import MethodError
from fedkin.core.grammar import chosen
from fedkin.core.settings import RULES, Aggregation, Bounded, Robust

_TIE = 1e-9  # of the whole: sums of weights, and scores, that are as near as this are equal


def mean(how: Aggregation, rows: Tensor, weights: Tensor) -> Tensor:
    """``[...]`` from ``rows [m, ...]`` and non-negative weights ``[m]``."""
    if how.rule == "mean":
        return algebra.weighted_mean(rows, weights)
    return combined(how, weights.double()[None], rows.reshape(rows.shape[0], -1))[0].reshape(rows.shape[1:])


def group_mean(how: Aggregation, rows: Tensor, weights: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
    """Return the aggregate of each group, ``[G, P]``; a group without rows keeps its row of ``otherwise [G, P]``.

    Args:
        how: the rule.
        rows: ``[m, P]``.
        weights: non-negative ``[m]``.
        group: int64 ``[m]``, the group of every row.
        otherwise: ``[G, P]``, what an empty group keeps.
    """
    if how.rule == "mean":
        return algebra.group_mean(rows, weights, group, otherwise)
    out = otherwise.clone()
    for g in group.unique().tolist():
        mine = group == g
        if float(weights[mine].sum()) > 0:
            out[g] = mean(how, rows[mine], weights[mine]).to(out.dtype)
    return out


def mix(how: Aggregation, weights: Tensor, rows: Tensor) -> Tensor:
    """Return mixtures ``[a, P]`` of ``rows [m, P]``, one for each row of ``weights [a, m]``.

    The mean is ``weights @ rows``; for the others rows of weights are divided by their sums, and one without any
    gives 0.

    Raises:
        MethodError: a weight is negative, for which only the mean is defined.
    """
    if how.rule == "mean":
        return algebra.mix(weights, rows)
    return combined(how, weights.double(), rows)


def combined(how: Aggregation, weights: Tensor, rows: Tensor) -> Tensor:
    """Return mixtures as `mix` does, by a rule that is not the mean; the other functions come here as well."""
    if bool((weights < 0).any()):
        raise MethodError(
            f"the rule {how.rule!r} is not defined for negative weights, got {float(weights.min()):g}; "
            "use the rule 'mean'"
        )
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    name, rule = chosen(how.rule, RULES, "rule")
    if isinstance(rule, Bounded):
        return _bounded(weights, rows, rule.bound)
    if not isinstance(rule, Robust):
        return _sorted(weights, rows, None)
    if name == "krum":
        return algebra.mix(_selected(weights, rows, rule.fraction), rows)
    return _sorted(weights, rows, rule.fraction)


def _sorted(weights: Tensor, rows: Tensor, cut: float | None) -> Tensor:
    """Return the weighted median per coordinate, or the mean trimmed by ``cut``, ``[a, P]``.

    Weights sum to 1. One sort of each column serves all rows of weights.
    """
    out = rows.new_zeros((weights.shape[0], rows.shape[1]))
    for block in algebra.blocks(rows, copies=8):
        values, order = rows[:, block].double().sort(dim=0)
        for i, w in enumerate(weights):
            if bool((w > 0).any()):
                got = _medians(values, w[order]) if cut is None else _trimmed(values, w[order], cut)
                out[i, block] = got.to(rows.dtype)
    return out


def _medians(values: Tensor, w: Tensor) -> Tensor:
    """Weighted medians ``[b]`` of ascending columns ``values [m, b]`` with weights ``w [m, b]`` (columns sum to 1)."""
    below = w.cumsum(0)
    # the rows at which the sum reaches half and passes it: another one only where it reaches half exactly
    low, high = _count(below < 0.5 - _TIE), _count(below <= 0.5 + _TIE)
    return ((values.gather(0, low) + values.gather(0, high)) / 2)[0]


def _count(true: Tensor) -> Tensor:
    """Return the number of true entries per column, int64 ``[1, b]``."""
    return true.to(torch.float32).sum(0, keepdim=True).long()  # several times as fast as a sum of truth values


def _trimmed(values: Tensor, w: Tensor, cut: float) -> Tensor:
    """Return means ``[b]`` of ascending columns ``values [m, b]``, trimmed by ``cut`` of the weight 1 at both ends."""
    above = w.cumsum(0)
    kept = above.clamp(max=1 - cut) - (above - w).clamp(min=cut)
    kept = torch.where(kept > _TIE * (1 - 2 * cut) * w, kept, 0.0)  # what rounding leaves of a row that is cut
    base = values.gather(0, _count(above < 0.5 - _TIE))  # measured from the median, so that equal ones come out as such
    return (base + (kept * (values - base)).sum(0, keepdim=True) / kept.sum(0, keepdim=True))[0]


def _selected(weights: Tensor, rows: Tensor, share: float) -> Tensor:
    """Return weights ``[a, m]`` that are zero for rows which Multi-Krum rejects; each row sums to 1 again."""
    d, order = algebra.squared_distances(rows, around="median").fill_diagonal_(math.inf).sort(1)
    taking, mine = (weights > 0).unique(dim=0, return_inverse=True)  # one sort serves all who take part in any of them
    bad = torch.zeros_like(taking)
    for i, there in enumerate(taking):
        m = int(there.sum())
        f = min(math.floor(share * m + 1e-9), (m - 3) // 2)
        if f <= 0:
            continue
        near = there[order]
        near &= near.cumsum(1, dtype=torch.int32) <= m - f - 2
        score = torch.where(near, d, 0.0).sum(1)
        worst = float(score[there].sort().values[m - f - 1])
        bad[i] = score > worst * (1 + _TIE)
    out = weights.masked_fill(bad[mine], 0.0)
    return out / out.sum(1, keepdim=True).clamp(min=1e-300)


def _bounded(weights: Tensor, rows: Tensor, factor: float) -> Tensor:
    """Return means ``[a, P]`` of rows clipped in their distance to the coordinate median; weights sum to 1."""
    centre = _sorted(weights, rows, None)
    squares = torch.zeros(weights.shape, dtype=torch.float64)
    for block in algebra.blocks(rows):
        x, c = rows[:, block].double(), centre[:, block].double()
        middle = x.median(0).values  # taken off first, as for distances: huge rows cost the others no digits
        x, c = x - middle, c - middle
        squares += x.square().sum(1) + c.square().sum(1, keepdim=True) - 2 * c @ x.T
    length = squares.clamp(min=0).sqrt()
    total = weights.sum(1)
    bound, some = torch.zeros_like(total), total > 0
    lengths, order = length[some].T.sort(0)  # a column for each row of weights
    bound[some] = factor * _medians(lengths, weights[some].T.gather(0, order))
    scale = torch.where(length > bound[:, None], bound[:, None] / length.clamp(min=1e-300), 1.0)
    part = weights * scale
    out = rows.new_empty(centre.shape)
    rest = (total - part.sum(1))[:, None]  # what the shortened rows leave to the centre
    for block in algebra.blocks(rows):
        out[:, block] = (part @ rows[:, block].double() + rest * centre[:, block].double()).to(rows.dtype)
    return out
