"""A csv or parquet file as texts, with the place of every row for messages."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        lacking: columns that some files lack, with the names of these files; they are empty there.
    """

    columns: tuple[str, ...]
    rows: list[list[str]]
    file: list[int]
    places: list[str]
    name: str
    texts: frozenset[str] = frozenset()
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _converted: dict[str, Conversion] = field(default_factory=dict)

    def column(self, name: str, use: str) -> list[str]:
        """Return the fields of one column; ``use`` is its purpose, for the message."""
        if name not in self.columns:
            raise DataError(
                f"{self.name}: no column '{name}' for the {use}{meant(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def converted(self, name: str) -> Conversion:
        """Return what a column is read as."""
        if name not in self._converted:
            self._converted[name] = Conversion(None) if name in self.texts else convert(self.column(name, "inputs"))
        return self._converted[name]

    def differences(self) -> str | None:
        """Return which files lack which columns; None if all have the same."""
        if not self.lacking:
            return None
        shown = listed([f"{column} ({listed(files, 3)})" for column, files in self.lacking.items()])
        return f"columns that are not in all files count as missing where they are not: {shown}"

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
    having: dict[str, set[int]] = {}  # column -> numbers of the files that have it
    rows, file, places, texts, budget = list[list[str]](), list[int](), list[str](), set[str](), Budget()
    for number, path in enumerate(paths):
        packed = path.suffix.lower() in PARQUET
        if packed:
            header, body, declared = _read_parquet(path, budget)
            texts |= declared
        else:
            header, body = _read_one(path, budget, encoding)
        for column in header:
            having.setdefault(column, set()).add(number)
        unit = "row" if packed else "line"
        order = [header.index(column) if column in header else -1 for column in having]
        for line, row in body:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
            row.append("")  # what a column holds that the file lacks
            rows.append([row[i].strip() for i in order])
            file.append(number)
            places.append(f"{path.name}, {unit} {line}")
    for row in rows:
        row += [""] * (len(having) - len(row))
    lacking = {
        column: tuple(path.name for number, path in enumerate(paths) if number not in those)
        for column, those in having.items()
        if len(those) < len(paths)
    }
    return Table(tuple(having), rows, file, places, name, frozenset(texts), lacking)


def of_frame(frame: DataFrame) -> Table:
    """Return the rows of a DataFrame of pandas; a value is the text that a csv file would hold."""
    known = frame.astype(object).where(frame.notna(), None)
    rows = [[text_of(value) for value in row] for row in known.itertuples(index=False, name=None)]
    texts = frozenset(str(column) for column, kind in frame.dtypes.items() if "str" in str(kind))
    names = tuple(map(str, frame.columns))
    return Table(names, rows, [0] * len(rows), [f"row {i}" for i in frame.index], "table", texts)


def _read_parquet(path: Path, budget: Budget) -> tuple[tuple[str, ...], list[tuple[int, list[str]]], set[str]]:
    """Return the rows of a parquet file, counted from 1, and its columns of texts.

    A value is the text that a csv file would hold.
    """
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


def _read_one(path: Path, budget: Budget, encoding: str | None) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    content = read_bytes(path, Budget(budget.left / 1e9))
    rows = content.count(b"\n") + content.count(b"\r")
    fields = rows + sum(map(content.count, (b",", b";", b"\t")))
    disk = path.stat().st_size if path.is_file() else len(content)
    budget.take(path, disk, len(content) + _ROW * rows + _FIELD * fields)
    try:
        return read_lines(path, encoding, content)
    except RawError as error:
        raise DataError(str(error)) from error
