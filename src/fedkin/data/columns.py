"""Columns of a table as inputs of a network: from fields as texts to numbers, and these scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import DataError

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Fields of a table, in lower case, that hold no value."""
_TRUTH = {"true": "1", "false": "0", "1": "1", "0": "0"}

Raw = npt.NDArray[np.float64]
"""Rows of a table ``[n, inputs]`` before scaling: a number or NaN, or the place of a text among the categories and -1
for one that is not among them."""
Row = Mapping[str, object]
"""The fields of a row by column, as texts or numbers."""


@dataclass(frozen=True)
class Input:
    """Column of a table as inputs of a network.

    A number becomes ``(value - mean) / std``, an empty field the mean, and with ``gaps`` a second input is 1 where the
    field was empty. A column that had one value or none in training (``std`` 0) gives 0: nothing could be learnt from
    it. A text becomes one input per category, all 0 for a text that is not among them.

    Attributes:
        name: as in the header.
        kind: the kind of its values.
        gaps: numbers: whether training rows had empty fields; texts: whether the empty text is a category.
        categories: texts that training rows had, sorted; an empty field is the text ``""``.
        mean, std: of the training rows: one value for all clients, or one per client; none for texts.
    """

    name: str
    kind: Literal["number", "text"]
    gaps: bool = False
    categories: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Number of inputs of a network that it becomes."""
        return len(self.categories) if self.kind == "text" else 1 + self.gaps


def raw_rows(rows: Sequence[Row], columns: Sequence[Input], places: Sequence[str] | None = None) -> Raw:
    """Return rows of a table before scaling; see `Raw`.

    Args:
        rows: the fields by column.
        columns: the inputs.
        places: where each row is from, for messages; None: its number, from 1.

    Raises:
        DataError: a column is not there, or a field of a column of numbers is not a number; the message names the row.
    """
    where = [f"row {i + 1}" for i in range(len(rows))] if places is None else places
    for place, row in zip(where, rows, strict=True):
        lacking = [c.name for c in columns if c.name not in row]
        if lacking:  # rows of a file all have the columns of its header
            raise DataError(
                f"{place if places is None else place.rpartition(', ')[0]}: {_lacking(lacking, row, columns)}"
            )
    out = np.empty((len(rows), len(columns)), dtype=np.float64)
    for j, column in enumerate(columns):
        out[:, j] = raw_column([text_of(row[column.name]) for row in rows], column, where)
    return out


def raw_column(texts: Sequence[str], column: Input, places: Sequence[str]) -> Raw:
    """Return one column before scaling, ``[n]``; see `Raw`.

    True and false may be written out or as 1 and 0, since csv files and parquet files differ in it.
    """
    if column.kind == "text":
        place_of = {category: float(i) for i, category in enumerate(column.categories)}
        if all(category.lower() in _TRUTH or not category for category in column.categories):
            named = {_TRUTH[c.lower()]: at for c, at in place_of.items() if c}
            place_of = {text: named[truth] for text, truth in _TRUTH.items() if truth in named} | place_of
            texts = [t.lower() if t not in place_of else t for t in texts]
        return np.array([place_of.get("" if t.lower() in MISSING else t, -1.0) for t in texts], dtype=np.float64)
    out = np.empty(len(texts), dtype=np.float64)
    for i, text in enumerate(texts):
        try:
            out[i] = math.nan if text.lower() in MISSING else number_of(_TRUTH.get(text.lower(), text))
        except ValueError:
            out[i] = math.inf
        if math.isinf(out[i]):
            raise DataError(
                f"{places[i]}: '{column.name}' is {text!r}; expected a finite number, or nothing where it is not known"
            )
    return out


def number_of(text: str) -> float:
    """Return a field as a number.

    Raises:
        ValueError: it is none. Python alone reads 1_000 as one, which is a code elsewhere.
    """
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def text_of(value: object) -> str:
    """Return a field as the text that a csv file would hold: nothing for None, 1 and 0 for true and false."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value).strip()


