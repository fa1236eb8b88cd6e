"""A method that wraps another one and observes its steps: arguments before and after, and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, Download, Method, Net, Round, Work
from fedkin.core.capability import Capability, Step
from fedkin.core.method import through

Given = Mapping[str, Mapping[str, Tensor]]
Guard = Callable[[str, Given], AbstractContextManager[None]]
Look = Callable[[str, Round, object], None]
Merged = Callable[[Bundle, Round, Bundle, Bundle], None]


class RuleBroken(AssertionError):
    """A method broke a rule of the contract; the message names the rule and the values."""


@contextmanager
def unguarded(step: str, given: Given) -> Iterator[None]:
    """Allow a step to do anything."""
    yield


@contextmanager
def unwritten(step: str, given: Given) -> Iterator[None]:
    """Require that a step leaves its arguments unchanged, and has not written to them in between."""
    before = {what: {n: (t, t.detach().clone(), t._version) for n, t in b.items()} for what, b in given.items()}
    yield
    for what, tensors in given.items():
        if set(tensors) != set(before[what]):
            names = sorted(set(tensors) ^ set(before[what]))
            raise RuleBroken(f"{step} added or removed {names} in {what}; make a new Bundle instead")
        for name, (tensor, value, version) in before[what].items():
            if tensors[name] is not tensor:
                raise RuleBroken(f"{step} replaced {name!r} in {what}; make a new Bundle instead")
            if tensor._version != version or not _same(tensor, value):
                raise RuleBroken(f"{step} wrote into {name!r} of {what}; clone it before writing")


def _same(a: Tensor, b: Tensor) -> bool:
    return (
        a.shape == b.shape and bool(torch.equal(a.isnan(), b.isnan())) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def unseen(step: str, r: Round, given: object) -> None:
    """Allow a step to return anything."""


def unasked(s: Bundle, r: Round, up: Bundle, new: Bundle) -> None:
    """Allow uploads to be merged in any way."""


@dataclass(frozen=True)
class Spy(Method):
    """Another method, with a guard around each of its steps and a look at the results of the server's steps."""

    inner: Method
    """The wrapped method."""
    guard: Guard = unguarded
    """Context entered around every step, with the step's arguments."""
    look: Look = unseen
    """Called with the results of ``sample``, ``distribute``, ``deliver``, of questions and of ``labels``."""
    merged: Merged = unasked
    """Called with the arguments and the result of ``aggregate``."""

    def _server(self, s: Bundle, r: Round) -> dict[str, Mapping[str, Tensor]]:
        known = {"size": r.roster.size, "ids": r.ids, **r.roster.described}
        return {"the server's state": s, "the roster": known, "what was drawn": r.drawn}

    def init(self, r: Round) -> Bundle:
        """Return the wrapped method's first state, unguarded."""
        return self.inner.init(r)

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Guard the wrapped method's ``admit``."""
        with self.guard("admit", self._server(s, r)):
            return self.inner.admit(s, r)

    def sample(self, s: Bundle, r: Round) -> Tensor | Bundle:
        """Guard the wrapped method's ``sample`` and look at its result."""
        with self.guard("sample", self._server(s, r)):
            out = self.inner.sample(s, r)
        self.look("sample", r, out)
        return out

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Guard the wrapped method's ``distribute`` and look at its result."""
        with self.guard("distribute", self._server(s, r)):
            out = self.inner.distribute(s, r)
        self.look("distribute", r, out)
        return out

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Guard the wrapped method's ``deliver`` and look at its result."""
        with self.guard("deliver", self._server(s, r)):
            out = self.inner.deliver(s, r)
        self.look("deliver", r, out)
        return out

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Guard the wrapped method's ``aggregate`` and compare its result."""
        with self.guard("aggregate", {**self._server(s, r), "the uploads": up}):
            out = self.inner.aggregate(s, r, up)
        self.merged(s, r, up, out)
        return out

    def _client(self, c: Client) -> dict[str, Mapping[str, Tensor]]:
        data = {"x": c.data.x, "y": c.data.y}
        held = {"x": c.validation.x, "y": c.validation.y}
        return {"c.received": c.received, "the old c.state": c.state, "c.data": data, "c.validation": held}

    def describe(self, c: Client) -> Bundle:
        """Guard the wrapped method's ``describe``."""
        with self.guard("describe", self._client(c)):
            return self.inner.describe(c)

    def client_update(self, c: Client) -> Work:
        """Guard the wrapped method's ``client_update``, from its first step to its result."""
        with self.guard("client_update", self._client(c)):
            return (yield from through(self.inner.client_update(c)))

    def personalize(self, c: Client) -> Work:
        """Guard the wrapped method's ``personalize``, from its first step to its result."""
        with self.guard("personalize", self._client(c)):
            return (yield from through(self.inner.personalize(c)))

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Guard the wrapped method's ``predict``."""
        with self.guard("predict", {"what personalize gave": b, "the inputs": {"x": x}}):
            return self.inner.predict(net, b, x)

    @property
    def can(self) -> tuple[Capability, ...]:
        """The wrapped method's, with a guard around each function and a look at what the server's give."""
        return tuple(one.steps(self._watched) for one in self.inner.can)

    def _watched(self, name: str, step: Step) -> Step:
        """Return a capability's function with its guard; what it works on is told by its arguments."""

        def watched(_: Method, *given: Any) -> Any:
            if isinstance(given[0], Client):
                return self._asked(step, given[0]) if name == "answer" else self._of_client(name, step, given[0])
            if not isinstance(given[0], Bundle):  # a judgement on an upload, a caveat on a network
                return step(self.inner, *given)
            answers = {"the answers": given[2]} if len(given) == 3 else {}
            seen = (
                {**self._server(given[0], given[1]), **answers} if len(given) > 1 else {"the server's state": given[0]}
            )
            with self.guard(name, seen):
                out = step(self.inner, *given)
            if name in ("question", "labels"):
                self.look(name, given[1], out)
            return out

        return watched

    def _of_client(self, name: str, step: Step, c: Client) -> Any:
        with self.guard(name, self._client(c)):
            return step(self.inner, c)

    def _asked(self, step: Step, c: Client) -> Work:
        """Guard an answer, from its first step to its result.

        Raises:
            RuleBroken: it replaced the client's state.
        """
        before = c.state
        with self.guard("answer", self._client(c)):
            out = yield from through(step(self.inner, c))
        if c.state is not before:
            raise RuleBroken("answer gave c.state a new bundle; an answer to a question leaves the state as it is")
        return out
