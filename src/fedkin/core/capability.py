"""What a method states about itself beyond its steps: values of `fedkin.capabilities` in ``Method.can``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol, Self, TypeVar

Step = Callable[..., Any]
"""A function of a method: takes the method first."""


@dataclass(frozen=True)
class Capability:
    """One thing that a method can do. Fields that are functions take the method as their first argument."""

    def steps(self, around: Callable[[str, Step], Step]) -> Self:
        """Return a copy with each function replaced by ``around(name, function)``: for a wrapper that guards it."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: around(name, step) for name, step in own.items() if callable(step)})


class Able(Hashable, Protocol):
    """What has capabilities: a method."""

    @property
    def can(self) -> tuple[Capability, ...]:
        """The capabilities."""


C = TypeVar("C", bound=Capability)
T = TypeVar("T", bound=Able)


def has(method: Able, kind: type[C]) -> C | None:
    """Return the method's first capability of a kind; None if it has none."""
    return next((one for one in _stated(method) if isinstance(one, kind)), None)


def wrapped(method: T) -> Iterator[T]:
    """Yield all methods that a method wraps, and last itself."""
    for value in vars(method).values():
        if hasattr(type(value), "can"):
            yield from wrapped(value)
    yield method


def _stated(method: Able) -> tuple[Capability, ...]:
    if isinstance(stated := getattr(type(method), "can", ()), tuple):
        return stated
    try:
        return _made(method)
    except TypeError:  # a field of the method is a list, which has no hash
        return method.can


@lru_cache(maxsize=64)
def _made(method: Able) -> tuple[Capability, ...]:
    """Return what a property gives: for a safe form of a wrapper it takes 0.1 ms, and engines ask for each client."""
    return method.can
