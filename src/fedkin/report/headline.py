"""Captions of final figures: the averaged rounds, the last round alone, runs that diverged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.evaluate import Choice, Spread, spread
from fedkin.record.figures import BEST, RULE, span, spans
from fedkin.record.result import Result

MARK = "†"
"""Mark next to the accuracy of a method of which a run diverged."""

ACCURACY = Choice("accuracy")
"""The choice where nothing is known about the clients."""


@dataclass(frozen=True)
class Headline:
    """Texts next to the final figures of one or several methods.

    Attributes:
        rounds: the averaged rounds: "rounds 81 to 100" where all runs have the same, else the rule.
        last: title -> accuracy in the last evaluated round, a fraction, over seeds.
        diverged: title -> seed -> the round from which on training diverged; methods without such a run are omitted.
        stopped: title -> the rounds after which its runs ended early (`stop_after`), ascending; as ``diverged``.
        several: there is more than one seed of a method.
        first: the headline metric.
        tuned: clause on how the methods were tuned; empty if they were not.
    """

    rounds: str = RULE
    last: Mapping[str, Spread] = field(default_factory=dict)
    diverged: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    several: bool = False
    first: Choice = ACCURACY
    stopped: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tuned: str = ""

    def mark(self, title: str) -> str:
        """Return the mark after the accuracy of a method."""
        return f" {MARK}" if title in self.diverged else ""

    @property
    def notes(self) -> list[str]:
        """Return how methods were tuned, which of them diverged and when, and which runs ended early.

        A method that diverged is a text such as "† M: diverged from round 12 on (seed 1)".
        """
        lost = [f"{MARK} {title}: {_since(seeds, self.several)}" for title, seeds in self.diverged.items()]
        early = ", ".join(f"{title} after {ending(rounds)}" for title, rounds in self.stopped.items())
        ended = [f"ended early, without a gain in validation accuracy: {early}"] if early else []
        return [*([self.tuned] if self.tuned else []), *lost, *ended]


def headline(groups: Mapping[str, Sequence[Result]], first: Choice = ACCURACY, tuned: str = "") -> Headline:
    """Return the headline of runs, title -> its runs, as from `fedkin.record.result.by_title`; ``first`` is the
    headline metric, as from :func:`fedkin.report.first.first_of`, ``tuned`` how the methods were tuned."""
    lasts = {t: spread([r.last[1].accuracy for r in runs if r.last is not None]) for t, runs in groups.items()}
    last = {title: found for title, found in lasts.items() if found is not None}
    found = {t: {r.seed: r.diverged for r in runs if r.diverged is not None} for t, runs in groups.items()}
    stopped = {t: ends for t, runs in groups.items() if (ends := ended_early(runs))}
    return Headline(
        rounds_of(run for runs in groups.values() for run in runs),
        last,
        {title: seeds for title, seeds in found.items() if seeds},
        any(len(runs) > 1 for runs in groups.values()),
        first,
        stopped,
        tuned,
    )


def ended_early(runs: Iterable[Result]) -> list[int]:
    """Return the last rounds of the runs that ended early, ascending."""
    return sorted(run.total for run in runs if run.stopped)


def ending(rounds: Sequence[int]) -> str:
    """Return ascending last rounds as text: "round 40", or "rounds 36 to 52"."""
    return span(rounds if len(set(rounds)) > 1 else rounds[:1])


def rounds_of(runs: Iterable[Result]) -> str:
    """Return the averaged rounds of the final figures, where all runs have the same; else the rule.

    Of several runs whose figures are of their best rounds it is `BEST`, also where all have the same.
    """
    known = [run for run in runs if run.final.accuracy is not None]
    return BEST if len(known) > 1 and known[0].at_best else spans(span(run.final.rounds) for run in known)


def _since(seeds: Mapping[int, int], several: bool) -> str:
    each = [f"round {first} on{f' (seed {seed})' if several else ''}" for seed, first in seeds.items()]
    return f"diverged from {', '.join(each)}"
