"""Integrity of the lines of a run: their digests, their order, and their uniqueness.

The digest of a file is in the checkpoint and in ``summary.json``, not in the lines: files of equal runs stay equal and
readable by any JSON reader, a missing last line is detected as well, and a resumed run knows to the byte where its
checkpoint ends. Digests of ``timing.jsonl`` would differ between equal runs, so its lines contain them: each ends with
a digest of the file up to there.

Digests detect damage and careless edits. They have no key, so a forger can recompute them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from fedkin.core.errors import RunFolderError, typed

Record = dict[str, Any]
KEYS: Mapping[str, tuple[str, ...]] = {
    "rounds.jsonl": ("round",),
    "clients.jsonl": ("round", "client"),
    "relations.jsonl": ("round", "kind"),
    "timing.jsonl": ("round",),
}
"""Keys that identify the lines of a file; lines are ordered by the first."""
_PIECE = 1 << 20
_SUM = b', "sum": "'


class Digest:
    """A digest of a file that grows."""

    def __init__(self) -> None:
        self.bytes, self._hash = 0, hashlib.blake2b(digest_size=16)

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Digest:
        """Return the digest of a file, or of its first bytes; a missing file is empty."""
        found, left = cls(), size
        if path.exists():
            with path.open("rb") as file:
                while piece := file.read(_PIECE if left is None else min(_PIECE, left)):
                    found.add(piece)
                    left = None if left is None else left - len(piece)
        return found

    def add(self, content: bytes) -> None:
        """Add bytes that were appended to the file."""
        self.bytes += len(content)
        self._hash.update(content)

    def signed(self, text: bytes) -> bytes:
        """Return a line, a JSON object, with a digest of the file up to there as its last entry."""
        after = self._hash.copy()
        after.update(text)
        return text.removesuffix(b"}") + _SUM + after.hexdigest()[:16].encode() + b'"}'

    def __str__(self) -> str:
        return f"{self.bytes} {self._hash.hexdigest()}"


class Line(NamedTuple):
    """A line of a file and its end, in bytes."""

    record: Record
    end: int


class Lines:
    """The lines of a JSON-lines file, read again on every pass; none if the file does not exist.

    An incomplete last line (of a run that was killed while writing) is skipped; any other damage, a repeated line and a
    line out of order raise RunFolderError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Record]:
        return (line.record for line in lines_of(self.path))


class Written(Lines, Sequence[Record]):
    """The lines of a file, read again at each access: those of many clients need not fit into memory.

    They equal a list of the same lines.
    """

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        return list(self)[i]


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the lines of a JSON-lines file; none if it does not exist.

    An incomplete last line (of a run that was killed while writing) is skipped.

    Raises:
        RunFolderError: any other line is damaged, repeated, or out of order.
    """
    if not path.exists():
        return
    keys, there, at, end = KEYS.get(path.name, ()), set[tuple[Any, ...]](), 0, 0
    digest = Digest()
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                record = _record(raw, keys)
                if keys and record["round"] < at:
                    raise ValueError(f"round {record['round']} comes after round {at}")
                if keys and record["round"] > at:
                    at = record["round"]
                    there.clear()
                if keys and (key := tuple(record[k] for k in keys)) in there:
                    raise ValueError(f"{', '.join(f'{k} {v}' for k, v in zip(keys, key, strict=True))} is there twice")
                if path.name == "timing.jsonl":
                    _require_signed(raw, record, digest)
            except (ValueError, TypeError, RecursionError) as e:
                if not raw.endswith(b"\n"):
                    return
                raise RunFolderError(f"{path}: line {number} is damaged ({e}); restore the file") from e
            if keys:
                there.add(key)
            end += len(raw)
            yield Line(record, end)


def _record(raw: bytes, keys: tuple[str, ...]) -> Record:
    found = json.loads(raw.decode("utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"it must be an object, got {type(found).__name__}")
    for key in keys:
        if key == "kind" and not isinstance(found.get(key), str):
            raise TypeError(f"{key} must be a text, got {found.get(key)!r}")
        if key != "kind" and type(found.get(key)) is not int:
            raise TypeError(f"{key} must be a whole number, got {found.get(key)!r}")
    return found


def _require_signed(raw: bytes, record: Record, digest: Digest) -> None:
    """Check the digest at the end of a line, add the line to the digest, and remove it from the record.

    Raises:
        ValueError: it does not fit, or is missing.
    """
    text, mark, _ = raw.rpartition(_SUM)
    if not mark or digest.signed(text + b"}") + b"\n" != raw:
        raise ValueError("its digest does not fit: this line or one before it was changed or removed")
    digest.add(raw)
    del record["sum"]


def require_intact(path: Path, recorded: object) -> None:
    """Check that a file begins with the content of a digest, given as ``str(Digest)``.

    Raises:
        RunFolderError: it does not.
    """
    size, _, _ = str(recorded).partition(" ")
    if not size.isdecimal():
        raise RunFolderError(f"{path}: its digest is damaged, got {recorded!r}; resume the run to write it again")
    if str(Digest.of(path, int(size))) == recorded:
        return
    if path.exists():
        for _ in lines_of(path):  # raises for the damaged line, if it can be located
            pass
    there = path.stat().st_size if path.exists() else 0
    raise RunFolderError(
        f"{path} has changed since it was written (its digest differs; {size} bytes were written, {there} are there): "
        "lines were changed, removed or added; restore the file, or start the run again in another folder"
    )


def require_ended(path: Path, recorded: object) -> None:
    """Check the file of a finished run, after which nothing follows, against its digest.

    Raises:
        RunFolderError: the file differs.
    """
    require_intact(path, recorded)
    if (there := path.stat().st_size if path.exists() else 0) != int(str(recorded).partition(" ")[0]):
        raise RunFolderError(
            f"{path} has grown from {str(recorded).partition(' ')[0]} to {there} bytes since the summary was written; "
            f"resume the run, which repairs both: fedkin resume {typed(path.parent)}"
        )


def require_rounds(path: Path, until: int, *, beyond: bool = False) -> None:
    """Check that a file has one line for each round.

    Args:
        path: the file.
        until: the last round.
        beyond: whether lines of later rounds may follow.

    Raises:
        RunFolderError: the rounds of its lines differ.
    """
    there = [t for line, _ in lines_of(path) if (t := line["round"]) <= until or not beyond]
    if there != list(range(1, until + 1)):
        raise RunFolderError(
            f"{path} must hold rounds 1 to {until}, one line each, it has {len(there)} of them; restore the file, or "
            "start the run again in another folder"
        )
