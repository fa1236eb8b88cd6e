"""Tables in ``.csv`` files: one file with a client column, one file per client, or the file of one site alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError
from fedkin.core.samples import Samples
from fedkin.data.arrays import MAX_CLASSES
from fedkin.data.card import (
    MAX_CATEGORIES,
    Card,
    Column,
    binary_labels,
    numbers_of,
    whole_label,
    whole_labels,
)
from fedkin.data.checks import NAMELESS, check_one_client, check_scaling
from fedkin.data.columns import Input, Raw
from fedkin.data.conversion import looks_measured, whole_numbers
from fedkin.data.dataset import Dataset
from fedkin.data.preparation import Preparation, Rows
from fedkin.data.sources.csvfile import Table, read_csv
from fedkin.data.sources.files import listed, stem
from fedkin.data.sources.reading import Reading, drop_flag
from fedkin.data.standalone import MISSING

Values = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int64]

_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}.*|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*")


def read_tables(paths: Sequence[Path], how: Reading, *, name: str, card: Card | None = None) -> Dataset:
    """Return tables as float32 ``[features]`` inputs.

    Columns of numbers, as `fedkin.data.conversion.convert` finds them, are standardised (mean 0, standard deviation
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

    Raises:
        DataError: unreadable or empty files, columns that differ between files or from the card's or are not there,
            bad fields, a class that is not on the card.
        ConfigError: no target; ``pooled`` with a card; ``client`` where the data are not of several clients.
    """
    if card is not None:
        check_scaling(how.scaling, name)
    return from_table(read_csv(paths, name, how.encoding), how, paths, card=card)


def from_table(
    table: Table, how: Reading, paths: Sequence[Path] = (), *, card: Card | None = None, tests: int = 0
) -> Dataset:
    """Do the same as `read_tables`, from rows that have been read.

    Args:
        table, how, card: as there.
        paths: where the rows are from; several are one client each.
        tests: number of the last rows that are the official test part.
    """
    name = table.name
    client = how.client if card is None or how.client in table.columns else None
    features = _features(table, how.target, client, how.drop)
    found = (
        card_of(table, features, how.target or "", how.binary)
        if card is None
        else _fitting(table, card, features, how.target, how.binary)
    )
    empty = [column.name for column in found.columns if column.kind == "empty"]
    if empty:
        raise DataError(f"{name}: column '{empty[0]}' is empty in every row; drop it")
    ids, client_names = _clients(table, client, paths)
    rows = Rows(
        raw=_raw(table, found),
        columns=tuple(
            Input(c.name, "text" if c.kind == "text" else "number", c.gaps, c.categories) for c in found.columns
        ),
        own=how.scaling == "client",
        target=found.target,
        binary=found.binary,
        labels=found.labels,
    )
    x, preparation = _by_all_rows(rows, _owners(table, ids, card) if rows.own else None)
    y, n = numbered_classes(table, found), len(x) - tests
    return Dataset(
        x=x[:n],
        y=y[:n],
        classes=found.classes,
        name=name,
        official_test=Samples(x[n:], y[n:]) if tests else None,
        client=None if ids is None else ids[:n],
        test_client=None if ids is None or not tests else ids[n:],
        client_names=client_names,
        labels=found.labels,
        preparation=preparation,
        table=rows,
        notes=() if card is not None else _notes(table, features, found),
    )


def _notes(table: Table, features: Sequence[str], found: Card) -> tuple[str, ...]:
    """Return what is to be known of inputs and classes that were made of texts."""
    target, fields = found.target or "", table.column(found.target or "", "target")
    notes = [table.differences, *(table.converted(column).note for column in features)]
    if found.numeric and found.classes < (texts := len(set(fields))):
        notes.append(f"{texts} different texts of the target '{target}' are {found.classes} classes, since 2.0 is 2")
    if found.numeric and looks_measured(fields):
        notes.append(
            f"the target '{target}' has {found.classes} different numbers and looks like a measurement, and fedkin "
            "classifies: cut it into a few classes, or ask whether it is above 0 with --binary"
        )
    return tuple(filter(None, notes))


def table_card(paths: Sequence[Path], how: Reading, *, name: str, texts: Sequence[str] = ()) -> Card:
    """Return the description of one site's table.

    Args:
        paths, how, name: as for `read_tables`.
        texts: columns, perhaps the target, that are described as texts although they could be numbers here.

    Raises:
        DataError, ConfigError: as `read_tables`.
    """
    table = read_csv(paths, name, how.encoding)
    client = how.client if how.client in table.columns else None
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
    if target is None:
        raise ConfigError(
            f"{table.name}: a table needs target, the column with the class; it has {listed(table.columns)}"
        )
    for column, use in [
        (target, "target"),
        *([(client, "client")] if client else []),
        *((d, "columns to drop") for d in drop),
    ]:
        table.column(column, use)
        if column in table.lacking and use in ("target", "client"):
            raise DataError(f"{table.lacking[column][0]}: no column '{column}' for the {use}; {table.differences}")
    if client == target:
        raise ConfigError(
            f"{table.name}: '{target}' is named as target and as client column; name the column with the class in "
            "target (--target) and another one in client (--client-column), or leave the latter out"
        )
    features = [c for c in table.columns if c not in {target, client, *drop}]
    if not features:
        raise DataError(
            f"{table.name}: no column is left as input next to '{target}'; columns are {listed(table.columns)}"
        )
    return features


def _fitting(table: Table, card: Card, features: Sequence[str], target: str | None, binary: bool) -> Card:
    """Return the card, if the site's table has its columns."""
    if (card.kind, card.target, card.binary) != ("table", target, binary):
        raise DataError(
            f"{table.name}: target {target!r}, binary {binary}; all sites agreed on a {card.kind} with target "
            f"{card.target!r}, binary {card.binary}"
        )
    agreed = [column.name for column in card.columns]
    if set(agreed) != set(features):
        missing, more = [c for c in agreed if c not in features], [c for c in features if c not in agreed]
        parts = [f"{what} {listed(names)}" for what, names in (("lacks", missing), ("has also", more)) if names]
        raise DataError(f"{table.name}: its columns are not those that all sites agreed on: it {' and '.join(parts)}")
    return card


def _labels(table: Table, target: str, binary: bool, as_texts: bool) -> tuple[tuple[str, ...], bool]:
    """Return the names of the classes, and whether they are whole numbers."""
    fields = table.column(target, "target")
    for field, place in zip(fields, table.places, strict=True):
        if field.lower() in MISSING:
            what = f"{field!r}, which counts as empty" if field else "empty"
            raise DataError(f"{place}: the target '{target}' is {what}; remove the row or fill it")
    found = numbers_of(fields)
    if binary:
        if found is None:
            raise DataError(
                f"{table.name}: binary needs a target of numbers, '{target}' holds texts such as "
                f"{_strange(table, target)}, which are classes as they are; leave binary out, or correct them"
            )
        bad = np.flatnonzero(~np.isfinite(found))
        if len(bad):
            raise DataError(
                f"{table.places[bad[0]]}: target {fields[bad[0]]} is not a finite number, so it is neither of the two "
                "classes; remove the row or correct it"
            )
        return binary_labels(target), False
    numeric = not as_texts and target not in table.texts and whole_numbers(fields)
    if found is not None and not numeric and not as_texts and table.converted(target).numbers is not None:
        numbers = np.array(found)
        bad = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
        if len(bad):
            raise DataError(
                f"{table.places[bad[0]]}: target {fields[bad[0]]} is not a class; fedkin classifies, "
                "give whole numbers or texts"
            )
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

    Raises:
        DataError: a field of the target is empty or not a class, or not one of the card's.
    """
    assert card.target is not None  # a card of a table
    assert card.labels is not None
    fields = table.column(card.target, "target")
    _, numeric = _labels(table, card.target, card.binary, not card.numeric)
    if card.binary:
        return torch.tensor([float(field) > 0 for field in fields], dtype=torch.int64)
    place_of = {label: i for i, label in enumerate(card.labels)}
    named = [*map(whole_label, fields)] if numeric else fields
    unknown = sorted({name for name in named if name not in place_of})
    if unknown:
        at = next(i for i, name in enumerate(named) if name not in place_of)
        raise DataError(
            f"{table.name}: class {listed(unknown)} of target '{card.target}' is not one of those that {whose}, "
            f"{listed(card.labels)} ({table.places[at]}); {todo}"
        )
    return torch.tensor([place_of[name] for name in named], dtype=torch.int64)


def _clients(table: Table, client: str | None, paths: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...] | None]:
    if client is not None:
        fields = table.column(client, "client")
        names = tuple(sorted(set(fields), key=lambda f: (len(f), f) if f.isdigit() else (0, f)))
        place_of = {name: i for i, name in enumerate(names)}
        ids = torch.tensor([place_of[field] for field in fields], dtype=torch.int64)
        return ids, tuple(name or NAMELESS for name in names)
    if len(paths) > 1:
        _require_names(paths)
        return torch.tensor(table.files, dtype=torch.int64), tuple(map(stem, paths))
    return None, None


def _require_names(paths: Sequence[Path]) -> None:
    """Raise `DataError` if two files would be clients of one name, as a file and what it was converted to."""
    first = dict[str, Path]()
    for path in paths:
        if (other := first.setdefault(stem(path), path)) is not path:
            raise DataError(
                f"{other} and {path} would be two clients called {stem(path)!r}, since each file is one; remove or "
                "rename one of them"
            )


def _owners(table: Table, ids: Tensor | None, card: Card | None) -> Owners:
    """Return the client by whose values each row is standardised."""
    if ids is not None:
        return np.asarray(ids.numpy(), dtype=np.int64)
    if card is None:
        raise ConfigError(
            f"{table.name}: scaling 'client' needs data that come with clients: one file per client or a column that "
            "names the client; here it would be the same as 'pooled'"
        )
    return np.zeros(len(table.frame), dtype=np.int64)


def _column(table: Table, name: str, as_text: bool) -> Column:
    """Return what a column holds."""
    fields = table.column(name, "inputs")
    empty = [f.lower() in MISSING for f in fields]
    if all(empty):
        return Column(name, "empty", gaps=True)
    if not as_text and _values(table, name) is not None:
        return Column(name, "number", any(empty) or bool(table.converted(name).odd))
    categories = sorted(set(_texts(fields)))
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{table.name}: column '{name}' holds {len(categories)} different texts, at most {MAX_CATEGORIES} can "
            f"become inputs; {_advice(table, name, categories)}, or leave the column out: {drop_flag([name])}"
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
    fields = zip(table.column(name, "inputs"), table.places, strict=True)
    return next((f"'{t}' ({p})" for t, p in fields if t.lower() not in MISSING and numbers_of([t]) is None), None)


def _values(table: Table, name: str) -> Values | None:
    """Return a column's numbers, NaN where it has none; None for a column of texts."""
    found = table.converted(name)
    if found.numbers is None:
        return None
    fields = table.column(name, "inputs")
    none = MISSING | {fields[i].lower() for i in found.odd}
    odd = [i for i in np.flatnonzero(~np.isfinite(found.numbers)) if fields[i].lower() not in none]
    if odd:
        raise DataError(
            f"{table.places[odd[0]]}: '{name}' is {fields[odd[0]]}; give a finite number or leave the field empty"
        )
    return found.numbers


def _raw(table: Table, card: Card) -> Raw:
    """Return all rows before scaling, ``[n, columns]``; see `Raw`."""
    raw = np.empty((len(table.frame), len(card.columns)), dtype=np.float64)
    for j, column in enumerate(card.columns):
        if column.kind == "text":
            place_of = {category: i for i, category in enumerate(column.categories)}
            raw[:, j] = [place_of.get(text, -1) for text in _texts(table.column(column.name, "inputs"))]
            continue
        values = _values(table, column.name)
        if values is None:
            raise DataError(
                f"{table.name}: column '{column.name}' holds texts; all sites agreed that it is a column of numbers"
            )
        raw[:, j] = values
    return raw


def _by_all_rows(rows: Rows, owner: Owners | None) -> tuple[Tensor, Preparation]:
    """Return the inputs scaled by the values of all rows, or of all rows of their client."""
    everything = np.arange(len(rows.raw))
    if owner is None:
        found = rows.fit([everything])
        return rows.scaled(found, everything), found
    parts = [np.flatnonzero(owner == k) for k in np.unique(owner)]
    found = rows.fit(parts)
    x = torch.empty((len(everything), *found.shape))
    for k, part in enumerate(parts):
        x[torch.from_numpy(part)] = rows.scaled(found.of(k), part)
    return x, found


def _texts(fields: Sequence[str]) -> list[str]:
    return ["" if f.lower() in MISSING else f for f in fields]
