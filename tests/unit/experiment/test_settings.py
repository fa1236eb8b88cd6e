"""Settings: what is written to a TOML file comes back; what is wrong in one is named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedkin.capabilities.presets import TABLES, presets_of
from fedkin.core import ConfigError, Training
from fedkin.core.settings import Compute, DataSettings, Settings, checked, leaf_groups
from fedkin.data import PARTITIONS, federation_of, seeded
from fedkin.data.sites import partition_of
from fedkin.experiment.settings import completed, digest, method_of, settings_from, table_of, toml_of
from fedkin.methods import METHODS, get_method
from fedkin.storage.toml import read_toml
from grouped import described

OTHERS: dict[str, Any] = {
    "data": "synthetic", "clients": 7, "partition": "dirichlet@alpha=0.3", "plant": "labels@groups=2,drift=3",
    "feature_noise": 0.3, "split": "official", "test": 0.3, "validation": 0.0, "samples_per_client": 11, "target": "y",
    "client_column": "who", "binary": True, "drop": "id,date", "image_size": 32, "scaling": "client",
    "encoding": "cp1252", "data_seed": 4, "model": "small-cnn", "head": "head.1", "init_weights": "/a/b.safetensors",
    "epochs": 2, "steps": 3, "batch_size": 4, "optimizer": "adam", "lr": 0.5, "momentum": 0.9, "weight_decay": 1e-4,
    "decay_biases": False, "clip": 2.0, "schedule": "step@factor=0.99", "epoch_decay": 0.9, "rounds": 9,
    "participation": 0.5, "seed": 7, "eval_every": 2, "stop_after": 3, "evaluate": "trained", "weighting": "uniform",
    "dropout": 0.25, "late_joiners": "2@4,1@5", "min_replies": 2, "oversampling": 1.5, "attack": "scale@fraction=0.25",
    "rule": "norm@bound=2", "secure": True, "noise_multiplier": 1.5, "max_grad_norm": 2.0, "delta": 1e-6,
    "metadata_epsilon": 0.5, "engine": "loop", "gradient": "autograd", "state": "file", "min_clients": 2,
    "min_connected": 2, "wait_timeout": 3.0, "reply_timeout": 3.0, "max_samples": 9, "free_names": True,
    "max_share": 0.25,
}  # fmt: skip
"""Another value of every setting."""
APART = {"optimizer", "secure"}  # they contradict the momentum and the rule above
CHANGED = Settings().but(method="fedavg", **{name: value for name, value in OTHERS.items() if name not in APART})


def test_every_setting_is_tried() -> None:
    """The changed settings are all there are, each another than its default."""
    assert set(OTHERS) == set(leaf_groups())
    assert all(getattr(getattr(Settings(), group), name) != OTHERS[name] for name, group in leaf_groups().items())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_preset_survives_its_file(name: str) -> None:
    """Settings -> TOML -> settings are equal, and so are their digests."""
    base = completed(CHANGED.but(method=name))
    for table in ({}, *presets_of(get_method(name)).values()):
        own = {k: v for k, v in table.items() if k not in TABLES}
        leaves = {leaf: v for part in TABLES for leaf, v in table.get(part, {}).items()}
        settings = completed(base.but(method={**base.method, **own}, **leaves))
        again = settings_from(tomllib.loads(toml_of(settings)))
        assert again == settings
        assert toml_of(again) == toml_of(settings)
        assert method_of(again) == method_of(settings)


def test_what_is_not_set_is_left_out() -> None:
    """None has no form in TOML: the key is missing, and reads as None again."""
    table = table_of(described("pfedcs"))
    assert "beta" not in table["method"]
    assert "clients" not in table["data"]
    assert settings_from(table).data.clients is None
    assert settings_from({"method": {"name": "fedavg"}}) == described("fedavg")


def test_whole_numbers_stand_for_floats() -> None:
    """lr = 1 is lr = 1.0, with the same digest; it is a float afterwards."""
    one, other = (settings_from({"method": {"name": "fedavg"}, "training": {"lr": v}}) for v in (1, 1.0))
    assert one == other
    assert type(one.training.lr) is float
    assert digest(table_of(one)) == digest(table_of(other))


def test_the_digest_is_of_all_settings_that_decide() -> None:
    """Each single one; engine, place of states and settings for hosts decide nothing."""
    base = described("fedavg")
    found = {name: digest(table_of(base.but(**{name: value}))) for name, value in OTHERS.items() if name not in (
        "max_grad_norm", "delta")}  # fmt: skip
    same = {name for name, value in found.items() if value == digest(table_of(base))}
    assert same == {"engine", "state", *(name for name, group in leaf_groups().items() if group == "hosts")}
    assert len(set(found.values())) == len(found) - len(same) + 1
    others = [described("fedper"), described("fedavg@after_training=true"), base.but(made_by="a program")]
    assert len({digest(table_of(one)) for one in (base, *others)}) == 4


# ---- what is wrong is named ---------------------------------------------------------------------------------------
FEDAVG = {"name": "fedavg"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": {"lam": 1}}, "needs a name"),
        ({"method": {"name": "fedavgg"}}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": FEDAVG, "trainings": {}}, "^my.toml: unknown setting trainings; did you mean 'training'"),
        ({"method": "fedavg"}, "method = 'fedavg'"),
        ({"method": FEDAVG, "data": {"encodng": 1}}, r"\[data\] encodng; did you mean 'encoding'"),
        ({"method": {**FEDAVG, "lam": 1}}, r"\[method\]: unknown setting lam; there are after_training"),
        ({"method": {"name": "fedprox@mu=1", "mu": 2}}, "other values than its name"),
        ({"method": FEDAVG, "run": {"rounds": "ten"}}, r"\[run\] rounds = 'ten'"),
        ({"method": FEDAVG, "run": {"rounds": True}}, r"\[run\] rounds = True"),
        ({"method": FEDAVG, "compute": {"engine": "gpu"}}, "unknown engine 'gpu'"),
        ({"method": {"name": "da-pfl", "sigma": "mean"}}, "sigma.* got 'mean'"),
        ({"method": {"name": "ifca-cam", "inner": 3}}, "inner.* got 3"),
        ({"method": {"name": "ifca-cam", "inner": {"clusers": 3}}}, "inner: unknown setting clusers; .*'clusters'"),
        ({"method": {"name": "fedprox", "mu": -1}}, "mu of FedProx must be at least 0, got -1"),
        ({"method": FEDAVG, "made_by": "method Mine"}, "made by a program with method Mine"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_file_is_named(table: dict[str, Any], message: str) -> None:
    """The error names the file, the key, the value, and the nearest name that exists."""
    with pytest.raises(ConfigError, match=message):
        settings_from(table, "my.toml")


BEYOND: dict[str, Any] = {
    "clients": 0, "feature_noise": -1.0, "test": 1.0, "epochs": 0, "lr": float("nan"), "momentum": 1.0,
    "weight_decay": float("inf"), "clip": 0.0, "optimizer": "rmsprop", "epoch_decay": 0.0, "participation": 1.1,
    "rounds": 0, "dropout": 1.0, "weighting": "even", "oversampling": 0.9, "noise_multiplier": -1.0, "delta": 1.0,
    "metadata_epsilon": 0.0, "state": "disk", "max_share": 0.0, "reply_timeout": float("inf"), "seed": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_a_value_out_of_range_is_named(name: str) -> None:
    """By one gate, whichever way it came."""
    changes = {name: BEYOND[name]} | ({"noise_multiplier": 1.0} if name == "delta" else {})
    with pytest.raises(ConfigError, match=rf"\[{leaf_groups()[name]}\] {name} = "):
        checked(Settings().but(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "linear"}, "unknown schedule 'linear'"),
        ({"schedule": "step"}, "factor"),
        ({"plant": "labels@drift=1"}, "drift"),
        ({"attack": "flip"}, "unknown attack"),
        ({"attack": "scale@share=0.1"}, "no setting share; it has fraction"),
        ({"engine": "workers@n=-1"}, "n expected.* >= 0"),
        ({"engine": "workers@4"}, "NAME@FIELD=VALUE"),
        ({"rouds": 3}, "unknown setting rouds; did you mean 'rounds'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    """Choices and pairs, when the settings are made."""
    with pytest.raises(ConfigError, match=message):
        Settings().but(**changes)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No such file."""
    with pytest.raises(ConfigError, match=r"no config file .*nothing\.toml"):
        read_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    "text", [b"[run\nrounds = 3", b"rounds = ", b"\xff\xfe", b'[run]\nrounds = 1\n[run]\nseed = "']
)
def test_a_file_that_is_no_toml_is_named(text: bytes, tmp_path: Path) -> None:
    """What is no TOML is told with the place of the fault."""
    (tmp_path / "my.toml").write_bytes(text)

    with pytest.raises(ConfigError, match=r"my\.toml is not a TOML file: "):
        read_toml(tmp_path / "my.toml")


