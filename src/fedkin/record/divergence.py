"""Detection of diverged training from the lines of a run's rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedkin.core.refusals import DIVERGING
from fedkin.record.lines import RoundLine

ADVICE = "a smaller learning rate (--lr) is the first thing to try"


def diverged(rounds: Iterable[RoundLine]) -> int | None:
    """Return the round from which on training has diverged; None if it has not.

    A round fails by its uploads where more than half of them are not used because a number in them is not finite or
    beyond the bound on uploads; and by its models where more than half of the clients that were evaluated predict NaN.
    A run has diverged if, in one of these two respects, the last round that can be judged fails. It did so in the
    first of the failed rounds at the end. A single client's refused upload, attackers below one half, rounds from
    which training recovered, and an accuracy that collapses while all numbers are finite do not count.

    Args:
        rounds: the lines of all rounds, ascending.
    """
    lines = list(rounds)
    result = [first for judged in (_uploads(lines), _models(lines)) if (first := _since(judged)) is not None]
    return min(result, default=None)


def advice(first: int, rounds: Iterable[RoundLine]) -> str:
    """Return what to try after a run diverged in round ``first``.

    Args:
        rounds: the lines of all rounds, ascending.
    """
    for line in rounds:
        if line.round >= first and any(failed for _, failed in _uploads([line])):
            lost = [r for r in line.unused("update") if r.code in DIVERGING]
            sent = [r.tensor for r in lost if r.code == "sent-not-finite"]
            if 2 * len(sent) <= len(lost):
                break
            return (
                f"what the server sends ({sent[0]}) is not finite, although all uploads that it used were: look in "
                "the method's steps on the server for a division by 0, or a logarithm or root without a value"
            )
    return ADVICE


def sentence(first: int, rounds: Iterable[RoundLine]) -> str:
    """Return a sentence on a run that diverged in round ``first``, with a remedy; arguments as of `advice`."""
    return f"training diverged from round {first} on: numbers are not finite or too large; {advice(first, rounds)}"


def _uploads(lines: Iterable[RoundLine]) -> Iterator[tuple[int, bool]]:
    """Yield the rounds that had uploads, and whether they fail."""
    for line in lines:
        unused = line.unused("update")
        if sent := len(line.answered) + len(unused):
            yield line.round, 2 * sum(r.code in DIVERGING for r in unused) > sent


def _models(lines: Iterable[RoundLine]) -> Iterator[tuple[int, bool]]:
    """Yield the evaluated rounds, and whether they fail."""
    for line in lines:
        if (f := line.figures) is not None:
            yield line.round, 2 * len(f.unpredicted) > f.clients + f.untested


def _since(judged: Iterable[tuple[int, bool]]) -> int | None:
    """Return the first of the failed rounds at the end, None if the last one did not fail."""
    first: int | None = None
    for round, failed in judged:
        first = (round if first is None else first) if failed else None
    return first
