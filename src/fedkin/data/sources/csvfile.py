"""Csv and parquet files, and frames of pandas, as texts, with the place of every row for messages."""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.core.errors import ConfigError, DataError, meant
from fedkin.core.machine import no_collection
from fedkin.data.columns import text_of
from fedkin.data.conversion import Conversion, convert
from fedkin.data.sources.files import listed, read_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

PARQUET = frozenset({".parquet", ".pq"})
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
"""Name under which pandas stores the index of a table, mostly row numbers, which are not data."""
_DECIMAL = re.compile(r"^([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)$")


@dataclass(frozen=True)
class Table:
    """Rows of one or several files.

    Attributes:
        frame: the fields as texts without spaces around them, by column; its index is the place of each row.
        name: for messages.
        files: number of the file of each row.
        texts: columns that a file declares to be texts, whatever they look like.
        lacking: columns that some files lack, and are empty there, with these files.
    """

    frame: DataFrame
    name: str
    files: Sequence[int] = ()
    texts: frozenset[str] = frozenset()
    lacking: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _converted: dict[str, Conversion] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.frame.columns)

    @property
    def places(self) -> list[str]:
        """File and line of each row, for messages."""
        return list(self.frame.index)

    @property
    def differences(self) -> str:
        """A sentence on columns that some files lack; "" if there are none."""
        shown = listed([f"{column} ({listed(names, 3)})" for column, names in self.lacking.items()])
        return f"columns that some files lack count as missing there: {shown}" if shown else ""

    def column(self, name: str, use: str) -> list[str]:
        """Return the fields of one column; ``use`` is its purpose, for the message."""
        if name not in self.frame.columns:
            raise DataError(
                f"{self.name}: no column '{name}' for the {use}{meant(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        return list(self.frame[name])

    def converted(self, name: str) -> Conversion:
        """Return what a column is read as."""
        if name not in self._converted:
            texts = self.column(name, "inputs")
            self._converted[name] = Conversion(None) if name in self.texts else convert(texts, name, self.places)
        return self._converted[name]

    def records(self) -> list[dict[str, str]]:
        """Return the rows by column, as `Preparation.apply` takes them."""
        return self.frame.to_dict("records")  # type: ignore[no-any-return]


@no_collection()
def read_csv(paths: Sequence[Path], name: str, encoding: str | None = None) -> Table:
    """Return the rows of several files. A column that a file lacks is empty there.

    Args:
        paths: csv or parquet files; see `fedkin.data.sources.csv_files`.
        name: for messages.
        encoding: of the text of csv files; None: UTF-8.

    Raises:
        DataError: a file cannot be read or has no row; the message names the line.
        ConfigError: an encoding of parquet files.
    """
    import pandas  # here: it takes half a second to import, and other data do not need it

    if encoding is not None and all(path.suffix.lower() in PARQUET for path in paths):
        raise ConfigError(f"{name}: encoding is for csv files; a parquet file states how its texts are stored")
    texts = set[str]()
    parts = [_parquet(p, texts) if p.suffix.lower() in PARQUET else _csv(p, encoding) for p in paths]
    for path, part in zip(paths, parts, strict=True):
        if not len(part) or not part.columns.is_unique or "" in part.columns:
            raise DataError(
                f"{path}: expected a row with the names of the columns, each its own, and at least one more row; got "
                f"{listed(list(part.columns)) or 'nothing'} and {len(part)} rows"
            )
    frame = pandas.concat(parts).fillna("") if len(parts) > 1 else parts[0]
    lacking = {c: [path.name for path, part in zip(paths, parts, strict=True) if c not in part] for c in frame.columns}
    files = [number for number, part in enumerate(parts) for _ in range(len(part))]
    return Table(frame, name, files, frozenset(texts), {c: names for c, names in lacking.items() if names})


def of_frame(frame: DataFrame) -> Table:
    """Return the rows of a DataFrame of pandas; a value is the text that a csv file would hold."""
    texts = frozenset(str(column) for column, kind in frame.dtypes.items() if "str" in str(kind))
    known = frame.astype(object).where(frame.notna(), None).map(text_of)
    return Table(known.set_axis([f"row {i}" for i in frame.index]).rename(columns=str), "table", texts=texts)


def _parquet(path: Path, texts: set[str]) -> DataFrame:
    """Return a parquet file, its rows counted from 1, and add the columns that it declares to be texts."""
    from pandas import DataFrame

    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            'reading parquet files needs pyarrow, which is not installed: pip install "fedkin[parquet]"'
        ) from error
    try:
        with path.open("rb") as file:
            found = parquet.read_table(file)
        columns = {name: [text_of(v) for v in found[name].to_pylist()]
                   for name in found.column_names if not _ROW_NUMBERS.fullmatch(name)}  # fmt: skip
    except Exception as error:  # pyarrow raises errors of a dozen classes
        cause = " ".join(str(error).split())[:300]
        raise DataError(f"{path}: cannot be read as a parquet file ({cause}); write it again") from error
    texts |= {column.name for column in found.schema if "string" in str(column.type)}
    return DataFrame(columns, index=[f"{path.name}, row {n + 1}" for n in range(found.num_rows)], dtype=object)


def _csv(path: Path, encoding: str | None) -> DataFrame:
    """Return a csv file. With semicolons between its fields decimal commas are read, as spreadsheets write them."""
    from pandas import DataFrame

    text = _decoded(path, read_bytes(path), encoding)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", first).count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, places, start = list[list[str]](), list[str](), 1
    try:
        for row in reader:
            if rows and row and len(row) != len(rows[0]):
                raise DataError(f"{path}, line {reader.line_num}: {len(row)} fields, the header has {len(rows[0])}")
            if row:
                rows.append([field.strip() for field in row])
                places.append(f"{path.name}, line {reader.line_num}")
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}: the row that begins in line {start} cannot be read ({error}); close or remove a quote in it"
        ) from error
    if delimiter == ";":
        rows[1:] = [[_DECIMAL.sub(r"\1.\2", field) for field in row] for row in rows[1:]]
    return DataFrame(rows[1:], columns=rows[0] if rows else [], index=places[1:], dtype=object)


def _decoded(path: Path, content: bytes, encoding: str | None) -> str:
    """Return the text of a file."""
    try:
        text = content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except LookupError as error:
        raise DataError(f"{path}: there is no encoding {encoding!r}; usual ones: utf-8, cp1252, utf-16") from error
    except UnicodeDecodeError as error:
        at, why = error.start, f"is not {error.encoding}"
    else:
        if encoding is not None or "\0" not in text:
            return text
        at, why = text.index("\0"), "is zero, as in UTF-16"
    line = content[:at].count(b"\n") + 1
    raise DataError(
        f"{path}, line {line}: the byte 0x{content[at]:02x} {why}; save the file as UTF-8 ('CSV UTF-8' in Excel), or "
        "name its encoding: --encoding cp1252, or utf-16 (in Python encoding='cp1252')"
    )
