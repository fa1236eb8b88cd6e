"""Banks ``[K, P]``, a row per client, in memory-mapped files without names: a round writes only rows that it changes.

To methods a bank is a tensor. `fedkin.core.rows.grow` makes it here, and `put` writes rows into its file in place. A
commit has the name of an object for each row (`fedkin.storage.objects`); rows that changed since the last one are
written as new objects then.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.objects import Objects

SUPPORTED = sys.platform != "win32"
"""Whether files can lose their names while they are mapped; on Windows they cannot, and banks are in memory there."""
_PIECE = 8 << 20  # bytes written at a time


class _File:
    """An unnamed temporary file, deleted when it is no longer referenced.

    Raises:
        RunFolderError: it cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        try:
            self.number, name = tempfile.mkstemp(prefix=".bank", suffix=".new", dir=folder)
            os.unlink(name)
        except OSError as e:
            raise RunFolderError(f"no file can be made in {folder or tempfile.gettempdir()} ({e})") from e
        weakref.finalize(self, os.close, self.number)


@dataclass(eq=False)
class _Bank:
    """A file with the rows of one bank.

    Attributes:
        whole: the tensor that methods use, ``[K, ...]``, the mapped file.
        names: for each row the name of its object; a tensor that many rows are equal to; or None: not written yet.
    """

    file: _File
    map: mmap.mmap
    whole: Tensor
    names: list[str | Tensor | None]

    @property
    def width(self) -> int:
        """Size of a row in bytes."""
        return _bytes(self.whole.shape[1:], self.whole.dtype)


class Banks:
    """The banks of one run.

    Args:
        folder: on whose disk they are; None: where temporary files are.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._banks = folder, dict[int, _Bank]()

    # ---- what methods do, by way of `fedkin.core.rows` --------------------------------------------------------
    def grow(self, bank: Tensor | None, total: int, fill: Tensor) -> Tensor | None:
        """See `fedkin.core.rows.Keeper`. A number per client stays in memory, a row per client goes into a file."""
        known = 0 if bank is None else bank.shape[0]
        if not fill.dim() or not fill.numel() or not total:
            return None
        if bank is not None and self._own(bank) is not None and total == known:
            return bank
        row = fill.detach().to(fill.dtype if bank is None else bank.dtype).contiguous()
        return self._filed(row.new_empty(0, *row.shape) if bank is None else bank, total, row).whole

    def put(self, bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor | None:
        """See `fedkin.core.rows.Keeper`."""
        own = self._own(bank)
        if own is None:
            return None
        new = rows.detach().to(bank.dtype).expand(len(ids), *bank.shape[1:]).contiguous()
        for i, row in zip(ids.tolist(), new, strict=True):
            _write(own.file, _raw(row), i * own.width)
            own.names[i] = None
        return bank

    # ---- what commits do --------------------------------------------------------------------------------------
    def split(self, state: Bundle, objects: Objects) -> tuple[Bundle, dict[str, tuple[str, ...]]]:
        """Return a server's state without its banks, and the names of the objects of their rows, written by now."""
        rest, result = Bundle(), dict[str, tuple[str, ...]]()
        for name, t in state.items():
            own = self._own(t)
            if own is None:
                rest[name] = t
                continue
            equal = dict[int, str]()
            for i, row in enumerate(own.names):
                if row is None:
                    own.names[i] = objects.put({"row": own.whole[i]})
                elif isinstance(row, Tensor):
                    own.names[i] = equal[id(row)] = equal.get(id(row)) or objects.put({"row": row})
            result[name] = tuple(row for row in own.names if isinstance(row, str))
        self.forget(state)
        return rest, result

    def forget(self, state: Bundle) -> None:
        """Drop the banks that a state does not have, and release the memory that rows were read into."""
        used = {t.data_ptr() for t in state.values()}
        self._banks = {at: own for at, own in self._banks.items() if at in used}
        for own in self._banks.values():
            if hasattr(mmap, "MADV_DONTNEED"):
                own.map.madvise(mmap.MADV_DONTNEED)

    def adopt(self, state: Bundle, clients: int) -> Bundle:
        """Return the state with every tensor ``[K, ...]`` in a file, for a run that kept its banks in memory so far."""
        result = Bundle(state)
        for name, t in state.items():
            if t.dim() > 1 and len(t) == clients and t.numel() and self._own(t) is None:
                result[name] = self._filed(t, clients, t[0]).whole
        return result

    def load(self, objects: Objects, names: Sequence[str]) -> Tensor:
        """Return a bank of which a commit names the rows."""
        first = objects.get(names[0]).row
        own = self._filed(first.new_empty(0, *first.shape), len(names), torch.zeros_like(first))
        for name, row, at in _rows_of(objects, names, first):
            raw = _raw(row)
            for i in at:
                own.names[i] = name
                if raw.count(0) != len(raw):  # zeros are there
                    _write(own.file, raw, i * own.width)
        return own.whole

    # ---- inside -----------------------------------------------------------------------------------------------
    def _own(self, bank: Tensor) -> _Bank | None:
        own = self._banks.get(bank.data_ptr())
        return own if own is not None and bank.shape == own.whole.shape and bank.dtype == own.whole.dtype else None

    def _filed(self, bank: Tensor, total: int, row: Tensor) -> _Bank:
        """Return a bank in its file, with more rows."""
        own, known = self._own(bank), len(bank)
        if own is None:
            own = _Bank(_File(self._folder), mmap.mmap(-1, 1), bank, [None] * known)
            for i, there in enumerate(bank):
                _write(own.file, _raw(there), i * own.width)
        _fill(own.file, known, total, row)
        own.names += [row.clone()] * (total - known)
        self._banks = {at: other for at, other in self._banks.items() if other is not own}
        shape = (total, *row.shape)
        own.map = mmap.mmap(own.file.number, _bytes(shape, row.dtype))
        own.whole = torch.frombuffer(own.map, dtype=row.dtype).view(shape)
        self._banks[own.whole.data_ptr()] = own
        return own


