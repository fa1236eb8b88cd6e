"""Merging of the cards of all sites into the one that all of them read their data by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedkin.core.errors import DataError
from fedkin.data.arrays import MAX_CLASSES
from fedkin.data.card import MAX_CATEGORIES, Card, Column, whole_labels
from fedkin.data.conversion import convert, whole_numbers
from fedkin.data.sources.files import listed

Cards = Mapping[str, Card]


def merge(cards: Cards) -> Card:
    """Return the card of all sites together: the one that reading all their files in one place would have given.

    Columns come in the order of the first site; texts and classes are those of all sites, in the order that `load`
    would have given them. A column that is empty at some sites is fine as long as one site has values.

    Args:
        cards: by the sites' names, in the order of the clients' numbers.

    Raises:
        DataError: cards that do not fit each other, or one class at all sites together; the message names sites and
            columns.
    """
    if not cards:
        raise DataError("no site has described its data; at least one card is needed")
    first, one = next(iter(cards.items()))
    for site, card in cards.items():
        for what in ("kind", "target", "binary"):
            mine, theirs = getattr(card, what), getattr(one, what)
            if mine != theirs:
                raise DataError(
                    f"the data of {site} differ in {what} from those of {first}: {mine!r} and {theirs!r}; "
                    "all sites need the same"
                )
    card = _tables(cards) if one.kind == "table" else _arrays(cards)
    if card.classes < 2:
        name = card.labels[0] if card.labels else "0"
        raise DataError(
            f"all sites have one class only, {name}: there is nothing to tell apart; check that the right column or "
            "folder was given"
        )
    return card


def misfit(cards: Cards) -> str | None:
    """Return the one site without which the cards fit each other; None if there is no such site, or more than one.

    Of two sites that contradict each other neither is taken for the odd one.
    """
    found = [site for site in cards if _fit({other: card for other, card in cards.items() if other != site})]
    return found[0] if len(found) == 1 else None


def _fit(cards: Cards) -> bool:
    try:
        merge(cards)
    except DataError:
        return False
    return True


def _tables(cards: Cards) -> Card:
    first, one = next(iter(cards.items()))
    names = [column.name for column in one.columns]
    for site, card in cards.items():
        own = [column.name for column in card.columns]
        missing, more = [n for n in names if n not in set(own)], [n for n in own if n not in set(names)]
        if missing or more:
            parts = [f"lacks {listed(missing)}"] if missing else []
            parts += [f"has {listed(more)}, which {first} lacks"] if more else []
            raise DataError(f"the columns of {site} differ from those of {first}: it {' and '.join(parts)}")
    by_site = {site: {column.name: column for column in card.columns} for site, card in cards.items()}
    columns = tuple(_merged({site: own[name] for site, own in by_site.items()}) for name in names)
    labels, numeric = (one.labels or (), False) if one.binary else _classes(cards)
    return replace(one, classes=len(labels), labels=labels, numeric=numeric, columns=columns)


def _merged(columns: Mapping[str, Column]) -> Column:
    """Return one column of all sites."""
    name = next(iter(columns.values())).name
    filled = {site: column for site, column in columns.items() if column.kind != "empty"}
    if not filled:
        raise DataError(f"column '{name}' is empty in every row of every site; leave it out at all of them")
    gaps = any(column.gaps for column in columns.values())
    texts = {text for column in filled.values() for text in column.categories}
    together = convert(sorted(texts), name, sorted(texts))
    if together.numbers is not None and not together.odd:
        return Column(name, "number", gaps)
    _same_kind(name, {site: column.kind == "number" for site, column in filled.items()})
    categories = sorted(texts | {""} if gaps else texts)
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"column '{name}' holds {len(categories)} different texts at all sites together, at most {MAX_CATEGORIES} "
            "can become inputs; leave the column out or give numbers"
        )
    return Column(name, "text", gaps, tuple(categories))


def _classes(cards: Cards) -> tuple[tuple[str, ...], bool]:
    """Return the names of the classes of all sites, and whether they are whole numbers."""
    target = next(iter(cards.values())).target or ""
    texts = {label for card in cards.values() for label in card.labels or ()}
    numeric = whole_numbers(texts)
    if not numeric:
        _same_kind(target, {site: card.numeric for site, card in cards.items()})
    labels = whole_labels(sorted(texts)) if numeric else tuple(sorted(texts))
    if len(labels) > MAX_CLASSES:
        raise DataError(f"target '{target}' has {len(labels)} different values at all sites, at most {MAX_CLASSES}")
    return labels, numeric


def _same_kind(name: str, numbers: Mapping[str, bool]) -> None:
    """Refuse a column of numbers here and texts there: a card does not show which texts the numbers are."""
    here, there = [s for s, number in numbers.items() if number], [s for s, number in numbers.items() if not number]
    if here:
        raise DataError(
            f"column '{name}' holds numbers at {listed(here)} and texts at {listed(there)}; write it alike at all "
            f"sites, or start the nodes of {listed(here)} with --text {name}: it is then a column of texts, and its "
            "different values are sent to the server"
        )


def _arrays(cards: Cards) -> Card:
    first, one = next(iter(cards.items()))
    for site, card in cards.items():
        if card.inputs != one.inputs:
            raise DataError(
                f"inputs at {site} have shape {list(card.inputs)}, at {first} {list(one.inputs)}; "
                "all sites need the same"
            )
        if (card.labels is None) != (one.labels is None):
            named, numbered = (first, site) if card.labels is None else (site, first)
            raise DataError(f"{named} names its classes, {numbered} numbers them; all sites need to do the same")
    if one.labels is None:
        return replace(one, classes=max(card.classes for card in cards.values()))
    labels = _names(cards)
    return replace(one, classes=len(labels), labels=labels)


def _names(cards: Cards) -> tuple[str, ...]:
    """Return the class names of all sites: the longest list, if the others are its beginning; else all, in order."""
    lists = {site: card.labels or () for site, card in cards.items()}
    longest = max(lists.values(), key=len)
    if all(longest[: len(own)] == own for own in lists.values()):
        return longest
    for site, own in lists.items():
        if list(own) != sorted(own):
            raise DataError(
                f"the class names of {site}, {listed(own)}, are not in alphabetical order and not those of the other "
                "sites; write the same names in the same order at all sites"
            )
    names = tuple(sorted({name for own in lists.values() for name in own}))
    if len(names) > MAX_CLASSES:
        raise DataError(f"the sites have {len(names)} classes together, at most {MAX_CLASSES} are possible")
    return names
