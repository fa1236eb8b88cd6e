"""What lies at a source: first lines of files, names, arrays, whether they can be read or not."""

from __future__ import annotations

from pathlib import Path

from fedkin.core.errors import DataError, FedkinError
from fedkin.data.sources import csv_files
from fedkin.data.sources.npz import read_arrays
from fedkin.inspection.finding import EXAMPLES, Finding, first

_LINE = 160  # characters of a line that are shown
_LINES = 4


def first_look(data: str | Path, kind: str) -> tuple[str, ...]:
    """Return the first lines of a table, the arrays of an npz file, or the names in a folder."""
    path = Path(data)
    if kind == "table":
        paths = csv_files([path])
        before = (f"{paths[0].name}, the first of {len(paths)} files:",) if len(paths) > 1 else ()
        more = (f"the others: {first([p.name for p in paths[1:]], 3 * EXAMPLES)}",) if len(paths) > 1 else ()
        return before + _lines(paths[0]) + more
    if kind == "npz":
        try:
            arrays = read_arrays(npz_of(path))
        except DataError:  # the reader will report it
            return ()
        shapes = {name: " x ".join(map(str, a.shape)) or "one value" for name, a in arrays.items()}
        return tuple(f"{name}: {a.dtype}, shape {shapes[name]}" for name, a in arrays.items())
    return _names(path) if path.is_dir() else ()


def npz_of(path: Path) -> Path:
    """Return an npz file, or the first one of a folder."""
    return path if path.is_file() else min(path.glob("*.npz"))


def refused(code: str, error: FedkinError) -> Finding:
    """Return a reader's message as a finding.

    After its last semicolon stands its advice, or what there is instead.
    """
    what, _, advice = str(error).rpartition("; ")
    if not what or advice.startswith(("it ", "got ", "the columns", "there are", "did you mean")):
        what, advice = str(error), "correct it and look again"
    return Finding(code, "error", what, "a run stops here", advice)


def as_read(note: str) -> Finding:
    """Return a reader's note as a finding; after its semicolon stands its advice."""
    what, _, todo = note.partition("; ")
    return Finding("as-read", "note", what, "the data were read this way", todo or "correct the data if it is wrong")


def _lines(path: Path) -> tuple[str, ...]:
    """Return the header and first rows as they stand in the file; none of a file that is not text."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return ()
    try:
        with path.open("rb") as file:
            lines = [file.readline(4 * _LINE) for _ in range(_LINES)]
    except OSError:
        return ()
    texts = [line.decode("utf-8-sig", errors="backslashreplace").rstrip("\r\n") for line in lines if line]
    return tuple(t[:_LINE] for t in texts)


def _names(folder: Path) -> tuple[str, ...]:
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    return tuple(names[:20]) + ((f"and {len(names) - 20} more",) if len(names) > 20 else ())
