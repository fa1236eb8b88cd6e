"""Flags: every leaf of the tree of settings under its own name, and which of several sources wins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commandline import Command
from fedkin.capabilities.presets import presets_of
from fedkin.cli.flags import FLAG_GROUPS, ShowCompare, ShowRun, compare_flags, run_flags, sweep_flags
from fedkin.core import ConfigError, Training
from fedkin.core.settings import Compute, DataSettings, ModelSettings, RunSettings, Settings, leaf_groups
from fedkin.experiment.settings import completed, method_of
from fedkin.methods import FedProx, get_method


def fields_of(args: str) -> dict[str, Any]:
    """The method's table of a complete command line."""
    return completed(run_flags(args.split())[0]).method


def test_every_leaf_has_a_name_of_its_own() -> None:
    """So a flag, and an argument of `fedkin.run`, needs no group; none is a word of the command line itself."""
    leaves = [leaf for group in FLAG_GROUPS for leaf in getattr(Settings(), group).__struct_fields__]
    assert len(set(leaves)) == len(leaves)
    assert not set(leaves) & {
        "method",
        "hosts",
        "settings",
        "out",
        "title",
        "resume",
        "progress",
        "on_round",
        "training",
    }
    assert set(leaf_groups()) >= set(leaves)


@pytest.mark.parametrize("name", ["FedProx", "fedprox", "Fed_Prox", "FEDPROX"])
def test_methods_go_by_their_papers_names(name: str, fedkin: Command, small: str) -> None:
    """On the command line and in configs, which keep the catalogue's name."""
    assert fedkin(f"run {name}@mu=0.3 {small} --quiet --out run").code == 0
    assert 'name = "fedprox@mu=0.3"' in Path("run/config.toml").read_text()
    Path("other.toml").write_text(f'[method]\nname = "{name}"\nmu = 0.3\n')
    settings = completed(run_flags(["other.toml"])[0])
    assert (settings.method["name"], method_of(settings)) == ("fedprox", FedProx(mu=0.3))


def test_every_common_setting_is_a_flag() -> None:
    """Values of all kinds reach the group that they belong to."""
    text = (
        "--data synthetic --clients 7 --partition dirichlet@alpha=0.25,balance=true --plant labels@groups=2 "
        "--split official --samples-per-client 9 --target y --binary --data-seed 3 --model small-cnn --head 0 "
        "--steps 3 --lr 1 --no-decay-biases --schedule step@factor=0.5 --rounds 6 --participation 0.5 --seed 8 "
        "--weighting uniform --late-joiners 2@3 --attack scale@fraction=0.1 --rule krum@fraction=0.1 "
        "--engine workers@n=3 --gradient autograd --out some/where --quiet --json --per-client"
    )
    settings, show = run_flags(["fedavg", *text.split()])
    assert settings.data == DataSettings(
        data="synthetic",
        clients=7,
        partition="dirichlet@alpha=0.25,balance=true",
        plant="labels@groups=2",
        split="official",
        samples_per_client=9,
        target="y",
        binary=True,
        data_seed=3,
    )
    assert settings.model == ModelSettings("small-cnn", "0")
    assert settings.training == Training(steps=3, lr=1.0, decay_biases=False, schedule="step@factor=0.5")
    run = RunSettings(6, 0.5, 8, weighting="uniform", late_joiners="2@3", attack="scale@fraction=0.1")
    assert settings.run == run
    assert settings.aggregation.rule == "krum@fraction=0.1"
    assert settings.compute == Compute("workers@n=3", gradient="autograd")
    assert show == ShowRun(out=Path("some/where"), quiet=True, json=True, per_client=True)


def test_fields_that_may_be_words_or_not_set() -> None:
    """DA-PFL's sigma takes a number or the word median; PFedCS's beta is None by default and takes a number."""
    assert fields_of("da-pfl@sigma=median")["sigma"] == "median"
    assert fields_of("da-pfl@sigma=0.5")["sigma"] == 0.5
    assert fields_of("pfedcs@beta=3")["beta"] == 3
    assert "beta" not in fields_of("pfedcs")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("fedavg --lrr 0.1", "--lr"),
        ("fedavg --rounds ten", "--rounds"),
        ("fedavg --participation 1.5", "participation = 1.5"),
        ("fedavg --rule trimed", "did you mean 'trimmed'"),
        ("fedavg --attack scale", "fraction"),
    ],
)
def test_a_typo_is_answered_without_torch(args: str, said: str) -> None:
    """Which takes seconds to import; with the flag that was meant, or the value."""
    code = f"import sys; from fedkin.cli import main; code = 0\ntry: code = main({['run', *args.split()]!r})\n"
    code += "except SystemExit as e: code = e.code\nprint(code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert said in done.stderr


