"""The guard that methods are final, their checks, and the rooms they may import from."""

import ast
import sys
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fedkin.capabilities.groups import labels_of
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.presets import preset
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, ConfigError, Method, MethodError, Train, Work, finish, to_all, uniform_cohort
from fedkin.methods import CAM, DAPFL, IFCA, METHODS, FedAvg, FeSEM, Safe, get_method
from refusals import refuses
from toys import ByHand

CLASSES = sorted({type(make()) for make in METHODS.values()}, key=lambda c: c.__name__)


@pytest.mark.parametrize("base", CLASSES, ids=lambda c: c.__name__)
def test_methods_are_final(base: type[Method]) -> None:
    """Inheriting from a concrete method is a TypeError when the class is made."""
    with refuses(TypeError, f"Mine inherits from the method {base.__name__}"):
        type("Mine", (base,), {})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_methods_are_frozen_dataclasses_with_documented_fields(cls: type[Method]) -> None:
    """Fields cannot be set afterwards; every field has a docstring below it, its help text; the class has one."""
    assert is_dataclass(cls)
    assert cls.__doc__
    method = cls(inner=IFCA()) if cls in (CAM, Safe) else cls()
    for field in fields(cls):
        with pytest.raises(AttributeError):
            setattr(method, field.name, 1)
    source = ast.parse(Path(sys.modules[cls.__module__].__file__).read_text())
    body = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__).body
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            assert isinstance(after, ast.Expr), f"{cls.__name__}.{ast.unparse(node.target)} has no docstring"


def test_presets() -> None:
    """Named settings; changes on top; an unknown name lists those there are."""
    assert preset(DAPFL, "paper") == DAPFL()
    code = preset(DAPFL, "code", lam=0.5)
    assert (code.distance, code.include_self, code.prox, code.lam) == ("l2", True, "after", 0.5)
    with refuses(ConfigError, "no preset 'codes'", "['code', 'paper']"):
        preset(DAPFL, "codes")
    with refuses(ConfigError, "none"):
        preset(FedAvg, "paper")


def test_catalogue() -> None:
    """Every name gives a method; a near miss is suggested; the two Fed-CAM presets of the paper."""
    assert all(isinstance(get_method(name), Method) for name in METHODS)
    with refuses(ConfigError, "did you mean 'fedavg'"):
        get_method("fedavgg")
    with refuses(ConfigError, "unknown method 'zzz'"):
        get_method("zzz")
    ifca, fesem = get_method("ifca-cam"), get_method("fesem-cam")
    assert isinstance(ifca, CAM)
    assert isinstance(fesem, CAM)
    assert (type(ifca.inner), ifca.update, ifca.order, ifca.warmup_of) == (IFCA, "mean", "simultaneous", "global")
    assert (type(fesem.inner), fesem.update, fesem.warmup_of) == (FeSEM, "mean", "cluster")


# ---- defaults ------------------------------------------------------------------------------------------------------
def test_default_cohort() -> None:
    """``r.cohort`` different clients out of those available, ascending, the same for every method."""
    hand = ByHand(FedAvg())
    r = hand.at("sample", [0, 2, 3, 4], 1).but(cohort=3)
    cohort = uniform_cohort(r)
    assert torch.equal(cohort, hand.method.sample(hand.server, r))
    assert len(set(cohort.tolist())) == 3
    assert set(cohort.tolist()) <= {0, 2, 3, 4}
    assert torch.equal(cohort, cohort.sort().values)
    assert len(uniform_cohort(r.but(cohort=9))) == 4
    seen = torch.cat([uniform_cohort(r.but(index=t)) for t in range(40)])
    assert set(seen.tolist()) == {0, 2, 3, 4}


@dataclass(frozen=True)
class Small(Method):
    """The required steps and nothing else."""

    def init(self, r):
        return Bundle(model=r.w0)

    def distribute(self, s, r):
        return to_all(model=s.model)

    def client_update(self, c) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s, r, up):
        return Bundle(model=r.mean(up.model))


def test_four_steps_make_a_method() -> None:
    """Defaults: nothing described, nobody grouped, nothing noted; everybody predicts with the received model."""
    hand = ByHand(Small())
    hand.play()
    assert hand.method.describe(hand.client(0)) == {}
    assert labels_of(hand.method, hand.server, hand.at("evaluate", [0])) is None
    assert numbers_of(hand.method, hand.server) == {}
    assert views_of(hand.method, hand.client(0)) == {}
    assert torch.equal(hand.used(1).model, hand.server.model)
    x = hand.data[0].x
    assert torch.equal(hand.method.predict(hand.net, hand.used(1), x), hand.net(hand.server.model, x))


def test_finish_gives_what_a_program_returns() -> None:
    """One request, then the bundle; a program that asks again is refused."""

    def once() -> Work:
        w = yield Train(torch.zeros(1))
        return Bundle(model=w)

    def twice() -> Work:
        yield Train(torch.zeros(1))
        w = yield Train(torch.zeros(1))
        return Bundle(model=w)

    work = once()
    next(work)
    assert float(finish(work, torch.tensor([3.0])).model) == 3.0
    work = twice()
    next(work)
    with refuses(MethodError, "more than once"):
        finish(work, torch.zeros(1))


def test_titles_and_summaries_say_what_the_settings_are() -> None:
    """A class that stands for several methods names the one that its settings make; a wrapper names both."""
    found = {name: (make().title, make().summary) for name, make in METHODS.items()}
    assert found["clustered-sampling"][0] == "Clustered Sampling"
    assert found["clustered-sampling-size"][0] == "Clustered Sampling (size)"
    assert (found["fedavg-ensemble"][0], found["fedprox-ensemble"][0]) == ("FedAvg+", "FedProx+")
    assert (found["fedamp"][0], found["heur-fedamp"][0]) == ("FedAMP", "HeurFedAMP")
    assert (found["da-pfl"][0], found["ifca"][0], found["oracle"][0]) == ("DA-PFL", "IFCA", "Oracle clusters")
    assert found["fesem-cam"][0] == "FeSEM-CAM"
    assert len({title for title, _ in found.values()}) == len({text for _, text in found.values()}) == len(METHODS)
    assert all(text.endswith(".") and "\n" not in text for _, text in found.values())
