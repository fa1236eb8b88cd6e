"""Numbers about the state for the log of each round, and a caveat on results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from fedkin.core import Bundle, Method, Net
from fedkin.core.capability import Capability, has


@dataclass(frozen=True)
class Logs(Capability):
    """What a run's records say about the method.

    Attributes:
        numbers: ``(method, state)`` -> numbers that are worth a line in the log of each round. Those of an evaluation
            alone (of answers before it) have names that begin with ``evaluated_``.
        caveat: ``(method, network, final state)`` -> a caveat on results: why the method does there what another one
            does; "" if there is none.
    """

    numbers: Callable[[Any, Bundle], dict[str, float]] | None = None
    caveat: Callable[[Any, Net, Bundle], str] | None = None

    def inside(self) -> Self:
        """Return it as a wrapper of ``inner`` has it."""
        own = self

        def numbers(m: Any, s: Bundle) -> dict[str, float]:
            return {} if own.numbers is None else own.numbers(m.inner, s.inside("inner"))

        def caveat(m: Any, net: Net, s: Bundle) -> str:
            return "" if own.caveat is None else own.caveat(m.inner, net, s.inside("inner"))

        return replace(self, numbers=numbers, caveat=caveat)


def numbers_of(method: Method, s: Bundle) -> dict[str, float]:
    """Return the numbers about a state for the log of a round."""
    own = has(method, Logs)
    return {} if own is None or own.numbers is None else own.numbers(method, s)


def caveat_of(method: Method, net: Net, s: Bundle) -> str:
    """Return the caveat on results with a network and a final state; "" if there is none."""
    own = has(method, Logs)
    return "" if own is None or own.caveat is None else own.caveat(method, net, s)
