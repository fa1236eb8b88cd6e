"""Settings: what is written to a TOML file comes back; what is wrong in one is named."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedkin.capabilities.presets import TABLES, presets_of
from fedkin.core import Aggregation, ConfigError, Method, Training
from fedkin.data import PARTITIONS
from fedkin.experiment.settings import (
    Compute,
    DataSettings,
    ModelSettings,
    RunSettings,
    Settings,
    Setup,
    digest,
    settings_from,
)
from fedkin.methods import METHODS, get_method
from fedkin.privacy.budget import Privacy
from fedkin.server import Attack
from fedkin.storage.toml import fill, read_toml

CHANGED = {  # every field at a value that is not its default
    "data": DataSettings(
        data="synthetic",
        clients=7,
        partition="cluster-dirichlet",
        alpha=0.3,
        classes_per_client=3,
        groups=2,
        classes_per_group=4,
        plant="labels",
        drift_round=3,
        drift_fraction=0.4,
        feature_noise=0.3,
        alpha_between=0.2,
        alpha_within=9.0,
        min_samples=3,
        tries=17,
        balance=True,
        equal_shares=True,
        protocol="femnist",
        split="official",
        test=0.3,
        validation=0.0,
        samples_per_client=11,
        target="y",
        client_column="who",
        binary=True,
        drop="id,date",
        image_size=32,
        scaling="client",
        encoding="cp1252",
        data_seed=4,
    ),
    "model": ModelSettings("package.module:factory", "head.1", "/a/start.safetensors"),
    "training": Training(
        epochs=2,
        steps=3,
        batch_size=4,
        lr=0.5,
        momentum=0.9,
        weight_decay=1e-4,
        decay_biases=False,
        clip=2.0,
        lr_decay=0.99,
        lr_decay_every=3,
        epoch_decay=0.9,
    ),
    "run": RunSettings(
        *(9, 0.5, 7, 2, 3, "trained", "uniform", 0.25, "2@4,1@5", 2, 1.5),
    ),
    "aggregation": Aggregation("norm", 0.3, 2.0),
    "attack": Attack("sign-flip", 0.25),
    "privacy": Privacy(1.5, 2.0, 1e-6, 0.5),
    "compute": Compute("loop", 3, "autograd", "file"),
}


ELSEWHERE: dict[str, Any] = {"optimizer": "adam", "schedule": "cosine"}  # refused next to momentum and lr_decay


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, float) else value


def moved(method: Method) -> Method:
    """The method with every flag turned over and every number halved, inside too."""
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    values = {k: moved(v) if isinstance(v, Method) else changed(v) for k, v in fields.items()}
    return dataclasses.replace(method, **values)  # type: ignore[type-var]


# ---- round trips --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_its_file(name: str) -> None:
    """Defaults and changed fields alike: settings -> TOML -> settings are equal, and so are their digests."""
    for method in (get_method(name), moved(get_method(name))):
        settings = Settings(name, method, **CHANGED)
        again = settings_from(tomllib.loads(settings.toml()))

        assert again == settings
        assert again.digest() == settings.digest()
        assert again.toml() == settings.toml()


@pytest.mark.parametrize("name", METHODS)
def test_presets_survive_their_file(name: str) -> None:
    """The fields, the training settings and the run of every preset can be written and read."""
    base = get_method(name)
    for preset, table in presets_of(base).items():
        method = fill(base, {k: v for k, v in table.items() if k not in TABLES}, preset)
        training, run = (
            fill(Training(), table.get("training", {}), preset),
            fill(RunSettings(), table.get("run", {}), preset),
        )
        settings = Settings(name, method, training=training, run=run)

        written = dataclasses.replace(settings, data=settings.data.resolved())
        assert settings_from(tomllib.loads(settings.toml())) == written


def test_every_setting_is_tried_above() -> None:
    """The changed settings differ from the defaults in every field, so the round trip covers them all; two that go with
    the defaults of others are tried here."""
    others = Settings("fedavg", get_method("fedavg"), training=Training(**ELSEWHERE))
    assert settings_from(tomllib.loads(others.toml())).training == others.training
    assert {f.name for f in dataclasses.fields(Setup)} == {*CHANGED, "hosts"}
    for part in CHANGED.values():
        default = type(part)()
        for f in dataclasses.fields(part):
            if f.name == "secure" or f.name in ELSEWHERE:  # with the mean only
                continue
            assert getattr(part, f.name) != getattr(default, f.name), f.name


def test_what_is_not_set_is_left_out() -> None:
    """None has no form in TOML: the key is missing, and reads as None again."""
    table = Settings("pfedcs", get_method("pfedcs")).table()

    assert "beta" not in table["method"]
    assert "clients" not in table["data"]
    assert settings_from(table).data.clients is None


def test_a_short_file_is_enough() -> None:
    """A method's name alone is a config; everything else has its default."""
    assert settings_from({"method": {"name": "fedavg"}}) == Settings("fedavg", get_method("fedavg"))


