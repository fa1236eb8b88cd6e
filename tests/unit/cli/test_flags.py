"""Flags: every field of every settings table under its own name, and which of several sources wins."""

from __future__ import annotations

import dataclasses
import linecache
from pathlib import Path
from typing import Any

import pytest

from commandline import Command
from fedkin.capabilities.presets import preset, presets_of
from fedkin.cli.flags import RunsSettings, ShowCompare, ShowRun, compare_flags, parts_of, run_flags, sweep_flags
from fedkin.cli.parts import flags_of, renamed
from fedkin.core import ConfigError, Method, Training
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings, Setup, settings_from
from fedkin.methods import METHODS, FedGH, FedProx, get_method
from thorough import OF_EVERY_KIND, thorough_except

COMMON = {**parts_of(Setup()), "show": ShowRun()}
TOGETHER = {**parts_of(Setup()), "runs": RunsSettings(), "show": ShowCompare()}


def fields_of(method: Method) -> list[tuple[str, Any]]:
    """Names and values of a method's fields and of those of the method inside."""
    found: list[tuple[str, Any]] = []
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        found += fields_of(value) if isinstance(value, Method) else [(f.name, value)]
    return found


# ---- names --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
def test_no_field_of_a_method_is_a_common_flag(name: str) -> None:
    """A flag means one thing: no field of a method has the name of a common setting, or of one of a method inside."""
    own = [field for field, _ in fields_of(get_method(name))]
    common = {
        flag.replace("-", "_") for name, part in COMMON.items() for flag in flags_of(part, renamed(name, {})).values()
    }

    assert len(set(own)) == len(own)
    assert not set(own) & common
    assert "name" not in own  # which is the method's own name in a file


@pytest.mark.parametrize("parts", [COMMON, TOGETHER], ids=["run", "compare"])
def test_no_two_common_settings_have_one_flag(parts: dict[str, Any]) -> None:
    """The tables of a config are apart in a file, not on the command line."""
    names = [flag for name, part in parts.items() for flag in flags_of(part, renamed(name, parts)).values()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["FedProx", "fedprox", "Fed_Prox", "FEDPROX"])
def test_methods_go_by_their_papers_names(name: str, fedkin: Command, small: str) -> None:
    """On the command line and in configs, which keep the catalogue's name."""
    assert fedkin(f"run {name} {small} --mu 0.3 --quiet --out run").code == 0
    assert 'name = "fedprox"' in Path("run/config.toml").read_text()
    Path("other.toml").write_text(f'[method]\nname = "{name}"\nmu = 0.3\n')
    settings, _ = run_flags(["other.toml"])
    assert (settings.name, settings.method) == ("fedprox", FedProx(mu=0.3))


@pytest.mark.parametrize("name", thorough_except(METHODS, OF_EVERY_KIND))
def test_every_field_of_a_method_is_a_flag(name: str) -> None:
    """Each field of a method, given as --field VALUE, arrives in that method and changes nothing else."""
    plain = get_method(name)
    args: list[str] = []
    for field, value in fields_of(plain):
        flag = field.replace("_", "-")
        if isinstance(value, bool):
            args += [f"--no-{flag}" if value else f"--{flag}"]
        elif isinstance(value, (int, float)):
            args += [f"--{flag}", str(type(value)(value / 2) if isinstance(value, float) else value + 1)]
        elif value is not None:
            args += [f"--{flag}", value]
    settings, _ = run_flags([name, *args])

    for (field, old), (_, new) in zip(fields_of(plain), fields_of(settings.method), strict=True):
        if isinstance(old, bool):
            assert new is not old, field
        elif isinstance(old, float):
            assert new == old / 2, field
        elif isinstance(old, int):
            assert new == old + 1, field
        else:
            assert new == old, field
    assert dataclasses.replace(settings, method=plain) == settings_from({"method": {"name": name}})


