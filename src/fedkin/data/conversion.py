"""Whether the texts of a column are numbers: the one place where a table's texts become numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedkin.data.columns import MISSING, number_of

MAX_CATEGORIES = 50
MOSTLY = 0.9  # part of a column's values that are numbers for it to be one of numbers
_PADDED = re.compile(r"[+-]?0\d")
_WHOLE = re.compile(r"(0|-?[1-9]\d{0,17})(\.0*)?", re.ASCII)  # of 64 bits
_COMMA = re.compile(r"[+-]?\d+(,\d{3})*([.,]\d+)?")
_MANY, _FEW_ROWS = 20, 30  # a target of more values, half of them with fewer rows, looks like a measurement


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
        number = {text: found[0] for text in known if (found := numbers_of([text])) is not None}
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
    """Return the texts as numbers, NaN where empty; None if one of them is not a number."""
    with suppress(ValueError):  # a gap or a text; all that `float` alone reads is read three times as fast
        if "_" not in "".join(texts):
            return [*map(float, texts)]
    try:
        return [math.nan if t.lower() in MISSING else number_of(t) for t in texts]
    except ValueError:
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
