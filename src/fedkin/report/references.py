"""The references of a comparison by their roles, and the difference between the two kinds of training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedkin.record.result import Result
from fedkin.report.headline import ended_early
from fedkin.report.templates import say

COMPARED = ("alone", "alone-full", "average")
"""Roles of the methods that all others are compared with: training alone as often as under any method, training alone
in every round, one model for all."""
ALONE = COMPARED[:2]


def what_alone_is(run: Result, reference: str) -> str:
    """Return how often a client trains alone in a run with the settings of ``run``; "" if in every round."""
    share = run.table("run").get("participation", 1.0)
    return "" if share >= 1 else say("what_alone_is", reference, share)


def which_is_which(groups: Mapping[str, Sequence[Result]]) -> str:
    """Return how often clients train under each kind of training alone; "" unless both were run.

    Args:
        groups: title -> its runs, as from `fedkin.record.result.by_title`.
    """
    by_role = {runs[0].role: runs for runs in groups.values()}
    if not all(role in by_role for role in ALONE):
        return ""
    local, full = (by_role[role] for role in ALONE)
    how, data = local[0].table("run"), local[0].table("data")
    rounds = None if ended_early([*local, *full]) else how.get("rounds")  # each run may have its own number
    return say("which_is_which", local[0].title, full[0].title, how.get("participation", 1.0), rounds,
               how.get("dropout") or 0, bool(how.get("late_joiners")),
               bool(data.get("validation", 0.1)))  # fmt: skip
