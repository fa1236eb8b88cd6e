"""Labelled samples: what a client trains on, and one batch of it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
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

    def digest(self) -> bytes:
        """16 bytes that change when any sample changes, or their order: of the labels, and of the inputs with their
        shape, wherever and in whatever memory layout they lie."""
        found = blake2b(str(list(self.x.shape)).encode(), digest_size=16)
        for t in (self.y, self.x):
            found.update(t.detach().cpu().contiguous().numpy().data)
        return found.digest()


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
