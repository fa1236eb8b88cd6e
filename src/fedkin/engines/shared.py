"""Bundles in memory that two processes share: written once, read in place."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedkin.core import Bundle
from fedkin.core.machine import memory

ALIGN = 64  # bytes; the same alignment as torch's own memory, on which the last bit of a matrix product may depend


class SlabEntry(NamedTuple):
    """Place of a tensor: its offset in the slab, or its bytes where the slab had no room.

    ``common``: the offset is one in another slab, which holds what many bundles have in common.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    raw: bytes | None
    common: bool = False


class Slab:
    """A stretch of memory shared with forked children. Pages are allocated only when written."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes)
        self.size = nbytes

    def write(
        self, bundle: Bundle, start: int, stop: int, common: Mapping[int, SlabEntry] | None = None
    ) -> tuple[list[SlabEntry], int]:
        """Write a bundle between two offsets; return its entries and the first free offset.

        Args:
            common: entries of tensors, by ``id``, that lie in another slab and need not be written.
        """
        entries = []
        for name, t in bundle.items():
            if common and id(t) in common:
                entries.append(common[id(t)]._replace(name=name))
                continue
            t = t.detach().contiguous()
            nbytes = t.numel() * t.element_size()
            shape, dtype = tuple(t.shape), str(t.dtype).removeprefix("torch.")
            if nbytes == 0 or start + nbytes > stop:
                raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if nbytes else b""
                entries.append(SlabEntry(name, dtype, shape, -1, raw))
                continue
            entry = SlabEntry(name, dtype, shape, start, None)
            self._view(entry).copy_(t)
            entries.append(entry)
            start += up(nbytes)
        return entries, start

    def share(self, bundles: Iterable[Bundle]) -> dict[int, SlabEntry]:
        """Write the larger tensors that several bundles hold, each once; return their entries by ``id``."""
        held: dict[int, Tensor] = {}
        often: dict[int, Tensor] = {}
        for bundle in bundles:
            for t in bundle.values():
                if id(t) in held:
                    often[id(t)] = t
                held[id(t)] = t
        start, entries = 0, dict[int, SlabEntry]()
        for key, t in often.items():
            if start + t.numel() * t.element_size() <= self.size:
                (entry,), start = self.write(Bundle(shared=t), start, self.size)
                entries[key] = entry._replace(common=True)
        return entries

    def read(self, entries: list[SlabEntry], common: Slab | None = None) -> Bundle:
        """Return the bundle of these entries; tensors in a slab are views, valid until it is written again."""
        places = {e.name: self if not e.common or common is None else common for e in entries}
        return Bundle({e.name: places[e.name]._view(e) if e.raw is None else _unpack(e) for e in entries})

    def put(self, start: int, raw: bytes) -> None:
        """Write bytes from an offset on."""
        self._map[start : start + len(raw)] = raw

    def get(self, start: int, nbytes: int) -> bytes:
        """Return the bytes from an offset on."""
        return self._map[start : start + nbytes]

    def _view(self, e: SlabEntry) -> Tensor:
        count = 1
        for n in e.shape:
            count *= n
        return torch.frombuffer(self._map, dtype=getattr(torch, e.dtype), count=count, offset=e.offset).view(e.shape)


def _unpack(e: SlabEntry) -> Tensor:
    dtype: torch.dtype = getattr(torch, e.dtype)
    if not e.raw:
        return torch.zeros(e.shape, dtype=dtype)
    return torch.frombuffer(bytearray(e.raw), dtype=dtype).view(e.shape)


def up(nbytes: int) -> int:
    """Return the next multiple of the alignment."""
    return -(-nbytes // ALIGN) * ALIGN


def slab_bytes(number: int) -> int:
    """Return the address space of each of a number of slabs.

    Together they take at most an eighth of the memory, each at most 1 GiB.
    """
    return max(1 << 20, min(1 << 30, memory() // 8 // number)) & ~4095
