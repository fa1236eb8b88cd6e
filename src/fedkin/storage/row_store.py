"""Banks ``[K, P]``, a row per client, in memory-mapped files: a round writes only the rows that it changes.

To methods a bank is a tensor. `fedkin.core.rows.grow` makes it here, and `put` writes rows into its file in place after
the overwritten rows were saved in the file ``undo``. So whenever the run is killed, each row of the last checkpoint is
in its bank or in ``undo``, and `Banks.open` restores it. A checkpoint contains number, shape and type of a bank and a
checksum of every row, not the rows. Neither a checkpoint nor ``undo`` names a file: bank 3 is ``3.bank``.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.files import PRIVATE_FILE, PRIVATE_FOLDER, make_private

SUPPORTED = sys.platform != "win32"
"""Whether this system can replace and delete files that are mapped; Windows cannot, and banks are in memory there."""
_UNDO = "undo"
_TYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16,
          torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip
_PIECE = 8 << 20  # bytes written or compared at a time


def require_supported(folder: Path) -> None:
    """Refuse banks in files where they cannot be used.

    Raises:
        RunFolderError: this system cannot.
    """
    if not SUPPORTED:
        raise RunFolderError(
            f"{folder}: the models of this run are kept in files as Linux and macOS can change them; open it there, or "
            "start the run again here"
        )


class _File:
    """An open file that closes itself when it is no longer referenced.

    Raises:
        RunFolderError: the file cannot be made or opened.
    """

    def __init__(self, path: Path | None, how: int) -> None:
        try:
            if path is None:  # without a name: deleted when it is closed
                self.number, name = tempfile.mkstemp(prefix="fedkin-")
                os.unlink(name)
            else:
                path.parent.mkdir(PRIVATE_FOLDER, exist_ok=True)  # and none above: a run's folder may have been moved
                make_private(path.parent)
                self.number = os.open(path, os.O_RDWR | how, PRIVATE_FILE)
        except OSError as e:
            raise RunFolderError(f"{path or 'a temporary file'} cannot be opened ({e})") from e
        weakref.finalize(self, os.close, self.number)


@dataclass(eq=False)
class _Bank:
    """A file with the rows of one bank.

    Attributes:
        sums: a checksum of every row, int64 ``[K]``.
        whole: the tensor that methods use, ``[K, ...]``.
        saved: number of rows in the last checkpoint; later rows need no undo.
        noted: those of them that ``undo`` contains already.
    """

    number: int
    file: _File
    map: mmap.mmap
    sums: Tensor
    whole: Tensor
    saved: int
    noted: set[int]

    @property
    def width(self) -> int:
        """Size of a row in bytes."""
        return _bytes(self.whole.shape[1:], self.whole.dtype)


class Banks:
    """The banks of one run.

    Args:
        folder: folder of the files; None: files without names, deleted with the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._banks, self._count = folder, dict[int, _Bank](), 0
        self._round, self._undo = 0, cast("_File | None", None)

    # ---- what methods do, by way of `fedkin.core.rows` --------------------------------------------------------
    def grow(self, bank: Tensor | None, total: int, fill: Tensor) -> Tensor | None:
        """See `fedkin.core.rows.Keeper`. A number per client stays in memory, a row per client goes into a file."""
        known = 0 if bank is None else bank.shape[0]
        if not fill.dim() or not fill.numel() or not total:
            return None
        own = None if bank is None else self._own(bank)
        if own is not None and total == known:
            return bank
        row = fill.detach().to(fill.dtype if bank is None else bank.dtype).contiguous()
        return self._filed(row.new_empty(0, *row.shape) if bank is None else bank, total, row).whole

    def put(self, bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor | None:
        """See `fedkin.core.rows.Keeper`."""
        own = self._own(bank)
        if own is None:
            return None
        new = rows.detach().to(bank.dtype).expand(len(ids), *bank.shape[1:]).contiguous()
        at = ids.tolist()
        self._note(own, at)
        for i, row in zip(at, new, strict=True):
            raw = _raw(row)
            _write(own.file, raw, i * own.width)
            own.sums[i] = zlib.crc32(raw)
        return bank

    # ---- what checkpoints do ----------------------------------------------------------------------------------
    def split(self, state: Bundle) -> tuple[Bundle, Bundle, dict[str, str]]:
        """Return a server's state without its banks, the checksums of their rows, and a checkpoint's texts on them."""
        rest, sums, layouts = Bundle(), Bundle(), dict[str, str]()
        for name, t in state.items():
            own = self._own(t)
            if own is None:
                rest[name] = t
            else:
                sums[name] = own.sums
                layouts[name] = json.dumps([own.number, str(t.dtype).removeprefix("torch."), list(t.shape)])
        return rest, sums, layouts

    def saved(self, round: int, state: Bundle) -> None:
        """Record that a checkpoint has replaced the last one: delete what it does not use, and release memory."""
        used = {id(own) for t in state.values() if (own := self._own(t)) is not None}
        for at, own in list(self._banks.items()):
            if id(own) in used:
                own.saved, own.noted = len(own.whole), set()
            else:
                del self._banks[at]
                self._delete(_file(own.number))
        self._round = round
        if self._undo is not None:
            self._undo = None
            self._delete(_UNDO)
        self.rest()

    def rest(self) -> None:
        """Release the memory that rows were read into; they stay in their files."""
        for own in self._banks.values():
            if hasattr(mmap, "MADV_DONTNEED"):
                own.map.madvise(mmap.MADV_DONTNEED)

    def open(self, round: int, layouts: Mapping[str, str], sums: Mapping[str, Tensor]) -> Bundle:
        """Return the banks of the checkpoint after ``round``, as they were then.

        Raises:
            RunFolderError: a file is missing or damaged, or this system cannot use them.
        """
        assert self._folder is not None
        if layouts:
            require_supported(self._folder)
        self._banks.clear()
        self._round, found = round, Bundle()
        banks = {name: self._opened(name, text, sums) for name, text in layouts.items()}
        self._take_back({own.number: own for own in banks.values()})
        for name, own in banks.items():
            for i in range(own.saved):
                # read from the file: the map would keep all of it in memory
                if zlib.crc32(os.pread(own.file.number, own.width, i * own.width)) != int(own.sums[i]):
                    path = self._folder / _file(own.number)
                    raise RunFolderError(f"{path}: row {i} is damaged; start the run again in another folder")
            self._count = max(self._count, own.number + 1)
            found[name] = own.whole
        for path in self._folder.glob("*.bank"):
            if path.name not in {_file(own.number) for own in banks.values()}:
                path.unlink()
        self.rest()
        return found

    def adopt(self, state: Bundle, clients: int) -> Bundle:
        """Return the state with every tensor ``[K, ...]`` in a file, for a run that kept its banks in memory so far."""
        found = Bundle(state)
        for name, t in state.items():
            if t.dim() > 1 and len(t) == clients and t.numel() and self._own(t) is None:
                found[name] = self._filed(t, clients, t[0]).whole
        return found

    # ---- inside -----------------------------------------------------------------------------------------------
    def _own(self, bank: Tensor) -> _Bank | None:
        own = self._banks.get(bank.data_ptr())
        return own if own is not None and bank.shape == own.whole.shape and bank.dtype == own.whole.dtype else None

    def _filed(self, bank: Tensor, total: int, row: Tensor) -> _Bank:
        """Return a bank in its file, with more rows."""
        own, known = self._own(bank) or self._new(bank), len(bank)
        os.ftruncate(own.file.number, known * own.width)  # drops rows of an unfinished round
        _fill(own.file, known, total, row)
        sums = torch.cat([own.sums[:known], torch.full((total - known,), _sum(row))])
        self._map(own, (total, *row.shape), row.dtype, sums)
        return own

    def _new(self, rows: Tensor) -> _Bank:
        """Return a file with these rows, not mapped yet."""
        number = self._count
        self._count += 1
        file = _File(None if self._folder is None else self._folder / _file(number), os.O_CREAT | os.O_TRUNC)
        for i, row in enumerate(rows):
            _write(file, _raw(row), i * _bytes(rows.shape[1:], rows.dtype))
        sums = torch.tensor([_sum(row) for row in rows], dtype=torch.int64)
        return _Bank(number, file, mmap.mmap(-1, 1), sums, rows, 0, set())

    def _opened(self, name: str, text: str, sums: Mapping[str, Tensor]) -> _Bank:
        """Return a bank that a checkpoint describes, mapped.

        Raises:
            RunFolderError: it describes none, or its file is missing or too short.
        """
        assert self._folder is not None
        try:
            number, kind, shape = json.loads(text)
            whole = type(number) is int and number >= 0 and all(type(n) is int and n > 0 for n in shape)
            if not whole or len(shape) < 2 or sums[name].shape != (shape[0],):
                raise ValueError("no bank has this number and shape")
            dtype, path = _TYPES[kind], self._folder / _file(number)
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            raise RunFolderError(
                f"{self._folder}: the checkpoint describes the bank {name} as {text[:80]!r} ({e}); start the run again "
                "in another folder"
            ) from e
        if not path.is_file() or path.stat().st_size < _bytes(shape, dtype):
            raise RunFolderError(f"{path} is missing or too short; start the run again in another folder")
        own = _Bank(number, _File(path, 0), mmap.mmap(-1, 1), sums[name], torch.empty(0), shape[0], set())
        os.ftruncate(own.file.number, _bytes(shape, dtype))
        self._map(own, tuple(shape), dtype, sums[name].clone())
        return own

    def _map(self, own: _Bank, shape: tuple[int, ...], dtype: torch.dtype, sums: Tensor) -> None:
        """Map a file with this shape as a tensor."""
        self._banks = {at: other for at, other in self._banks.items() if other is not own}
        own.map, own.sums = mmap.mmap(own.file.number, _bytes(shape, dtype)), sums
        own.whole = torch.frombuffer(own.map, dtype=dtype).view(shape)
        self._banks[own.whole.data_ptr()] = own

    def _note(self, own: _Bank, ids: list[int]) -> None:
        """Save rows that are about to be overwritten, as they are in the last checkpoint."""
        new = [i for i in ids if i < own.saved and i not in own.noted]
        if self._folder is None or not new:
            return
        if self._undo is None:
            self._undo = _File(self._folder / _UNDO, os.O_CREAT | os.O_TRUNC)
            _write(self._undo, json.dumps({"round": self._round}).encode() + b"\n", 0)
        end = os.lseek(self._undo.number, 0, os.SEEK_END)
        for i in new:
            raw = os.pread(own.file.number, own.width, i * own.width)
            head = {"bank": own.number, "row": i, "sum": zlib.crc32(raw)}
            note = json.dumps(head).encode() + b"\n" + raw
            _write(self._undo, note, end)
            end += len(note)
        own.noted.update(new)

    def _take_back(self, banks: Mapping[int, _Bank]) -> None:
        """Restore the rows of the last checkpoint, whose banks these are by number, where a later round has overwritten
        them. An incomplete note is the last one: its row was not overwritten any more."""
        assert self._folder is not None
        path = self._folder / _UNDO
        if not path.exists():
            return
        with path.open("rb") as file:
            if _head(file).get("round") == self._round:
                while head := _head(file):
                    number, row = head.get("bank"), head.get("row")
                    own = banks.get(number) if type(number) is int else None
                    if own is None or type(row) is not int or not 0 <= row < own.saved:
                        break
                    if zlib.crc32(raw := file.read(own.width)) != head.get("sum"):
                        break
                    _write(own.file, raw, row * own.width)
        path.unlink()

    def _delete(self, name: str) -> None:
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)


def _file(number: int) -> str:
    return f"{number}.bank"


def _head(file: BinaryIO) -> Mapping[str, object]:
    line = file.readline(1 << 12)
    try:
        found = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(shape: tuple[int, ...] | torch.Size | list[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _raw(row: Tensor) -> bytes:
    return row.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _sum(row: Tensor) -> int:
    return zlib.crc32(_raw(row))


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
