"""What a recording of steps computed is told from what the steps did, and from what rounding makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_graph import Check
from fedkin.engines.stacked_rows import StackRows

Step = Callable[[StackRows], None]
START = torch.ones(2, 400)


def rows(w: Tensor, moments: Tensor | None = None) -> StackRows:
    return StackRows(w, moments, None, None, 0.0, {})


def passes(played: StackRows, stepped: StackRows, again: Step = lambda _: None, tf32: bool = False) -> bool:
    place = Place("cpu", 0.0, tf32)
    check = Check(place, rows(START.clone(), stepped.moments), place.generators(), again)
    return check.passes((played.w, played.moments), stepped)


def by(amount: float) -> Step:
    """Steps that move all by an amount, whatever they start from."""

    def again(given: StackRows) -> None:
        given.w += amount

    return again


def test_rows_are_compared_one_by_one() -> None:
    """Of two rows the second moved another way, or has other moments; a row that diverges in both ways is alike."""
    moved = torch.full_like(START, 0.5)
    other = moved.clone()
    other[1] = 0.6
    lost = torch.full_like(START, float("nan"))
    again = by(-0.5)
    assert passes(rows(moved + 1e-4), rows(moved))
    assert not passes(rows(other), rows(moved), again)
    assert not passes(rows(moved, other), rows(moved, moved), again)
    assert passes(rows(lost), rows(lost * 2))
    assert not passes(rows(lost), rows(moved), again)


def magnifying(given: StackRows) -> None:
    """Steps that move each number by 1, one number in 50 up or down by the last digits of where it starts."""
    given.w += torch.where((given.w >= 1) | (torch.arange(400) % 50 != 1), 1.0, -1.0)


def stepped_and_played(wrong: int) -> tuple[StackRows, StackRows]:
    """Rows after `magnifying`, and with some numbers of each moved the other way."""
    stepped = rows(START.clone())
    magnifying(stepped)
    played = rows(stepped.w.clone())
    played.w[:, :wrong] = START[:, :wrong] - (stepped.w - START)[:, :wrong]
    return stepped, played


@pytest.mark.parametrize(("wrong", "passed"), [(1, True), (4, True), (30, False)])
def test_steps_that_magnify_rounding_set_the_scale(wrong: int, passed: bool) -> None:
    """A number in 400 that moves the other way is a tenth of the distance: with steps that would do so after other
    rounding it is let pass, and without not. Half of the distance is never let pass."""
    stepped, played = stepped_and_played(wrong)
    assert passes(played, stepped, magnifying) == passed
    assert not passes(played, stepped, by(1.0))


def test_how_far_a_recording_may_be() -> None:
    """What moves nothing never passes; a tenth of the distance is rounding with tf32, half is not."""

    def anywhere(given: StackRows) -> None:
        given.w.normal_()

    stepped, _ = stepped_and_played(0)
    assert not passes(rows(START.clone()), stepped, anywhere)
    moved = START + 1.0
    assert passes(rows(moved + 0.1), rows(moved), by(1.0), tf32=True)
    assert not passes(rows(moved + 0.1), rows(moved), by(1.0))
    assert not passes(rows(moved + 0.6), rows(moved), by(1.0), tf32=True)


def test_steps_are_taken_again_with_the_same_draws_and_leave_none() -> None:
    place, seen = Place("cpu", 0.0, False), list[Tensor]()
    place.seed(3)
    draws, moments = place.generators(), torch.ones(2, 400)
    first, _ = torch.rand(4), torch.rand(3)
    after = place.generators()

    def again(given: StackRows) -> None:
        seen.append(torch.rand(4))
        assert given.moments is not None
        given.moments += 1

    check = Check(place, rows(START.clone(), moments), draws, again)
    assert not check.passes((START, moments), rows(START + 1, moments))
    (drawn,) = seen
    assert torch.equal(drawn, first)
    assert all(torch.equal(a, b) for a, b in zip(place.generators(), after, strict=True))
    assert torch.equal(moments, torch.ones(2, 400))
