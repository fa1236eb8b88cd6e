"""Tables as data sets: one file with a client column, one file per client, or the file of one site alone."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError, similar, typed
from fedkin.core.machine import no_collection
from fedkin.core.samples import Samples
from fedkin.core.settings import DataSettings
from fedkin.data.arrays import MAX_CLASSES
from fedkin.data.card import Card, Column
from fedkin.data.checks import NAMELESS, check_one_client, listed, optional, readable, refuse_first
from fedkin.data.columns import (
    MAX_CATEGORIES,
    MISSING,
    Conversion,
    Input,
    Raw,
    binary_labels,
    convert,
    looks_measured,
    numbers_of,
    raw_column,
    text_of,
    whole_label,
    whole_labels,
    whole_numbers,
)  # fmt: skip
from fedkin.data.dataset import Dataset
from fedkin.data.preparation import Preparation, Rows

if TYPE_CHECKING:
    from pandas import DataFrame

PARQUET = frozenset({".parquet", ".pq"})
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
"""Name under which pandas stores the index of a table, mostly row numbers, which are not data."""
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}.*|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*")
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

    def column(self, name: str, use: str = "inputs") -> list[str]:
        """Return the fields of one column; ``use`` is its purpose. Class and client are needed in all files."""
        if name not in self.columns or (name in self.lacking and use in ("target", "client")):
            where = f"{self.lacking[name][0] if name in self.lacking else self.name}: no column '{name}' for the {use}"
            there = self.differences if name in self.lacking else f"the columns are {listed(self.columns)}"
            raise DataError(f"{where}{'' if name in self.lacking else similar(name, self.columns)}; {there}")
        return list(self.frame[name])

    def converted(self, name: str) -> Conversion:
        """Return what a column is read as."""
        if name not in self._converted:
            texts = self.column(name)
            self._converted[name] = Conversion(None) if name in self.texts else convert(texts, name, self.places)
        return self._converted[name]

    def records(self) -> list[dict[str, str]]:
        """Return the rows by column, as `Preparation.apply` takes them."""
        return list(self.frame.to_dict("records"))


@no_collection()
def read_csv(paths: Sequence[Path], name: str, encoding: str | None = None) -> Table:
    """Return the rows of several csv or parquet files. A column that a file lacks is empty there."""
    import pandas  # here: it takes half a second to import, and other data do not need it

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

    parquet = optional("pyarrow.parquet", "parquet", "reading parquet files")
    with readable(path, "a parquet file"):
        with path.open("rb") as file:
            result = parquet.read_table(file)
        columns = {name: [text_of(v) for v in result[name].to_pylist()]
                   for name in result.column_names if not _ROW_NUMBERS.fullmatch(name)}  # fmt: skip
    texts |= {column.name for column in result.schema if "string" in str(column.type)}
    return DataFrame(columns, index=[f"{path.name}, row {n + 1}" for n in range(result.num_rows)], dtype=object)


def _csv(path: Path, encoding: str | None) -> DataFrame:
    """Return a csv file. With semicolons between its fields decimal commas are read, as spreadsheets write them."""
    from pandas import DataFrame

    text = _decoded(path, read_bytes(path), encoding)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", first).count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, places, start, fault = list[list[str]](), list[str](), 1, ""
    try:
        for row in reader:
            if rows and row and len(row) != len(rows[0]):
                fault = f", line {reader.line_num}: {len(row)} fields, the header has {len(rows[0])}"
                break
            if row:
                rows.append([field.strip() for field in row])
                places.append(f"{path.name}, line {reader.line_num}")
            start = reader.line_num + 1
    except csv.Error as error:
        fault = f": the row that begins in line {start} cannot be read ({error}); close or remove a quote in it"
    if fault:
        raise DataError(f"{path}{fault}")
    if delimiter == ";":
        rows[1:] = [[_DECIMAL.sub(r"\1.\2", field) for field in row] for row in rows[1:]]
    return DataFrame(rows[1:], columns=rows[0] if rows else [], index=places[1:], dtype=object)


def _decoded(path: Path, content: bytes, encoding: str | None) -> str:
    """Return the text of a file."""
    try:
        text = content.decode(encoding or "utf-8").removeprefix("\ufeff")
        if encoding is not None or "\0" not in text:
            return text
        at, why = text.index("\0"), "is zero, as in UTF-16"
    except LookupError:
        at, why = -1, f": there is no encoding {encoding!r}"
    except UnicodeDecodeError as error:
        at, why = error.start, f"is not {error.encoding}"
    if at >= 0:
        why = f", line {content[:at].count(10) + 1}: the byte 0x{content[at]:02x} {why}"
    raise DataError(
        f"{path}{why}; save the file as UTF-8 ('CSV UTF-8' in Excel), or name its encoding: --encoding cp1252, or "
        "utf-16 (in Python encoding='cp1252')"
    )


def read_bytes(path: Path) -> bytes:
    """Read a file's content, decompressed when its name ends in ``.gz`` or it lies in a zip file.

    ``archive.zip/wards/north.csv`` is a file in an archive.
    """
    with readable(path, "a whole file"):
        archive = next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)
        if archive is not None:
            with zipfile.ZipFile(archive) as members:
                return members.read(path.relative_to(archive).as_posix())
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content


def stem(path: Path) -> str:
    """Return a file's name without its ending, also where that is double, as ``.csv.gz``."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def refuse_unused(how: DataSettings, taken: Sequence[str], what: str) -> None:
    """Raise ConfigError if settings of reading are given that a source, ``what``, does not take."""
    names = ("target", "client_column", "binary", "drop", "image_size", "scaling", "encoding")
    given = [name for name in names if getattr(how, name) != getattr(DataSettings(), name)]
    if unused := [name.removesuffix("_column") for name in given if name not in taken]:
        raise ConfigError(f"{what}, which takes no {' and no '.join(unused)}")


