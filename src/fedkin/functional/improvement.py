"""Which models of others a client tries, and what it makes of them (FedFomo)."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = 1e6  # of a gain: a model that has diverged must not give the client that tried it a number out of bounds


def gains(before: float, losses: Tensor, distances: Tensor) -> Tensor:
    """(before - loss) / distance of each candidate, float64 ``[a]``: what a step towards it gains per unit of length.

    0 at distance 0; within +-1e6, so that a loss which is infinite or not a number leaves a finite number, its worst
    for a candidate.

    Args:
        before: loss of the model that candidates are compared with.
        losses: of the candidates ``[a]``.
        distances: of the candidates from that model ``[a]``.
    """
    raw = (before - losses.double()) / torch.where(distances > 0, distances.double(), 1.0)
    return torch.where(distances > 0, raw, 0.0).nan_to_num(-_LARGEST).clamp(-_LARGEST, _LARGEST)


def shares(gained: Tensor) -> Tensor:
    """The positive gains ``[..., a]`` divided by their sum, float64; everything for the first if there is none."""
    positive = gained.double().clamp(min=0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total, torch.eye(positive.shape[-1], dtype=torch.float64)[0])


def greedy(values: Tensor, count: int, chance: float, rng: torch.Generator) -> list[int]:
    """Up to ``count`` different positions in ``values [n]``: each the best one left or, by chance, any one left.

    Equal values come in random order.
    """
    order = torch.randperm(len(values), generator=rng)
    left = order[values[order].argsort(descending=True, stable=True)].tolist()
    chosen: list[int] = []
    while left and len(chosen) < count:
        explores = float(torch.rand((), generator=rng)) < chance
        chosen.append(left.pop(int(torch.randint(len(left), (), generator=rng)) if explores else 0))
    return chosen


# ---- a record of pairs, of which few are known: a table of all would be K^2 numbers ---------------------------------
def key(who: Tensor, whom: Tensor) -> Tensor:
    """One number for a pair of clients, int64: pairs in the order of the first, then the second."""
    return (who << 32) + whom


def recalled(known: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """The values of pairs, 0 for those not known: float64 ``[...]``.

    Args:
        known: keys of pairs, ascending, int64 ``[n]``; values: float64 ``[n]``.
        wanted: keys ``[...]``.
    """
    if len(known) == 0:
        return torch.zeros(wanted.shape, dtype=torch.float64)
    at = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return torch.where(known[at] == wanted, values[at], 0.0)


def added(known: Tensor, values: Tensor, more: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor]:
    """The record with ``amounts [a]`` added to the values of the pairs ``more [a]``, known or not."""
    keys, place = torch.cat([known, more]).unique(return_inverse=True)
    sums = torch.zeros(len(keys), dtype=torch.float64)
    return keys, sums.index_add_(0, place, torch.cat([values, amounts]))
