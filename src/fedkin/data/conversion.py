"""Whether the texts of a column are numbers: the one place where a table's texts become numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedkin.data.card import MAX_CATEGORIES, numbers_of, whole_label
from fedkin.data.standalone import MISSING

MOSTLY = 0.9  # part of a column's values that are numbers for it to be one of numbers
_PADDED = re.compile(r"[+-]?0\d")
_WHOLE = re.compile(r"(0|-?[1-9]\d{0,17})(\.0*)?", re.ASCII)  # of 64 bits
_ZEROS = re.compile(r"\.0*$")
_COMMA = re.compile(r"[+-]?\d+(,\d{3})*([.,]\d+)?")
_MANY, _FEW_ROWS = 20, 30  # a target of more values with fewer rows each (the median) looks like a measurement


@dataclass(frozen=True)
class Conversion:
    """What the texts of a column are read as.

    Attributes:
        numbers: float64 ``[n]``, NaN where a field is missing or not a number; None: the column is one of texts.
        odd: rows of a column of numbers whose field is neither a number nor empty; it counts as missing.
        padded: a text with leading zeros, which makes a column of numbers one of texts.
        same: two different texts that are, or would be, the same number.
    """

    numbers: npt.NDArray[np.float64] | None
    odd: tuple[int, ...] = ()
    padded: str | None = None
    same: tuple[str, str] | None = None

    def note(self, name: str, texts: Sequence[str], places: Sequence[str], *, target: bool = False) -> str | None:
        """Return a sentence if texts were merged or left out, or if a column of numbers is read as texts.

        Args:
            name: of the column.
            texts: its fields.
            places: of its rows.
            target: whether it is the one with the class.
        """
        if self.odd:
            shown = ", ".join(f"{texts[i]!r} ({places[i]})" for i in self.odd[:3]) + ", ..." * (len(self.odd) > 3)
            what = "makes classes of texts" if target else "counts as missing"
            mend = "correct it" if target else "correct it, or leave the field empty"
            return f"'{name}' holds numbers, and a text among them {what}: {shown}; {mend}"
        whole = target and whole_numbers(texts)
        if whole and len({*map(whole_label, texts)}) == len({*texts}):
            return None
        if self.padded is not None:
            return f"'{name}' is read as texts, since {self.padded} has leading zeros; leave them out if it is a number"
        if self.same is None:
            return None
        numbers = f"'{name}': {' and '.join(self.same)} are the same number, "
        return numbers + (
            "so the column is read as texts; write equal numbers alike"
            if self.numbers is None or (target and not whole)
            else "and read as one; put a letter in front if they are codes"
        )


def convert(texts: Sequence[str]) -> Conversion:
    """Return what a column is read as, by counting its different values before and after the conversion.

    It is one of numbers if nine tenths of its values are (`MOSTLY`), none of them has leading zeros, and different
    texts stay different: 1.1 and 1.10 are two texts. But 1 and 1.0 are one number, and so are any of more different
    texts than can become inputs.
    """
    rows = Counter(texts)
    known = [text for text in rows if text.lower() not in MISSING]
    found, odd = numbers_of(known), set[str]()
    if found is None:
        odd = {text for text in known if numbers_of([text]) is None}
        given = sum(rows[text] for text in known)
        known = [text for text in known if text not in odd]
        if sum(rows[text] for text in known) < MOSTLY * given or any(map(_COMMA.fullmatch, odd)):
            return Conversion(None)
        found = numbers_of(known) or []
    number = dict(zip(known, found, strict=True))
    padded, same = next((text for text in known if _PADDED.match(text)), None), _same(number)
    codes = None if same is None else _same({_plain(text, value): value for text, value in number.items()})
    if padded or (codes and len(known) <= MAX_CATEGORIES):
        return Conversion(None, padded=padded, same=codes)
    numbers, same = np.array([number.get(text, np.nan) for text in texts], dtype=np.float64), codes or same
    return Conversion(numbers, tuple(i for i, text in enumerate(texts) if text in odd) if odd else (), same=same)


def whole_numbers(texts: Iterable[str]) -> bool:
    """Return whether all are whole numbers in their shortest form; 2.0 may stand for 2, but 02, +2 and 2e0 may not."""
    return all(map(_WHOLE.fullmatch, set(texts)))


def looks_measured(rows: Mapping[str, int]) -> bool:
    """Return whether whole numbers look like a measurement: many of them, close together, in few rows each.

    Args:
        rows: number of rows of each text.
    """
    values = [float(text) for text in rows]
    many = len(rows) > _MANY and max(values) - min(values) < 5 * len(rows)
    return many and float(np.median([*rows.values()])) < _FEW_ROWS


def _plain(text: str, value: float) -> str:
    """Return a text without what no writer of numbers means to say: a point with nothing after it, the sign of zero."""
    return _ZEROS.sub("", text) if value else "0"


def _same(number: dict[str, float]) -> tuple[str, str] | None:
    """Return two texts with the same number."""
    if len(set(number.values())) == len(number):
        return None
    first: dict[float, str] = {}
    return next(((first[value], text) for text, value in number.items() if first.setdefault(value, text) != text), None)
