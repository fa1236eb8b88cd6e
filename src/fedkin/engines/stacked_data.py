"""Clients' data on a device: each part of each client's data is moved once, while there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fedkin.core import Samples

PartName: TypeAlias = tuple[int, str, int]
"""A client, the part of its data ("train", "validation" or "test"), and how often its data have changed."""


class DeviceData:
    """Samples on the device, those of clients' parts kept by name: a federation on disk reads them anew every time.

    Args:
        up: moves a tensor to the device.
        most: bytes that may be kept.

    Attributes:
        left: bytes that may still be kept.
    """

    def __init__(self, up: Callable[[Tensor], Tensor], most: int) -> None:
        self._up, self._most, self.left = up, most, most
        # samples are held as long as they are named: else others may come to have their `id`
        self._named: dict[int, tuple[Samples, PartName]] = {}
        self._kept: dict[PartName, Samples] = {}

    def name(self, data: Samples, part: PartName) -> None:
        """Note which part these samples are, until `unname`."""
        self._named[id(data)] = data, part

    def unname(self) -> None:
        """Release the samples that have names; what is on the device stays."""
        self._named.clear()

    def of(self, data: Samples) -> Samples:
        """Return samples on the device, their inputs in torch's usual order; kept there if they have a name."""
        _, part = self._named.get(id(data), (None, None))
        if part is not None and part in self._kept:
            return self._kept[part]
        x = data.x
        there = Samples(self._up(x.contiguous()), self._up(data.y))
        taken = there.x.nbytes + there.y.nbytes
        if part is not None and there.x is not x and taken <= self.left:
            self._kept[part] = there
            self.left -= taken
        return there

    def joined(self, parts: Sequence[Samples]) -> Samples:
        """Return all samples of several parts one after another, on the device."""
        tensors = [self.of(part) for part in parts]
        if len(tensors) == 1:
            return tensors[0]
        return Samples(torch.cat([d.x for d in tensors]), torch.cat([d.y for d in tensors]))

    def forget(self) -> None:
        """Release what is kept on the device."""
        self._kept.clear()
        self.left = self._most