def names_in(text: str | None) -> tuple[str, ...]:
    """Return the columns that a text names, with commas between them; a name with a comma is in double quotes."""
    rows = csv.reader(io.StringIO(text or ""), skipinitialspace=True)
    return tuple(name.strip() for row in rows for name in row if name.strip())


def named(columns: Sequence[str]) -> str:
    """Return the text that names these columns: the inverse of `names_in`."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(columns)
    return line.getvalue()


def read_tables(paths: Sequence[Path], how: DataSettings, *, name: str, card: Card | None = None) -> Dataset:
    """Return tables as float32 ``[features]`` inputs.

    Columns of numbers, as `fedkin.data.columns.convert` finds them, are standardised (mean 0, standard deviation
    1); missing values become the mean, and a column with some gets a second column that is 1 where the value was
    missing. Columns of texts become one column of 0 and 1 per text. Here all rows are used; `federate` and
    `site_client`, which know what is trained on, do it anew from the training parts alone (`Dataset.table`).

    By ``pooled``, mean and deviation are **those of all clients together**: in a real federation no host
    can compute them without the clients' help, so there they are a convenience of the simulator. By ``client`` each
    client's columns are standardised by its own values (zeros where it has none), which is what a site does alone;
    the texts that become columns are then those of all rows, which sites can exchange.

    Args:
        paths: one file, or one per client: the file's name is then the client's.
        how: target (whole numbers or texts), client (with a card it need not be there), binary, drop and scaling.
        name: name of the data set.
        card: the data are one site's, and columns, texts and classes are those that all sites agreed on: a text that
            is not on the card becomes zeros.
    """
    return from_table(read_csv(paths, name, how.encoding), how, paths, card=card)


def from_table(
    table: Table, how: DataSettings, paths: Sequence[Path] = (), *, card: Card | None = None, tests: int = 0
) -> Dataset:
    """Do the same as `read_tables`, from rows that have been read.

    ``paths`` are where the rows are from, several are one client each; the last ``tests`` rows are the official test
    part.
    """
    name, client = table.name, how.client_column
    client = client if card is None or client in table.columns else None
    features = _features(table, how.target, client, names_in(how.drop))
    texts = [] if card is None else [column.name for column in card.columns if column.kind == "text"]
    texts += [] if card is None or card.numeric else [how.target or ""]
    own = card_of(table, features, how.target or "", how.binary, texts)
    result = own if card is None else card
    refuse_first(name, _misfits(own, result))
    ids, client_names = _clients(table, client, paths)
    columns = [Input(c.name, "text" if c.kind == "text" else "number", c.gaps, c.categories) for c in result.columns]
    rows = Rows(
        raw=_raw(table, columns), columns=tuple(columns), own=how.scaling == "client", target=result.target,
        binary=result.binary, labels=result.labels,
    )  # fmt: skip
    x, preparation = _by_all_rows(rows, np.zeros(len(rows.raw)) if ids is None or not rows.own else ids.numpy())
    y, n = numbered_classes(table, result), len(x) - tests
    return Dataset(
        x=x[:n], y=y[:n], classes=result.classes, name=name, official_test=Samples(x[n:], y[n:]) if tests else None,
        client=None if ids is None else ids[:n], test_client=None if ids is None or not tests else ids[n:],
        client_names=client_names, labels=result.labels, preparation=preparation, table=rows,
        notes=() if card is not None else _notes(table, features, result),
    )  # fmt: skip


def _misfits(own: Card, result: Card) -> Iterator[str]:
    """Yield why the columns of a table cannot be inputs, or are not what all sites agreed on."""
    kinds, features = {c.name: c.kind for c in result.columns}, [c.name for c in own.columns]
    differ = [c.name for c in own.columns if c.kind == "text" and kinds.get(c.name) == "number"]
    if (own.target, own.binary) != (result.target, result.binary) or set(features) != kinds.keys() or differ:
        lacking, more = [c for c in kinds if c not in features], [c for c in features if c not in kinds]
        yield (
            f"its table is not what all sites agreed on, target {result.target!r} (binary: {result.binary}) and "
            f"{listed([*kinds])}; it lacks {listed(lacking) or 'none'}, has also {listed(more) or 'none'}, and texts "
            f"instead of numbers in {listed(differ) or 'none'}"
        )
    if not features:
        yield f"no column is left as input next to '{own.target}'; there is nothing else, or all others are dropped"
    yield from (f"column '{c.name}' is empty in every row; drop it" for c in result.columns if c.kind == "empty")


def _notes(table: Table, features: Sequence[str], result: Card) -> tuple[str, ...]:
    """Return what is to be known of inputs and classes that were made of texts."""
    target, fields = result.target or "", table.column(result.target or "", "target")
    notes = [table.differences, *(table.converted(column).note for column in features)]
    if result.numeric and result.classes < (texts := len(set(fields))):
        notes.append(f"{texts} different texts of the target '{target}' are {result.classes} classes, since 2.0 is 2")
    if result.numeric and looks_measured(fields):
        notes.append(
            f"the target '{target}' has {result.classes} different numbers and looks like a measurement, and fedkin "
            "classifies: cut it into a few classes, or ask whether it is above 0 with --binary"
        )
    return tuple(filter(None, notes))


def table_card(paths: Sequence[Path], how: DataSettings, *, name: str, texts: Sequence[str] = ()) -> Card:
    """Return the description of one site's table.

    ``texts`` are columns, perhaps the target, that are described as texts although they could be numbers here.
    """
    table = read_csv(paths, name, how.encoding)
    client = how.client_column if how.client_column in table.columns else None
    features = _features(table, how.target, client, ())
    check_one_client(_clients(table, client, paths)[1], name)
    for column in texts:
        table.column(column, "columns of texts")
    return card_of(table, features, how.target or "", how.binary, texts)


def card_of(table: Table, features: Sequence[str], target: str, binary: bool, texts: Sequence[str] = ()) -> Card:
    """Return the columns and classes of these rows; see `table_card`."""
    labels, numeric = _labels(table, target, binary, target in texts)
    columns = tuple(_column(table, name, name in texts) for name in features)
    return Card("table", len(labels), labels, numeric, columns, target, binary)


def _features(table: Table, target: str | None, client: str | None, drop: Sequence[str]) -> list[str]:
    """Return the names of the inputs."""
    if target is None or target == client:
        raise ConfigError(
            f"{table.name}: a table needs target, the column with the class (--target), and another column for client "
            f"(--client-column) if any, got {target!r} and {client!r}; it has {listed(table.columns)}"
        )
    table.column(target, "target")
    if client:
        table.column(client, "client")
    for column in drop:
        table.column(column, "columns to drop")
    return [c for c in table.columns if c not in {target, client, *drop}]


def _labels(table: Table, target: str, binary: bool, as_texts: bool) -> tuple[tuple[str, ...], bool]:
    """Return the names of the classes, and whether they are whole numbers."""
    fields = table.column(target, "target")
    numeric = not as_texts and target not in table.texts and whole_numbers(fields)
    result = numbers_of(fields)
    bad = np.array([f.lower() in MISSING for f in fields])
    if binary and result is None:
        bad |= [numbers_of([f]) is None for f in fields]
    elif result is not None and (binary or not (numeric or as_texts or table.converted(target).numbers is None)):
        bad |= ~np.isfinite(result) | (not binary and np.floor(result) != result)
    if bad.any():
        at = int(np.argmax(bad))
        todo = "with binary give numbers alone" if binary else "fedkin classifies: give whole numbers or texts"
        raise DataError(
            f"{table.places[at]}: {fields[at]!r} in the target '{target}' is not a class; {todo}, or remove the row"
        )
    if binary:
        return binary_labels(target), False
    labels = whole_labels(fields) if numeric else tuple(sorted(set(fields)))
    if len(labels) > MAX_CLASSES:
        raise DataError(f"{table.name}: target '{target}' has {len(labels)} different values, at most {MAX_CLASSES}")
    return labels, numeric


def numbered_classes(
    table: Table,
    card: Card,
    whose: str = "all sites agreed on",
    todo: str = "correct it, or start the run again with this site in it",
) -> Tensor:
    """Return the number of each row's class, int64 ``[n]``.

    ``whose`` classes the card has, and what ``todo``, are for messages.
    """
    target, labels = card.target or "", card.labels or ()
    fields = table.column(target, "target")
    _, numeric = _labels(table, target, card.binary, not card.numeric)
    if card.binary:
        return torch.tensor([float(field) > 0 for field in fields], dtype=torch.int64)
    place_of = {label: i for i, label in enumerate(labels)}
    named = [*map(whole_label, fields)] if numeric else fields
    if (at := next((i for i, name in enumerate(named) if name not in place_of), None)) is not None:
        raise DataError(
            f"{table.places[at]}: class {named[at]} of target '{target}' is not one of those that {whose}, "
            f"{listed(labels)}; {todo}"
        )
    return torch.tensor([place_of[name] for name in named], dtype=torch.int64)


def _clients(table: Table, client: str | None, paths: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return the client of each row, and the clients' names."""
    if client is not None:
        fields = table.column(client, "client")
        names = sorted(set(fields), key=lambda f: (len(f), f) if f.isdigit() else (0, f))
        place_of = {name: i for i, name in enumerate(names)}
        ids = torch.tensor([place_of[field] for field in fields], dtype=torch.int64)
        return ids, tuple(name or NAMELESS for name in names)
    if len(paths) < 2:
        return None, None
    return torch.tensor(table.files, dtype=torch.int64), tuple(map(stem, paths))


