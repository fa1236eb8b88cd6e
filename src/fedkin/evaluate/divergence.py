"""Detection of diverged training from the lines of a run's rounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Line = Mapping[str, Any]

ADVICE = "a smaller learning rate (--lr) is the first thing to try"
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


def sentence(first: int) -> str:
    """Return a sentence on a run that diverged in round ``first``, with a remedy."""
    return f"training diverged from round {first} on: numbers are not finite or too large; {ADVICE}"


def _uploads(lines: Iterable[Line]) -> Iterator[tuple[int, bool]]:
    """Yield the rounds that had uploads, and whether they fail."""
    for line in lines:
        refused = [r for r in (line.get("refused") or {}).values() if not str(r).startswith("evaluation: ")]
        kept_back = [r for r in (line.get("missing") or {}).values() if not_finite(r)]  # with secure aggregation
        sent = len(line.get("answered") or ()) + len(refused) + len(kept_back)
        if sent:
            yield int(line["round"]), 2 * (len(kept_back) + sum(map(not_finite, refused))) > sent


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
