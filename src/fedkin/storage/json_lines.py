"""The lines of a run: their order, and that each is there once.

The sizes of the files are in the checkpoint and in ``summary.json``: a missing last line is detected as well, and a
resumed run knows to the byte where its checkpoint ends. Nothing here detects a figure that was edited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
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
"""Keys that identify the lines of a file, by which they are ordered."""
SIZES = "bytes"
"""The entry of ``summary.json`` with the sizes of the files of a finished run."""


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
    keys, before, end = KEYS.get(path.name, ()), tuple[Any, ...](), 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                record = _record(raw, keys)
                key = tuple(record[k] for k in keys)
                if keys and key <= before:
                    raise ValueError(f"{_named(keys, key)} comes after {_named(keys, before)}")
            except (ValueError, TypeError, RecursionError) as e:
                if not raw.endswith(b"\n"):
                    return
                raise RunFolderError(f"{path}: line {number} is damaged ({e}); restore the file") from e
            before = key
            end += len(raw)
            yield Line(record, end)


def _named(keys: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))


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


def require_end(path: Path, size: int) -> None:
    """Check that a line of a file ends after ``size`` bytes.

    Raises:
        RunFolderError: none does, or a line before is damaged.
    """
    if size and size not in (line.end for line in lines_of(path)):
        raise RunFolderError(
            f"{path} has changed since it was written: no line ends after {size} bytes; restore the file, or start the "
            "run again in another folder"
        )


def require_rounds(path: Path, until: int, *, beyond: bool = False) -> int:
    """Check that a file has one line for each round; return where the last of them ends, in bytes.

    Args:
        path: the file.
        until: the last round.
        beyond: whether anything may follow.

    Raises:
        RunFolderError: the rounds of its lines differ.
    """
    lines = list(islice(lines_of(path), until if beyond else None))
    if [line.record["round"] for line in lines] != list(range(1, until + 1)):
        raise RunFolderError(
            f"{path} must hold rounds 1 to {until}, one line each, it has {len(lines)} lines; restore the file, "
            "or start the run again in another folder"
        )
    return lines[-1].end if lines else 0
