"""Tables in ``.csv`` files: one file with a client column, or one file per client."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError
from fedkin.data.dataset import Dataset
from fedkin.data.sources.files import listed, nearest

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
MAX_CATEGORIES = 50
MAX_CLASSES = 1000


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
                f"{self.name}: no column '{name}' for the {use}{nearest(name, self.columns)}; "
                f"the columns are {listed(self.columns)}"
            )
        at = self.columns.index(name)
        return [row[at].strip() for row in self.rows]


def read_tables(
    paths: Sequence[Path],
    *,
    name: str,
    target: str | None,
    client: str | None = None,
    binary: bool = False,
    drop: Sequence[str] = (),
) -> Dataset:
    """Tables as float32 ``[features]`` inputs.

    Columns of numbers are standardised (mean 0, standard deviation 1); empty fields become the mean, and a column with
    empty fields gets a second column that is 1 where the field was empty. Columns of texts become one column of 0 and
    1 per text. **The statistics are those of all clients together**: in a real federation nobody can compute them
    without the clients' help (sums and counts per column would have to be sent), so here they are a convenience.

    Args:
        paths: one file, or one per client: the file's name is then the client's.
        name: name of the data set.
        target: column with the class, whole numbers or texts.
        client: column with the client, if there is one.
        binary: two classes, ``target > 0`` and the rest.
        drop: columns to leave out.

    Raises:
        DataError: unreadable or empty files, columns that differ between files or are not there, bad fields.
        ConfigError: no target.
    """
    table = _read(paths, name)
    if target is None:
        raise ConfigError(f"{name}: a table needs target, the column with the class; it has {listed(table.columns)}")
    y, labels = _classes(table, target, binary)
    ids, client_names = _clients(table, client, paths)
    for column in drop:
        table.column(column, "columns to drop")
    features = [c for c in table.columns if c not in {target, client, *drop}]
    if not features:
        raise DataError(f"{name}: no column is left as input beside '{target}'; columns are {listed(table.columns)}")
    x = np.concatenate([_encode(table, c) for c in features], axis=1)
    return Dataset(
        x=torch.from_numpy(x.astype(np.float32)),
        y=y,
        classes=len(labels),
        name=name,
        client=ids,
        client_names=client_names,
        labels=labels,
    )


def _read(paths: Sequence[Path], name: str) -> Table:
    table = Table(columns=(), rows=[], file=[], places=[], name=name)
    for number, path in enumerate(paths):
        header, body = _read_one(path)
        if number == 0:
            table = Table(columns=header, rows=[], file=[], places=[], name=name)
        if set(header) != set(table.columns):
            raise DataError(
                f"{path}: columns {listed(header)} differ from those of {paths[0].name}, {listed(table.columns)}; "
                "all files need the same"
            )
        order = [header.index(column) for column in table.columns]
        for line, row in body:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
            table.rows.append([row[i] for i in order])
            table.file.append(number)
            table.places.append(f"{path.name}, line {line}")
    return table


def _read_one(path: Path) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a UTF-8 csv file ({error})") from error
    if len(lines) < 2:
        raise DataError(f"{path}: expected a header line and at least one row, got {len(lines)} lines")
    header = tuple(field.strip() for field in lines[0][1])
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: every column needs a name of its own, the header is {listed(header)}")
    return header, lines[1:]


def _classes(table: Table, target: str, binary: bool) -> tuple[Tensor, tuple[str, ...]]:
    fields = table.column(target, "target")
    for field, place in zip(fields, table.places, strict=True):
        if field.lower() in MISSING:
            raise DataError(f"{place}: the target '{target}' is empty; remove the row or fill it")
    numbers = _numbers(fields)
    if binary:
        if numbers is None:
            raise DataError(f"{table.name}: binary needs a target of numbers, '{target}' holds texts")
        return torch.from_numpy((numbers > 0).astype(np.int64)), (f"{target} <= 0", f"{target} > 0")
    if numbers is not None:
        bad = np.flatnonzero(numbers != np.floor(numbers))
        if len(bad):
            raise DataError(
                f"{table.places[bad[0]]}: target {fields[bad[0]]} is not a class; fedkin classifies, "
                "give whole numbers or texts"
            )
        fields = [str(int(v)) for v in numbers]
    key: Callable[[str], float | str] = str if numbers is None else float
    labels = tuple(sorted(set(fields), key=key))
    if len(labels) > MAX_CLASSES:
        raise DataError(f"{table.name}: target '{target}' has {len(labels)} different values, at most {MAX_CLASSES}")
    place_of = {label: i for i, label in enumerate(labels)}
    return torch.tensor([place_of[field] for field in fields], dtype=torch.int64), labels


def _clients(table: Table, client: str | None, paths: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...] | None]:
    if client is not None:
        fields = table.column(client, "client")
        names = tuple(sorted(set(fields), key=lambda f: (len(f), f) if f.isdigit() else (0, f)))
        place_of = {name: i for i, name in enumerate(names)}
        return torch.tensor([place_of[field] for field in fields], dtype=torch.int64), names
    if len(paths) > 1:
        return torch.tensor(table.file, dtype=torch.int64), tuple(path.stem for path in paths)
    return None, None


def _numbers(fields: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """The fields as numbers, NaN where empty; None when one of them is a text."""
    try:
        return np.array([math.nan if f.lower() in MISSING else float(f) for f in fields])
    except ValueError:
        return None


def _encode(table: Table, column: str) -> npt.NDArray[np.float64]:
    """One column of the file as one or more input columns, ``[n, m]``."""
    fields = table.column(column, "inputs")
    missing = np.array([f.lower() in MISSING for f in fields])
    if missing.all():
        raise DataError(f"{table.name}: column '{column}' is empty in every row; drop it")
    values = _numbers(fields)
    if values is None:
        return _one_hot(table, column, fields)
    if np.isinf(values).any():
        at = int(np.flatnonzero(np.isinf(values))[0])
        raise DataError(
            f"{table.places[at]}: '{column}' is {fields[at]}; give a finite number or leave the field empty"
        )
    mean, spread = values[~missing].mean(), values[~missing].std()
    scaled = (np.where(missing, mean, values) - mean) / (spread if spread > 0 else 1.0)
    return np.column_stack([scaled, missing]) if missing.any() else scaled[:, None]


def _one_hot(table: Table, column: str, fields: Sequence[str]) -> npt.NDArray[np.float64]:
    """A missing text is a category of its own."""
    texts = ["" if f.lower() in MISSING else f for f in fields]
    categories = sorted(set(texts))
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{table.name}: column '{column}' holds {len(categories)} different texts, at most {MAX_CATEGORIES} can "
            "become inputs; drop the column or give numbers"
        )
    place_of = {category: i for i, category in enumerate(categories)}
    return np.eye(len(categories))[[place_of[text] for text in texts]]
