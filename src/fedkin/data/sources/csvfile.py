"""A csv or parquet file as texts, with the place of every row for messages."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.core.errors import ConfigError, DataError, meant
from fedkin.core.machine import no_collection
from fedkin.data.columns import text_of
from fedkin.data.conversion import Conversion, convert
from fedkin.data.limits import Budget
from fedkin.data.sources.files import listed, read_bytes
from fedkin.data.standalone import RawError, read_lines

if TYPE_CHECKING:
    from pandas import DataFrame

_Read = tuple[tuple[str, ...], list[tuple[int, list[str]]], set[str]]
"""A file: its header, its rows with their numbers, and the columns that it declares to be texts."""
PARQUET = frozenset({".parquet", ".pq"})
_FIELD, _ROW = 64, 240  # bytes of memory for a field, which becomes a text of its own, and for a row
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
"""Name under which pandas stores the index of a table, mostly row numbers, which are not data."""
_ROWS = 1024  # of a parquet file that are unpacked together


@dataclass(frozen=True)
class Table:
    """Rows of one or several files, as texts.

    Attributes:
        columns: names of the columns, without the file.
        rows: the fields of each row, without spaces around them.
        file: number of the file of each row.
        places: file and line of each row, for messages.
        name: for messages.
        texts: columns that a file declares to be texts, whatever they look like.
        lacking: columns that some files lack, and are empty there, with the name of the first of these files.
        differences: the same as a sentence; "" if all files have the same columns.
    """

    columns: tuple[str, ...]
    rows: list[list[str]]
    file: list[int]
    places: list[str]
    name: str
    texts: frozenset[str] = frozenset()
    lacking: Mapping[str, str] = field(default_factory=dict)
    differences: str = ""
    _converted: dict[str, Conversion] = field(default_factory=dict)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.columns)}

    def column(self, name: str, use: str) -> list[str]:
        """Return the fields of one column; ``use`` is its purpose, for the message."""
        if name not in self._places:
            raise DataError(
                f"{self.name}: no column '{name}' for the {use}{meant(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        at = self._places[name]
        return [row[at] for row in self.rows]

    def converted(self, name: str) -> Conversion:
        """Return what a column is read as."""
        if name not in self._converted:
            texts = self.column(name, "inputs")
            self._converted[name] = Conversion(None) if name in self.texts else convert(texts, name, self.places)
        return self._converted[name]

    def records(self) -> list[dict[str, str]]:
        """Return the rows by column, as `Preparation.apply` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@no_collection()
def read_csv(paths: Sequence[Path], name: str, encoding: str | None = None) -> Table:
    """Return the rows of several files. A column that a file lacks is empty there.

    Args:
        paths: csv or parquet files; see `fedkin.data.sources.csv_files`.
        name: for messages.
        encoding: of the text of csv files; None: UTF-8.

    Raises:
        DataError: a file cannot be read, has no row, or takes more memory than the limit.
        ConfigError: an encoding of parquet files.
    """
    if encoding is not None and all(path.suffix.lower() in PARQUET for path in paths):
        raise ConfigError(f"{name}: encoding is for csv files; a parquet file states how its texts are stored")
    budget = Budget()
    files = [_read_parquet(p, budget) if p.suffix.lower() in PARQUET else _read_one(p, budget, encoding) for p in paths]
    having = [set(header) for header, _, _ in files]
    columns = tuple(dict.fromkeys(column for header, _, _ in files for column in header))
    budget.take(name, 0, 8 * sum(len(body) * (len(columns) - len(header)) for header, body, _ in files))
    lacking = {c: [path.name for path, own in zip(paths, having, strict=True) if c not in own] for c in columns}
    lacking = {column: names for column, names in lacking.items() if names}
    shown = listed([f"{column} ({listed(names, 3)})" for column, names in lacking.items()])
    table = Table(
        columns=columns, rows=[], file=[], places=[], name=name,
        texts=frozenset(column for *_, texts in files for column in texts),
        lacking={column: names[0] for column, names in lacking.items()},
        differences=f"columns that some files lack count as missing there: {shown}" if lacking else "",
    )  # fmt: skip
    for number, (path, (header, body, _)) in enumerate(zip(paths, files, strict=True)):
        unit = "row" if path.suffix.lower() in PARQUET else "line"
        places = {column: at for at, column in enumerate(header)}
        order = [places.get(column, -1) for column in columns]
        for line, row in body:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
            row.append("")  # the field of a column that the file lacks
            row[:] = [row[i].strip() for i in order]
            table.rows.append(row)
            table.file.append(number)
            table.places.append(f"{path.name}, {unit} {line}")
    return table


def of_frame(frame: DataFrame) -> Table:
    """Return the rows of a DataFrame of pandas; a value is the text that a csv file would hold."""
    known = frame.astype(object).where(frame.notna(), None)
    rows = [[text_of(value) for value in row] for row in known.itertuples(index=False, name=None)]
    texts = frozenset(str(column) for column, kind in frame.dtypes.items() if "str" in str(kind))
    names = tuple(map(str, frame.columns))
    return Table(names, rows, [0] * len(rows), [f"row {i}" for i in frame.index], "table", texts)


def _read_parquet(path: Path, budget: Budget) -> _Read:
    """Return a parquet file, its rows counted from 1; a value is the text that a csv file would hold."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            'reading parquet files needs pyarrow, which is not installed: pip install "fedkin[parquet]"'
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            about, names = file.metadata, tuple(str(name) for name in file.schema_arrow.names)
            texts = {str(column.name) for column in file.schema_arrow if "string" in str(column.type)}
            packed = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            budget.take(path, path.stat().st_size, max(0, packed) + _FIELD * about.num_rows * len(names))
            columns: list[list[str]] = [[] for _ in names]
            for batch in file.iter_batches(batch_size=_ROWS):  # one value may stand for many in the file
                budget.take(path, path.stat().st_size, batch.nbytes)
                for column, values in zip(columns, batch.columns, strict=True):
                    column += [text_of(value) for value in values.to_pylist()]
        kept = [i for i, name in enumerate(names) if not _ROW_NUMBERS.fullmatch(name)]
        names, columns = tuple(names[i] for i in kept), [columns[i] for i in kept]
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, arrow.ArrowException) as error:
        cause = " ".join(str(error).split())[:300]
        raise DataError(f"{path}: cannot be read as a parquet file ({cause}); write it again") from error
    if not names or not columns[0] or len(set(names)) < len(names):
        raise DataError(f"{path}: expected at least one row, and columns with names of their own, {listed(names)}")
    return names, [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), start=1)], texts


def _read_one(path: Path, budget: Budget, encoding: str | None) -> _Read:
    content = read_bytes(path, Budget(budget.left / 1e9))
    rows = content.count(b"\n") + content.count(b"\r")
    fields = rows + sum(map(content.count, (b",", b";", b"\t")))
    disk = path.stat().st_size if path.is_file() else len(content)
    budget.take(path, disk, len(content) + _ROW * rows + _FIELD * fields)
    try:
        return *read_lines(path, encoding, content), set()
    except RawError as error:
        raise DataError(str(error)) from error
