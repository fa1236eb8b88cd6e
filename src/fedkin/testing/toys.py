"""A tiny federation and tiny networks: they contain the usual edge cases and run in about a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import ClientData, Net, Samples
from fedkin.core.seeds import generator

CLASSES, WIDTH = 3, 6
SIZES = (12, 5, 9, 1, 7, 6)  # unequal; client 3 has one sample
SINGLE = 2  # the client with one class only

Kind = Literal["mlp", "norm", "norm without dropout"]
KINDS: tuple[Kind, ...] = ("mlp", "norm")


def federation(seed: int = 0) -> tuple[ClientData, ...]:
    """Return six clients with three classes: unequal sizes, one with a single class, one with a single sample."""
    return tuple(
        ClientData(
            samples(seed, i, "train", n),
            samples(seed, i, "validation", 3 if i != 5 else 0),  # the last client has no validation samples
            samples(seed, i, "test", 4),
            group=i % 2,
        )
        for i, n in enumerate(SIZES)
    )


def samples(seed: int, client: int, part: str, n: int) -> Samples:
    """Return samples of one client: its classes lie around centres that differ between clients."""
    rng = generator(seed, "toys", client, part)
    y = torch.randint(0, 1 if client == SINGLE else CLASSES, (n,), generator=rng)
    centre = F.one_hot((y + client % 2) % WIDTH, WIDTH).float()
    return Samples(2 * centre + torch.randn(n, WIDTH, generator=rng), y)


def others_changed(shards: Sequence[ClientData], client: int) -> tuple[ClientData, ...]:
    """Return the federation with other inputs and labels on every client but one."""
    return tuple(s if i == client else _changed(s, i) for i, s in enumerate(shards))


def _changed(shard: ClientData, client: int) -> ClientData:
    train, validation, test = (
        samples(999, client + 1, p, len(getattr(shard, p))) for p in ("train", "validation", "test")
    )
    return replace(shard, train=train, validation=validation, test=test)


def network(kind: Kind, seed: int = 0) -> Net:
    """Return a network of one hidden layer: plain, or with batch normalisation and dropout."""
    make = {"mlp": _mlp, "norm": _norm, "norm without dropout": lambda: _norm(0.0)}[kind]
    return Net(make, (WIDTH,), CLASSES, seed=seed)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.Linear(7, CLASSES))


def _norm(dropout: float = 0.2) -> nn.Module:
    # a server that goes further than the mean, as with momentum, makes running variances negative; eps is above these
    norm = nn.BatchNorm1d(5, eps=1.0)
    return nn.Sequential(nn.Linear(WIDTH, 5), norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(5, CLASSES))


class InPlace:
    """A `fedkin.core.rows.Keeper` in memory.

    Attributes:
        banks: banks made so far, by their memory address.
    """

    def __init__(self) -> None:
        self.banks: dict[int, Tensor] = {}

    def grow(self, bank: Tensor | None, total: int, fill: Tensor) -> Tensor | None:
        """Return a bank with room for ``total`` clients, the same object where it fits."""
        if not fill.dim() or not fill.numel() or not total:
            return None
        known = 0 if bank is None else len(bank)
        if bank is not None and self._is_own(bank) and total == known:
            return bank
        out = torch.empty(total, *fill.shape, dtype=fill.dtype if bank is None else bank.dtype)
        if bank is not None:
            out[:known] = bank
        out[known:] = fill
        self.banks[out.data_ptr()] = out
        return out

    def put(self, bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor | None:
        """Write rows into a bank in place; None for a tensor that is not one of these banks."""
        if not self._is_own(bank):
            return None
        bank[ids] = rows.to(bank.dtype)
        return bank

    def _is_own(self, bank: Tensor) -> bool:
        own = self.banks.get(bank.data_ptr())
        return own is not None and own.shape == bank.shape
