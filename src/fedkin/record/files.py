"""The files of a run folder: lines are appended and marked, and read up to their marks.

``commit.json`` has the size and a digest of each file of lines. Whatever stands behind a mark is of a round that was
not finished; anything else that differs is damage.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, overload

import msgspec

from fedkin.core.errors import RunFolderError
from fedkin.record.lines import FILES, ClientLine, Commit, Line, Mark
from fedkin.storage.files import HALF_WRITTEN, naming, sync_to_disk, write_atomic

COMMIT, RUN = "commit.json", "run.json"
UNMARKED = "timing"
"""The file that differs between equal runs."""
LARGE = 64_000_000
"""Maximum bytes of lines in memory; larger files are read again on every pass."""
_ENCODER = msgspec.json.Encoder()
_BLOCK = 8 << 20  # bytes that are read at a time
_NAMES: Mapping[type, str] = {kind: name for name, kind in FILES.items()}
_T = TypeVar("_T")
_L = TypeVar("_L", bound=Line)


def read_json(path: Path, kind: type[_T]) -> _T:
    """Return the content of a JSON file of a run folder.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError, RecursionError) as e:
        raise RunFolderError(f"{path} is damaged ({e}); restore the folder from a copy") from e


def write_json(path: Path, value: msgspec.Struct, *, sync: bool = False) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, _ENCODER.encode(value) + b"\n", sync=sync)


def read_commit(folder: Path) -> Commit:
    """Return the commit of a run; an empty one before its first round."""
    return read_json(folder / COMMIT, Commit) if (folder / COMMIT).exists() else Commit()


class Lines(Sequence[_L]):
    """The lines of a file that a commit covers; those of large files are read again on every pass.

    Reading raises RunFolderError where the file is not as it was marked, or holds what no run writes.

    Args:
        folder: the run's.
        kind: `RoundLine`, for example.
        commit: the run's.
        clients: number of clients of the run, above all numbers of clients.
    """

    def __init__(self, folder: Path, kind: type[_L], commit: Commit, clients: int) -> None:
        name = _NAMES[kind]
        self.path, self._commit, self._clients = folder / f"{name}.jsonl", commit, clients
        self._mark = None if name == UNMARKED else commit.files.get(self.path.name, mark_of(b""))
        self._decoder = msgspec.json.Decoder(kind)
        self._kept: Sequence[_L] | None = None
        self._small = name != "relations" and (self._mark is None or self._mark.bytes <= LARGE)

    def __iter__(self) -> Iterator[_L]:
        if not self._small:
            return self._read()
        if self._kept is None:
            self._kept = list(self._read())
        return iter(self._kept)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    @overload
    def __getitem__(self, i: int) -> _L: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[_L]: ...
    def __getitem__(self, i: int | slice) -> _L | Sequence[_L]:
        return list(self)[i]

    def _read(self) -> Iterator[_L]:
        digest, before = _digest(), (0, -1)
        try:
            for block in self._blocks():
                digest.update(block)
                for line in self._decoder.decode_lines(block):
                    client = line.client if isinstance(line, ClientLine) else 0
                    if (line.round, client) <= before or client >= max(1, self._clients):
                        raise ValueError(f"round {line.round}, client {client} comes after {before}")
                    before = line.round, client
                    if self._mark is None and line.round > self._commit.round:
                        return
                    yield line
            if self._mark is not None and digest.hexdigest() != self._mark.digest:
                raise ValueError("lines were changed, removed or added")
        except (ValueError, RecursionError) as e:
            raise _changed(self.path, e) from e

    def _blocks(self) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size if self._mark is None else self._mark.bytes
            while left > 0 and (block := file.read(min(left, _BLOCK))):
                block += file.readline(left - len(block)) if left > len(block) else b""
                left -= len(block)
                yield block if self._mark is not None else block[: block.rfind(b"\n") + 1]


class LineFiles:
    """The files of lines of a run that is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends = {name: (0, _digest()) for name in FILES}

    def append(self, lines: Mapping[str, Sequence[Line]]) -> None:
        """Add lines to ``NAME.jsonl`` for each name."""
        for name, new in lines.items():
            path, raw = self._folder / f"{name}.jsonl", _ENCODER.encode_lines(new)
            with naming(path), path.open("ab") as file:
                file.write(raw)
            size, digest = self._ends[name]
            digest.update(raw)
            self._ends[name] = size + len(raw), digest

    def marks(self) -> dict[str, Mark]:
        """Return the ends of the files."""
        marked = {name: end for name, end in self._ends.items() if name != UNMARKED}
        return {f"{name}.jsonl": Mark(size, digest.hexdigest()) for name, (size, digest) in marked.items()}

    def cut(self, commit: Commit) -> None:
        """Remove all lines behind the marks of a commit, and what is half written.

        Raises:
            RunFolderError: lines before are missing or changed; nothing is removed then.
        """
        ends = {}
        for name in FILES:
            path = self._folder / f"{name}.jsonl"
            raw = path.read_bytes() if path.exists() else b""
            mark = commit.files.get(path.name)
            end = _end_of(raw, commit.round) if name == UNMARKED else 0 if mark is None else mark.bytes
            digest = _digest(raw[:end])
            if mark is not None and digest.hexdigest() != mark.digest:
                raise _changed(path, "lines were changed, removed or added")
            ends[name] = end, digest, len(raw)
        for name, (end, digest, size) in ends.items():
            if size > end:
                os.truncate(self._folder / f"{name}.jsonl", end)
            self._ends[name] = end, digest
        for half in self._folder.glob(HALF_WRITTEN):
            half.unlink(missing_ok=True)

    def sync(self) -> None:
        """Return when all lines would survive a power failure."""
        for path in (self._folder / f"{name}.jsonl" for name in FILES):
            if path.exists():
                sync_to_disk(path)
        sync_to_disk(self._folder)


def mark_of(raw: bytes) -> Mark:
    """Return the mark of a whole file."""
    return Mark(len(raw), _digest(raw).hexdigest())


def _digest(raw: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(raw, digest_size=20)


def _changed(path: Path, why: object) -> RunFolderError:
    return RunFolderError(
        f"{path} is not as it was written ({why}); restore it, or start the run again in another folder"
    )


def _end_of(raw: bytes, round: int) -> int:
    """Return where the lines of ``timing.jsonl`` up to a round end: there is one for each."""
    return sum(map(len, raw.splitlines(keepends=True)[:round]))
