"""Records of numbers for pairs of clients of which few are known: a full table would have K^2 entries."""

from __future__ import annotations

import torch
from torch import Tensor


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
