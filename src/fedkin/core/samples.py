"""Labelled samples: the data that a client trains on, and one batch of them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from fedkin.core.errors import counted


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Attributes:
        x: inputs, float32 ``[n, *shape]``; or int64, whole numbers such as those of words.
        y: labels, int64 ``[n]``, each in ``0..classes-1``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.y.shape[0])

    def __repr__(self) -> str:
        return f"Samples({counted(len(self), 'sample')}, inputs {list(self.x.shape[1:])})"

    def counts(self, classes: int) -> Tensor:
        """Return the number of samples per class, int64 ``[classes]``."""
        return torch.bincount(self.y, minlength=classes)

    def every(self, step: int, first: int = 0) -> Samples:
        """Return every ``step``-th sample, beginning with that of index ``first``."""
        return Samples(self.x[first::step], self.y[first::step])

    def distinct(self) -> Samples:
        """Return each sample once, in the order of their first places."""
        first: dict[tuple[bytes, int], int] = {}
        for i, (x, y) in enumerate(zip(self.x.cpu().flatten(1).contiguous().numpy(), self.y.tolist(), strict=True)):
            first.setdefault((x.tobytes(), y), i)
        places = torch.tensor([*first.values()], dtype=torch.int64, device=self.y.device)
        return self if len(first) == len(self) else Samples(self.x[places], self.y[places])

    def digest(self) -> bytes:
        """Return 16 bytes that change when any sample, or the order of samples, changes.

        They cover the labels, and the inputs with their shape, wherever and in whatever memory layout they lie.
        """
        digest = blake2b(str(list(self.x.shape)).encode(), digest_size=16)
        for t in (self.y, self.x):
            digest.update(t.detach().cpu().contiguous().numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class ClientData:
    """One client's data in three parts.

    Attributes:
        train: training samples; at least one.
        validation: samples by which rounds and settings are chosen; may be empty.
        test: samples on which results are reported; may be empty.
        group: the true group, -1 if not known; a federation fills it in from its ``groups``.
        drift: a round, and the data that the client has from that round on, with as many samples in each part; None:
            its data do not change.
    """

    train: Samples
    validation: Samples
    test: Samples
    group: int = -1
    drift: tuple[int, ClientData] | None = None

    def __repr__(self) -> str:
        sizes = f"{len(self.train):,} training, {len(self.validation):,} validation, {len(self.test):,} test samples"
        return f"ClientData({sizes}, inputs {list(self.train.x.shape[1:])})"

    def at(self, round: int) -> ClientData:
        """Return the data that the client has in a round."""
        if self.drift is None or round < self.drift[0]:
            return self
        return self.drift[1].at(round)

    def changes(self, round: int) -> int:
        """Return how often the client's data have changed until a round."""
        return 0 if self.drift is None or round < self.drift[0] else 1 + self.drift[1].changes(round)


@dataclass(frozen=True)
class Batch:
    """Input of a loss: ``x [B, *shape]`` and ``y [B]``."""

    x: Tensor
    y: Tensor


def tally(true: Tensor, guessed: Tensor, classes: int) -> Tensor:
    """Return the numbers of samples, guesses and right ones of each class, int64 ``[3, C]``, of labels ``[n]``."""
    return torch.stack([torch.bincount(t, minlength=classes) for t in (true, guessed, true[true == guessed])])


_BITS = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1])  # of a byte, the highest first


def packed(bits: Tensor) -> Tensor:
    """Pack ``bits [n]`` by eight, the first in the highest bit of a byte, zeros at the end: uint8 ``[ceil(n / 8)]``."""
    whole = torch.zeros(-(-len(bits) // 8) * 8, dtype=torch.int64)
    whole[: len(bits)] = bits
    return (whole.view(-1, 8) * _BITS).sum(1).to(torch.uint8)


def unpacked(raw: Tensor) -> Tensor:
    """Unpack bytes ``raw [b]`` that `packed` gave: bool ``[8 b]``."""
    return ((raw.to(torch.int64)[:, None] & _BITS) > 0).flatten()
