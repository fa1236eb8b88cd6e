"""Detection of diverged training from the lines of a run's rounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Line = Mapping[str, Any]

ADVICE = "a smaller learning rate (--lr) is the first thing to try"
_SENT = re.compile(r"had been sent NaN or infinity in (.*)")
"""Part of a reason for refusing an upload of a client that had received such numbers, with the names of tensors."""
_NUMBERS = re.compile(r"\b(nan|inf|infinite|finite)\b", re.IGNORECASE)
"""Part of every reason for refusing an upload because its numbers are too large or not finite."""


def diverged(rounds: Iterable[Line]) -> int | None:
    """Return the round from which on training has diverged; None if it has not.

    A round fails by its uploads where more than half of them are not used because a number in them is not finite or
    beyond the bound on uploads; and by its models where more than half of the clients that were evaluated predict NaN.
    A run has diverged if, in one of these two respects, the last round that can be judged fails. It did so in the
    first of the failed rounds at the end. A single client's refused upload, attackers below one half, rounds from
    which training recovered, and an accuracy that collapses while all numbers are finite do not count.

    Args:
        rounds: the lines of all rounds, as in ``rounds.jsonl``, ascending.
    """
    lines = list(rounds)
    found = [first for judged in (_uploads(lines), _models(lines)) if (first := _since(judged)) is not None]
    return min(found, default=None)


def not_finite(reason: object) -> bool:
    """Return whether an upload was not used because its numbers are too large or not finite."""
    return bool(_NUMBERS.search(str(reason)))


def advice(first: int, rounds: Iterable[Line]) -> str:
    """Return what to try after a run diverged in round ``first``.

    Args:
        rounds: the lines of all rounds, ascending.
    """
    for line in rounds:
        if line["round"] >= first and any(failed for _, failed in _uploads([line])):
            said = [*filter(not_finite, _refused(line)), *_kept_back(line)]
            sent = [found[1] for why in said if (found := _SENT.search(why))]
            if 2 * len(sent) <= len(said):
                break
            return (
                f"what the server sends ({sent[0]}) is not finite, although all uploads that it used were: look in "
                "the method's steps on the server for a division by 0, or a logarithm or root without a value"
            )
    return ADVICE


def sentence(first: int, rounds: Iterable[Line]) -> str:
    """Return a sentence on a run that diverged in round ``first``, with a remedy; arguments as of `advice`."""
    return f"training diverged from round {first} on: numbers are not finite or too large; {advice(first, rounds)}"


def _uploads(lines: Iterable[Line]) -> Iterator[tuple[int, bool]]:
    """Yield the rounds that had uploads, and whether they fail."""
    for line in lines:
        refused, kept_back = _refused(line), _kept_back(line)
        sent = len(line.get("answered") or ()) + len(refused) + len(kept_back)
        if sent:
            yield int(line["round"]), 2 * (len(kept_back) + sum(map(not_finite, refused))) > sent


def _refused(line: Line) -> list[str]:
    """Return why uploads were not used."""
    return [why for r in (line.get("refused") or {}).values() if not (why := str(r)).startswith("evaluation: ")]


def _kept_back(line: Line) -> list[str]:
    """Return why clients kept back uploads, with secure aggregation, for their numbers."""
    return [str(r) for r in (line.get("missing") or {}).values() if not_finite(r)]


def _models(lines: Iterable[Line]) -> Iterator[tuple[int, bool]]:
    """Yield the evaluated rounds, and whether they fail."""
    for line in lines:
        if line.get("evaluated", True):
            clients = (line.get("clients") or 0) + (line.get("clients_without_test") or 0)
            lost = 2 * len(line.get("unpredicted") or ()) > clients
            yield int(line["round"]), lost or not math.isfinite(line.get("accuracy") or 0)


def _since(judged: Iterable[tuple[int, bool]]) -> int | None:
    """Return the first of the failed rounds at the end, None if the last one did not fail."""
    first: int | None = None
    for round, failed in judged:
        first = (round if first is None else first) if failed else None
    return first
