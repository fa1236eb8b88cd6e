"""The rules of the contract that a method's settings can break, on two runs instead of a dozen.

`check_method` plays a run for each rule, so that its message names one. Here one run is watched for all of them, and a
second one, stopped after every round, must end where the first did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedkin.core import Method
from fedkin.methods import METHODS, CReFF, Ensemble, FedALA, FedAvgFT, FedEM, PFedMe
from fedkin.server import RoundReport, join_rounds
from fedkin.testing import RuleBroken, check_method
from fedkin.testing.rules import Case, _healthy, own_memory
from fedkin.testing.spy import Spy, unwritten
from fedkin.testing.step_values import check_step_value
from fedkin.testing.trial import Moment, Setting, TrialRun, difference, play, tensors

SETTING = Setting("norm", dropout=0.2, joins=join_rounds(6, "2@3"))
"""Batch normalisation, dropout layers, drop-outs, late joiners."""

_LIGHTER: dict[str, Method] = {
    "creff": CReFF(features=8, crt_epochs=5, matching_steps=5),
    "fedala": FedALA(first_epochs=2),
    "fedavg-ensemble": Ensemble(members=2),
    "fedavg-ft": FedAvgFT(tune_epochs=2),
    "fedem": FedEM(components=2),
    "pfedme": PFedMe(inner_steps=2),
}


def light(name: str) -> Method:
    """Return a method of the catalogue, with fewer passes where these take most of a run's seconds."""
    return _LIGHTER.get(name) or METHODS[name]()


def check_briefly(method: Method) -> None:
    """Check the rules ``declared``, ``runs``, ``pure steps``, ``distribution``, ``own memory`` and ``resume``.

    Raises:
        RuleBroken: one of them does not hold.
        MethodError: the method failed.
    """
    check_method(method, engines=[], rules=["declared"])
    whole = play(Spy(_anew(method), guard=unwritten, look=check_step_value), SETTING)
    _healthy(whole, SETTING)
    case = Case(method, [], seed=SETTING.plan.seed)
    case._kept["norm"] = whole
    own_memory(case)
    apart = difference(tensors(whole), tensors(_stopped_after_every_round(method)))
    if apart is not None:
        raise RuleBroken(f"stopped after every round, and not looked on at, the run ends elsewhere: {apart}")


def _stopped_after_every_round(method: Method) -> TrialRun:
    """Play the run in new objects from round to round, each from what the one before stored."""
    reports: list[RoundReport] = []
    since: Moment | None = None
    for t in range(1, SETTING.plan.rounds + 1):
        part = play(_anew(method), SETTING, since=since, stop=t)
        reports, since = [*reports, *part.reports], part.moments[-1]
    return replace(part, reports=reports)


def _anew(method: Any) -> Method:
    made: Method = replace(method)
    return made
