"""The headline metric of tables and pages, chosen from what runs recorded of their clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedkin.evaluate import Choice, Constant, choose, difference, majority_class
from fedkin.record.lines import ClientLine
from fedkin.record.result import Result
from fedkin.report.templates import say

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
        if (found := majority(line)) is not None:
            right[i] = found
        if (most := majority_class(line.labels)) is not None:
            answers[i] = run.classes[most] if most < len(run.classes) else f"class {most}"
    names = run.names
    return [Constant(names[i] if i < len(names) else f"client {i}", answers.get(i), *right[i]) for i in sorted(right)]


def first_of(groups: Mapping[str, Sequence[Result]]) -> Choice:
    """Return the choice for all runs together: the clients of one run per seed, since all methods have the same.

    Clients with names are the same in all seeds: their test samples are added up. Others are different clients in each
    seed.

    Args:
        groups: title -> its runs, as from `fedkin.record.result.by_title`.
    """
    runs = [run for seeds in groups.values() for run in seeds]
    found: dict[int, list[Constant]] = {}
    for run in runs:
        if not found.get(run.seed):
            found[run.seed] = constants_of(run)
    return choose(_joined(found) if any(run.names for run in runs) else _apart(found))


def unlearned(groups: Mapping[str, Sequence[Result]], first: Choice, same: bool | None) -> tuple[str, str] | None:
    """Return the headline where no method is clearly above always giving each client's most frequent class, and the
    reason; None where one is, or the constant answer is not known.

    A method is clearly above it where the whole interval of the difference over seeds and clients is, in the headline
    metric; with too few figures for an interval, where the mean is.

    Args:
        groups: title -> its runs.
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
        found = difference(gains, same_clients=same)
        if found.mean > 0 and (found.low is None or found.low > 0):
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
    found = {}
    for line in run.clients:
        if (known := majority(line)) is not None:
            right, n_test = known
            found[line.client] = right / n_test if first.fair else bool(right) / (line.test_classes or 1)
    return found


def _joined(seeds: Mapping[int, Sequence[Constant]]) -> list[Constant]:
    """Return each client of several seeds once, with the test samples of all seeds."""
    found: dict[str, Constant] = {}
    for one in (constant for constants in seeds.values() for constant in constants):
        known = found.get(one.client, replace(one, right=0, n_test=0))
        found[one.client] = replace(known, right=known.right + one.right, n_test=known.n_test + one.n_test)
    return list(found.values())


def _apart(seeds: Mapping[int, Sequence[Constant]]) -> list[Constant]:
    """Return every client of every seed, with the seed in its name where there are several."""
    several = len(seeds) > 1
    return [
        replace(one, client=f"{one.client} of seed {seed}") if several else one
        for seed, constants in seeds.items()
        for one in constants
    ]