def stacked(objects: Objects, names: Sequence[str]) -> Tensor:
    """Return a bank of which a commit names the rows, in memory."""
    first = objects.get(names[0]).row
    whole = first.new_empty(len(names), *first.shape)
    for _, row, at in _rows_of(objects, names, first):
        whole[at] = row
    return whole


def _rows_of(objects: Objects, names: Sequence[str], first: Tensor) -> Iterator[tuple[str, Tensor, list[int]]]:
    """Yield the different rows of a bank, each with its name and its numbers.

    Raises:
        RunFolderError: an object is damaged, or does not belong to this bank.
    """
    places = dict[str, list[int]]()
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    for name, at in places.items():
        row = objects.get(name).row
        if row.shape != first.shape or row.dtype != first.dtype:
            raise RunFolderError(
                f"{objects.folder / name} is no row of its bank; start the run again in another folder"
            )
        yield name, row, at


def _bytes(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _raw(row: Tensor) -> bytes:
    return row.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _write(file: _File, raw: bytes, at: int) -> None:
    """Write all bytes; through the file and not the map, so that a full disk is an error and not a signal.

    Raises:
        RunFolderError: the bytes cannot be written.
    """
    done = 0
    try:
        while done < len(raw):
            done += os.pwrite(file.number, memoryview(raw)[done:], at + done)
    except OSError as e:
        raise RunFolderError(
            f"the models of all clients cannot be written ({e}); choose a folder on a disk with more room with --out"
        ) from e


def _fill(file: _File, known: int, total: int, row: Tensor) -> None:
    """Write rows ``known`` to ``total``, all equal. Zeros become a hole in the file, which takes no space."""
    raw = _raw(row)
    if raw.count(0) == len(raw):
        os.ftruncate(file.number, total * len(raw))
        return
    at_once = max(1, _PIECE // len(raw))
    for start in range(known, total, at_once):
        _write(file, raw * min(at_once, total - start), start * len(raw))
