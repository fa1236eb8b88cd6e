"""Names of methods: those of the catalogue, and as papers write them."""

from __future__ import annotations

import math
from dataclasses import replace

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


# ---- ranges of fields -----------------------------------------------------------------------------------------------
# fmt: off
REFUSED: dict[str, dict[str, object]] = {
    "da-pfl": {"lam": -0.1, "eps": 0.0, "floor": (0.0, 1.5), "sigma": (0.0, math.nan, "mean"), "variant": "nope"},
    "fedprox": {"mu": (-1.0, math.inf), "straggler_fraction": 1.1},
    "ifca": {"clusters": 0, "init_min_share": 0.5},
    "fesem": {"clusters": 0, "lam": -1e-9},
    "cfic": {"memory": (1.0, -0.1), "beta": -1.0, "beta_decay": 0.0},
    "pfedcs": {"lam": 1.01, "rho": -1, "random_size": 0, "kappa": -0.5, "fixed": -0.5, "temperature": 0.0, "beta": -1,
               "teacher_lr": 0.0},
    "ifca-cam": {"warmup": -1},
    "apfl": {"mixing": (-0.1, 1.1, math.nan)},
    "cfl": {"eps1": -1, "eps2": -1, "after": -1, "gamma": (-1, 1.0)},
    "creff": {"features": 0, "repeats": 0, "real_batch": 0, "matching_steps": -1, "matching_lr": 0, "crt_epochs": 0,
              "crt_lr": 0, "crt_batch": 0},
    "ditto": {"lam": (-1.0, math.nan), "personal_epochs": 0},
    "fedala": {"layers": 0, "share": (0.0, 1.1), "mix_lr": 0.0, "first_epochs": 0},
    "fedamp": {"sigma": (0.0, "mean"), "server_step": 0.0, "lam": -1.0, "self_weight": 1.5, "step_decay": 0.0,
               "decay_every": 0, "variant": "cosine", "over": "all"},
    "fedavg-ft": {"tune_epochs": -1, "tune_lr": (0.0, math.inf), "part": "body"},
    "fedbabu": {"finetune_epochs": -1, "finetune_lr": 0.0, "part": "tail"},
    "feddbe": {"kappa": -1},
    "fedem": {"components": 0},
    "fedfomo": {"peers": -1, "epsilon": 1.5, "epsilon_decay": -0.1, "norm": "max", "fallback": "none",
                "affinity": "softmax", "pool": "all"},
    "fedgh": {"server_lr": -1, "server_batch": 0, "clip": 0},
    "fednova": {"server_momentum": 1},
    "fedadam": {"server_lr": 0.0, "beta1": 1.0, "beta2": -0.1, "tau": 0.0},
    "fedpac": {"lam": -1.0, "head_epochs": 0, "head_lr": 0.0},
    "fedproto": {"lam": -1.0},
    "fedrep": {"head_epochs": 0, "body_epochs": 0, "final_head_epochs": -1},
    "fedrod": {"gamma": -1.0, "hidden": 0, "personal": "none"},
    "fedsoft": {"clusters": 0, "lam": -1.0, "sigma": 0.0, "tau": 0, "per_cluster": 0},
    "fml": {"own_ce": 2, "meme_ce": -0.5},
    "knn-per": {"neighbours": 0, "weight": (1.5, -0.1), "scale": 0.0},
    "moon": {"mu": -1.0, "temperature": 0.0},
    "pacfl": {"threshold": 91, "vectors": 0},
    "per-fedavg": {"inner_lr": -0.1, "outer_lr": (0.0, "fast"), "delta": 0.0, "adapt_steps": -1, "order": "second"},
    "pfa": {"clusters": 0, "channels": 0, "after": -1},
    "pfedgraph": {"spread": 0.0, "lam": -0.1},
    "pfedme": {"lam": 0.0, "inner_steps": 0, "inner_lr": 0.0, "outer_lr": 0.0, "beta": 0.0},
    "scaffold": {"server_lr": 0},
    "fedavg-safe": {"delta": (0.0, 1.0), "mode": "never"},
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_out_of_its_range_is_refused_by_name(name: str) -> None:
    """One field at a time, all others as they come; the message has the range and the value."""
    for field, values in REFUSED[name].items():
        for value in values if isinstance(values, tuple) else (values,):
            with refuses(ConfigError, field, value):
                replace(METHODS[name](), **{field: value})
    with refuses(ConfigError, "floor of DAPFL must be above 0 and at most 1, got 1.5"):
        replace(METHODS["da-pfl"](), floor=1.5)
