"""The project stays within `budget.toml`, and a change that frees room lowers it."""

from __future__ import annotations

from tests import budget


def test_nothing_grows_and_what_was_won_is_held() -> None:
    """No count is above its number: remove something, or change the number by hand and say why. All lines together are
    at most 100 below their numbers; ``make budget`` lowers these."""
    counts, numbers = budget.counted(), budget.written()
    assert not budget.above(counts, numbers)
    assert set(numbers) == set(counts), "rooms differ: run `make budget`"
    assert sum(room.get("lines", 0) for room in numbers.values()) <= 100 + sum(
        room.get("lines", 0) for room in counts.values()
    ), "run `make budget`"


def test_counts_above_and_below_their_numbers() -> None:
    """A line, a room and a mapping more are three lines; a lower count lowers its number, a room that is gone goes."""
    numbers = {"core": {"lines": 10, "untyped": 1}, "whole": {"flags": 2}}
    counts = {"core": {"lines": 11, "untyped": 2}, "new": {"lines": 1}, "whole": {"flags": 2}}
    assert [line.split(",")[0] for line in budget.above(counts, numbers)] == [
        "core: 11 lines",
        "core: 2 untyped",
        "new: 1 lines",
    ]
    numbers = {"core": {"lines": 10, "raise": 3}, "gone": {"lines": 5}}
    assert budget.lowered({"core": {"lines": 8, "raise": 4}}, numbers) == {"core": {"lines": 8, "raise": 3}}
