"""Bundles through memory that two processes share: written once, read in place."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import torch
from torch import Tensor

from fedkin.core import Bundle

_ALIGN = 64  # bytes; the same alignment as torch's own memory, on which the last bit of a matrix product may depend


class Entry(NamedTuple):
    """Where a tensor lies: its offset in the slab, or its bytes where the slab had no room."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    raw: bytes | None


class Slab:
    """A stretch of memory shared with forked children. Pages are taken up only when written."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes)
        self.size = nbytes

    def write(self, bundle: Bundle, start: int, stop: int) -> tuple[list[Entry], int]:
        """Puts a bundle between two offsets; gives its entries and the first free offset."""
        entries = []
        for name, t in bundle.items():
            t = t.detach().contiguous()
            nbytes = t.numel() * t.element_size()
            shape, dtype = tuple(t.shape), str(t.dtype).removeprefix("torch.")
            if nbytes == 0 or start + nbytes > stop:
                raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if nbytes else b""
                entries.append(Entry(name, dtype, shape, -1, raw))
                continue
            entry = Entry(name, dtype, shape, start, None)
            self._view(entry).copy_(t)
            entries.append(entry)
            start += -(-nbytes // _ALIGN) * _ALIGN
        return entries, start

    def read(self, entries: list[Entry]) -> Bundle:
        """The bundle of these entries; tensors in the slab are views, valid until it is written again."""
        return Bundle({e.name: self._view(e) if e.raw is None else _unpack(e) for e in entries})

    def _view(self, e: Entry) -> Tensor:
        count = 1
        for n in e.shape:
            count *= n
        return torch.frombuffer(self._map, dtype=getattr(torch, e.dtype), count=count, offset=e.offset).view(e.shape)


def _unpack(e: Entry) -> Tensor:
    dtype: torch.dtype = getattr(torch, e.dtype)
    if not e.raw:
        return torch.zeros(e.shape, dtype=dtype)
    return torch.frombuffer(bytearray(e.raw), dtype=dtype).view(e.shape)


def slab_bytes(workers: int) -> int:
    """How much address space each of the slabs may have: together at most an eighth of the memory, 1 GiB each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1 << 20, min(1 << 30, memory // 8 // (2 * workers))) & ~4095