def _column(table: Table, name: str, as_text: bool) -> Column:
    """Return what a column holds."""
    fields = table.column(name)
    empty = [f.lower() in MISSING for f in fields]
    if all(empty):
        return Column(name, "empty", gaps=True)
    if not as_text and table.converted(name).numbers is not None:
        return Column(name, "number", any(empty) or bool(table.converted(name).odd))
    categories = sorted({"" if none else f for f, none in zip(fields, empty, strict=True)})
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{table.name}: column '{name}' holds {len(categories)} different texts, at most {MAX_CATEGORIES} can "
            f"become inputs; {_advice(table, name, categories)}, or leave the column out: --drop {typed(named([name]))}"
        )
    return Column(name, "text", any(empty), tuple(categories))


def _advice(table: Table, name: str, texts: Sequence[str]) -> str:
    """Return what to do about a column of texts that are probably not categories."""
    if note := table.converted(name).note:
        return note
    if all(_DATE.fullmatch(text) for text in texts if text):
        return "they look like dates: give the days since some day as a number"
    strange = _strange(table, name)
    return f"give numbers instead of texts such as {strange}" if strange else "the file declares numbers to be texts"


def _strange(table: Table, name: str) -> str | None:
    """Return the first field that is not a number, with its place."""
    fields = zip(table.column(name), table.places, strict=True)
    return next((f"'{t}' ({p})" for t, p in fields if t.lower() not in MISSING and numbers_of([t]) is None), None)


def _raw(table: Table, columns: Sequence[Input]) -> Raw:
    """Return all rows before scaling, ``[n, columns]``; see `Raw`."""
    raw = np.empty((len(table.frame), len(columns)), dtype=np.float64)
    for j, column in enumerate(columns):
        texts = table.column(column.name)
        if column.kind == "number":  # a text among numbers counts as missing
            for i in table.converted(column.name).odd:
                texts[i] = ""
        raw[:, j] = raw_column(texts, column, table.places)
    return raw


def _by_all_rows(rows: Rows, owner: npt.NDArray[np.generic]) -> tuple[Tensor, Preparation]:
    """Return the inputs scaled by the values of all rows of the same owner."""
    parts = [np.flatnonzero(owner == k) for k in np.unique(owner)]
    result = rows.fit(parts)
    x = torch.empty((len(rows.raw), *result.shape))
    for k, part in enumerate(parts):
        x[torch.from_numpy(part)] = rows.scaled(result.of(k), part)
    return x, result
