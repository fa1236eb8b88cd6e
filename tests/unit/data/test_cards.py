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
from fedkin.data.card import MAX_CATEGORIES, MAX_COLUMNS
from fedkin.data.merging import misfit
from fedkin.data.sources.reading import Reading
from fedkin.data.sources.tables import table_card

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
    card = table_card([path], Reading(target="sick"), name="t")
    assert card.to_json() == {
        "kind": "table",
        "classes": 3,
        "labels": ["0", "2", "10"],
        "numeric": True,
        "columns": [
            {"name": "age", "kind": "number", "gaps": True, "categories": []},
            {"name": "ward", "kind": "text", "gaps": False, "categories": ["a", "b"]},
            {"name": "ca", "kind": "empty", "gaps": True, "categories": []},
        ],
        "target": "sick",
        "binary": False,
        "inputs": [],
    }


def test_columns_declared_as_texts(tmp_path: Path) -> None:
    """Only columns that the site's operator declares as texts tell their values, as they are written."""
    path = tmp_path / "t.csv"
    path.write_text("code,sick\n10,1.0\n,0\n")
    card = table_card([path], Reading(target="sick"), name="t", texts=["code", "sick"])
    assert card.columns == (Column("code", "text", True, ("", "10")),)
    assert (card.labels, card.numeric) == (("0", "1.0"), False)
    assert merge({"t": card}) == Card("table", 2, ("0", "1"), True, (Column("code", "number", True),), "sick")
    with pytest.raises(DataError, match="no column 'cod' for the columns of texts; did you mean 'code'"):
        table_card([path], Reading(target="sick"), name="t", texts=["cod"])


def test_shape_of_the_inputs() -> None:
    """A column of numbers is one input, with gaps two; a column of texts one per text; arrays keep their shape."""
    assert TABLE.shape == (2 + 2,)
    assert ARRAY.shape == (1, 8, 8)


@pytest.mark.parametrize("card", [TABLE, ARRAY, array(labels=("cat", "dog"))], ids=["table", "array", "named"])
def test_a_card_survives_its_text(card: Card) -> None:
    """Card -> JSON text -> card are equal."""
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
    ([], "Expected `object`, got `array`"),
    ({**TABLE.to_json(), "rows": 7}, "exactly the keys"),
    ({k: v for k, v in TABLE.to_json().items() if k != "binary"}, "exactly the keys"),
    (changed("kind", to="graph"), r"enum value 'graph' - at `\$\.kind`"),
    (changed("kind", to=["table"]), r"got `array` - at `\$\.kind`"),
    (changed("classes", to=True), r"got `bool` - at `\$\.classes`"),
    (changed("classes", to=2.0), r"got `float` - at `\$\.classes`"),
    (changed("classes", to=10**5000), r"`int` <= 1000 - at `\$\.classes`"),
    (changed("classes", to=3), "2 class names for 3 classes"),
    (changed("labels", to=["1", "1"]), "two classes have the same name"),
    (changed("labels", to=["0", ""]), "a class name is empty"),
    (changed("labels", to=["0", "nan"]), "a class name is empty"),
    (changed("labels", to=["0", "inf"]), "whole numbers in their order"),
    (changed("labels", to=["1", "0"]), "whole numbers in their order"),
    (changed("labels", to=["0", "2.0"]), "whole numbers in their order"),
    (changed("labels", to=["0", "9" * 200]), "whole numbers in their order"),
    (changed("labels", to=["0", "x"]), "whole numbers in their order"),
    (changed("labels", to="01"), r"got `str` - at `\$\.labels`"),
    (changed("labels", to=["0", 1]), r"got `int` - at `\$\.labels\[1\]`"),
    (changed("labels", to=None), "a card of a table has columns, a target and class names"),
    (changed("labels", to=["b", "a"], base=table(AGE, labels=("a", "b"), numeric=False)), "in alphabetical order"),
    (changed("numeric", to=1), r"got `int` - at `\$\.numeric`"),
    (changed("binary", to=True), "the classes of a binary target must be sick <= 0 and sick > 0"),
    (changed("target", to="age"), "every column needs a name of its own"),
    (changed("target", to="a" * 201), r"length <= 200 - at `\$\.target`"),
    (changed("columns", to=[]), "a card of a table has columns"),
    (changed("columns", to=[AGE] * (MAX_COLUMNS + 1)), r"length <= 10000 - at `\$\.columns`"),
    (changed("columns", 0, to={"name": "age"}), "missing required field `kind`"),
    (changed("columns", 0, "name", to="sick"), "every column needs a name of its own"),
    (changed("columns", 0, "name", to="\x1b[2J"), r"'\\x1b\[2J' holds a control character"),
    (changed("columns", 0, "name", to="\ud800"), "holds a control character"),
    (changed("columns", 0, "kind", to="date"), r"enum value 'date' - at `\$\.columns\[0\]\.kind`"),
    (changed("columns", 0, "kind", to="text"), "a column of texts says which"),
    (changed("columns", 0, "categories", to=["1"]), "another column has none"),
    (changed("columns", 0, to=Column("age", "empty").__dict__ | {"categories": []}), "without values has empty fields"),
    (changed("columns", 1, "categories", to=["red", "blue"]), "different and in alphabetical order"),
    (changed("columns", 1, "categories", to=["red", "red"]), "different and in alphabetical order"),
    (changed("columns", 1, "categories", to=["", "red"]), 'an empty field of a column of texts is the text ""'),
    (changed("columns", 1, "categories", to=["x" * 300]), r"length <= 205 - at `\$\.columns\[1\]\.categories\[0\]`"),
    (
        changed("columns", 1, "categories", to=[f"{i:02}" for i in range(MAX_CATEGORIES + 1)]),
        r"length <= 50 - at `\$\.columns\[1\]\.categories`",
    ),
    (changed("inputs", to=[3]), "and no shape"),
    (changed("inputs", to=[], base=ARRAY), "a card of arrays has the shape of an input and no columns"),
    (changed("inputs", to=[0], base=ARRAY), r"`int` >= 1 - at `\$\.inputs\[0\]`"),
    (changed("inputs", to=[1] * 9, base=ARRAY), r"length <= 8 - at `\$\.inputs`"),
    (changed("target", to="y", base=ARRAY), "no columns"),
]