def test_every_common_setting_is_a_flag() -> None:
    """Values of all kinds reach the table that they belong to."""
    text = (
        "--data synthetic --clients 7 --partition iid --alpha 0.25 --tries 7 --balance --equal-shares --protocol cifar "
        "--split official --samples-per-client 9 --target y --binary --data-seed 3 --model small-cnn --head 0 "
        "--steps 3 --lr 1 --no-decay-biases --rounds 6 --participation 0.5 --seed 8 --weighting uniform "
        "--late-joiners 2@3 --engine loop --gradient autograd "
        "--workers 3 --out some/where --quiet --json --per-client"
    )
    settings, show = run_flags(["fedavg", *text.split()])

    assert settings.data == DataSettings(
        data="synthetic",
        clients=7,
        partition="iid",
        alpha=0.25,
        tries=7,
        balance=True,
        equal_shares=True,
        protocol="cifar",
        split="official",
        samples_per_client=9,
        target="y",
        binary=True,
        data_seed=3,
    )
    assert settings.model == ModelSettings("small-cnn", "0")
    assert settings.training == Training(steps=3, lr=1.0, decay_biases=False)
    assert settings.run == RunSettings(6, 0.5, 8, weighting="uniform", late_joiners="2@3")
    assert settings.compute == Compute(gradient="autograd", engine="loop", workers=3)
    assert show == ShowRun(out=Path("some/where"), quiet=True, json=True, per_client=True)


def test_a_field_that_may_be_a_word() -> None:
    """DA-PFL's sigma takes a number or the word median."""
    assert run_flags(["da-pfl", "--sigma", "median"])[0].method.sigma == "median"  # type: ignore[attr-defined]
    assert run_flags(["da-pfl", "--sigma", "0.5"])[0].method.sigma == 0.5  # type: ignore[attr-defined]


def test_a_field_that_is_not_set_by_default() -> None:
    """PFedCS's beta is None by default and takes a number."""
    assert run_flags(["pfedcs", "--beta", "3"])[0].method.beta == 3  # type: ignore[attr-defined]
    assert run_flags(["pfedcs"])[0].method.beta is None  # type: ignore[attr-defined]


# ---- presets ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [["--preset", "code"], ["--preset=code"]], ids=" ".join)
def test_a_preset_changes_fields_and_training(given: list[str]) -> None:
    """da-pfl's "code" sets the fields and the training settings of the authors' program."""
    settings, _ = run_flags(["da-pfl", *given])
    preset = presets_of(get_method("da-pfl"))["code"]

    assert preset["training"]
    for name, value in preset["training"].items():
        assert getattr(settings.training, name) == value
    for name, value in preset.items():
        if name not in ("training", "run"):
            assert getattr(settings.method, name) == value
    assert settings.training != Training()
    assert settings.method != get_method("da-pfl")


def test_a_preset_changes_the_run() -> None:
    """The authors of FedGH score after local training; a flag for another moment wins, and no other run is touched."""
    moments = [run_flags(args)[0].run.evaluate for args in (
        ["fedgh", "--preset", "code"], ["fedgh", "--preset", "code", "--evaluate", "delivered"], ["fedgh"],
        ["fedgh", "--evaluate", "trained"],
    )]  # fmt: skip
    assert moments == ["trained", "delivered", "delivered", "trained"]
    assert preset(FedGH, "code") == FedGH(clip=50.0)


def test_other_flags_win_over_a_preset() -> None:
    """Wherever they stand."""
    plain, _ = run_flags(["da-pfl", "--preset", "code"])
    settings, _ = run_flags(["da-pfl", "--momentum", "0.25", "--preset", "code", "--distance", "squared"])

    assert settings.training == dataclasses.replace(plain.training, momentum=0.25)
    assert settings.method == dataclasses.replace(plain.method, distance="squared")  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("da-pfl --preset codes", "da-pfl has no preset 'codes'; it has paper, code"),
        ("fedavg --preset code", "fedavg has no preset 'code'; it has none"),
    ],
)
def test_an_unknown_preset_is_named(args: str, message: str) -> None:
    """With the ones that the method has."""
    with pytest.raises(ConfigError, match=message):
        run_flags(args.split())


def test_a_preset_without_its_name(fedkin: Command) -> None:
    """--preset as the last word is told like any flag without its value."""
    done = fedkin("run da-pfl --preset")

    assert (done.code, done.out) == (2, "")
    assert "--preset" in done.err
    assert "Traceback" not in done.err


