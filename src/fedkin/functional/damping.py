"""Cluster models that move by their members' share of a round's samples (Fed-CAM, Eq. 6; IFCA, gradient averaging)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.core import Round


def moved_by_share(r: Round, mean: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
    """Return ``(1 - s_g) otherwise_g + s_g mean_g`` for every group g, ``[G, P]``.

    s_g is the fraction of the samples of ``r.ids`` that the members of group g hold; clients that are absent from the
    round do not count. It equals ``otherwise_g`` plus the members' changes, weighted by their samples over those of all
    participants.

    Args:
        mean: the members' mean of each group ``[G, P]``.
        group: int64 ``[m]``, the group of each of ``r.ids``.
        otherwise: the groups' present models ``[G, P]``.
    """
    share = torch.zeros(len(otherwise), dtype=torch.float64).index_add_(0, group, r.weight)
    share = (share / r.weight.sum())[:, None]
    return ((1 - share) * otherwise.double() + share * mean.double()).to(otherwise.dtype)
