"""What comes first on a page, what stands next to final figures (metric, rounds, runs that diverged), and what training
alone is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedkin.evaluate import Choice, Constant, Spread, choose, difference, majority_class, spread
from fedkin.record.figures import BEST, RULE, span, spans
from fedkin.record.lines import ClientLine
from fedkin.record.result import Result
from fedkin.report.wording import say

COMPARED = ("alone", "alone-full", "average")
"""Roles of the methods that all others are compared with: training alone as often as under any method, training alone
in every round, one model for all."""
ALONE = COMPARED[:2]

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
    headline metric, as from :func:`fedkin.report.headline.first_of`, ``tuned`` how the methods were tuned."""
    lasts = {t: spread([r.last[1].accuracy for r in runs if r.last is not None]) for t, runs in groups.items()}
    last = {title: value for title, value in lasts.items() if value is not None}
    each = {t: {r.seed: r.diverged for r in runs if r.diverged is not None} for t, runs in groups.items()}
    diverged = {title: seeds for title, seeds in each.items() if seeds}
    stopped = {t: ends for t, runs in groups.items() if (ends := ended_early(runs))}
    several = any(len(runs) > 1 for runs in groups.values())
    rounds = rounds_of(run for runs in groups.values() for run in runs)
    return Headline(rounds, last, diverged, several, first, stopped, tuned)


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


NAMED = {"accuracy": "accuracy", "balanced": "balanced accuracy"}
"""Names of the possible headline metrics in sentences."""


def majority(line: ClientLine) -> tuple[int, int] | None:
    """Return the number of test samples of the client's most frequent training class, and of all its test samples; None
    where training counts are not known or nothing was tested."""
    return None if line.majority is None or not line.n_test else (line.majority, line.n_test)


def constants_of(run: Result) -> list[Constant]:
    """Return the result of always predicting the most frequent training class at each client, by number; empty without
    clients whose training counts are known."""
    right: dict[int, tuple[int, int]] = {}
    answers: dict[int, str] = {}
    for line in run.clients:
        i = line.client
        if (result := majority(line)) is not None:
            right[i] = result
        if (most := majority_class(line.labels)) is not None:
            answers[i] = run.classes[most] if most < len(run.classes) else f"class {most}"
    names = run.names
    return [Constant(names[i] if i < len(names) else f"client {i}", answers.get(i), *right[i]) for i in sorted(right)]


def first_of(groups: Mapping[str, Sequence[Result]]) -> Choice:
    """Return the choice for all runs together: the clients of one run per seed, since all methods have the same.

    Clients with names are the same in all seeds: their test samples are added up. Others are different clients in each
    seed.
    """
    runs = [run for seeds in groups.values() for run in seeds]
    result: dict[int, list[Constant]] = {}
    for run in runs:
        if not result.get(run.seed):
            result[run.seed] = constants_of(run)
    return choose(_joined(result) if any(run.names for run in runs) else _apart(result))


def unlearned(groups: Mapping[str, Sequence[Result]], first: Choice, same: bool | None) -> tuple[str, str] | None:
    """Return the headline where no method is clearly above always giving each client's most frequent class, and the
    reason; None where one is, or the constant answer is not known.

    A method is clearly above it where the whole interval of the difference over seeds and clients is, in the headline
    metric; with too few figures for an interval, where the mean is.

    Args:
        first: the headline metric; same: whether clients are the same in every seed.
    """
    constants: list[Constant] = []
    for runs in groups.values():
        gains = []
        for run in runs:
            before, after = _constant_figures(run, first), run.averaged(first.metric)
            gains.append({c: after[c] - before[c] for c in after if c in before})
            constants = constants or constants_of(run)
        if not gains or not all(gains):
            return None
        result = difference(gains, same_clients=same)
        if result.mean > 0 and (result.low is None or result.low > 0):
            return None
    answers = {one.answer for one in constants}
    (answer,) = answers if len(answers) == 1 else (None,)
    said = {run.last[1].only_class for runs in groups.values() for run in runs if run.last is not None}
    only = len(said) == 1 and None not in said
    total = sum(one.n_test for one in constants)
    facts = list(groups), answer, total - sum(one.right for one in constants), total, only
    return say("unlearned", *facts), say("unlearned_reason", *facts)


def _constant_figures(run: Result, first: Choice) -> dict[int, float]:
    """Return the headline metric of the constant answer, by client."""
    known = ((line, right, n) for line in run.clients for right, n in [majority(line) or (0, 0)] if n)
    return {line.client: right / n if first.fair else bool(right) / (line.test_classes or 1)
            for line, right, n in known}  # fmt: skip


def _joined(seeds: Mapping[int, Sequence[Constant]]) -> list[Constant]:
    """Return each client of several seeds once, with the test samples of all seeds."""
    result: dict[str, Constant] = {}
    for one in (constant for constants in seeds.values() for constant in constants):
        known = result.get(one.client, replace(one, right=0, n_test=0))
        result[one.client] = replace(known, right=known.right + one.right, n_test=known.n_test + one.n_test)
    return list(result.values())


def _apart(seeds: Mapping[int, Sequence[Constant]]) -> list[Constant]:
    """Return every client of every seed, with the seed in its name where there are several."""
    several = len(seeds) > 1
    return [replace(one, client=f"{one.client} of seed {seed}") if several else one
            for seed, constants in seeds.items() for one in constants]  # fmt: skip


def what_alone_is(run: Result, reference: str) -> str:
    """Return how often a client trains alone in a run with the settings of ``run``; "" if in every round."""
    share = run.settings.run.participation
    return "" if share >= 1 else say("what_alone_is", reference, share)


def which_is_which(groups: Mapping[str, Sequence[Result]]) -> str:
    """Return how often clients train under each kind of training alone; "" unless both were run."""
    by_role = {runs[0].role: runs for runs in groups.values()}
    if not all(role in by_role for role in ALONE):
        return ""
    local, full = (by_role[role] for role in ALONE)
    how, data = local[0].table("run"), local[0].table("data")
    rounds = None if ended_early([*local, *full]) else how.get("rounds")  # each run may have its own number
    return say("which_is_which", local[0].title, full[0].title, how.get("participation", 1.0), rounds,
               how.get("dropout") or 0, bool(how.get("late_joiners")),
               bool(data.get("validation", 0.1)))  # fmt: skip
