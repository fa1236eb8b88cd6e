"""Calls that wait in threads of their own: one runs at a time, each ends where it waits if it is stopped."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest

from fedkin.engines.coroutines import Ask, Coroutine

KNOWN: ContextVar[str] = ContextVar("known", default="")


def test_questions_come_from_any_depth_and_answers_go_back() -> None:
    """Two calls in turn: each has its own answers, and the result is what the call returns."""

    def asks(ask: Ask, name: str) -> str:
        return name + ask(f"{name}1") + ask(f"{name}2")

    calls = {name: Coroutine(lambda ask, name=name: asks(ask, name)) for name in "ab"}
    for call in calls.values():
        call.resume()
    assert [call.question for call in calls.values()] == ["a1", "b1"]
    for answer in ("x", "y"):
        for call in calls.values():
            assert not call.ended
            call.resume(answer)
    assert all(call.ended for call in calls.values())
    assert [call.result for call in calls.values()] == ["axy", "bxy"]


def test_an_answer_that_is_an_error_is_raised_where_the_call_asked() -> None:
    """The call can handle it; one that it does not handle is its error, as is one that is no `Exception`."""

    def handles(ask: Ask) -> str:
        try:
            return str(ask(1))
        except ValueError as e:
            return f"handled {e}"

    def interrupted(ask: Ask) -> None:
        raise KeyboardInterrupt

    handled, lost, stopped = Coroutine(handles), Coroutine(handles), Coroutine(interrupted)
    for call, answer in ((handled, ValueError("this")), (lost, KeyError("that"))):
        call.resume()
        call.resume(answer)
    stopped.resume()
    assert handled.result == "handled this"
    assert isinstance(lost.error, KeyError)
    assert isinstance(stopped.error, KeyboardInterrupt)
    assert lost.ended
    assert stopped.ended


def test_a_call_that_is_stopped_ends_where_it_asks() -> None:
    """What it has open is closed, by code that asks again too; one that has not begun never runs."""
    closed: list[Any] = []

    def opens(ask: Ask) -> None:
        try:
            ask(1)
        except Exception:
            closed.append("no error of its own")
        finally:
            try:
                ask(2)
            finally:
                closed.append(True)

    begun, never = Coroutine(opens), Coroutine(opens)
    begun.resume()
    begun.stop()
    never.stop()
    assert closed == [True]
    assert begun.ended
    assert begun.error is None


def test_context_is_that_of_the_caller() -> None:
    """A variable of the context that is set around the call is seen in it; its changes are not seen outside."""

    def reads(ask: Ask) -> str:
        found = KNOWN.get()
        KNOWN.set("changed")
        ask(1)
        return found

    token = KNOWN.set("outside")
    call = Coroutine(reads)
    call.resume()
    assert KNOWN.get() == "outside"
    KNOWN.reset(token)
    call.resume()
    assert call.result == "outside"


def test_an_interrupt_while_a_call_runs_leaves_it_to_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the waiting caller; the call goes on to its next question and ends there."""
    ended: list[int] = []

    def asks(ask: Ask) -> None:
        try:
            ask(1)
        finally:
            ended.append(1)

    call = Coroutine(asks)
    wait = call._paused.wait
    monkeypatch.setattr(call._paused, "wait", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        call.resume()
    monkeypatch.setattr(call._paused, "wait", wait)
    call.stop()
    assert ended in ([1], [])
    assert call.ended