# ---- files and flags ----------------------------------------------------------------------------------------------
def test_flags_win_over_a_file(tmp_path: Path) -> None:
    """A setting from the file stays unless a flag gives it; what neither gives has its default."""
    (tmp_path / "my.toml").write_text(
        '[method]\nname = "fesem-cam"\nwarmup = 2\n[method.inner]\nclusters = 4\nlam = 0.5\n'
        "[run]\nrounds = 9\nseed = 3\n[training]\nlr = 0.2\n"
    )
    settings, _ = run_flags([str(tmp_path / "my.toml"), "--rounds", "5", "--clusters", "2", "--epochs", "3"])

    assert (settings.name, settings.run) == ("fesem-cam", RunSettings(rounds=5, seed=3))
    assert settings.training == Training(epochs=3, lr=0.2)
    assert settings.method == dataclasses.replace(  # type: ignore[type-var]
        get_method("fesem-cam"),
        warmup=2,
        inner=dataclasses.replace(get_method("fesem-cam").inner, clusters=2, lam=0.5),  # type: ignore[attr-defined]
    )


REPAIRS = {
    "--rounds 2": ("[run]\nrounds = 0\n", "rounds must be at least 1"),
    "--attack-fraction 0.2": ('[attack]\nkind = "sign-flip"\n', "give both, kind and fraction"),
    "--noise-multiplier 1": ("[privacy]\ndelta = 1e-6\n", "also give noise_multiplier"),
    "--aggregation mean": ('[aggregation]\nsecure = true\nrule = "median"\n', "choose one"),
    "--lam 1": ("[method.inner]\nlam = -1\n", "lam of FeSEM must be"),
}
"""Flags that mend a file of a run: its faulty settings, and the message about them."""
REPAIRS_OF_COMPARISONS = {
    "--tune 0": ("tune = -1\n", "tune must be a number of trials"),
    "--validation 0.1": ("tune = 4\n[data]\nvalidation = 0.0\n", "--validation must be above 0"),
    "--seeds 1 2": ("seeds = [1, 1]\n", "seeds must differ"),
    "--safe": ('baseline = "ifca-safe"\n', "baseline must be a method that is compared"),
    "--safe ": ('[method.ifca-safe]\nmode = "sure"\n', "which is not compared"),
    "--set ifca.clusters=3": ("[method.ifca]\nclusters = 0\n", "clusters of IFCA must be at least"),
    "--optimizer sgd": ('[training]\noptimizer = "adam"\n', "set optimizer"),
}
"""The same for a file of a comparison."""


@pytest.mark.parametrize("flags", thorough_except(REPAIRS, ["--attack-fraction 0.2"]))
def test_flags_may_mend_a_file(flags: str, tmp_path: Path) -> None:
    """What contradicts itself in a file is refused only if it still does with the flags."""
    path, (file, refused) = tmp_path / "my.toml", REPAIRS[flags]
    path.write_text('[method]\nname = "fesem-cam"\n' + file)
    with pytest.raises(ConfigError, match=refused):
        run_flags([str(path)])
    run_flags([str(path), *flags.split()])
    sweep_flags([str(path), "--grid", "training.lr=0.1", *flags.split()])


@pytest.mark.parametrize("flags", thorough_except(REPAIRS_OF_COMPARISONS, ["--validation 0.1"]))
def test_flags_may_mend_a_file_of_a_comparison(flags: str, tmp_path: Path) -> None:
    """Settings of methods, of tuning and of the baseline are checked against the others when all are known."""
    path, (file, refused) = tmp_path / "my.toml", REPAIRS_OF_COMPARISONS[flags]
    path.write_text('methods = ["IFCA", "scaffold"]\n' + file)
    with pytest.raises(ConfigError, match=refused):
        compare_flags([str(path)])
    assert compare_flags([str(path), *flags.split()])[0].methods == ("ifca", "scaffold")


@pytest.mark.parametrize("given", [["--epochs", "3"], ["--epochs=3"]], ids=" ".join)
def test_epochs_on_the_command_line_beat_steps_in_a_file(given: list[str], tmp_path: Path) -> None:
    """A file that counts in steps, and --epochs: epochs it is. Without the flag steps stay."""
    (tmp_path / "my.toml").write_text('[method]\nname = "fedavg"\n[training]\nsteps = 7\n')
    path = str(tmp_path / "my.toml")

    assert run_flags([path, *given])[0].training == Training(epochs=3)
    assert run_flags([path])[0].training == Training(steps=7)


