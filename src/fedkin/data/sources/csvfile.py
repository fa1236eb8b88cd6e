"""A csv or parquet file as texts, with the place of every row for messages."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.core.errors import ConfigError, DataError, meant
from fedkin.core.machine import no_collection
from fedkin.data.columns import text_of
from fedkin.data.limits import Budget
from fedkin.data.sources.files import listed
from fedkin.data.standalone import RawError, read_lines

PARQUET = frozenset({".parquet", ".pq"})
_FIELD, _ROW = 64, 240  # bytes of memory for a field, which becomes a text of its own, and for a row
_PIECE = 1 << 22
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
    """

    columns: tuple[str, ...]
    rows: list[list[str]]
    file: list[int]
    places: list[str]
    name: str

    def column(self, name: str, use: str) -> list[str]:
        """Return the fields of one column; ``use`` is its purpose, for the message."""
        if name not in self.columns:
            raise DataError(
                f"{self.name}: no column '{name}' for the {use}{meant(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def records(self) -> list[dict[str, str]]:
        """Return the rows by column, as `Preparation.apply` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@no_collection()
def read_csv(paths: Sequence[Path], name: str, encoding: str | None = None) -> Table:
    """Return the rows of several files with the same columns, in the order of the first.

    Args:
        paths: csv or parquet files.
        name: for messages.
        encoding: of the text of csv files; None: UTF-8.

    Raises:
        DataError: a file cannot be read, has no row, other columns than the first, or takes more memory than the limit.
        ConfigError: an encoding of parquet files.
    """
    if encoding is not None and all(path.suffix.lower() in PARQUET for path in paths):
        raise ConfigError(f"{name}: encoding is for csv files; a parquet file states how its texts are stored")
    table, budget = Table(columns=(), rows=[], file=[], places=[], name=name), Budget()
    for number, path in enumerate(paths):
        packed = path.suffix.lower() in PARQUET
        header, body = _read_parquet(path, budget) if packed else _read_one(path, budget, encoding)
        if number == 0:
            table = Table(columns=header, rows=[], file=[], places=[], name=name)
        if set(header) != set(table.columns):
            raise DataError(
                f"{path}: columns {listed(header)} differ from those of {paths[0].name}, {listed(table.columns)}; "
                "all files need the same"
            )
        unit = "row" if packed else "line"
        order = [header.index(column) for column in table.columns]
        for line, row in body:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
            table.rows.append([row[i].strip() for i in order])
            table.file.append(number)
            table.places.append(f"{path.name}, {unit} {line}")
    return table


def _read_parquet(path: Path, budget: Budget) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """Return the rows of a parquet file, counted from 1; a value is the text that a csv file would hold."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            'reading parquet files needs pyarrow, which is not installed: pip install "fedkin[parquet]"'
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            about, names = file.metadata, tuple(str(name) for name in file.schema_arrow.names)
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
    return names, [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), start=1)]


def _texts_of(path: Path) -> int:
    """Return the bytes of memory that fields and rows of a csv file take in addition to their letters."""
    rows = fields = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            rows += piece.count(b"\n") + piece.count(b"\r")
            fields += sum(map(piece.count, (b",", b";", b"\t")))
    return _ROW * rows + _FIELD * (rows + fields)


def _read_one(path: Path, budget: Budget, encoding: str | None) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    try:
        size = path.stat().st_size
        budget.take(path, size, size + _texts_of(path))
        return read_lines(path, encoding)
    except (RawError, OSError) as error:
        raise DataError(str(error)) from error
