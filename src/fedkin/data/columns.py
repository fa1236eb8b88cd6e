"""The columns of a table as inputs of a network: from fields as texts to numbers that are not yet scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import DataError
from fedkin.data.card import MISSING

Raw = npt.NDArray[np.float64]
"""Rows of a table ``[n, inputs]`` before scaling: a number or NaN, or the place of a text among the categories and -1
for one that is not among them."""

_TRUTH = {"true": "1", "false": "0", "1": "1", "0": "0"}


@dataclass(frozen=True)
class Input:
    """One column of a table as inputs of a network.

    A number becomes ``(value - mean) / std``, an empty field the mean, and with ``gaps`` a second input is 1 where the
    field was empty. A column that had one value or none in training (``std`` 0) gives 0: nothing could be learnt from
    it. A text becomes one input per category, all 0 for a text that is not among them.

    Attributes:
        name: as in the header.
        kind: what the column holds.
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
        """How many inputs of a network it becomes."""
        return len(self.categories) if self.kind == "text" else 1 + self.gaps


def raw_rows(
    rows: Sequence[Mapping[str, object]], columns: Sequence[Input], places: Sequence[str] | None = None
) -> Raw:
    """Rows of a table before scaling; see `Raw`.

    Args:
        rows: the fields by column.
        columns: the inputs.
        places: where each row is from, for messages; None: its number, from 1.

    Raises:
        DataError: a column is not there, or a field of a column of numbers is none; the message names the row.
    """
    where = [f"row {i + 1}" for i in range(len(rows))] if places is None else places
    for place, row in zip(where, rows, strict=True):
        lacking = [c.name for c in columns if c.name not in row]
        if lacking:
            raise DataError(
                f"{place}: no column '{lacking[0]}'; needed are {', '.join(c.name for c in columns)}, "
                f"given are {', '.join(map(str, row)) or 'none'}"
            )
    out = np.empty((len(rows), len(columns)), dtype=np.float64)
    for j, column in enumerate(columns):
        out[:, j] = raw_column([text_of(row[column.name]) for row in rows], column, where)
    return out


def raw_column(texts: Sequence[str], column: Input, places: Sequence[str]) -> Raw:
    """One column before scaling, ``[n]``; see `Raw`. True and false may be written out or as 1 and 0, since csv files
    and parquet files differ in it."""
    if column.kind == "text":
        place_of = {category: float(i) for i, category in enumerate(column.categories)}
        if all(category.lower() in _TRUTH or not category for category in column.categories):
            named = {_TRUTH[c.lower()]: at for c, at in place_of.items() if c}
            place_of |= {text: named[truth] for text, truth in _TRUTH.items() if truth in named}
            texts = [t.lower() if t not in place_of else t for t in texts]
        return np.array([place_of.get("" if t.lower() in MISSING else t, -1.0) for t in texts], dtype=np.float64)
    out = np.empty(len(texts), dtype=np.float64)
    for i, text in enumerate(texts):
        try:
            out[i] = math.nan if text.lower() in MISSING else float(_TRUTH.get(text.lower(), text))
        except ValueError:
            out[i] = math.inf
        if math.isinf(out[i]):
            raise DataError(
                f"{places[i]}: '{column.name}' is {text!r}; expected a finite number, or nothing where it is not known"
            )
    return out


def text_of(value: object) -> str:
    """A field as the text that a csv file would hold: nothing for None, 1 and 0 for true and false."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value).strip()


def fitted(column: Input, values: Raw, parts: Sequence[npt.NDArray[np.int64]], own: bool) -> Input:
    """The column with what was counted and averaged over the rows of each part."""
    if column.kind == "text":
        if own:
            return column
        seen = np.unique(values[parts[0]])
        categories = tuple(column.categories[int(i)] for i in seen if i >= 0)
        return replace(column, categories=categories, gaps="" in categories)
    means, stds = [], []
    for part in parts:
        there = values[part][~np.isnan(values[part])]
        means.append(float(there.mean()) if len(there) else 0.0)
        stds.append(float(there.std()) if len(there) and there.min() < there.max() else 0.0)
    gaps = column.gaps if own else bool(np.isnan(values[parts[0]]).any())
    return replace(column, gaps=gaps, mean=tuple(means), std=tuple(stds))


def recoded(raw: Raw, old: Sequence[Input], new: Sequence[Input]) -> Raw:
    """The same rows with texts numbered by the categories of ``new``; -1 for a text that these have not."""
    out = raw.copy()
    for j, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.kind == "text" and before.categories != after.categories:
            place_of = {category: i for i, category in enumerate(after.categories)}
            table = np.array([*(place_of.get(c, -1) for c in before.categories), -1], dtype=np.float64)
            out[:, j] = table[raw[:, j].astype(np.int64)]
    return out