@pytest.mark.parametrize(("found", "message"), BAD, ids=range(len(BAD)))
def test_bad_cards_are_refused(found: object, message: str) -> None:
    """Whatever another host sends that is no card is a DataError that begins with where it came from."""
    with pytest.raises(DataError, match=f"^site 3.*{message}"):
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


def test_a_site_checks_its_own_card() -> None:
    """What other hosts would refuse is said at the site, before it is sent."""
    with pytest.raises(DataError, match=r"length <= 200 - at `\$\.columns\[0\]\.name`"):
        table(Column("a" * 201, "number")).checked()
    assert TABLE.checked() is not TABLE
    assert TABLE.checked() == TABLE


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
    ("one", "two", "message"),
    [
        (TABLE, ARRAY, "the data of south differ in kind from those of north: 'array' and 'table'"),
        (TABLE, table(AGE), "columns of south differ from those of north: it lacks colour"),
        (table(AGE), TABLE, "columns of south differ from those of north: it has colour, which north lacks"),
        (
            table(EMPTY),
            table(EMPTY),
            "'x' is empty in every row of every site",
        ),
        (
            table(Column("x", "number")),
            table(Column("x", "text", False, ("a",))),
            "column 'x' holds numbers at north and texts at south.*start the nodes of north with --text x",
        ),
        (
            table(AGE, labels=("yes",), numeric=False),
            table(AGE),
            "column 'sick' holds numbers at south and texts at north",
        ),
        (
            table(Column("x", "text", False, many("a"))),
            table(Column("x", "text", False, many("b"))),
            "'x' holds 80 different texts at all sites together, at most 50",
        ),
        (
            table(AGE, labels=("0.5", "1"), numeric=False),
            table(AGE),
            "column 'sick' holds numbers at south and texts at north",
        ),
        (
            table(AGE, labels=tuple(map(str, range(600)))),
            table(AGE, labels=tuple(map(str, range(500, 1200)))),
            "has 1200 different values at all sites, at most 1000",
        ),
        (array(inputs=(4,)), array(inputs=(5,)), r"inputs at south have shape \[5\], at north \[4\]"),
        (array(), array(labels=("a",)), "south names its classes, north numbers them"),
        (
            array(labels=("b", "a")),
            array(labels=("a", "c")),
            "names of north, b, a, are not in alphabetical",
        ),
    ],
)
def test_cards_that_do_not_fit(one: Card, two: Card, message: str) -> None:
    """The message names the sites and the columns."""
    with pytest.raises(DataError, match=message):
        merge({"north": one, "south": two})


@pytest.mark.parametrize(
    ("one", "name"), [(table(AGE, labels=("yes",), numeric=False), "yes"), (array(labels=("a",)), "a"), (array(1), "0")]
)
def test_one_class_at_all_sites_is_refused(one: Card, name: str) -> None:
    """As the simulator refuses it; one site alone may have one class."""
    with pytest.raises(DataError, match=f"all sites have one class only, {name}: there is nothing to tell apart"):
        merge({"north": one, "south": one})


def test_nothing_to_merge() -> None:
    """No card is an error, not an empty federation."""
    with pytest.raises(DataError, match="no site has described its data"):
        merge({})
