"""Whether the lines of a run are the ones that were written: their digests, their order, and none twice.

A digest of each file stands in the checkpoint and in ``summary.json``, not in the lines: files of equal runs stay equal
and readable by anything that reads JSON, a whole line missing at the end is noticed, too, and a resumed run knows to
the byte up to where its checkpoint reaches. Digests of ``timing.jsonl`` would differ between equal runs, so its lines
carry them: each ends with a digest of the file up to there.

Digests show damage and careless edits. They have no key: a person who wants to forge a run can compute them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from fedkin.core.errors import RunFolderError

Record = dict[str, Any]
KEYS: Mapping[str, tuple[str, ...]] = {
    "rounds.jsonl": ("round",),
    "clients.jsonl": ("round", "client"),
    "relations.jsonl": ("round", "kind"),
    "timing.jsonl": ("round",),
}
"""What tells the lines of a file apart; they are in order of the first."""
_PIECE = 1 << 20
_SUM = b', "sum": "'


class Digest:
    """A digest of a file that grows."""

    def __init__(self) -> None:
        self.bytes, self._hash = 0, hashlib.blake2b(digest_size=16)

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Digest:
        """That of a file, or of its first bytes; a missing file is empty."""
        found, left = cls(), size
        if path.exists():
            with path.open("rb") as file:
                while piece := file.read(_PIECE if left is None else min(_PIECE, left)):
                    found.add(piece)
                    left = None if left is None else left - len(piece)
        return found

    def add(self, content: bytes) -> None:
        """Takes what was appended to the file."""
        self.bytes += len(content)
        self._hash.update(content)

    def signed(self, text: bytes) -> bytes:
        """A line, a JSON object, with a digest of the file up to there as its last entry."""
        after = self._hash.copy()
        after.update(text)
        return text.removesuffix(b"}") + _SUM + after.hexdigest()[:16].encode() + b'"}'

    def __str__(self) -> str:
        return f"{self.bytes} {self._hash.hexdigest()}"


class Line(NamedTuple):
    """A line of a file and where it ends, in bytes."""

    record: Record
    end: int


class Lines:
    """The lines of a JSON-lines file, read anew on every pass; nothing if the file does not exist.

    A last line cut short (a run that was killed while writing) is skipped; any other damage, a line that is twice there
    and one out of order raise RunFolderError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Record]:
        return (line.record for line in lines_of(self.path))


class Written(Lines, Sequence[Record]):
    """The lines of a file, read anew whenever they are looked at: those of many clients need not be in memory."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        return list(self)[i]


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a JSON-lines file; nothing if it does not exist.

    A last line cut short (a run that was killed while writing) is skipped.

    Raises:
        RunFolderError: any other line is damaged, twice there, or out of order.
    """
    if not path.exists():
        return
    keys, there, at, end = KEYS.get(path.name, ()), set[tuple[Any, ...]](), 0, 0
    digest, signed = Digest(), False
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                record = _record(raw, keys)
                if keys and record["round"] < at:
                    raise ValueError(f"round {record['round']} stands after round {at}")
                if keys and record["round"] > at:
                    at = record["round"]
                    there.clear()
                if keys and (key := tuple(record[k] for k in keys)) in there:
                    raise ValueError(f"{', '.join(f'{k} {v}' for k, v in zip(keys, key, strict=True))} is there twice")
                signed = path.name == "timing.jsonl" and _signed(raw, record, digest, signed)
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


def _signed(raw: bytes, record: Record, digest: Digest, before: bool) -> bool:
    """Whether a line has a digest, as all have after the first that has one; takes it out of the record.

    Raises:
        ValueError: it does not fit, or is missing.
    """
    if "sum" not in record:
        if before:
            raise ValueError("its digest is missing")
        digest.add(raw)
        return False
    text, mark, _ = raw.rpartition(_SUM)
    if not mark or digest.signed(text + b"}") + b"\n" != raw:
        raise ValueError("its digest does not fit: this line or one before it was changed or removed")
    digest.add(raw)
    del record["sum"]
    return True


def require_intact(path: Path, told: object) -> None:
    """Makes sure that a file begins with what a digest was told of, as ``str(Digest)``.

    Raises:
        RunFolderError: it does not.
    """
    size, _, _ = str(told).partition(" ")
    if not size.isdecimal():
        raise RunFolderError(f"{path}: its digest is damaged, got {told!r}; resume the run to write it again")
    if str(Digest.of(path, int(size))) == told:
        return
    if path.exists():
        for _ in lines_of(path):  # names the line, where that can be seen
            pass
    there = path.stat().st_size if path.exists() else 0
    raise RunFolderError(
        f"{path} is not as it was written (its digest differs; {size} bytes were written, {there} are there): lines "
        "were changed, removed or added; restore the file, or start the run again in another folder"
    )


def require_ended(path: Path, told: object) -> None:
    """The same of the file of a finished run, which nothing follows.

    Raises:
        RunFolderError: it is another.
    """
    require_intact(path, told)
    if (there := path.stat().st_size if path.exists() else 0) != int(str(told).partition(" ")[0]):
        raise RunFolderError(
            f"{path} has grown from {str(told).partition(' ')[0]} to {there} bytes since the summary was written; "
            f"resume the run, which puts both right: fedkin resume {path.parent}"
        )


def require_rounds(path: Path, until: int, *, beyond: bool = False) -> None:
    """Makes sure that a file has one line for each round.

    Args:
        beyond: lines of later rounds may follow.

    Raises:
        RunFolderError: it has others.
    """
    there = [t for line, _ in lines_of(path) if (t := line["round"]) <= until or not beyond]
    if there != list(range(1, until + 1)):
        raise RunFolderError(
            f"{path} must hold rounds 1 to {until}, one line each, it has {len(there)} of them; restore the file, or "
            "start the run again in another folder"
        )
