"""Questions to clients: at the start of a round, or before an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from fedkin.core import Bundle, Client, Download, Method, Round, Work
from fedkin.core.capability import Capability
from fedkin.core.method import through
from fedkin.core.refusals import Reason

Before: TypeAlias = Literal["round", "evaluation"]


@dataclass(frozen=True)
class Asks(Capability):
    """A question that clients answer, and what the server makes of the answers.

    Attributes:
        before: "round": the available clients are asked at its start, for information from clients that do not train in
            it; a client with an empty row is not asked. "evaluation": all clients that can be reached are asked after
            the aggregation of an evaluated round, on the models as they are then, which prediction depends on; with
            `metadata_epsilon` in the last round alone, since noise covers one answer.
        question: ``(method, state, round)`` -> what each of ``r.ids`` is sent, or None.
        answer: ``(method, client)`` -> its answer. The client's state stays. It trains only where the answer is about a
            prediction that is an adaptation of what is sent.
        collect: ``(method, state, round, answers)`` -> the next state; row i of the answers came from ``r.ids[i]``.
        scores: whether answers are figures of models on validation samples: "exact", or "noisy" where runs with
            `metadata_epsilon` have one `Client.choice` in their place.
        refuses: ``(method, round, answer)`` -> why an answer of the right form cannot be used, or None.
    """

    before: Before
    question: Callable[[Any, Bundle, Round], Download | None]
    answer: Callable[[Any, Client], Work | Bundle]
    collect: Callable[[Any, Bundle, Round, Bundle], Bundle]
    scores: Literal["none", "exact", "noisy"] = "none"
    refuses: Callable[[Any, Round, Bundle], Reason | None] | None = None

    def inside(self, client: Callable[[Any, Client], Client], round: Callable[[Any, Round], Round]) -> Self:
        """Return it as a wrapper has it whose state, downloads and answers hold those of ``inner`` under this name.

        Args:
            client, round: how the wrapped method sees them.
        """
        own = self

        def question(m: Any, s: Bundle, r: Round) -> Download | None:
            asked = own.question(m.inner, s.inside("inner"), round(m, r))
            return None if asked is None else asked.under("inner")

        def answer(m: Any, c: Client) -> Work:
            return Bundle((yield from through(own.answer(m.inner, client(m, c)))).under("inner"))

        def collect(m: Any, s: Bundle, r: Round, up: Bundle) -> Bundle:
            made = own.collect(m.inner, s.inside("inner"), round(m, r), up.inside("inner"))
            rest = {name: t for name, t in s.items() if not name.startswith("inner.")}
            return Bundle({**rest, **made.under("inner")})

        def refuses(m: Any, r: Round, up: Bundle) -> Reason | None:
            return None if own.refuses is None else own.refuses(m.inner, round(m, r), up.inside("inner"))

        return replace(self, question=question, answer=answer, collect=collect, refuses=refuses)


def asks(method: Method, before: Before) -> Asks | None:
    """Return the method's question before each round, or before evaluations; None if it has none."""
    return next((one for one in method.can if isinstance(one, Asks) and one.before == before), None)


def sends_scores(method: Method) -> Literal["none", "exact", "noisy"]:
    """Return whether answers of the method's clients are figures of models on validation samples."""
    return next((one.scores for one in method.can if isinstance(one, Asks) and one.scores != "none"), "none")
