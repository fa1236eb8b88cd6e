"""Secure aggregation is offered where means of uploads are all that a server needs, and refused elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedkin.capabilities import PrivateSums
from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.sums import sums_suffice
from fedkin.core import Aggregation, Bundle, ConfigError, Download, Method, MethodError, Round, stack, to_all, to_each
from fedkin.core.settings import Settings
from fedkin.experiment.compare import Comparison
from fedkin.methods import CFIC, METHODS, PFA, FedDyn, FedRep, FedRoD, get_method
from fedkin.privacy.secure_sum import fixed, pooled, summed
from fedkin.server import Plan
from fedkin.server.requirements import require
from fedkin.testing import RuleBroken, check_method
from fedkin.testing.spy import Spy
from fedkin.testing.trial import Setting, play
from refusals import refuses
from toys import Averaging

OFFERED = ("local", "local-full", "fedavg", "fedavg-ft", "fedprox", "feddyn", "scaffold", "fednova", "fedadam",
           "fedyogi", "fedadagrad", "fedavgm", "moon", "fedper", "lg-fedavg", "fedbn",
           "fedrep", "fedbabu", "fedrod", "feddbe", "knn-per", "per-fedavg", "ditto", "pfedme", "apfl", "fml",
           "fedala", "fedem", "pfa", "pacfl", "oracle")  # fmt: skip
AT_OTHER_SETTINGS: dict[str, Method] = {
    "feddyn active-mean": FedDyn(eval_model="active-mean"),
    "fedrep average": FedRep(first_head="average"),
    "fedrod hyper": FedRoD(personal="hyper"),
    "pfa early": PFA(after=1, clusters=2),
}
NOT_OFFERED: dict[str, Method] = {name: get_method(name) for name in METHODS if name not in OFFERED} | {
    "feddyn all-mean": FedDyn(eval_model="all-mean"),
    "feddyn adaptive": FedDyn(adaptive=True),
    "cfic without correction": CFIC(correction=False, register="lazy"),
}


class Needed(Exception):
    """The server ends elsewhere with means of uploads than with the uploads themselves."""


def must_see_single_uploads(method: Method) -> None:
    """Raises `Needed`, or `MethodError` where uploads hold other than floating-point numbers, if the server does."""

    def compare(s: Bundle, r: Round, up: Bundle, new: Bundle) -> None:
        part, pools, _ = pooled(method, s, r, least=1)
        single = {i: Bundle({n: rows[k] for n, rows in up.items()}) for k, i in enumerate(r.ids.tolist())}
        means, why = summed(pools, {i: fixed(b, pools[i]) for i, b in single.items()}, single[min(single)], 1e8)
        assert not why
        again = method.aggregate(s, part, stack(means))
        for name, t in new.items():
            if t.shape != again[name].shape or not torch.allclose(t.double(), again[name].double(), 1e-5, 1e-6):
                raise Needed(name)

    play(Spy(method, merged=compare), Setting(plan=Plan(rounds=6, participation=0.7, seed=1)))


def test_who_is_offered_it() -> None:
    """The catalogue's own word, in one place; the rule of the contract below looks whether it is true."""
    assert [name for name in METHODS if sums_suffice(get_method(name))] == list(OFFERED)


@pytest.mark.parametrize("name", AT_OTHER_SETTINGS)
def test_offered_at_other_settings(name: str) -> None:
    """The rule 'secure aggregation' holds; that of the catalogue's own settings is checked with all other rules."""
    assert sums_suffice(AT_OTHER_SETTINGS[name])
    check_method(AT_OTHER_SETTINGS[name], engines=[], rules=["secure aggregation"])


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_refused_with_a_text(name: str) -> None:
    """Before anything is done: in a run, and in a comparison before its data are read."""
    method = NOT_OFFERED[name]
    with refuses(ConfigError, "secure = True", "single"):
        require(Settings().but(secure=True), method)
    if name in METHODS and sends_scores(method) == "none":
        with refuses(ConfigError, "secure = True", "single"):
            Comparison((name,), base=Settings().but(secure=True))


OWN_TENSORS = {"clustered-sampling-size", "feddyn adaptive"}  # each client is sent one of its own to train


@pytest.mark.parametrize("name", sorted(NOT_OFFERED.keys() - OWN_TENSORS - {"fedavg-safe"}))
def test_nobody_is_refused_for_nothing(name: str) -> None:
    """With the mean of all uploads in place of each the server of every refused method ends elsewhere, or it reads
    whole numbers or marks, which are no means. Safe forms are refused for what clients send besides uploads."""
    with pytest.raises((Needed, MethodError)) as found:
        must_see_single_uploads(NOT_OFFERED[name])
    assert isinstance(found.value, Needed) or "adds up floating-point numbers" in str(found.value)


@dataclass(frozen=True)
class Boast(Averaging, Method):
    """Says that sums suffice, and looks at the longest upload."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0, longest=torch.tensor(0.0))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model), longest=up.model.norm(dim=1).max())

    can = (PrivateSums(),)


@dataclass(frozen=True)
class Each(Averaging, Method):
    """Says that sums suffice, and sends each client its own number."""

    can = (PrivateSums(),)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model) | to_each(number=r.ids)


def test_a_method_that_sends_clients_of_a_sum_other_tensors_is_refused() -> None:
    """On hosts its masks would never cancel; so the run ends in its first round, in a simulation as well."""
    plan = Plan(1, aggregation=Aggregation(secure=True))
    with refuses(MethodError, "secure aggregation", "Each"):
        play(Each(), Setting(plan=plan))
    with refuses(MethodError, "client 1 is sent others"):
        check_method(Each(), engines=[], rules=["secure aggregation"])


def test_a_method_that_boasts_is_found() -> None:
    with refuses(RuleBroken, "'secure aggregation': ", "'longest' of the state"):
        check_method(Boast(), engines=[], rules=["secure aggregation"])