def test_a_wrapped_method_has_a_table_of_its_own() -> None:
    """[method.inner] sets fields of the method inside; the rest stays."""
    settings = settings_from({"method": {"name": "fesem-cam", "inner": {"clusters": 5}, "warmup": 2}})
    default = get_method("fesem-cam")

    assert settings.method == dataclasses.replace(  # type: ignore[type-var]
        default,
        warmup=2,
        inner=dataclasses.replace(default.inner, clusters=5),  # type: ignore[attr-defined]
    )


def test_whole_numbers_stand_for_floats() -> None:
    """lr = 1 is lr = 1.0, with the same digest; it is a float afterwards."""
    one, other = (settings_from({"method": {"name": "fedavg"}, "training": {"lr": v}}) for v in (1, 1.0))

    assert one == other
    assert type(one.training.lr) is float
    assert one.digest() == other.digest()
    assert digest({"run": {"dropout": 0}}) == digest({"run": {"dropout": 0.0}})


def test_a_field_may_be_a_number_or_a_word() -> None:
    """DA-PFL's sigma takes a number or "median"; the file keeps which."""
    for sigma in (0.5, "median"):
        settings = settings_from({"method": {"name": "da-pfl", "sigma": sigma}})
        assert settings_from(tomllib.loads(settings.toml())).method.sigma == sigma  # type: ignore[attr-defined]


# ---- the digest ---------------------------------------------------------------------------------------------------
def test_engine_workers_and_state_are_no_part_of_the_digest() -> None:
    """How clients are trained decides nothing."""
    one = Settings("fedavg", get_method("fedavg"))
    other = dataclasses.replace(one, compute=Compute(engine="loop", workers=3, state="file"))

    assert one.digest() == other.digest()


def test_every_other_setting_changes_the_digest() -> None:
    """Each single setting beside engine, workers and state is part of the digest."""
    base = Settings("fedavg", get_method("fedavg"))
    seen, usual = {base.digest()}, base.table()
    for table, part in {**CHANGED, "aggregation": Aggregation("norm", 0.3, 2.0)}.items():
        for f in dataclasses.fields(part):
            if f.name in ("engine", "workers", "state"):
                continue
            value = True if f.name == "secure" else ELSEWHERE.get(f.name, getattr(part, f.name))
            seen.add(digest({**usual, table: {**usual[table], f.name: value}}))
    seen.add(Settings("fedper", get_method("fedper")).digest())
    seen.add(settings_from({"method": {"name": "fedavg", "after_training": True}}).digest())

    assert len(seen) == 3 + sum(len(dataclasses.fields(p)) for p in CHANGED.values()) - 3


