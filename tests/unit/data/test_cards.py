"""Cards: what a site says of its data, how the cards of all sites become one, and what is refused from another host."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.core.errors import DataError
from fedkin.data import Card, Column, merge
from fedkin.data.card import MAX_COLUMNS, misfit
from fedkin.data.columns import MAX_CATEGORIES
from fedkin.data.sources.tables import table_card
from fedkin.experiment.settings import DataSettings
from refusals import refuses

EMPTY = Column("x", "empty", True)
AGE, COLOUR = Column("age", "number", True), Column("colour", "text", False, ("blue", "red"))
TABLE = Card("table", 2, ("0", "1"), True, (AGE, COLOUR), "sick")
ARRAY = Card("array", 10, inputs=(1, 8, 8))


def table(*columns: Column, labels: tuple[str, ...] = ("0", "1"), numeric: bool = True) -> Card:
    return Card("table", len(labels), labels, numeric, columns, "sick")


def array(classes: int = 3, labels: tuple[str, ...] | None = None, inputs: tuple[int, ...] = (4,)) -> Card:
    return Card("array", classes if labels is None else len(labels), labels, inputs=inputs)


# ---- what is on a card --------------------------------------------------------------------------------------------
def test_a_card_tells_names_and_texts_only(tmp_path: Path) -> None:
    """Of a column of numbers a card says that it is one and whether fields are empty; no value, no number of rows."""
    path = tmp_path / "t.csv"
    path.write_text("age,ward,ca,sick\n41.5,b,,2\n77,a,?,0\n,b,,10\n")
    card = table_card([path], DataSettings(target="sick"), name="t")
    assert card.to_json() == {
        "kind": "table", "classes": 3, "labels": ["0", "2", "10"], "numeric": True,
        "target": "sick", "binary": False, "inputs": [],
        "columns": [
            {"name": "age", "kind": "number", "gaps": True, "categories": []},
            {"name": "ward", "kind": "text", "gaps": False, "categories": ["a", "b"]},
            {"name": "ca", "kind": "empty", "gaps": True, "categories": []},
        ],
    }  # fmt: skip


def test_columns_declared_as_texts(tmp_path: Path) -> None:
    """Only columns that the site's operator declares as texts tell their values, as they are written."""
    path = tmp_path / "t.csv"
    path.write_text("code,sick\n10,1.0\n,0\n")
    card = table_card([path], DataSettings(target="sick"), name="t", texts=["code", "sick"])
    assert card.columns == (Column("code", "text", True, ("", "10")),)
    assert (card.labels, card.numeric) == (("0", "1.0"), False)
    assert merge({"t": card}) == Card("table", 2, ("0", "1"), True, (Column("code", "number", True),), "sick")
    with refuses(DataError, "'cod'", "'code'"):
        table_card([path], DataSettings(target="sick"), name="t", texts=["cod"])


@pytest.mark.parametrize("card", [TABLE, ARRAY, array(labels=("cat", "dog"))], ids=["table", "array", "named"])
def test_a_card_survives_its_text(card: Card) -> None:
    assert Card.from_json(json.loads(json.dumps(card.to_json()))) == card


# ---- cards of other hosts -----------------------------------------------------------------------------------------
def changed(*path: str | int, to: Any, base: Card = TABLE) -> dict[str, Any]:
    """A card's JSON with one value replaced."""
    found = base.to_json()
    place: Any = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return found


BAD = [
    [],
    {**TABLE.to_json(), "rows": 7},
    changed("kind", to="graph"), changed("kind", to=["table"]), changed("classes", to=True),
    changed("classes", to=10**5000), changed("classes", to=3), changed("labels", to=["1", "1"]),
    changed("labels", to="01"), changed("labels", to=None), changed("numeric", to=1), changed("target", to="age"),
    changed("target", to="a" * 201), changed("columns", to=[]), changed("columns", 0, to={"name": "age"}),
    changed("columns", to=[TABLE.to_json()["columns"][0]] * (MAX_COLUMNS + 1)),
    changed("columns", 0, "name", to="sick"), changed("columns", 0, "name", to="\x1b[2J"),
    changed("columns", 0, "name", to="\ud800"), changed("columns", 1, "categories", to=["x" * 300]),
    changed("columns", 1, "categories", to=[f"{i:02}" for i in range(MAX_CATEGORIES + 1)]),
    changed("inputs", to=[3]), changed("inputs", to=[], base=ARRAY), changed("inputs", to=[0], base=ARRAY),
    changed("inputs", to=[1] * 9, base=ARRAY), changed("target", to="y", base=ARRAY),
]  # fmt: skip


@pytest.mark.parametrize("found", BAD, ids=range(len(BAD)))
def test_bad_cards_are_refused(found: object) -> None:
    """Whatever another host sends that is no card is a DataError that begins with where it came from."""
    with refuses(DataError, "3"):
        Card.from_json(found, "site 3")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES: list[tuple[str | int, ...]] = [(key,) for key in TABLE.to_json()]