def scaled(raw: Raw, columns: Sequence[Input]) -> npt.NDArray[np.float32]:
    """Return rows that `raw_rows` read as inputs, ``[n, inputs]``; each column has one mean and deviation."""
    out = np.zeros((len(raw), sum(column.width for column in columns)), dtype=np.float32)
    at = 0
    for values, column in zip(raw.T, columns, strict=True):
        if column.kind == "text":
            known = np.flatnonzero(values >= 0)
            out[known, at + values[known].astype(np.int64)] = 1.0
        else:
            if len(column.mean) > 1:
                raise DataError("each client has its own means and deviations; these are of several clients")
            mean, std = column.mean[0], column.std[0]
            missing = np.isnan(values)
            if std > 0:
                out[:, at] = (np.where(missing, mean, values) - mean) / std
            if column.gaps:
                out[:, at + 1] = missing
        at += column.width
    return out


def _lacking(names: Sequence[str], row: Row, columns: Sequence[Input]) -> str:
    those = f"column {names[0]!r}" if len(names) == 1 else f"columns {', '.join(map(repr, names))}"
    given = {str(name).lower().strip(): str(name) for name in row}
    close = [(name, get_close_matches(name.lower(), given, n=1, cutoff=0.8)) for name in names]
    meant = [f"{given[found[0]]!r} for {name!r}" for name, found in close if found]
    return (
        f"no {those}; needed are {', '.join(c.name for c in columns)}, given are {', '.join(map(str, row)) or 'none'}"
        + (f"; did you write {', '.join(meant)}?" if meant else "")
    )


def fitted(column: Input, values: Raw, parts: Sequence[npt.NDArray[np.int64]], own: bool) -> Input:
    """Return the column with what was counted and averaged over the rows of each part."""
    if column.kind == "text":
        if own:
            return column
        seen = np.unique(values[parts[0]])
        categories = tuple(column.categories[int(i)] for i in seen if i >= 0)
        return replace(column, categories=categories, gaps="" in categories)
    means, stds = [], []
    for part in parts:
        there = values[part][~np.isnan(values[part])]
        varies = len(there) > 0 and there.min() < there.max()
        # the mean of equal numbers is not always that number
        means.append(float(there.mean() if varies else there[0]) if len(there) else 0.0)
        stds.append(float(there.std()) if varies else 0.0)
    gaps = column.gaps if own else bool(np.isnan(values[parts[0]]).any())
    return replace(column, gaps=gaps, mean=tuple(means), std=tuple(stds))


def recoded(raw: Raw, old: Sequence[Input], new: Sequence[Input]) -> Raw:
    """Return the same rows with texts numbered by the categories of ``new``; -1 for texts that are not among them."""
    out = raw.copy()
    for j, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.kind == "text" and before.categories != after.categories:
            place_of = {category: i for i, category in enumerate(after.categories)}
            table = np.array([*(place_of.get(c, -1) for c in before.categories), -1], dtype=np.float64)
            out[:, j] = table[raw[:, j].astype(np.int64)]
    return out


def unscaled(x: npt.NDArray[np.floating[Any]], columns: Sequence[Input]) -> Raw:
    """Return the rows ``[n, columns]`` whose inputs are ``x [n, inputs]``, the inverse of `scaled`.

    It is exact to the fifth digit of a column's deviation. A column of numbers without deviation gives its mean.
    """
    out = np.empty((len(x), len(columns)), dtype=np.float64)
    at = 0
    for j, column in enumerate(columns):
        values = x[:, at : at + column.width].astype(np.float64)
        if column.kind == "text":
            out[:, j] = np.where(values.any(axis=1), values.argmax(axis=1), -1) if column.width else -1
        else:
            mean, std = column.mean[0], column.std[0]
            out[:, j] = mean if std == 0 else np.round(values[:, 0] * std + mean, digits(std)) + 0.0  # -0.0 is 0.0
            if column.gaps:
                out[values[:, 1] > 0, j] = np.nan
        at += column.width
    return out


def digits(std: float) -> int:
    """Return the decimal places, possibly negative, with which a number of this deviation is worth writing."""
    return 5 - math.floor(math.log10(std))
