"""Look at data before they are read: the kind of source, its first lines, and faults that only show there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedkin.core.errors import DataError, FedkinError, counted
from fedkin.data.checks import NAMELESS, Indices
from fedkin.data.pixels import Array
from fedkin.data.shelf import is_shelf
from fedkin.data.sources import SOURCES, Reading, csv_files, is_function
from fedkin.data.sources.csvfile import Table, read_csv
from fedkin.data.sources.files import stem
from fedkin.data.sources.hub import PREFIX, open_hub, table_of
from fedkin.data.sources.idx import is_idx_folder
from fedkin.data.sources.images import is_image_folder
from fedkin.data.sources.npz import likely_clients, read_arrays
from fedkin.data.sources.papers import is_known
from fedkin.inspection import columns, gaps, pictures, roles
from fedkin.inspection.fields import Field, Fields, numbered
from fedkin.inspection.finding import EXAMPLES, ColumnSummary, Finding, first

Kind = Literal["built-in", "known", "function", "hub", "federation", "table", "idx", "images", "npz", "unknown"]
WORDS: dict[Kind, str] = {
    "built-in": "built-in data",
    "known": "a data set that is known by name",
    "function": "what a function gives",
    "hub": "a data set in the format of Hugging Face",
    "federation": "a federation that is shared out already",
    "table": "a table",
    "idx": "a folder of idx files (MNIST family)",
    "images": "a folder of images",
    "npz": "an npz file",
    "unknown": "nothing that can be read",
}
_LINE = 160  # characters of a line that are shown
_LINES = 4


@dataclass(frozen=True)
class Raw:
    """Contents of a source, seen before its data are read as samples.

    Attributes:
        kind: what kind of source.
        seen: first lines, file names, arrays.
        columns: of a table.
        fields: its columns as values, where it could be read; of images their classes and clients.
        class_names: of ``fields.label``.
        findings: what looks wrong.
    """

    kind: Kind
    seen: tuple[str, ...] = ()
    columns: tuple[ColumnSummary, ...] = ()
    fields: Fields | None = None
    class_names: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def look_at(data: str | Path, how: Reading) -> Raw:
    """Return what is there, whether it can be read or not; ``how`` is as for `read`."""
    path, kind = Path(data), kind_of(data)
    if kind == "table":
        return _tables(csv_files([path]), path, how)
    if kind == "hub":
        return _hub(str(data), how)
    if kind == "images":
        found = pictures.read_pictures(path)
        fields, names = _folders(found)
        wrong = (*pictures.pictures(found, how.image_size), *pictures.others(path))
        return Raw(kind, pictures.listing(path), fields=fields, class_names=names, findings=wrong)
    if kind == "npz":
        return _archive(path if path.is_file() else next(iter(sorted(path.glob("*.npz")))), how.client)
    return Raw(kind, _names(path) if path.is_dir() else ())


def kind_of(data: str | Path) -> Kind:
    """Return the kind of this source; the order is that of `read`."""
    path = Path(data)
    if is_shelf(data):
        return "federation"
    if isinstance(data, str):
        if is_function(data):
            return "function"
        if data.startswith(PREFIX):
            return "hub"
        if data in SOURCES:  # whatever lies here
            return "built-in"
        if is_known(data) and not path.exists():
            return "known"
    if path.is_dir():
        if is_idx_folder(path):
            return "idx"
        if csv_files([path]):
            return "table"
        if any(path.glob("*.npz")):
            return "npz"
        return "images" if is_image_folder(path) else "unknown"
    if path.is_file():
        return "table" if csv_files([path]) else "npz" if path.suffix.lower() == ".npz" else "unknown"
    return "unknown"


def _tables(paths: list[Path], path: Path, how: Reading) -> Raw:
    before = (f"{paths[0].name}, the first of {len(paths)} files:",) if len(paths) > 1 else ()
    more = (f"the others: {first([p.name for p in paths[1:]], 3 * EXAMPLES)}",) if len(paths) > 1 else ()
    seen = _lines(paths[0]) if paths[0].suffix.lower() in (".csv", ".tsv", ".txt") else ()
    try:
        table = read_csv(paths, path.name, how.encoding)
    except FedkinError as error:
        return Raw("table", before + seen + more, findings=(refused("unreadable-table", error),))
    return _judged(table, how, paths, before + (seen or _first(table)) + more)


def _hub(spec: str, how: Reading) -> Raw:
    try:
        found = open_hub(spec, how)
    except FedkinError:  # the reader will report it
        return Raw("hub")
    unread = _unread(found.notes)
    if found.inputs is not None:
        return Raw("hub", found.description(), findings=unread)
    named = replace(how, target=found.target, client=found.client)
    table = table_of(found)
    raw = _judged(table, named, (), (*found.description(), *_first(table)))
    return replace(raw, kind="hub", findings=(*unread, *raw.findings))


def _unread(notes: tuple[str, ...]) -> tuple[Finding, ...]:
    """Return findings on splits that are not used."""
    todo = "rename it to train or test, or run on it by itself, if it is to be used"
    return tuple(Finding("split-not-used", "note", note, "no figure is about its samples", todo) for note in notes)


def _judged(table: Table, how: Reading, paths: Sequence[Path], seen: tuple[str, ...]) -> Raw:
    """Return findings on the columns of a table."""
    target, client = how.target, how.client
    label, wrong = roles.check_target(table, target, how.binary)
    wrong += roles.check_client(table, client)
    left = {target, client, *how.drop}
    inputs = tuple(Field.read(c, table) for c in table.columns if c not in left)
    ids, names = _clients(table, client, paths)
    fields = Fields(inputs, label, ids, names, table.places)
    plain = replace(fields, inputs=tuple(f for f in inputs if table.converted(f.name).code != "numbers-as-texts"))
    wrong += [
        *columns.constant(fields),
        *columns.constant_at_client(fields),
        *columns.client_numbers(fields),
        *columns.codes_of_clients(fields),
        *gaps.missing(fields),
        *gaps.stand_ins(fields),
        *columns.odd_numbers(fields),
        *columns.conversions(table, fields),
        *columns.texts(plain),
        *columns.ids(plain),
        *columns.leaks(fields),
        *columns.scales(fields, standardised=True),
    ]
    of_roles = [_summary(table, name, role) for name, role in ((target, "target"), (client, "client"))]
    summaries = (*(t for t in of_roles if t is not None), *(f.summary("input") for f in inputs))
    return Raw("table", seen, summaries, fields, _class_names(table, target, label, how.binary), tuple(wrong))


def _summary(table: Table, name: str | None, role: str) -> ColumnSummary | None:
    return Field.read(name, table, role).summary(role) if name in table.columns and name else None


def _class_names(table: Table, target: str | None, label: Array | None, binary: bool) -> tuple[str, ...]:
    """Return the names of the classes in the order of their numbers."""
    if label is None or target is None:
        return ()
    if binary:
        return f"{target} <= 0", f"{target} > 0"
    names: dict[int, str] = dict(zip(label.tolist(), table.column(target, "target"), strict=True))
    return tuple(names[k] for k in sorted(names))


def _clients(table: Table, client: str | None, paths: Sequence[Path]) -> tuple[Indices | None, tuple[str, ...]]:
    if client is not None and client in table.columns:
        names, ids = numbered(table.column(client, "client"))
        return ids, tuple(name or NAMELESS for name in names)
    if len(paths) > 1:
        return np.array(table.file, dtype=np.int64), tuple(map(stem, paths))
    return None, ()


def _folders(found: list[pictures.Picture]) -> tuple[Fields | None, tuple[str, ...]]:
    """Return classes and clients by the folders of the images, which are known even if an image cannot be read."""
    labels, clients = pictures.labels_of(found)
    if not labels:
        return None, ()
    names, numbers = np.unique(labels, return_inverse=True)
    owners, ids = np.unique(clients, return_inverse=True) if clients else (np.array([]), None)
    fields = Fields(
        (),
        numbers.astype(np.int64),
        None if ids is None else ids.astype(np.int64),
        tuple(str(o) for o in owners),
        [str(p.path) for p in found],
    )
    return fields, tuple(str(n) for n in names)


def _archive(path: Path, client: str | None) -> Raw:
    try:
        arrays = read_arrays(path)
    except DataError as error:
        return Raw("npz", findings=(refused("unreadable-archive", error),))
    seen = tuple(
        f"{name}: {a.dtype}, shape {' x '.join(map(str, a.shape)) or 'one value'}" for name, a in arrays.items()
    )
    found = []
    for name, values in arrays.items():
        if values.dtype.kind != "f" or values.ndim == 0 or not values.size:
            continue
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(bad):
            found.append(
                Finding(
                    "non-finite",
                    "error",
                    f"{counted(len(bad), 'sample')} of {name} with NaN or infinite values",
                    "one such value turns a model's weights into NaN, and the reader refuses it",
                    "fill these values, or remove the samples",
                    columns=(name,),
                    rows=tuple(f"{name}[{i}]" for i in bad[:EXAMPLES].tolist()),
                )
            )
    if client is None and (ids := likely_clients(arrays)):
        found.append(
            Finding(
                "ids-not-used",
                "note",
                f"{counted(len(ids), 'array')} with a value for each sample that {'is' if len(ids) == 1 else 'are'} "
                "not "
                f"used: {first(ids)}",
                "if it names the client of each sample, clients need not be made up",
                f"--client-column {ids[0]}, if it does",
                columns=ids,
            )
        )
    return Raw("npz", seen, findings=tuple(found))


def refused(code: str, error: Exception) -> Finding:
    """Return a reader's message as a finding.

    After its last semicolon stands its advice, or what there is instead.
    """
    what, _, advice = str(error).rpartition("; ")
    if not what or advice.startswith(("it ", "got ", "the columns", "there are", "did you mean")):
        what, advice = str(error), "correct it and look again"
    return Finding(code, "error", what, "a run stops here", advice)


def _lines(path: Path) -> tuple[str, ...]:
    """Return the header and first rows as they stand in the file."""
    try:
        with path.open("rb") as file:
            lines = [file.readline(4 * _LINE) for _ in range(_LINES)]
    except OSError:
        return ()
    texts = [line.decode("utf-8-sig", errors="backslashreplace").rstrip("\r\n") for line in lines if line]
    return tuple(t[:_LINE] for t in texts)


def _first(table: Table) -> tuple[str, ...]:
    """Return the header and first rows as a csv file would hold them."""
    return tuple(", ".join(row)[:_LINE] for row in [list(table.columns), *table.rows[: _LINES - 1]])


def _names(folder: Path) -> tuple[str, ...]:
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    return tuple(names[:20]) + ((f"and {len(names) - 20} more",) if len(names) > 20 else ())
