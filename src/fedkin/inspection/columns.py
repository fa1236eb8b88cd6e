"""Columns as values, and findings on those that tell clients, classes or rows apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import counted
from fedkin.data.checks import Indices, is_nameless
from fedkin.data.columns import MAX_CATEGORIES, MOSTLY
from fedkin.data.dataset import Dataset
from fedkin.inspection.finding import ColumnSummary, Finding, first

Mask = npt.NDArray[np.bool_]
FEWEST_ROWS = 20  # with fewer, any column may look like an id or like the target by chance
_MOST_VALUES = 20_000_000  # of rows of numbers whose columns are looked at one by one
TOLD = 0.99  # balanced accuracy of a column alone from which it gives the class away
_FEW_OF_A_CLASS = 3
_FEW_CODES, _ALIKE = 10, 0.6  # of a column that a client may write in codes; rows of two clients with values of both
_ID = re.compile(r"(^|[_\W])(id|uuid|guid|index|idx|key|nr|no|number)$", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """Column of a table, or of rows of numbers.

    ``numbers``, float64 ``[n]``, are NaN where the field is empty, and of texts their places among ``texts``, which are
    empty for a column of numbers.
    """

    name: str
    numbers: npt.NDArray[np.float64]
    texts: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> Mask:
        """Whether each field is empty, ``[n]``."""
        return np.isnan(self.numbers)

    @cached_property
    def codes(self) -> Indices:
        """Number of each different value, int64 ``[n]``; -1 where there is none."""
        codes = np.full(len(self.numbers), -1, dtype=np.int64)
        codes[~self.missing] = np.unique(self.numbers[~self.missing], return_inverse=True)[1]
        return codes

    @property
    def distinct(self) -> int:
        """Number of different values, the empty field not counted."""
        return int(self.codes.max(initial=-1)) + 1

    def shown(self, row: int) -> str:
        """Return the value of a row as text."""
        value = float(self.numbers[row])
        return self.texts[int(value)] if self.texts else f"{value:g}"

    def summary(self) -> ColumnSummary:
        """Return a summary to show."""
        kind = "text" if self.texts else "number"
        ends = f"{np.nanmin(self.numbers):.4g} to {np.nanmax(self.numbers):.4g}" if self.distinct else ""
        values = first([t for t in self.texts if t]) if self.texts else ends
        return ColumnSummary(self.name, kind, self.distinct, float(self.missing.mean()), values)


@dataclass(frozen=True)
class Fields:
    """Columns of a data set: what a network would see, and the numbers of each row's class and client, int64 ``[n]``;
    ``client`` is None where there are none."""

    inputs: tuple[Field, ...]
    label: Indices
    client: Indices | None = None
    client_names: tuple[str, ...] = ()


def fields_of(dataset: Dataset) -> Fields | None:
    """Return the columns of a table, or of inputs that are plain rows of numbers; the official test part is left out.

    None for other inputs: pixels have no meaning one by one.
    """
    if len(dataset.shape) != 1 or dataset.x.numel() > _MOST_VALUES:
        return None
    if dataset.table is None:
        x = dataset.x.numpy().astype(np.float64)
        return Fields(tuple(Field(f"input {j}", x[:, j]) for j in range(x.shape[1])), dataset.y.numpy())
    raw, made = dataset.table.raw[: len(dataset)], []
    for j, column in enumerate(dataset.table.columns):
        values = raw[:, j].copy()
        if "" in column.categories:
            values[values == column.categories.index("")] = np.nan
        made.append(Field(column.name, values, column.categories))
    client = None if dataset.client is None else dataset.client.numpy()
    names = dataset.client_names or tuple(f"client {k}" for k in range(0 if client is None else int(client.max()) + 1))
    return Fields(tuple(made), dataset.y.numpy(), client, names)


# ---- findings ------------------------------------------------------------------------------------------------------
def constant_at_client(fields: Fields) -> Iterator[Finding]:
    """Yield a finding on columns that vary, but not at some client with enough rows."""
    if fields.client is None:
        return
    order = np.argsort(fields.client, kind="stable")
    start = np.flatnonzero(np.diff(fields.client[order], prepend=-1))
    size = np.diff(start, append=len(order))
    cases: list[tuple[str, str, str]] = []  # column, client, text
    for f in (f for f in fields.inputs if f.distinct > 2 and not _of_client(f, fields)):
        codes = f.codes[order]
        low, high = np.minimum.reduceat(codes, start), np.maximum.reduceat(codes, start)
        for row in order[start[(low == high) & (low >= 0) & (size >= FEWEST_ROWS)]]:
            name = fields.client_names[fields.client[row]]
            cases.append((f.name, name, f"{f.name} is {f.shown(row)} at {name}"))
    if cases:
        columns, clients, shown = zip(*cases, strict=True)
        yield Finding(
            "constant-at-client",
            "warning",
            f"one value in every row of a client: {first(shown)}",
            "the column was probably not measured there, and now shows which client a row is from",
            "leave these fields empty if the value stands for unknown, or drop the column",
            columns=tuple(dict.fromkeys(columns)),
            clients=tuple(sorted(set(clients))),
        )


def client_numbers(fields: Fields) -> Iterator[Finding]:
    """Yield a finding on columns that number or name the clients."""
    if names := [f.name for f in fields.inputs if _of_client(f, fields)]:
        yield Finding(
            "client-number",
            "warning",
            f"one value in all rows of each client, and another one at every client: {first(names)}",
            "it is the number or the name of the client in another form, and a shared model may learn that instead of "
            "the class",
            "drop the column",
            columns=tuple(names),
        )


def codes_of_clients(fields: Fields) -> Iterator[Finding]:
    """Yield findings on columns of few values in which a client has other values than the largest client has."""
    for f in fields.inputs:
        if fields.client is None or not 2 < f.distinct <= MAX_CATEGORIES:
            continue
        counts = np.zeros((len(fields.client_names), f.distinct))
        np.add.at(counts, (fields.client[f.codes >= 0], f.codes[f.codes >= 0]), 1)
        has, rows = counts > 0, np.maximum(counts.sum(axis=1), 1)
        judged = (rows >= FEWEST_ROWS) & (has.sum(axis=1) > 1) & (has.sum(axis=1) <= _FEW_CODES)
        usual = int(np.argmax(judged * rows))
        alike = (counts @ has[usual] / rows + has @ counts[usual] / rows[usual]) / 2
        clients = [usual, *np.flatnonzero(judged & (alike <= _ALIKE))]
        if judged[usual] and len(clients) > 1:
            written = {code: f.shown(row) for code, row in zip(*np.unique(f.codes, return_index=True), strict=True)}
            shown = [f"{'/'.join(written[v] for v in np.flatnonzero(has[k]))} at {fields.client_names[k]}"
                     for k in clients]  # fmt: skip
            yield Finding(
                "codes-differ",
                "warning",
                f"{f.name} has other values at some clients: {first(shown, 3)}",
                "if they are other codes or units of the same thing, a shared model takes them for other things",
                "write the values alike at all clients, or drop the column",
                columns=(f.name,),
                clients=tuple(fields.client_names[k] for k in clients[:100]),
            )


def _of_client(f: Field, fields: Fields) -> bool:
    """Return whether every client has a value of its own in all of its rows, and at least two have enough of them.

    Rows that name no client may be of any.
    """
    if fields.client is None:
        return False
    nameless = [k for k, name in enumerate(fields.client_names) if is_nameless(name)]
    named = ~np.isin(fields.client, nameless)
    client, codes = fields.client[named], f.codes[named]
    if (codes < 0).any() or int((np.bincount(client) >= FEWEST_ROWS).sum()) < 2:
        return False
    pairs = len(np.unique(client * (int(codes.max()) + 1) + codes))
    return len(np.unique(client)) == len(np.unique(codes)) == pairs


def missing_at_client(fields: Fields) -> Iterator[Finding]:
    """Yield a finding on columns that one client fills in and another never does."""
    if fields.client is None:
        return
    sizes = np.bincount(fields.client, minlength=len(fields.client_names))
    lacking: dict[str, list[str]] = {}
    for f in (f for f in fields.inputs if f.distinct):
        empty = np.bincount(fields.client[f.missing], minlength=len(sizes))
        if names := [fields.client_names[k] for k in np.flatnonzero((empty == sizes) & (sizes > 0))]:
            lacking[f.name] = names
    if lacking:
        shown = [f"{column} at {first(names, 3)}" for column, names in lacking.items()]
        yield Finding(
            "missing-at-client",
            "warning",
            f"{counted(len(shown), 'column')} that some client never fills in: {first(shown)}",
            "such a column shows which client a row is from, and a shared model may learn that instead of the class",
            "drop the column, or compare a run without it",
            columns=tuple(lacking),
            clients=tuple(sorted(set().union(*lacking.values()))),
        )


def ids(fields: Fields) -> Iterator[Finding]:
    """Yield findings on columns that number the rows; more than 50 different texts are refused by the reader."""
    for f in fields.inputs:
        different = (0.5 if _ID.search(f.name) else MOSTLY) * len(f.codes)  # half of the rows, if it is called an id
        if len(f.codes) < FEWEST_ROWS or f.distinct < different or not _numbering(f):
            continue
        yield Finding(
            "id-column",
            "warning",
            f"{f.name} has {f.distinct:,} different values in {len(f.codes):,} rows: it looks like the number of a row",
            "a model can learn single rows by it, and rows of one client or class often have neighbouring numbers",
            "drop it",
            columns=(f.name,),
        )


def leaks(fields: Fields) -> Iterator[Finding]:
    """Yield a finding on columns that give the class away, however rare a class is.

    The most frequent class of each value, or of each side of a threshold, is right for nearly all rows of each class.
    """
    label = fields.label
    if len(label) >= FEWEST_ROWS and (names := [f.name for f in fields.inputs if _tells(f, label)]):
        yield Finding(
            "target-leak",
            "warning",
            f"{first(names)} alone determines the class of (nearly) every row",
            "a column that was filled in after the outcome was known, or is the outcome in other words, makes every "
            "method look perfect and is not there when the model is used",
            "drop it, unless it is really known beforehand",
            columns=tuple(names),
        )


def of_columns(fields: Fields | None) -> list[Finding]:
    """Return findings on inputs that give the client or the class away."""
    checks = (constant_at_client, client_numbers, codes_of_clients, missing_at_client, ids, leaks)
    return [] if fields is None else [finding for check in checks for finding in check(fields)]


def _tells(f: Field, label: Indices) -> bool:
    """Return whether the balanced accuracy of the best rule on this column alone is `TOLD` or more.

    Classes of which few rows could be told apart by chance are left out.
    """
    n = np.bincount(label)
    classes = np.flatnonzero(n >= _FEW_OF_A_CLASS)
    if len(classes) < 2:
        return False
    for codes in (f.codes + 1, f.missing.astype(np.int64)):  # an empty field counts as a value
        pairs, rows = np.unique(codes * len(n) + label, return_counts=True)
        order = np.lexsort((rows, pairs // len(n)))
        # the most frequent class of each value
        most = order[np.flatnonzero(np.diff(pairs[order] // len(n), append=-1))]
        right = np.bincount(pairs[most] % len(n), rows[most], len(n)) / np.maximum(n, 1)
        values = np.bincount(pairs[most] % len(n), minlength=len(n))
        if right[classes].mean() >= TOLD and (values[classes] <= n[classes] / 2).all():
            return True
    if f.texts or f.missing.any():
        return False
    parts = sorted((np.sort(f.numbers[label == c]) for c in classes), key=np.mean)
    gaps = [
        (np.searchsorted(a, a, "right") / len(a) - np.searchsorted(b, a, "right") / len(b)).max()
        for a, b in pairwise(parts)
    ]  # twice the balanced accuracy of the best threshold between two classes, less 1
    return bool(min(gaps) >= 2 * TOLD - 1)


def _numbering(f: Field) -> bool:
    """Return whether these are whole numbers that are consecutive, in order, or are called a number."""
    values = f.numbers[~f.missing]
    if f.texts or not len(values) or (values != np.floor(values)).any():
        return False
    span = values.max() - values.min() + 1
    return bool(_ID.search(f.name)) or span <= 1.5 * len(values) or bool((np.diff(values) >= 0).all())
