"""Secure aggregation: methods whose server needs no more than means of uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from fedkin.core import Bundle, Method, Round
from fedkin.core.capability import Capability, has


def one_pool(method: Method, s: Bundle, r: Round) -> Bundle:
    """Return one pool of all clients, weighing as ``r.mean`` does."""
    return Bundle(group=torch.zeros_like(r.ids), weight=r.weight)


@dataclass(frozen=True)
class PrivateSums(Capability):
    """One mean of the uploads, or one per fixed group, is all that the server needs.

    ``aggregate`` gives the same state when every upload is replaced by the mean of its pool. Uploads are floating-point
    numbers, and ``distribute`` sends the clients of a pool the same tensors.

    Attributes:
        pools: ``(method, state, round)`` -> the pools: ``group`` int64 ``[m]``, below 0 for a client whose upload would
            not be used; ``weight`` ``[m]``.
        unless: reason why sums do not suffice as the method is set, with what to set instead; "" if they do.
    """

    pools: Callable[[Any, Bundle, Round], Bundle] = one_pool
    unless: str = ""

    def inside(self) -> Self:
        """Return it as a wrapper of ``inner`` has it."""
        own = self.pools
        return replace(self, pools=lambda m, s, r: own(m.inner, s.inside("inner"), r))


def sums_suffice(method: Method) -> bool:
    """Return whether secure aggregation can be used with the method as it is set."""
    sums = has(method, PrivateSums)
    return sums is not None and not sums.unless
