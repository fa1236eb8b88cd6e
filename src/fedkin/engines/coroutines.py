"""Calls in threads of their own of which one runs at a time, so that many can wait for one answer."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Ask = Callable[[Any], Any]
"""``question -> answer``: waits until the caller of `Coroutine.resume` gives the answer."""


class Coroutine(Generic[Result]):
    """A call that runs only while its caller waits in `resume`, until it asks a question or ends.

    Unlike a generator it asks from any depth of the call, so that code between does not have to know.

    Args:
        body: is given the function by which it asks.

    Attributes:
        question: the last question.
        ended: whether the call has returned or raised an exception.
        error: what it raised; None: nothing.
    """

    def __init__(self, body: Callable[[Ask], Result]) -> None:
        self.question: Any = None
        self.ended = False
        self.error: BaseException | None = None
        self._body, self._answer = body, None
        self._result: list[Result] = []
        self._go, self._paused, self._stopping = Event(), Event(), False
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="fedkin run", daemon=True)

    @property
    def result(self) -> Result:
        """What the call returned, once it has ended without an error."""
        return self._result[0]

    def resume(self, answer: Any = None) -> None:
        """Start the call, or give it the answer to its question, and wait until it asks again or has ended.

        Args:
            answer: an exception is raised where the call asked.
        """
        self._answer = answer
        self._paused.clear()
        if self._thread.ident is None:
            self._thread.start()
        self._go.set()
        self._paused.wait()

    def stop(self) -> None:
        """End the call where it asks, by an exception that is no `Exception`; wait for its end."""
        self._stopping = True
        self._go.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._go.wait()
            self._go.clear()
            if not self._stopping:
                self._result.append(self._body(self._ask))
        except _StoppedError:
            pass
        except BaseException as e:
            self.error = e
        self.ended = True
        self._paused.set()

    def _ask(self, question: Any) -> Any:
        if not self._stopping:
            self.question = question
            self._paused.set()
            self._go.wait()
            self._go.clear()
        if self._stopping:
            raise _StoppedError
        self.question = None
        answer, self._answer = self._answer, None
        if isinstance(answer, Exception):
            raise answer
        return answer


class _StoppedError(BaseException):
    """The end of a call that will get no answer."""
