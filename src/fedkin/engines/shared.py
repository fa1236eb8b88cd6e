"""Bundles in memory that two processes share: written once, read in place."""

from __future__ import annotations

import mmap
import weakref
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


# ---- places for answers -----------------------------------------------------------------------------------------
Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Name, dtype, shape and bytes of each tensor of an answer."""


def layout_of(bundle: Bundle) -> Layout:
    """Return the layout of an answer's tensors."""
    return tuple(
        (name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.numel() * t.element_size())
        for name, t in bundle.items()
    )


class Ring:
    """Stretches of a slab, given out in turn; a stretch given back is free again when all before it are."""

    def __init__(self, size: int) -> None:
        self._size, self._head = size, 0
        self._held: dict[int, int] = {}  # start of each stretch, in the order in which they were given out

    def take(self, key: int, nbytes: int) -> int | None:
        """Return the offset of a new stretch, kept under ``key``; None while there is no room."""
        nbytes, head, end = up(nbytes), self._head, self._size
        tail = next(iter(self._held.values()), None)
        if tail is None:
            head = 0
        elif head <= tail:  # it has wrapped around
            end = tail
        elif head + nbytes > end:  # from the start again, if the first are done
            head, end = 0, tail
        if head + nbytes > end:
            return None
        self._held[key], self._head = head, head + nbytes
        return head

    def give(self, key: int) -> None:
        """Give back the stretch kept under ``key``, if there is one."""
        self._held.pop(key, None)


class AnswerColumn(NamedTuple):
    """Places for one tensor of all answers, one after another: its form, where the first lies, and its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def at(self, i: int) -> SlabEntry:
        """Return the place for the i-th answer."""
        return SlabEntry(self.name, self.dtype, self.shape, self.offset + i * self.nbytes, None)


class AnswerRows:
    """Places for answers of one layout: of each tensor, those of all clients one after another.

    The place is free again when no tensor refers to it.

    Attributes:
        columns: the places, for each tensor of an answer.
    """

    def __init__(self, map: mmap.mmap, start: int, layout: Layout, count: int, freed: list[int]) -> None:
        self.columns, end = list[AnswerColumn](), start
        for name, dtype, shape, nbytes in layout:
            self.columns.append(AnswerColumn(name, dtype, shape, end, nbytes))
            end += up(nbytes * count)
        memory = memoryview(map)[start:end]
        weakref.finalize(memory, freed.append, start)
        whole = torch.frombuffer(memory, dtype=torch.uint8)  # one storage for all that is read
        self._read = {
            c.name: whole[c.offset - start :][: c.nbytes * count]
            .view(getattr(torch, c.dtype))
            .view(count, *c.shape)
            .unbind()
            for c in self.columns
        }

    def place(self, i: int) -> list[SlabEntry]:
        """Return the entries at which a worker is to put the i-th answer."""
        return [column.at(i) for column in self.columns]

    def read(self, i: int) -> Bundle:
        """Return the i-th answer; nothing is copied."""
        return Bundle({name: rows[i] for name, rows in self._read.items()})


class Arena:
    """Two regions of shared memory that answers are written to and stay in.

    One may still be in use (the server's last answers) while the other is filled. When both are, or an answer is
    larger than expected, answers are copied instead. Pages are allocated only when written.
    """

    def __init__(self, nbytes: int) -> None:
        self._map, self._size = mmap.mmap(-1, 2 * nbytes), nbytes
        self._free, self._layouts = [0, nbytes], dict[str, Layout]()

    def rows(self, kind: str, count: int) -> AnswerRows | None:
        """Return places for a number of answers, if their layout is known and there is room."""
        layout = self._layouts.get(kind)
        if layout is None or not self._free or sum(up(n * count) for *_, n in layout) > self._size:
            return None
        return AnswerRows(self._map, self._free.pop(), layout, count, self._free)

    def learn(self, kind: str, layouts: Iterable[Layout]) -> None:
        """Remember the layout of the answers of a kind, if all had the same."""
        several = set(layouts)
        self._layouts.pop(kind, None)
        if len(several) == 1:
            (one,) = several
            if one and all(n for *_, n in one):
                self._layouts[kind] = one

    def fill(self, place: list[SlabEntry], bundle: Bundle) -> bool:
        """Write an answer to its place; return False if it is of another layout."""
        if len(place) != len(bundle):
            return False
        for e, (name, t) in zip(place, bundle.items(), strict=True):
            if e.name != name or e.shape != tuple(t.shape) or getattr(torch, e.dtype) != t.dtype:
                return False
        for e, t in zip(place, bundle.values(), strict=True):
            view = torch.frombuffer(self._map, dtype=getattr(torch, e.dtype), count=t.numel(), offset=e.offset)
            view.view(t.shape).copy_(t.detach())
        return True

    def fill_rows(self, columns: list[AnswerColumn], rows: list[int], bundle: Bundle) -> bool:
        """Write several answers, the rows of a bundle, to their places; return False if they are of another layout."""
        if [(c.name, c.shape, getattr(torch, c.dtype)) for c in columns] != [
            (name, tuple(t.shape[1:]), t.dtype) for name, t in bundle.items()
        ]:
            return False
        at, last = torch.tensor(rows), max(rows) + 1
        for c, t in zip(columns, bundle.values(), strict=True):
            count = t[0].numel() * last
            view = torch.frombuffer(self._map, dtype=t.dtype, count=count, offset=c.offset)
            view.view(last, *c.shape)[at] = t
        return True
