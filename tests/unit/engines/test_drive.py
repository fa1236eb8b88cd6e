"""Client programs are run to their end, alone or many in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.core import Bundle, MethodError, Train, Work
from fedkin.engines import drive, lockstep
from refusals import refuses


def one(x: float) -> Tensor:
    return torch.tensor([x])


def double(request: Train) -> Tensor:
    """What stands in for training: twice the start."""
    return 2 * request.start


def trains(times: int, start: float) -> Work:
    """A program that trains so many times, each time from what came back."""
    w = one(start)
    for _ in range(times):
        w = yield Train(w)
    return Bundle(model=w)


def test_one_program_is_run_to_its_end() -> None:
    """Two requests at once are answered in their order; a bundle is a finished program."""
    b = Bundle(model=one(7.0))
    assert drive(b, double) is b

    def work() -> Work:
        a, b = yield (Train(one(1.0)), Train(one(10.0)))
        return Bundle(a=a, b=b)

    assert drive(work(), double) == {"a": one(2.0), "b": one(20.0)}


def _returns(value: Any) -> Work:
    yield Train(one(1.0))
    return value


def _yields(value: Any) -> Work:
    yield value
    return Bundle()


@pytest.mark.parametrize(
    ("work", "facts"),
    [
        (lambda: _returns(None), ("Bundle", "NoneType", "`return`")),
        (lambda: _returns({"model": one(1.0)}), ("Bundle", "dict")),
        (lambda: _returns(Bundle(model=1.0)), ("'model' is a float", "torch.tensor(1.0)")),  # type: ignore[arg-type]
        (lambda: _returns(Bundle(model=Train(one(1.0)))), ("'model' is a Train", "`yield`")),  # type: ignore[arg-type]
        (lambda: None, ("Bundle", "NoneType")),
        (lambda: one(1.0), ("Bundle", "Tensor")),
        (lambda: _yields(one(1.0)), ("Train", "Tensor")),
        (lambda: _yields([Train(one(1.0))]), ("Train", "list")),
        (lambda: _yields((Train(one(1.0)), 3)), ("Train", "int")),
    ],
)
def test_what_a_program_may_not_do_is_a_method_error(work: Callable[[], Any], facts: tuple[str, ...]) -> None:
    """Only `Train` may be yielded and only a bundle of tensors returned; the error says what came."""
    with refuses(MethodError, *facts):
        drive(work(), double)


def test_programs_advance_together() -> None:
    """One request of every running program at a time, in their order; tuples lie side by side and come back to
    their program."""
    asked: list[list[tuple[int, float]]] = []

    def train(requests: Sequence[tuple[int, Train]]) -> list[Tensor]:
        asked.append([(i, float(r.start)) for i, r in requests])
        return [double(r) for _, r in requests]

    found = lockstep([trains(2, 1.0), Bundle(model=one(-1.0)), trains(1, 10.0), trains(3, 100.0)], train)
    assert asked == [[(0, 1.0), (2, 10.0), (3, 100.0)], [(0, 2.0), (3, 200.0)], [(3, 400.0)]]
    assert [float(b.model) for b in found] == [4, -1, 20, 800]

    def pair(start: float) -> Work:
        a, b = yield (Train(one(start)), Train(one(start + 1)))
        return Bundle(a=a, b=b)

    def train(requests: Sequence[tuple[int, Train]]) -> list[Tensor]:
        assert [i for i, _ in requests] == [0, 1, 1, 2]
        return [double(r) for _, r in requests]

    first, second, third = lockstep([trains(1, 1.0), pair(5.0), trains(1, 2.0)], train)
    assert (first.model, third.model) == (2, 4)
    assert (second.a, second.b) == (10, 12)
