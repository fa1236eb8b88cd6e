"""Description of one site's data, so that all sites agree on inputs and classes: names and texts, no numbers.

A card of a table names its columns and which of them hold numbers, the texts of the others, and the classes; a card of
arrays states the shape of one input and the classes. There are no statistics in it, no values of columns of numbers and
no numbers of samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from fedkin.core.errors import DataError
from fedkin.data.arrays import MAX_CLASSES
from fedkin.data.standalone import MISSING, number_of
from fedkin.display import one_line

MAX_CATEGORIES = 50
MAX_COLUMNS = 10_000
MAX_TEXT = 200

Kind = Literal["number", "text", "empty"]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Label = Annotated[str, Meta(max_length=MAX_TEXT + 5)]  # the target's name with " <= 0"
_Side = Annotated[int, Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: as in the header.
        kind: ``empty`` where no row of this site has a value; a merged card has none of these.
        gaps: whether some field is empty.
        categories: kind ``text``: the texts, sorted; an empty field is the text ``""``.
    """

    name: _Text
    kind: Kind
    gaps: bool = False
    categories: Annotated[tuple[_Label, ...], Meta(max_length=MAX_CATEGORIES)] = ()

    @property
    def width(self) -> int:
        """Number of inputs that it becomes: one per text, or the number and, with gaps, a flag."""
        return len(self.categories) if self.kind == "text" else 1 + self.gaps


@dataclass(frozen=True)
class Card:
    """Description of a site's data, or with `merge` of the data of all sites.

    Attributes:
        kind: ``table`` (csv) or ``array`` (everything else).
        classes: number of classes.
        labels: names of the classes; tables always have them.
        numeric: tables: the classes are whole numbers, ordered as such.
        columns: tables: the inputs, in order.
        target: tables: the column with the class.
        binary: tables: two classes, target > 0 and the rest.
        inputs: arrays: shape of one input.
    """

    kind: Literal["table", "array"]
    classes: Annotated[int, Meta(ge=1, le=MAX_CLASSES)]
    labels: Annotated[tuple[_Label, ...], Meta(max_length=MAX_CLASSES)] | None = None
    numeric: bool = False
    columns: Annotated[tuple[Column, ...], Meta(max_length=MAX_COLUMNS)] = ()
    target: _Text | None = None
    binary: bool = False
    inputs: Annotated[tuple[_Side, ...], Meta(max_length=8)] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input of a network; right for a merged card only."""
        return self.inputs if self.kind == "array" else (sum(column.width for column in self.columns),)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a JSON text."""
        return cast(dict[str, Any], json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, found: object, where: str = "card") -> Card:
        """Return a card from the result of `json.loads`; it comes from another host, so everything is checked.

        Args:
            found: the parsed value; the caller limits the number of bytes before parsing.
            where: put in front of messages, for example the site's name.

        Raises:
            DataError: other keys or types than those of `to_json`, sizes beyond the limits of this file, parts that
                contradict each other.
        """
        try:
            card = msgspec.convert(found, cls)
        except (ValueError, OverflowError, RecursionError) as e:
            raise DataError(f"{where}: {one_line(str(e))[:300]}") from e
        if card.to_json() != found:
            raise DataError(f"{where}: expected exactly the keys of a card")
        _check(card, where)
        return card

    def checked(self, where: str = "card") -> Card:
        """Return the card, if other hosts will accept it.

        Raises:
            DataError: a text is too long or not printable, or there are too many columns.
        """
        return Card.from_json(self.to_json(), where)


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


def _check(card: Card, where: str) -> None:
    """Raise DataError if parts of a card do not fit each other, or a text would move a terminal's cursor."""
    texts = [card.target or "", *(card.labels or ())]
    for text in (*texts, *(text for column in card.columns for text in (column.name, *column.categories))):
        if one_line(text) != text:
            raise DataError(f"{where}: {text!a} holds a control character, such as a line break; remove it")
    for column in card.columns:
        _check_column(column, where)
    if card.labels is not None and len(card.labels) != card.classes:
        raise DataError(f"{where}: {len(card.labels)} class names for {card.classes} classes")
    if card.labels is not None and len(set(card.labels)) != card.classes:
        raise DataError(f"{where}: two classes have the same name")
    if card.kind == "array":
        if card.columns or card.target is not None or card.binary or card.numeric or not card.inputs:
            raise DataError(f"{where}: a card of arrays has the shape of an input and no columns")
        return
    if not card.columns or card.target is None or card.labels is None or card.inputs:
        raise DataError(f"{where}: a card of a table has columns, a target and class names, and no shape")
    names = [card.target, *(column.name for column in card.columns)]
    if len(set(names)) < len(names) or "" in names:
        raise DataError(f"{where}: every column needs a name of its own")
    if card.binary and (card.labels != binary_labels(card.target) or card.numeric):
        raise DataError(f"{where}: the classes of a binary target must be {' and '.join(binary_labels(card.target))}")
    if any(label.lower() in MISSING or label != label.strip() for label in card.labels):
        raise DataError(f"{where}: a class name is empty")
    if card.numeric:
        values = numbers_of(card.labels)
        if values is None or not all(map(math.isfinite, values)) or whole_labels(card.labels) != card.labels:
            raise DataError(f"{where}: classes that are numbers must be whole numbers in their order")
    elif not card.binary and list(card.labels) != sorted(card.labels):
        raise DataError(f"{where}: classes that are texts must be in alphabetical order")


def _check_column(column: Column, where: str) -> None:
    here = f"{where}: column '{column.name}'"
    if bool(column.categories) != (column.kind == "text"):
        raise DataError(f"{here}: a column of texts says which, another column has none")
    if list(column.categories) != sorted(set(column.categories)):
        raise DataError(f"{here}: its texts must be different and in alphabetical order")
    if column.kind == "empty" and not column.gaps:
        raise DataError(f"{here}: a column without values has empty fields")
    if column.kind == "text" and column.gaps != ("" in column.categories):
        raise DataError(f'{here}: an empty field of a column of texts is the text ""')