# ---- partitions ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PARTITIONS)
def test_settings_reach_the_partition_or_are_refused(name: str) -> None:
    """Each in the name's grammar; an unknown one with those that there are."""
    data, own = fedkin_data(), PARTITIONS[name]()
    for field, value in {"alpha": 0.3, "groups": 2, "classes_per_client": 3, "min_samples": 2}.items():
        how = DataSettings(partition=f"{name}@{field}={value}")
        if hasattr(own, field):
            assert getattr(partition_of(how, data), field) == value
        else:
            with pytest.raises(ConfigError, match=f"partition '{name}' has no setting {field}; it has .*with {field}"):
                partition_of(how, data)


def fedkin_data() -> Any:
    """Digits, which name no clients."""
    from fedkin.data import load

    return load("digits")


def test_an_unknown_partition_is_named() -> None:
    """With the nearest that exists, before the data are read."""
    with pytest.raises(ConfigError, match="unknown partition 'dirichlett'; did you mean 'dirichlet'"):
        completed(described("fedavg").but(partition="dirichlett"))
    with pytest.raises(ConfigError, match="alpha"):
        completed(described("fedavg").but(partition="dirichlet@alpha=-1"))


def test_hosts_get_the_tree_as_json() -> None:
    """What travels is the table of the settings."""
    settings = completed(CHANGED)
    assert settings_from(msgspec.json.decode(msgspec.json.encode(table_of(settings)))) == settings
    assert seeded(settings.data, 1).data_seed == 4
    assert Compute() == Settings().compute
    assert Training().decay == 0


def test_the_data_seed_is_the_runs_seed_unless_given() -> None:
    """data_seed fixes the partition for runs of different seeds."""
    free, fixed = DataSettings(clients=4), DataSettings(clients=4, data_seed=1)

    assert (
        federation_of(free, 1).fingerprint()
        == federation_of(fixed, 1).fingerprint()
        == federation_of(fixed, 2).fingerprint()
    )
    assert federation_of(free, 2).fingerprint() != federation_of(fixed, 2).fingerprint()


def test_clients_are_twenty_or_as_the_data_bring() -> None:
    """Twenty by default; the partition natural takes the clients of the data."""
    assert len(federation_of(DataSettings(), 0)) == 20
    assert len(federation_of(DataSettings(data="synthetic", partition="natural"), 0)) == 12