PLACES += [("columns", 1), ("columns", 1, "kind"), ("columns", 1, "categories"), ("columns", 1, "categories", 0)]


@settings(max_examples=60, deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_no_other_error_than_ours(place: tuple[str | int, ...], value: Any) -> None:
    """Any JSON value anywhere in a card gives a card that survives its text, or a DataError."""
    try:
        card = Card.from_json(copy.deepcopy(changed(*place, to=value)))
    except DataError:
        return
    assert Card.from_json(card.to_json()) == card


# ---- merging ------------------------------------------------------------------------------------------------------
def test_merged_columns() -> None:
    """Order of the first site, all texts in order, gaps if anybody has some; an empty column is what others have."""
    north = table(Column("ca", "empty", True), Column("ward", "text", False, ("b", "d")), Column("age", "number"))
    south = table(Column("age", "number", True), Column("ward", "empty", True), Column("ca", "number"))
    east = table(Column("ward", "text", False, ("a", "b")), Column("ca", "number"), Column("age", "number"))
    assert merge({"north": north, "south": south, "east": east}).columns == (
        Column("ca", "number", True),
        Column("ward", "text", True, ("", "a", "b", "d")),
        Column("age", "number", True),
    )


def test_the_one_site_that_does_not_fit() -> None:
    """It is named only where the others agree with each other and there are two of them at least."""
    one, other, third = (Card("array", 10, inputs=(1, side, side)) for side in (8, 9, 10))
    assert misfit({"a": one, "b": other, "c": one}) == "b"
    assert misfit({"a": other, "b": one, "c": one, "d": one}) == "a"
    assert misfit({"a": one, "b": other}) is None
    assert misfit({"a": one, "b": other, "c": third}) is None
    assert misfit({"a": one, "b": one, "c": other, "d": other}) is None


def test_merged_classes() -> None:
    """Whole numbers in their order, texts in theirs; a binary target keeps its two."""
    one, two = table(AGE, labels=("2", "10")), table(AGE, labels=("1", "2"))
    assert merge({"a": one, "b": two}).labels == ("1", "2", "10")
    one, two = table(AGE, labels=("b",), numeric=False), table(AGE, labels=("10", "a"), numeric=False)
    assert merge({"a": one, "b": two}).labels == ("10", "a", "b")
    binary = Card("table", 2, ("sick <= 0", "sick > 0"), False, (AGE,), "sick", True)
    assert merge({"a": binary, "b": binary}) == binary


def test_merged_arrays() -> None:
    """Numbered classes: as many as the site with most; named: all names in order, or the longest list of all."""
    assert merge({"a": array(3), "b": array(7), "c": array(2)}) == array(7)
    assert merge({"a": array(labels=("cat", "owl")), "b": array(labels=("dog",))}) == array(
        labels=("cat", "dog", "owl")
    )
    own = array(labels=("zebra", "ape", "cat"))
    assert merge({"a": array(labels=("zebra",)), "b": own, "c": own}) == own


def many(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{i:03}" for i in range(40))


@pytest.mark.parametrize(
    ("one", "two", "parts"),
    [
        (TABLE, ARRAY, "south kind north array table"),
        (TABLE, table(AGE), "south columns north colour"),
        (table(AGE), TABLE, "south columns north colour"),
        (table(EMPTY), table(EMPTY), "'x' 0"),
        (table(Column("x", "number")), table(Column("x", "text", False, ("a",))), "'x' north south --text x"),
        (table(AGE, labels=("yes",), numeric=False), table(AGE), "'sick' south north"),
        (table(Column("x", "text", False, many("a"))), table(Column("x", "text", False, many("b"))), "'x' 80 50"),
        (table(AGE, labels=("0.5", "1"), numeric=False), table(AGE), "'sick' south north"),
        (*(table(AGE, labels=tuple(map(str, range(*ends)))) for ends in ((600,), (500, 1200))), "1,200 classes 1000"),
        (array(inputs=(4,)), array(inputs=(5,)), "south inputs north 5 4"),
        (array(), array(labels=("a",)), "south named north"),
        (array(labels=("b", "a")), array(labels=("a", "c")), "names north"),
    ],
)
def test_cards_that_do_not_fit(one: Card, two: Card, parts: str) -> None:
    with pytest.raises(DataError) as caught:
        merge({"north": one, "south": two})
    assert all(part in str(caught.value) for part in parts.split())


@pytest.mark.parametrize(
    ("one", "name"), [(table(AGE, labels=("yes",), numeric=False), "yes"), (array(labels=("a",)), "a"), (array(1), "0")]
)
def test_one_class_at_all_sites_is_refused(one: Card, name: str) -> None:
    """As the simulator refuses it; one site alone may have one class."""
    with refuses(DataError, f"1 class ({name})"):
        merge({"north": one, "south": one})
