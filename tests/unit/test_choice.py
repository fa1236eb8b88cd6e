"""Which figure comes first: what makes a client one-sided, how many such clients it takes, and what is said of it."""

from __future__ import annotations

import pytest

from fedkin.evaluate import Constant, choose, majority_class


def clients(one_sided: int, others: int) -> list[Constant]:
    """Clients of 20 test samples: 18 of one class at some, 12 at the others."""
    counts = [18] * one_sided + [12] * others
    return [Constant(f"client {i}", "ill", n, 20) for i, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "most"), [([3, 7, 1], 1), ([5, 2, 5], 0), ([0, 4, 4], 1), ([0, 0, 0], None), ([], None)]
)
def test_the_most_frequent_class(counts: list[int], most: int | None) -> None:
    """The first of equals; none where there are no counts."""
    assert majority_class(counts) == most


@pytest.mark.parametrize(
    ("right", "n_test", "said"),
    [(4, 5, True), (16, 20, True), (76, 95, True), (15, 20, False), (79, 100, False), (23, 25, True), (0, 3, False)],
)
def test_a_client_is_one_sided_from_four_fifths_on(right: int, n_test: int, said: bool) -> None:
    """Exactly 80 % counts; less does not."""
    assert Constant("a", "ill", right, n_test).one_sided == said


def test_a_test_part_of_one_class_is_not_one_sided() -> None:
    """Balanced accuracy equals accuracy there: such clients do not count."""
    assert not Constant("a", "ill", 20, 20).one_sided
    assert Constant("a", "ill", 19, 20).one_sided


@pytest.mark.parametrize(
    ("one_sided", "others", "metric"),
    [
        (1, 3, "balanced"),  # one hospital of four
        (1, 4, "accuracy"),
        (5, 15, "balanced"),
        (4, 16, "accuracy"),
        (0, 7, "accuracy"),
        (2, 0, "balanced"),
        (0, 0, "accuracy"),
    ],
)
def test_accuracy_comes_first_up_to_a_quarter_of_one_sided_clients(one_sided: int, others: int, metric: str) -> None:
    """A quarter is enough for balanced accuracy; those clients are named either way."""
    found = choose(clients(one_sided, others))
    assert (found.metric, found.fair) == (metric, metric == "accuracy")
    assert (len(found.one_sided), found.tested) == (one_sided, one_sided + others)


def test_the_reason_is_a_sentence() -> None:
    """The most one-sided client by name, with the answer where it is known; nothing where accuracy is fair."""
    swiss, va, rest = Constant("zurich", "yes", 93, 100), Constant("va", None, 19, 20), Constant("ohio", "no", 5, 10)
    assert choose([rest, swiss]).reason == (
        "accuracy is not a fair headline (zurich: always predicting yes is right in 93 %)"
    )
    assert choose([rest, swiss, va]).reason == (
        "accuracy is not a fair headline: at 2 of 3 clients a constant answer is right in 80 % or more "
        "(va: always predicting one class is right in 95 %)"
    )
    assert choose([rest]).reason == ""