# ---- presets ------------------------------------------------------------------------------------------------------
def test_a_preset_changes_fields_training_and_run() -> None:
    """da-pfl's "code" sets the fields and the training settings of the authors' program; FedGH's the moment of scores,
    unless a flag names another. Other flags win as well, wherever they stand."""
    settings = run_flags(["da-pfl", "--preset", "code"])[0]
    preset = presets_of(get_method("da-pfl"))["code"]
    assert preset["training"].items() <= {f: getattr(settings.training, f) for f in Training.__struct_fields__}.items()
    assert {k: v for k, v in preset.items() if k not in ("training", "run")}.items() <= settings.method.items()
    more = run_flags(["da-pfl", "--momentum", "0.25", "--preset=code"])[0]
    assert more == settings.but(momentum=0.25)
    given = (["--preset", "code"], ["--preset", "code", "--evaluate", "delivered"], [], ["--evaluate", "trained"])
    moments = [run_flags(["fedgh", *args])[0].run.evaluate for args in given]
    assert moments == ["trained", "delivered", "delivered", "trained"]


# ---- files and flags ----------------------------------------------------------------------------------------------
def test_flags_win_over_a_file(tmp_path: Path) -> None:
    """A setting from the file stays unless a flag gives it; what neither gives has its default."""
    path = tmp_path / "my.toml"
    path.write_text(
        '[method]\nname = "fesem-cam"\nwarmup = 2\n[method.inner]\nclusters = 4\nlam = 0.5\n'
        "[run]\nrounds = 9\nseed = 3\n[training]\nlr = 0.2\n"
    )
    settings = completed(run_flags([str(path), "--rounds", "5", "--epochs", "3"])[0])
    assert (settings.method["name"], settings.run) == ("fesem-cam", RunSettings(rounds=5, seed=3))
    assert settings.training == Training(epochs=3, lr=0.2)
    assert settings.method["warmup"] == 2
    assert (settings.method["inner"]["clusters"], settings.method["inner"]["lam"]) == (4, 0.5)
    swept = sweep_flags([str(path), "--grid", "training.lr=0.1", "--rounds", "5", "--epochs", "3"])[0]
    assert swept.base == settings


REPAIRS = {
    "--tune 0": ("tune = -1\n", "tune: expected"),
    "--validation 0.1": ("tune = 4\n[data]\nvalidation = 0.0\n", "--validation must be above 0"),
    "--seeds 1 2": ("seeds = [1, 1]\n", "numbers that differ"),
    "--safe": ('baseline = "ifca-safe"\n', "ifca-safe is not compared"),
    "--set ifca.clusters=3": ("[method.ifca]\nclusters = 0\n", "clusters of IFCA must be at least"),
}


@pytest.mark.parametrize("flags", REPAIRS)
def test_flags_may_mend_a_file_of_a_comparison(flags: str, tmp_path: Path) -> None:
    """Settings of methods, of tuning and of the baseline are checked against the others when all are known."""
    path, (file, refused) = tmp_path / "my.toml", REPAIRS[flags]
    path.write_text('methods = ["IFCA", "scaffold"]\n' + file)
    with pytest.raises(ConfigError, match=refused):
        compare_flags([str(path)])
    assert compare_flags([str(path), *flags.split()])[0].methods == ("ifca", "scaffold")


# ---- compare ------------------------------------------------------------------------------------------------------
def test_compare_takes_methods_seeds_and_settings() -> None:
    """Names first, then flags; --set takes several."""
    text = "da-pfl ifca --seeds 3 4 --rounds 7 --set da-pfl.lam=0.5 ifca.clusters=4 da-pfl.include-self=true --out x"
    plan, show = compare_flags(text.split())
    assert plan.methods == ("da-pfl", "ifca")
    assert plan.seeds == (3, 4)
    assert plan.base.run == RunSettings(rounds=7)
    assert plan.own == {"da-pfl": {"lam": 0.5, "include_self": True}, "ifca": {"clusters": 4}}
    assert show == ShowCompare(out=Path("x"))


def test_set_reaches_the_method_inside() -> None:
    """Fields of a wrapped method go by their own names; the wrapper's own stay its own."""
    plan, _ = compare_flags(["fesem-cam", "--set", "fesem-cam.clusters=4", "fesem-cam.warmup=2", "fesem-cam.lam=0.5"])
    method = plan.settings("fesem-cam", 0).method
    assert plan.own == {"fesem-cam": {"inner": {"clusters": 4, "lam": 0.5}, "warmup": 2}}
    assert (method["inner"]["clusters"], method["inner"]["lam"], method["warmup"]) == (4, 0.5, 2)


@pytest.mark.parametrize("flag", ["--seed 3", "--seed=3", "--seeds 3"])
def test_one_seed_is_a_list_of_one(flag: str) -> None:
    """``--seed`` of `fedkin run` means the same to a comparison and a sweep."""
    assert compare_flags(f"da-pfl {flag}".split())[0].seeds == (3,)
    assert sweep_flags(f"da-pfl --grid training.lr=0.1 {flag}".split())[0].seeds == (3,)


def test_data_are_remembered_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is stored absolute, so that a resume works from any folder; a built-in name stays a name."""
    (tmp_path / "mine.csv").write_text("a,y\n1,0\n")
    monkeypatch.chdir(tmp_path)
    assert completed(run_flags(["fedavg", "--data", "mine.csv"])[0]).data.data == str(tmp_path / "mine.csv")
    assert completed(run_flags(["fedavg", "--data", "digits"])[0]).data.data == "digits"
