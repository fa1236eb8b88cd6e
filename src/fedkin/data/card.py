"""Description of one site's data, so that all sites agree on inputs and classes: names and texts, no numbers.

A card of a table names its columns and which of them hold numbers, the texts of the others, and the classes; a card of
arrays states the shape of one input and the classes. There are no statistics in it, no values of columns of numbers and
no numbers of samples. `merge` makes the one card of all sites that each of them reads its data by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from fedkin.core.errors import DataError, counted
from fedkin.data.arrays import MAX_CLASSES
from fedkin.data.checks import listed, readable, refuse_first
from fedkin.data.columns import MAX_CATEGORIES, convert, whole_labels, whole_numbers
from fedkin.display import one_line

MAX_COLUMNS = 10_000
MAX_TEXT = 200

_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Label = Annotated[str, Meta(max_length=MAX_TEXT + 5)]  # the target's name with " <= 0"
_Side = Annotated[int, Meta(ge=1, le=1_000_000)]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of a table.

    Attributes:
        name: as in the header.
        kind: ``empty`` where no row of this site has a value; a merged card has none of these.
        gaps: whether some field is empty.
        categories: kind ``text``: the texts, sorted; an empty field is the text ``""``.
    """

    name: _Text
    kind: Literal["number", "text", "empty"]
    gaps: bool = False
    categories: Annotated[tuple[_Label, ...], Meta(max_length=MAX_CATEGORIES)] = ()

    @property
    def width(self) -> int:
        """Number of inputs that it becomes: one per text, or the number and, with gaps, a flag."""
        return len(self.categories) if self.kind == "text" else 1 + self.gaps


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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

    def to_json(self) -> dict[str, object]:
        """Return plain values for a JSON text."""
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, object])

    @classmethod
    def from_json(cls, value: object, where: str = "card") -> Card:
        """Return a card from the result of `json.loads`; it comes from another host, so everything is checked.

        Args:
            value: the parsed value; the caller limits the number of bytes before parsing.
            where: put in front of messages, for example the site's name.
        """
        with readable(where, "a card", "correct that part of it"):
            card = msgspec.convert(value, cls)
        refuse_first(where, card._faults())
        return card

    def _faults(self) -> Iterator[str]:
        labels, names = self.labels or (), [column.name for column in self.columns]
        texts = [self.target or "", *labels, *names, *(t for column in self.columns for t in column.categories)]
        if odd := next((text for text in texts if one_line(text) != text), None):
            yield f"{odd!a} holds a control character, such as a line break; remove it"
        table = bool(names), bool(self.target), not self.inputs
        if (
            table != (self.kind == "table",) * 3
            or (self.kind == "table" and not labels)
            or len({*names, self.target, ""}) != len(names) + 2
            or len(set(labels)) != len(labels)
            or len(labels) not in (0, self.classes)
        ):
            yield (
                "a table has columns and a target, arrays have a shape, and all columns and classes differ in their "
                "names; this card is none of a site"
            )


# ---- merging --------------------------------------------------------------------------------------------------------
Cards = Mapping[str, Card]


def merge(cards: Cards) -> Card:
    """Return the card of all sites together: the one that reading all their files in one place would have given.

    Columns come in the order of the first site; texts and classes are those of all sites, in the order that `load`
    would have given them. A column that is empty at some sites is fine as long as one site has values.

    Args:
        cards: by the sites' names, in the order of the clients' numbers; at least one.

    Raises:
        DataError: cards that do not fit each other, or one class at all sites together; the message names sites and
            columns.
    """
    first, one = next(iter(cards.items()))
    names = [column.name for column in one.columns]
    for site, card in cards.items():
        own = [column.name for column in card.columns]
        more, lacking = [n for n in own if n not in names], [n for n in names if n not in own]
        pairs = {what: (getattr(card, what), getattr(one, what)) for what in ("kind", "target", "binary", "inputs")}
        pairs["named classes"] = (card.labels is not None, one.labels is not None)
        pairs["columns"] = (listed(more) or "none", listed(lacking) or "none")
        for what, (mine, theirs) in pairs.items():
            if mine != theirs:
                raise DataError(
                    f"the data of {site} differ in {what} from those of {first}: {mine} and {theirs}; make them alike"
                )
    columns = tuple(
        _merged({s: column for s, card in cards.items() for column in card.columns if column.name == n}) for n in names
    )
    labels, numeric = (one.labels, False) if one.binary or one.labels is None else _classes(cards)
    classes = max(card.classes for card in cards.values()) if labels is None else len(labels)
    if not 2 <= classes <= MAX_CLASSES:
        raise DataError(
            f"all sites together have {counted(classes, 'class')} ({listed(labels or ['0'], 3)}), 2 to {MAX_CLASSES} "
            "are possible; check that the right column or folder was given"
        )
    return replace(one, classes=classes, labels=labels, numeric=numeric, columns=columns)


def misfit(cards: Cards) -> str | None:
    """Return the only site whose card does not fit the others; None if there is none, or more than one.

    Of two sites that contradict each other neither is taken for the odd one.
    """
    result = [site for site in cards if _fit({other: card for other, card in cards.items() if other != site})]
    return result[0] if len(result) == 1 else None


def _fit(cards: Cards) -> bool:
    try:
        merge(cards)
    except DataError:
        return False
    return True


def _merged(columns: Mapping[str, Column]) -> Column:
    """Return one column of all sites."""
    name = next(iter(columns.values())).name
    filled = {site: column for site, column in columns.items() if column.kind != "empty"}
    gaps = any(column.gaps for column in columns.values())
    texts = {text for column in filled.values() for text in column.categories}
    together = convert(sorted(texts), name, sorted(texts))
    if filled and together.numbers is not None and not together.odd:
        return Column(name, "number", gaps)
    _require_kind(name, {site: column.kind == "number" for site, column in filled.items()})
    categories = sorted(texts | {""} if gaps else texts)
    if not filled or len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"column '{name}' holds {len(texts)} different texts at all sites together, 1 to {MAX_CATEGORIES} can "
            "become inputs; leave the column out at all of them, or give numbers"
        )
    return Column(name, "text", gaps, tuple(categories))


def _classes(cards: Cards) -> tuple[tuple[str, ...], bool]:
    """Return the names of the classes of all sites, and whether they are whole numbers."""
    lists = {site: card.labels or () for site, card in cards.items()}
    texts = {label for own in lists.values() for label in own}
    one = next(iter(cards.values()))
    if one.kind == "table":
        if whole_numbers(texts):
            return whole_labels(sorted(texts)), True
        _require_kind(one.target or "", {site: card.numeric for site, card in cards.items()})
        return tuple(sorted(texts)), False
    longest = max(lists.values(), key=len)
    if all(longest[: len(own)] == own for own in lists.values()):
        return longest, False
    for site, own in lists.items():
        if list(own) != sorted(own):
            raise DataError(
                f"the class names of {site}, {listed(own)}, are not in alphabetical order and not those of the other "
                "sites; write the same names in the same order at all sites"
            )
    return tuple(sorted(texts)), False


def _require_kind(name: str, numbers: Mapping[str, bool]) -> None:
    """Refuse a column of numbers here and texts there: a card does not show which texts the numbers are."""
    here, there = [s for s, number in numbers.items() if number], [s for s, number in numbers.items() if not number]
    if here:
        raise DataError(
            f"column '{name}' holds numbers at {listed(here)} and texts at {listed(there)}; write it alike at all "
            f"sites, or start the nodes of {listed(here)} with --text {name}: it is then a column of texts, and its "
            "different values are sent to the server"
        )