# ---- what is wrong is named ---------------------------------------------------------------------------------------
FEDAVG = {"name": "fedavg"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r'\[method\] needs a name, for example name = "fedavg"'),
        ({"method": {"lam": 1}}, "needs a name"),
        ({"method": {"name": "fedavgg"}}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": {"name": 3}}, "unknown method '3'"),
        ({"method": FEDAVG, "trainings": {}}, r"unknown table \[trainings\]; did you mean 'training'"),
        ({"method": FEDAVG, "rounds": 3}, r"unknown table \[rounds\]"),
        ({"method": "fedavg"}, r"\[method\] must be a table, got 'fedavg'"),
        ({"method": FEDAVG, "data": "digits"}, r"\[data\] must be a table, got 'digits'"),
        ({"method": FEDAVG, "data": {"alhpa": 1}}, r"\[data\]: unknown setting alhpa; did you mean 'alpha'"),
        ({"method": {**FEDAVG, "lam": 1}}, r"\[method\]: unknown setting lam; there are after_training"),
        ({"method": FEDAVG, "run": {"rounds": "ten"}}, r"\[run\] rounds must be a whole number, got 'ten'"),
        ({"method": FEDAVG, "run": {"rounds": 2.5}}, r"\[run\] rounds must be a whole number, got 2.5"),
        ({"method": FEDAVG, "run": {"rounds": True}}, r"\[run\] rounds must be a whole number, got True"),
        ({"method": FEDAVG, "run": {"dropout": "no"}}, r"\[run\] dropout must be a number, got 'no'"),
        ({"method": FEDAVG, "run": {"dropout": False}}, r"\[run\] dropout must be a number, got False"),
        (
            {"method": FEDAVG, "compute": {"engine": "gpu"}},
            r"\[compute\] engine must be 'auto' or 'workers' or 'loop' or 'stacked', got 'gpu'",
        ),
        ({"method": FEDAVG, "compute": {"engine": ["loop"]}}, r"engine must be .* got \['loop'\]"),
        ({"method": FEDAVG, "data": {"binary": 1}}, r"\[data\] binary must be true or false, got 1"),
        ({"method": FEDAVG, "model": {"model": 3}}, r"\[model\] model must be a text, got 3"),
        ({"method": {"name": "da-pfl", "sigma": True}}, r"sigma must be a number or 'median', got True"),
        ({"method": {"name": "da-pfl", "sigma": "mean"}}, r"sigma must be a number or 'median', got 'mean'"),
        ({"method": {"name": "ifca-cam", "inner": 3}}, r"\[method\] inner must be a table, got 3"),
        ({"method": {"name": "ifca-cam", "inner": {"clusers": 3}}}, r"inner: unknown setting clusers; .*'clusters'"),
        ({"method": {"name": "ifca-cam", "inner": {"clusters": 0}}}, "clusters of IFCA must be at least 1, got 0"),
        ({"method": {"name": "fedprox", "mu": -1}}, "mu of FedProx must be at least 0, got -1"),
        ({"method": FEDAVG, "training": {"lr": 0}}, "lr must be a positive number, got 0"),
        ({"method": FEDAVG, "made_by": "method Mine"}, "made by a program with method Mine"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_file_is_named(table: dict[str, Any], message: str) -> None:
    """The error names the file, the key, the value, and the nearest name that exists."""
    with pytest.raises(ConfigError, match=message):
        settings_from(table, "my.toml")


def test_the_file_is_named() -> None:
    """Messages about keys begin with where they stand."""
    with pytest.raises(ConfigError, match=r"^my\.toml: \[run\]: unknown setting round; did you mean 'rounds'"):
        settings_from({"method": FEDAVG, "run": {"round": 3}}, "my.toml")


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
OF_PARTITIONS = {
    "alpha": 0.3,
    "classes_per_client": 3,
    "groups": 2,
    "classes_per_group": 3,
    "alpha_between": 0.2,
    "alpha_within": 5.0,
    "min_samples": 2,
    "tries": 7,
    "balance": True,
    "equal_shares": True,
    "protocol": "femnist",
}
NAMES = {"equal_shares": "balanced", "protocol": "variant"}


@pytest.mark.parametrize("name", PARTITIONS)
def test_settings_reach_the_partition_or_are_refused(name: str) -> None:
    """Each setting of a partition arrives in it; one that it does not have is an error with the ones it has."""
    own = {f.name for f in dataclasses.fields(PARTITIONS[name])}  # type: ignore[arg-type]
    for setting, value in OF_PARTITIONS.items():
        data = DataSettings(partition=name, **{setting: value})  # type: ignore[arg-type]
        there = NAMES.get(setting, setting)
        if there in own:
            assert getattr(data.partition_object(), there) == value
        else:
            with pytest.raises(ConfigError, match=f"partition '{name}' has no setting {setting} .given: {value}"):
                data.partition_object()


def test_the_error_lists_partitions_that_have_the_setting() -> None:
    """``--groups`` with the default partition names those that it is for."""
    with pytest.raises(ConfigError, match=r"; partitions with groups: cluster-dirichlet, cluster-classes$"):
        DataSettings(groups=3).partition_object()


def test_the_error_lists_settings_by_the_names_that_work() -> None:
    """What a partition has is listed under the names that a file and a flag take, none others."""
    with pytest.raises(ConfigError, match=r"it has classes_per_client, equal_shares; partitions with alpha: "):
        DataSettings(partition="classes", alpha=1.0).partition_object()
    with pytest.raises(ConfigError, match=r"it has none; partitions with alpha: dirichlet, "):
        DataSettings(partition="iid", alpha=1.0).partition_object()


def test_one_name_for_all_of_dapfls_protocol() -> None:
    """dapfl-paper: test samples from the official part, no validation part; the femnist variant has no official part.
    What was meant is written to the run's table, so a run can be repeated without the name."""
    for name, variant, split in (("dapfl-paper", "cifar", "official"), ("dapfl-paper-femnist", "femnist", "pooled")):
        data = DataSettings(partition=name, alpha=1.0)
        shared = data.sharing(0)
        assert shared.partition == PARTITIONS["dapfl"](alpha=1.0, variant=variant)  # type: ignore[call-arg]
        assert (shared.split, shared.validation, shared.test) == (split, 0.0, 0.2)
        written = Settings("fedavg", get_method("fedavg"), data=data).table()["data"]
        assert {n: written[n] for n in ("partition", "protocol", "split", "validation")} == {
            "partition": "dapfl",
            "protocol": variant,
            "split": split,
            "validation": 0.0,
        }
        assert settings_from({"method": {"name": "fedavg"}, "data": written}).data.sharing(0) == shared
    plain = DataSettings(partition="dapfl").sharing(0)
    assert (plain.split, plain.validation) == ("pooled", 0.1)


SOURCE = """
import torch
import fedkin
from fedkin.data.partition import IID

def named():
    "Three clients with 4, 30 and 40 samples."
    torch.manual_seed(0)
    return {name: (torch.randn(n, 3), torch.arange(n) % 2) for name, n in (("a", 4), ("b", 30), ("c", 40))}

def plain():
    return fedkin.load("digits")

def shared():
    return fedkin.federate(fedkin.load("digits"), IID(), clients=3)
"""


def test_a_minimum_of_samples_holds_for_data_that_decide_who_the_clients_are(tmp_path: Path) -> None:
    """A function may give clients or one data set: the minimum is that of natural, or of dirichlet. A federation is
    shared out already."""
    (tmp_path / "own.py").write_text(SOURCE)
    data = {name: f"{tmp_path / 'own.py'}:{name}" for name in ("named", "plain", "shared")}
    assert len(DataSettings(data["named"]).federation(0)) == 2
    assert len(DataSettings(data["named"], min_samples=1).federation(0)) == 3
    found = DataSettings(data["plain"], clients=20, min_samples=60).federation(0)
    assert found.sizes().sum(1).min() >= 60
    assert DataSettings(data["plain"], clients=20).federation(0).sizes().sum(1).min() < 60
    with pytest.raises(ConfigError, match="shared out already; leave out min_samples"):
        DataSettings(data["shared"], min_samples=1).federation(0)
    assert DataSettings("digits", min_samples=30).sharing(0).min_samples is None


def test_a_protocol_refuses_other_settings_than_its_own() -> None:
    """A value that the protocol fixes otherwise is named, with the partition that leaves it open."""
    wanted = r"partition 'dapfl-paper' means validation = 0.0, got 0.2; leave validation out, or take partition 'dapfl'"
    with pytest.raises(ConfigError, match=wanted):
        DataSettings(partition="dapfl-paper", validation=0.2).sharing(0)
    with pytest.raises(ConfigError, match="means protocol = 'cifar', got 'femnist'"):
        DataSettings(partition="dapfl-paper", protocol="femnist").resolved()
    with pytest.raises(ConfigError, match="did you mean 'dapfl-paper'"):
        DataSettings(partition="dapfl-papre").partition_object()


def test_an_unknown_partition_is_named() -> None:
    """With the nearest that exists."""
    with pytest.raises(ConfigError, match="unknown partition 'dirichlett'; did you mean 'dirichlet'"):
        DataSettings(partition="dirichlett").partition_object()


def test_the_data_seed_is_the_runs_seed_unless_given() -> None:
    """data_seed fixes the partition for runs of different seeds."""
    free, fixed = DataSettings(clients=4), DataSettings(clients=4, data_seed=1)

    assert free.federation(1).fingerprint() == fixed.federation(1).fingerprint() == fixed.federation(2).fingerprint()
    assert free.federation(2).fingerprint() != fixed.federation(2).fingerprint()


def test_clients_are_twenty_or_as_the_data_bring() -> None:
    """Twenty by default; the partition natural takes the clients of the data."""
    assert len(DataSettings().federation(0)) == 20
    assert len(DataSettings(data="synthetic", partition="natural").federation(0)) == 12