@pytest.mark.parametrize("read", [run_flags, compare_flags], ids=["run", "compare"])
def test_epochs_and_steps_together(read: Any) -> None:
    """Both at once cannot be meant."""
    with pytest.raises(ConfigError, match="--epochs or --steps, not both"):
        read(["fedavg", "--epochs", "3", "--steps", "2"])


# ---- compare ------------------------------------------------------------------------------------------------------
def test_compare_takes_methods_seeds_and_settings() -> None:
    """Names first, then flags; --set takes several."""
    text = "da-pfl ifca --seeds 3 4 --rounds 7 --set da-pfl.lam=0.5 ifca.clusters=4 da-pfl.include-self=true --out x"
    plan, show = compare_flags(text.split())

    assert plan.methods == ("da-pfl", "ifca")
    assert plan.seeds == (3, 4)
    assert plan.run == RunSettings(rounds=7)
    assert plan.own == {"da-pfl": {"lam": 0.5, "include_self": True}, "ifca": {"clusters": 4}}
    assert show == ShowCompare(out=Path("x"))


def test_set_reaches_the_method_inside() -> None:
    """Fields of a wrapped method go by their own names, as on ``fedkin run``; the wrapper's own stay its own."""
    plan, _ = compare_flags(["fesem-cam", "--set", "fesem-cam.clusters=4", "fesem-cam.warmup=2", "fesem-cam.lam=0.5"])
    method = plan.settings("fesem-cam", 0).method

    assert plan.own == {"fesem-cam": {"inner": {"clusters": 4, "lam": 0.5}, "warmup": 2}}
    assert (method.inner.clusters, method.inner.lam, method.warmup) == (4, 0.5, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("flag", ["--seed 3", "--seed=3", "--seeds 3"])
def test_one_seed_is_a_list_of_one(flag: str) -> None:
    """``--seed`` of `fedkin run` means the same to a comparison and a sweep."""
    assert compare_flags(f"da-pfl {flag}".split())[0].seeds == (3,)
    assert sweep_flags(f"da-pfl --grid training.lr=0.1 {flag}".split())[0].seeds == (3,)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "needs methods or a config file"),
        ("--rounds 3", "needs methods or a config file"),
        ("da-pflx", "unknown method 'da-pflx'; did you mean 'da-pfl'"),
        ("da-pfl --seeds 1 1", r"seeds must differ, got \[1, 1\]"),
        ("da-pfl --set lam=3", "--set takes METHOD.FIELD=VALUE.* got 'lam=3'"),
        ("da-pfl --set da-pfl.lam", "--set takes METHOD.FIELD=VALUE.* got 'da-pfl.lam'"),
        ("da-pfl --set da-pfl.lamm=3", r"unknown setting lamm; did you mean 'lam'"),
        ("da-pfl --set da-pfl.lam=much", "lam must be a number, got 'much'"),
        ("da-pfl --set ifca.clusters=3", "settings for 'ifca', which is not compared"),
        ("da-pfl --set da-pfl.lam=-1", "lam of DAPFL must be at least 0, got -1"),
        ("missing.toml", r"no config file missing\.toml"),
    ],
)
def test_what_compare_refuses(args: str, message: str) -> None:
    """Each with a message that has the value in it."""
    with pytest.raises(ConfigError, match=message):
        compare_flags(args.split())


def test_data_are_remembered_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is stored absolute, so that a resume works from any folder; a built-in name stays a name."""
    (tmp_path / "mine.csv").write_text("a,y\n1,0\n")
    monkeypatch.chdir(tmp_path)

    assert run_flags(["fedavg", "--data", "mine.csv"])[0].data.data == str(tmp_path / "mine.csv")
    assert run_flags(["fedavg", "--data", "digits"])[0].data.data == "digits"


def test_a_second_command_line_reads_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of flags come from the sources, which are read and parsed once: it is most of a command line's time."""
    run_flags(["fedrod", "--rounds", "3"])
    lines, read = linecache.getlines, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(linecache, "getlines", lambda file, *more: read.append(file) or lines(file, *more))
        settings, _ = run_flags(["fedrod", "--rounds", "4"])
    assert settings.run.rounds == 4
    assert read == []
