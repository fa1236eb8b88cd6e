"""The benchmark of a round's parts: it times what it names, and no time counts twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.round import SERVER, WORKER, Clock, found


@pytest.mark.parametrize("target", [name for part in {**SERVER, **WORKER}.values() for name in part])
def test_every_function_that_is_timed_exists(target: str) -> None:
    """Where its callers look it up."""
    owner, name = found(target)
    assert callable(getattr(owner, name))


def clock_of(ticks: Iterator[int]) -> Clock:
    clock = Clock(cpu=False)
    clock.now = lambda: float(next(ticks))  # type: ignore[assignment]
    return clock


def test_time_inside_another_part_counts_there_alone() -> None:
    """The outer function takes from tick 0 to 3, the inner from 1 to 2; then the inner alone from 4 to 5."""
    clock = clock_of(iter(range(9)))
    inner = clock.timed("stack", lambda: 7)
    outer = clock.timed("aggregate", inner)
    assert outer() == inner() == 7
    parts = dict(zip([*SERVER, *WORKER], clock.take()[0], strict=False))
    assert parts["aggregate"] == 2.0
    assert parts["stack"] == 2.0
    assert not clock.take().any()


def test_a_generator_is_timed_while_it_runs() -> None:
    """Not while the caller works on a value: three steps of one tick, with one of the caller's in between each."""
    ticks = iter(range(20))
    clock = clock_of(ticks)
    values = []
    for value in clock.iterated("answers", lambda: iter("ab"))():
        values.append(value)
        next(ticks)
    parts = dict(zip([*SERVER, *WORKER], clock.take()[0], strict=False))
    assert values == ["a", "b"]
    assert parts["answers"] == 3.0
