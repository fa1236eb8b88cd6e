"""Columns of a table as inputs of a network: from fields as texts to numbers, and these scaled."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import DataError
from fedkin.data.checks import refuse_first

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Fields of a table, in lower case, that hold no value."""
MAX_CATEGORIES = 50
MOSTLY = 0.9  # part of a column's values that are numbers for it to be one of numbers
_PADDED = re.compile(r"[+-]?0\d")
_WHOLE = re.compile(r"(0|-?[1-9]\d{0,17})(\.0*)?", re.ASCII)  # of 64 bits
_COMMA = re.compile(r"[+-]?\d+(,\d{3})*([.,]\d+)?")
_MANY, _FEW_ROWS = 20, 30  # a target of more values, half of them with fewer rows, looks like a measurement
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
    """Return rows of a table before scaling, see `Raw`; ``places`` are where each is from, by default its number."""
    where = [f"row {i + 1}" for i in range(len(rows))] if places is None else places
    for place, row in zip(where, rows, strict=True):
        lacking = [c.name for c in columns if c.name not in row]
        file = place if places is None else place.rpartition(", ")[0]  # whose rows all have the columns of its header
        refuse_first(file, [_lacking(lacking, row, columns)] if lacking else [])
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
    result = numbers_of(texts)
    if result is None:
        result = [(numbers_of([_TRUTH.get(text.lower(), text)]) or [math.inf])[0] for text in texts]
    numbers = np.array(result, dtype=np.float64)
    strange = [i for i in np.flatnonzero(~np.isfinite(numbers)).tolist() if texts[i].lower() not in MISSING]
    if strange:
        raise DataError(
            f"{places[strange[0]]}: '{column.name}' is {texts[strange[0]]!r}; expected a finite number, or nothing "
            "where it is not known"
        )
    return numbers


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
    near = [f"{given[result[0]]!r} for {name!r}" for name, result in close if result]
    return (
        f"no {those}; needed are {', '.join(c.name for c in columns)}, given are {', '.join(map(str, row)) or 'none'}"
        + (f"; did you write {', '.join(near)}?" if near else "")
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


@dataclass(frozen=True)
class Conversion:
    """What the texts of a column are read as.

    Attributes:
        numbers: float64 ``[n]``, NaN where a field is not a number; None: the column is one of texts.
        odd: rows with a text in a column of numbers, where it counts as missing, or of texts that are mostly numbers.
        note: where texts were merged or left out, or look like numbers and are none: a sentence that says so, with what
            to do after its semicolon.
    """

    numbers: npt.NDArray[np.float64] | None
    odd: tuple[int, ...] = ()
    note: str = ""


def convert(texts: Sequence[str], name: str, places: Sequence[str]) -> Conversion:
    """Return what a column is read as, by counting its different values before and after the conversion.

    It is one of numbers if nine tenths of its values are, none of them has leading zeros, and different texts stay
    different: 1.1 and 1.10 are two texts. But 1 and 1.0 are one number, and so are texts of a column with more
    different ones than can become inputs.

    Args:
        texts: the fields.
        name, places: the column and the place of each row, for the note.
    """
    rows = Counter(texts)
    empty = {text for text in rows if len(text) < 5 and text.lower() in MISSING}
    known = [text for text in rows if text not in empty] if empty else [*rows]
    number, comma = dict(zip(known, numbers_of(known) or (), strict=False)), None
    odd, shown, as_texts = tuple[int, ...](), "", f"'{name}' is read as texts, since"
    if not number:
        number = {text: result[0] for text in known if (result := numbers_of([text])) is not None}
        comma = next((text for text in known if text not in number and _COMMA.fullmatch(text)), None)
        like = sum(rows[text] for text in known if text in number or (comma and _COMMA.fullmatch(text)))
        odd = tuple(i for i, text in enumerate(texts) if text not in number and text not in empty)
        shown = ", ".join(f"{texts[i]!r} ({places[i]})" for i in odd[:3]) + ", ..." * (len(odd) > 3)
        given = sum(rows[text] for text in known)
        if like < MOSTLY * given:
            what = f"{as_texts} {len(odd):,} of its {given:,} values are not numbers: {shown}; leave such fields empty"
            return Conversion(None, odd, what) if like > given / 2 else Conversion(None)
    if comma:
        mend = "write 1.5 for 1,5 if it is a decimal comma, 1500 for 1,500 if it separates thousands"
        return Conversion(None, note=f"{as_texts} numbers have a comma, such as {comma}; {mend}")
    if padded := next(filter(_PADDED.match, number), None):
        mend = "leave them out if it is a number"
        return Conversion(None, note=f"{as_texts} {padded} has leading zeros; {mend}")
    first: dict[float, str] = {}
    pairs = [(first[value], text) for text, value in number.items() if first.setdefault(value, text) != text]
    codes = next((p for p in pairs if number[p[0]] and len({re.sub(r"\.0*$", "", text) for text in p}) > 1), None)
    if codes and len(number) <= MAX_CATEGORIES:
        note = f"{as_texts} {' and '.join(codes)} would be one number; write equal numbers alike"
        return Conversion(None, note=note)
    numbers = np.fromiter(map((dict.fromkeys(rows, np.nan) | number).__getitem__, texts), np.float64, len(texts))
    if odd:
        note = f"'{name}' holds numbers, and a text among them counts as missing: {shown}; correct it, or leave the "
        return Conversion(numbers, odd, note + "field empty")
    if pairs:
        pair = " and ".join(codes or pairs[0])
        note = f"'{name}': {pair} are read as one number; put a letter in front if they are codes"
        return Conversion(numbers, note=note)
    return Conversion(numbers)


def whole_numbers(texts: Iterable[str]) -> bool:
    """Return whether all are whole numbers in their shortest form; 2.0 may stand for 2, but 02, +2 and 2e0 may not."""
    return all(map(_WHOLE.fullmatch, set(texts)))


def looks_measured(texts: Sequence[str]) -> bool:
    """Return whether a target looks like a measurement: many whole numbers, close together, in few rows each."""
    rows = Counter(texts)
    if len(rows) <= _MANY or not whole_numbers(rows):
        return False
    near = max(map(float, rows)) - min(map(float, rows)) < 5 * len(rows)
    return near and float(np.median([*rows.values()])) < _FEW_ROWS


def numbers_of(texts: Sequence[str]) -> list[float] | None:
    """Return the texts as numbers, NaN where empty; None if one of them is not a number.

    1_000 is a number to Python alone, and a code elsewhere.
    """
    if any("_" in t for t in texts):
        return None
    with suppress(ValueError):  # a gap or a text; all that `float` alone reads is read three times as fast
        return [*map(float, texts)]
    with suppress(ValueError):
        return [math.nan if t.lower() in MISSING else float(t) for t in texts]
    return None


def whole_labels(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of a target of whole numbers, in their order; ``2.0`` is ``2``."""
    return tuple(sorted({whole_label(t) for t in texts}, key=int))


def whole_label(text: str) -> str:
    """Return the class name of a whole number; those of up to 64 bits are not rounded."""
    near = int(float(text))
    try:
        return str(int(text) if abs(near) < 1 << 63 else near)
    except ValueError:  # 2.0
        return str(near)


def binary_labels(target: str) -> tuple[str, str]:
    """Return the class names of a binary target."""
    return f"{target} <= 0", f"{target} > 0"
