"""What a client's upload shows of its data, and when it cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from fedkin.core import Bundle, Method, Round
from fedkin.core.capability import Capability, has
from fedkin.core.refusals import Reason

Figure = Literal["counts", "scores"]


@dataclass(frozen=True)
class Uploads(Capability):
    """What the server learns from uploads.

    Attributes:
        reveals: what the server learns about one client, in addition to its number of samples; a short phrase.
        also: what a client sends about its training data in a round in addition to trained vectors; "" if nothing.
            Only where it is "" can private training (DP-SGD) guarantee anything. It also states that every loss is a
            mean over the samples of a batch, and that requests depend on the training data through ``per_sample`` and
            trained vectors alone.
        exact: exact figures of a client's data that its uploads and answers hold as such: "counts" of its classes;
            "scores", accuracies or losses of models. Nodes whose owners keep such figures refuse the method.
        refuses: ``(method, round, upload)`` -> why one client's upload cannot be used although names, shapes and types
            are right, or None: for numbers that are used as an index.
    """

    reveals: str = ""
    also: str = ""
    exact: frozenset[Figure] = frozenset()
    refuses: Callable[[Any, Round, Bundle], Reason | None] | None = None

    def inside(self) -> Self:
        """Return it as a wrapper has it that sends the uploads of ``inner`` under this name."""
        if (own := self.refuses) is None:
            return self

        def refuses(m: Any, r: Round, up: Bundle) -> Reason | None:
            return own(m.inner, r, up.inside("inner")) if up.inside("inner") else None

        return replace(self, refuses=refuses)


def also_sent(method: Method) -> str | None:
    """Return what clients send in addition to trained vectors; None where the method does not state it."""
    return None if (own := has(method, Uploads)) is None else own.also
