"""Names of methods: those of the catalogue, and as papers write them."""

from __future__ import annotations

import pytest

from fedkin.core import ConfigError, Training
from fedkin.experiment.settings import title_of
from fedkin.methods import (
    _OTHER_NAMES,
    CAM,
    DAPFL,
    IFCA,
    METHODS,
    FedAvg,
    FedProx,
    Safe,
    canonical,
    get_method,
    get_title,
    settings_in,
)
from grouped import described
from refusals import refuses


@pytest.mark.parametrize("name", METHODS)
def test_every_title_is_a_name(name: str) -> None:
    """However its capitals and strokes are written."""
    title = METHODS[name]().title
    written = (name, title, title.upper(), title.replace("-", "_"), title.replace("-", " "))
    assert {canonical(t) for t in written} == {name}


@pytest.mark.parametrize("name", ["./own.py:FedAvg", "own.module:FedAvg", "fedavg.py", "-cam", "", "nothing", "x-cam"])
def test_other_names_stay_as_they_are(name: str) -> None:
    """Those of user-defined methods, and those that mean nothing, so that a message shows what was written."""
    assert canonical(name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FedOpt", "unknown method 'FedOpt'; here it is fedadam, fedyogi, fedadagrad and fedavgm ("),
        ("fine-tuning", "unknown method 'fine-tuning'; here it is fedavg-ft ("),
        ("fedavg,Ditto", "unknown method 'fedavg,Ditto'; several are named one by one: fedavg Ditto ("),
        ("fedavg,mine", "unknown method 'fedavg,mine'; did you mean 'fedavg'"),
    ],
)
def test_what_an_unknown_name_may_mean(name: str, message: str) -> None:
    """Another name in the literature, or several names in one word."""
    with refuses(ConfigError, message):
        get_method(name)


def test_names_mean_one_method() -> None:
    """Other names lead to methods that are accepted; settings in a name are written in one way and are its values."""
    for other, here in _OTHER_NAMES.items():
        assert canonical(other) == other
        for name in here.replace(" and ", ", ").split(", "):
            get_method(name)
    assert get_method(_OTHER_NAMES["silobn"]).title == "SiloBN"
    assert canonical("FedProx@mu=.10") == "fedprox@mu=0.1"
    assert canonical("DA_PFL@include-self=True, lam=1e-1") == "da-pfl@include_self=true,lam=0.1"
    assert canonical("FedProx@mu=.10-safe") == "fedprox@mu=0.1-safe"
    assert canonical("./a@b/own.py:Mine@step-size=1") == "./a@b/own.py:Mine@step_size=1"
    assert get_title("./a@b/own.py:Mine@step_size=1,k=x") == "Mine (step_size=1, k=x)"
    assert get_title("./a@b/own.py:Mine@k=1-safe") == "Mine (k=1)-safe"
    assert title_of(described("fedprox@mu=0.1", FedProx(mu=0.1), training=Training(lr=1.0))) == "FedProx (mu=0.1)"
    for name, method in {"fedprox@mu=0.1": FedProx(mu=0.2), "fedprox@mu=0.1-safe": Safe(FedProx(mu=0.2))}.items():
        with refuses(ConfigError, "other values than its name"):
            described(name, method)


# ---- settings in a name ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "method", "title", "fields"),
    [
        ("fedprox@mu=0.1", FedProx(mu=0.1), "FedProx (mu=0.1)", {"mu": 0.1}),
        ("fedprox@mu=1", FedProx(mu=1.0), "FedProx (mu=1)", {"mu": 1}),
        (
            "da-pfl@variant=v2,include_self=true,lam=1e-05",
            DAPFL(variant="v2", include_self=True, lam=1e-5),
            "DA-PFL (variant=v2, include_self=true, lam=1e-05)",
            {"variant": "v2", "include_self": True, "lam": 1e-5},
        ),
        ("ifca-cam@clusters=3", CAM(IFCA(clusters=3)), "IFCA-CAM (clusters=3)", {"inner": {"clusters": 3}}),
        ("fedprox@mu=0.1-safe", Safe(FedProx(mu=0.1)), "FedProx (mu=0.1)-safe", {"mu": 0.1}),
        ("fedavg-safe", Safe(FedAvg()), "FedAvg-safe", {}),
    ],
)
def test_a_method_with_settings_in_its_name(name: str, method: object, title: str, fields: dict[str, object]) -> None:
    """The name gives the method, and its title says how it differs from the usual one."""
    assert (get_method(name), get_title(name), settings_in(name), canonical(name)) == (method, title, fields, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedprox@mu", "FIELD=VALUE, got 'mu'"),
        ("fedprox@mu=", "have the form NAME@FIELD=VALUE,FIELD=VALUE, got 'mu='"),
        ("fedprox@=1", "have the form NAME@FIELD=VALUE,FIELD=VALUE, got '=1'"),
        ("fedprox@mu=1,", "have the form NAME@FIELD=VALUE,FIELD=VALUE, got ''"),
        ("fedprox@mu=1,mu=2", "mu is given twice"),
        ("fedprox@mu=a/b", "a value in a name cannot contain /"),
        ("fedprox@mu=1@mu=2", "got '1@mu=2'"),
        ("fedprox@nu=1", "fedprox@nu=1: unknown setting nu; did you mean 'mu'"),
        ("fedprox@mu=x", "got 'x'"),
        ("fedprox@mu=-1", "mu of FedProx must be at least 0, got -1"),
        ("nothing@mu=1", "unknown method 'nothing'"),
        ("fedavg-safe@mode=sure", "fedavg@FIELD=VALUE-safe; fields of the safe form are given as --set fedavg-safe"),
    ],
)
def test_settings_that_do_not_fit_are_named(name: str, message: str) -> None:
    """Form, field and value, each with the name as it was written."""
    with refuses(ConfigError, message):
        get_method(name)
