"""A csv or parquet file as texts, with the place of every row for messages."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.core.errors import ConfigError, DataError, meant
from fedkin.data.columns import text_of
from fedkin.data.sources.files import listed
from fedkin.data.standalone import RawError, read_lines

PARQUET = frozenset({".parquet", ".pq"})


@dataclass(frozen=True)
class Table:
    """All rows of one or several files, as texts.

    Attributes:
        columns: names of the columns, without the file.
        rows: the fields of each row.
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
        """The fields of one column; ``use`` says in the message what it was wanted for."""
        if name not in self.columns:
            raise DataError(
                f"{self.name}: no column '{name}' for the {use}{meant(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        at = self.columns.index(name)
        return [row[at].strip() for row in self.rows]

    def records(self) -> list[dict[str, str]]:
        """The rows by column, as `Preparation.apply` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def read_csv(paths: Sequence[Path], name: str) -> Table:
    """The rows of several files with the same columns, in the order of the first.

    Raises:
        DataError: a file cannot be read, has no row, or other columns than the first.
    """
    table = Table(columns=(), rows=[], file=[], places=[], name=name)
    for number, path in enumerate(paths):
        header, body = _read_parquet(path) if path.suffix.lower() in PARQUET else _read_one(path)
        if number == 0:
            table = Table(columns=header, rows=[], file=[], places=[], name=name)
        if set(header) != set(table.columns):
            raise DataError(
                f"{path}: columns {listed(header)} differ from those of {paths[0].name}, {listed(table.columns)}; "
                "all files need the same"
            )
        unit = "row" if path.suffix.lower() in PARQUET else "line"
        order = [header.index(column) for column in table.columns]
        for line, row in body:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
            table.rows.append([row[i] for i in order])
            table.file.append(number)
            table.places.append(f"{path.name}, {unit} {line}")
    return table


def _read_parquet(path: Path) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """Rows are counted from 1; a value is the text that a csv file would hold."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            'reading parquet files needs pyarrow, which is not installed: pip install "fedkin[parquet]"'
        ) from error
    try:
        found = parquet.ParquetFile(path).read()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors or OSErrors
        raise DataError(f"{path}: cannot be read as a parquet file ({error})") from error
    header = tuple(str(name) for name in found.column_names)
    if found.num_rows == 0 or len(set(header)) < len(header):
        raise DataError(f"{path}: expected at least one row, and columns with names of their own, {listed(header)}")
    columns = [[text_of(value) for value in column.to_pylist()] for column in found.columns]
    return header, [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), start=1)]


def _read_one(path: Path) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    try:
        return read_lines(path)
    except RawError as error:
        raise DataError(str(error)) from error
