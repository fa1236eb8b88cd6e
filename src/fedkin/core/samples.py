"""Labelled samples: what a client trains on, and one batch of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Data:
    """Labelled samples.

    Attributes:
        x: inputs, float32 ``[n, *shape]``.
        y: labels, int64 ``[n]``, each in ``0..classes-1``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.y.shape[0])

    def counts(self, classes: int) -> Tensor:
        """Samples per class, int64 ``[classes]``."""
        return torch.bincount(self.y, minlength=classes)


@dataclass(frozen=True)
class Batch:
    """What a loss sees: ``x [B, *shape]`` and ``y [B]``."""

    x: Tensor
    y: Tensor


class Shard(Protocol):
    """One client's data in three parts."""

    @property
    def train(self) -> Data: ...
    @property
    def validation(self) -> Data: ...
    @property
    def test(self) -> Data: ...
