"""Execution of client programs to their end: one alone, or many in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from torch import Tensor

from fedkin.core import Bundle, MethodError, Train, Work
from fedkin.core.bundle import require_tensors

TrainOne = Callable[[Train], Tensor]
TrainMany = Callable[[Sequence[tuple[int, Train]]], Sequence[Tensor]]


def drive(work: Work | Bundle, train: TrainOne) -> Bundle:
    """Return the result of one client program; ``train`` carries out each request that it yields.

    Raises:
        MethodError: the program yields or returns something else than it may.
    """
    return lockstep([work], lambda asked: [train(request) for _, request in asked])[0]


def lockstep(works: Sequence[Work | Bundle], train: TrainMany) -> list[Bundle]:
    """Return the result of each client program, all advanced together.

    Args:
        works: client programs; a plain bundle is a program that asks for nothing.
        train: is given the requests of one step of every program still running, as ``(program, request)``, and gives
            back the trained vectors in that order. An engine may train equal requests in one stack.
    """
    done: dict[int, Bundle] = {}
    waiting: dict[int, Train | tuple[Train, ...]] = {}
    for i, work in enumerate(works):
        if isinstance(work, Generator):
            _advance(i, work, None, waiting, done)
        else:
            done[i] = check_tensors(work, "client code must return")
    while waiting:
        asked = [(i, request) for i, wanted in waiting.items() for request in requests_of(wanted)]
        trained = iter(train(asked))
        step, waiting = waiting, {}
        for i, wanted in step.items():
            work = works[i]
            assert not isinstance(work, Bundle)
            got = next(trained) if isinstance(wanted, Train) else tuple(next(trained) for _ in wanted)
            _advance(i, work, got, waiting, done)
    return [done[i] for i in range(len(works))]


def check_tensors(value: object, what: str) -> Bundle:
    """Return the value, if it is a bundle of tensors.

    Raises:
        MethodError: it is not; the message starts with ``what``.
    """
    if not isinstance(value, Bundle):
        raise MethodError(f"{what} a Bundle, got {named(value)}")
    values: Mapping[str, object] = value
    for name, t in values.items():
        if isinstance(t, Train):
            raise MethodError(f"{what} a Bundle of tensors; {name!r} is a {named(t)}")
    require_tensors(f"{what} a Bundle of tensors;", values)
    return value


def named(wrong: object) -> str:
    """Return the type of a value of the wrong type, and the keyword that was probably forgotten."""
    forgotten = " (is `return` missing?)" if wrong is None else ""
    forgotten = " (is `yield` missing before it?)" if isinstance(wrong, Train) else forgotten
    return f"{type(wrong).__name__}{forgotten}"


def _advance(
    i: int, work: Work, got: object, waiting: dict[int, Train | tuple[Train, ...]], done: dict[int, Bundle]
) -> None:
    try:
        waiting[i] = work.send(got)
    except StopIteration as end:
        done[i] = check_tensors(end.value, "client code must return")


def requests_of(wanted: Train | tuple[Train, ...]) -> tuple[Train, ...]:
    """Return the requests that a client program makes at once.

    Raises:
        MethodError: it yielded something else than it may.
    """
    requests = wanted if isinstance(wanted, tuple) else (wanted,)
    for request in requests:
        if not isinstance(request, Train):
            raise MethodError(f"client code may yield Train or a tuple of Train, it yielded {type(request).__name__}")
    return requests
