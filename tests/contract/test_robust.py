"""Rules of aggregation keep the contract, and a method says rightly whether they cover what its server does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.capabilities import Grouped, RobustMeans, has
from fedkin.core import Aggregation, Bundle, Client, ConfigError, Download, Method, Round, Train, Work, to_all
from fedkin.core.settings import Settings
from fedkin.methods import CAM, DAPFL, IFCA, METHODS, FedAvg, get_method
from fedkin.server.requirements import require
from fedkin.testing import RULES, RuleBroken, check_method
from refusals import refuses
from toys import Averaging

KINDS: tuple[Any, ...] = ("median", "trimmed", "krum", "norm")
PLAIN: dict[str, Method] = {"fedavg": FedAvg(), "ifca": IFCA(clusters=2), "da-pfl": DAPFL(),
                            "ifca-cam": CAM(inner=IFCA(clusters=2), warmup=1)}  # fmt: skip
EVERY: list[tuple[str, Any]] = [(name, kind) for name in PLAIN for kind in KINDS]
ALL_RULES = [("fedavg", "trimmed"), ("ifca", "norm"), ("da-pfl", "krum"), ("ifca-cam", "median")]
"""Pairs that `make test` checks: each method and each rule of aggregation once."""
PAIRS = [pytest.param(n, k, marks=() if (n, k) in ALL_RULES else pytest.mark.thorough) for n, k in EVERY]
NOT_COVERED = {
    "local": "nothing is merged",
    "local-full": "nothing is merged",
    "fedmgda": "updates are merged by weights that solve a problem of their own, which may be anywhere",
    "creff": "gradients of the classifier are averaged class by class",
    "fedpac": "centroids are averaged class by class, and heads mixed by what is sent about features",
    "fedproto": "prototypes are averaged class by class",
    "fedgh": "the server trains on what is sent",
    "fedfomo": "clients mix for themselves, by what each model is worth on their data",
}


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_runs_stay_sound_under_every_rule(name: str, kind: Any) -> None:
    """Means, means of groups, mixtures and both, in odd federations: with one client, in rounds without an answer."""
    check_method(
        PLAIN[name],
        engines=[],
        rules=["runs", "odd federations"],
        aggregation=Aggregation(kind),
    )


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_contract_holds_under_every_rule(name: str, kind: Any) -> None:
    """The contract's other rules, faults and resuming included; rules work on the server, so one engine will do."""
    rules = [rule for rule in RULES if rule not in ("runs", "odd federations")]
    check_method(PLAIN[name], engines=[], rules=rules, aggregation=Aggregation(kind))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_covered_unless_it_is_listed(name: str) -> None:
    """Whoever is not listed above runs under a rule and asks for it; the others are refused before anything is done."""
    method = get_method(name)
    if name not in NOT_COVERED:
        assert has(method, RobustMeans)
        check_method(method, engines=[], rules=["robust"])
        return
    with refuses(ConfigError, "'krum'", type(method).__name__):
        require(Settings().but(rule="krum"), method)


def test_a_wrapper_is_covered_as_far_as_what_it_wraps() -> None:
    """Fed-CAM around a method of one's own that does not say so is refused by that method's name."""

    @dataclass(frozen=True)
    class Own(Method):
        def init(self, r: Round) -> Bundle:
            return Bundle()

        def distribute(self, s: Bundle, r: Round) -> Download:
            return to_all()

        def client_update(self, c: Client) -> Work:
            yield Train(c.w0)
            return Bundle()

        def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
            return s

        def _labels(self, s: Bundle, r: Round) -> Tensor:
            return torch.zeros(len(r.roster), dtype=torch.int64)

        can = (Grouped(_labels),)

    require(Settings().but(rule="median"), CAM(inner=IFCA()))
    require(Settings(), CAM(inner=Own()))
    with refuses(ConfigError, "Own"):
        require(Settings().but(rule="median"), CAM(inner=Own()))


@dataclass(frozen=True)
class Boast(Averaging, Method):
    """Says that rules cover it, and averages without them."""

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=up.model.mean(0))

    can = (RobustMeans(),)


def test_a_method_that_boasts_is_found() -> None:
    """robust = True and a mean of its own: the contract says what is missing."""
    with refuses(RuleBroken, "'robust': ", "r.mean"):
        check_method(Boast(), engines=[], rules=["robust"])
