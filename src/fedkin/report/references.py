"""The reference rows of a comparison: their titles, and the difference between the two kinds of local training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.report.folder import Run
from fedkin.report.headline import ended_early

LOCAL, FULL, FEDAVG = "Local", "Local (full)", "FedAvg"
"""Titles of references: training alone as often as under any method, training alone in every round, one model."""
SAFE = "-safe"
"""Part of the titles of safe forms."""
OTHERS = (LOCAL, FULL, FEDAVG)
"""Methods that all are compared with in addition to the reference of the comparison."""


def alone(reference: str) -> bool:
    """Return whether a reference is training alone."""
    return reference in (LOCAL, FULL)


def others(reference: str) -> tuple[str, ...]:
    """Return the methods of `OTHERS` except the reference itself."""
    return tuple(title for title in OTHERS if title != reference)


def what_local_is(run: Run) -> str:
    """Return how often a client trains under Local in a run with the settings of ``run``; "" if in every round."""
    share = _settings(run, "run").get("participation", 1.0)
    if share >= 1:
        return ""
    return (
        f"{LOCAL}: a client trains alone, and only in the rounds it is sampled for ({100 * share:g} % of the clients "
        f"in each round); {FULL}, which fedkin compare adds, trains every client in every round."
    )


def which_is_which(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return how often clients train under Local and under Local (full); "" unless both were run.

    Args:
        groups: title -> its runs, as from :func:`fedkin.report.folder.by_title`.
    """
    if not groups.get(LOCAL) or not groups.get(FULL):
        return ""
    first = groups[LOCAL][0]
    how, share = _settings(first, "run"), _settings(first, "run").get("participation", 1.0)
    when, reached = _rounds(groups), ""
    if hindered := _hindered(how):
        when, reached = f"{when} in which it can be reached ({hindered})", " that can be reached"
    if share >= 1:
        return (
            f"{LOCAL} and {FULL}: under both every client trains alone in {when}, since all clients{reached} take part "
            f"in each round of this comparison. {_kept(first)}"
        )
    validated = _validated(first)
    kept = "keeps the model that is best on its own validation data" if validated else "predicts with its last model"
    return (
        f"{LOCAL} and {FULL}: under {LOCAL} a client trains alone, and only in the rounds it is sampled for, as under "
        f"the other methods ({100 * share:g} % of the clients in each round). Under {FULL} every client trains alone "
        f"in {when} and {kept}: what it can reach without a federation."
    )


def _rounds(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the rounds of both in words."""
    rounds = _settings(groups[LOCAL][0], "run").get("rounds")
    if ended_early([run for title in (LOCAL, FULL) for run in groups.get(title, ())]):
        rounds = None  # each run has its own number
    return "all rounds" if rounds is None else "the only round" if rounds == 1 else f"all {rounds} rounds"


def _hindered(how: Mapping[str, Any]) -> str:
    """Return why clients cannot be reached in each round; "" if they can."""
    share = how.get("dropout") or 0
    late = "some join late" if how.get("late_joiners") else ""
    return ", ".join(filter(None, (f"{100 * share:g} % drop out of a round" if share else "", late)))


def _kept(run: Run) -> str:
    """Return which model clients predict with where both train as often."""
    if not _validated(run):
        return "Under both a client predicts with its last model, as there are no validation data."
    return (
        f"Under {LOCAL} a client predicts with its last model; under {FULL} it keeps the model that is best on its own "
        "validation data."
    )


def _validated(run: Run) -> bool:
    return bool(_settings(run, "data").get("validation", 0.1))


def _settings(run: Run, part: str) -> Mapping[str, Any]:
    config = run.summary.get("config")
    found = config.get(part) if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else {}
