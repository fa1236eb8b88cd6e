"""Tuned comparisons: equal trials for every method, chosen on validation data, the same after a kill."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from fedkin.cli.outcome import write_outcome
from fedkin.core import ConfigError, RunFolderError, Training
from fedkin.core.settings import Optimizer
from fedkin.data import federation_of, resolved
from fedkin.experiment import compare as compare_module
from fedkin.experiment import sweep as sweep_module
from fedkin.experiment import tuning as tuning_module
from fedkin.experiment.compare import Comparison, compare, comparison_from
from fedkin.experiment.listing import listed
from fedkin.experiment.run import run_settings
from fedkin.experiment.search_space import Range, end_at, quasi_random
from fedkin.experiment.settings import (
    Compute,
    DataSettings,
    ModelSettings,
    RunSettings,
    Settings,
    settings_from,
    table_of,
)
from fedkin.experiment.sweep import Sweep, at_ends, run_sweep, sweep_from
from fedkin.experiment.tuning import space_of, trial_place, tuning_sweep
from fedkin.methods import METHODS, get_method
from fedkin.privacy.budget import Privacy
from fedkin.record.result import Result
from fedkin.report.page import write_files
from fedkin.report.tuning import Tuned, read_tuned, tuning_table, tuning_warnings
from fedkin.storage.toml import read_toml
from folders import lines_in, small
from kills import Stop
from madeup import about, round_line

SMALL: dict[str, Any] = {
    "data": DataSettings(clients=5, samples_per_client=24),
    "model": ModelSettings("linear"),
    "training": Training(steps=2, batch_size=5, lr=0.002),  # far too small for four rounds
    "run": RunSettings(rounds=4),
    "compute": Compute(engine="loop"),
}


def plan(*methods: str, tune: int = 3, **changes: Any) -> Comparison:
    """A tuned comparison that takes a fraction of a second."""
    groups = {name: changes.pop(name) for name in {*SMALL, "aggregation", "privacy"} & {*changes}}
    return Comparison(methods, tune=tune, base=Settings().but(**{**SMALL, **groups}), **changes)


def planted(monkeypatch: pytest.MonkeyPatch, finals: dict[int, tuple[float | None, float]]) -> None:
    """Trials are not run: by their number they have this validation and test accuracy, or diverge without the first."""

    def run(settings: Any, out: Path, **_: Any) -> Result:
        validation, accuracy = finals[int(out.name[:3])]
        lost = {} if validation else dict.fromkeys(range(3), "not-finite")
        line = round_line(1, validation=validation, accuracy=accuracy, refused=lost, bytes_up=1, bytes_down=1)
        return Result(run=about(), config={}, rounds=[line], clients=[])

    monkeypatch.setattr(sweep_module, "run_settings", run)
    monkeypatch.setattr("fedkin.experiment.tuning._seconds", lambda run: 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    """The folder and the runs of a tuned comparison with two seeds."""
    folder = tmp_path_factory.mktemp("tuned") / "c"
    return folder, list(compare(plan("fedprox", seeds=(0, 1)), out=folder))


# ---- what is tried --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("form", "draws"),
    [("{}", 2), *(pytest.param(form, 12, marks=pytest.mark.thorough) for form in ("{}", "{}-safe"))],
)
def test_every_method_has_a_space_of_values_that_it_takes(form: str, draws: int) -> None:
    """Step size of one range for all, its own fields, those of a wrapped method; ends and draws are accepted."""
    for name in [form.format(name) for name in METHODS if "safe" not in name]:
        sweep = tuning_sweep(small(name), {}, draws)  # accepts the ends
        assert str(sweep.space["training.lr"]) == "log:0.001..1.0", name
        for number in range(draws):
            sweep.settings(quasi_random(sweep.space, number, 0), 0)
    assert "method.mu" in space_of(get_method("fedprox"), {})
    assert "method.inner.inner.clusters" in space_of(get_method("ifca-cam-safe"), {})


def test_the_range_of_the_step_size_is_that_of_the_optimizer() -> None:
    """Steps of Adam do not shrink with the gradient, so its step sizes are smaller; no optimizer is left out."""
    found = {}
    for optimizer in get_args(Optimizer):
        settings = small("fedavg").but(training=Training(optimizer=optimizer))
        found[optimizer] = str(tuning_sweep(settings, {}, 2).space["training.lr"])
    assert found == {"sgd": "log:0.001..1.0", "adam": "log:0.0001..0.1", "adamw": "log:0.0001..0.1"}


def test_a_field_that_is_set_stays() -> None:
    """Of a method and of the one inside a safe form."""
    comparing = plan("fedprox", "da-pfl", safe=True, own={"fedprox": {"mu": 0.05}})
    common = {"training.lr", "training.momentum"}
    assert set(comparing.sweep("fedprox").space) == common
    assert set(comparing.sweep("fedprox-safe").space) == common
    assert comparing.sweep("fedprox-safe").base.method["inner"]["mu"] == 0.05  # type: ignore[attr-defined]
    assert set(comparing.sweep("da-pfl-safe").space) == {*common, "method.inner.lam", "method.inner.sigma"}


def test_a_sobol_sequence_covers_the_space() -> None:
    """Of eight draws two lie in each quarter of every range, each value comes twice; they depend on the seed alone."""
    space = {"a": Range(0, 1), "b": Range(0.001, 10, log=True), "c": Range(1, 4, whole=True), "d": ("x", "y", "z", 1)}
    drawn = [quasi_random(space, number, 5) for number in range(8)]
    assert sorted(int(4 * float(v["a"])) for v in drawn) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(sum(float(v["b"]) >= edge for edge in (0.01, 0.1, 1)) for v in drawn) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(int(v["c"]) for v in drawn) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(str(v["d"]) for v in drawn) == ["1", "1", "x", "x", "y", "y", "z", "z"]
    assert drawn != [quasi_random(space, number, 6) for number in range(8)]


def test_a_sweep_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler sobol begins with the base, survives the file of the sweep, and needs a value to begin with."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    made = Sweep(small("fedprox"), {"training.lr": Range(0.01, 0.1, log=True)}, 2, sampler="sobol")
    trials = run_sweep(made, tmp_path / "s")
    assert trials[0].values == {"training.lr": 0.1}
    assert trials[1].values == quasi_random(made.space, 0, 0)
    assert sweep_from(read_toml(tmp_path / "s" / "sweep.toml"), "s").sampler == "sobol"
    with pytest.raises(ConfigError, match='sampler = "sobol"'):
        run_sweep(dataclasses.replace(made, sampler="tpe"), tmp_path / "t")
    with pytest.raises(ConfigError, match=r"method\.beta is not set"):
        Sweep(small("pfedcs"), {"method.beta": Range(1, 3, whole=True)}, 2, sampler="sobol")


def test_tuning_fixes_the_data_of_all_seeds() -> None:
    """Else what one seed holds out is tested in others; a data seed that is set stays."""
    assert plan("fedprox", seeds=(3, 4)).base.data.data_seed == 3
    data = SMALL["data"].but(data_seed=7)
    assert plan("fedprox", seeds=(3, 4), data=data).base.data.data_seed == 7
    assert plan("fedprox", tune=0, seeds=(3, 4)).base.data.data_seed is None


@pytest.mark.parametrize(
    ("gains", "beats"), [([0.02, 0.0], False), ([0.02, -0.01], False), ([0.03, 0.01], True), ([0.1], True)]
)
def test_the_default_stays_unless_it_is_clearly_beaten(gains: list[float], beats: bool) -> None:
    """By one paired standard error over clients: of gains 3 and 1 the mean is 2 and the error 1."""
    before = dict.fromkeys(range(5), 0.5)
    assert tuning_module._beats({i: 0.5 + g for i, g in enumerate(gains)}, before) == beats


# ---- the choice -----------------------------------------------------------------------------------------------------
def test_a_bad_default_is_replaced(whole: tuple[Path, list[Result]]) -> None:
    """With a step size that is far too small, a trial is better for every method; all seeds are run with it."""
    folder, runs = whole
    comparing = plan("fedprox", seeds=(0, 1))
    found = {one.title: one for one in read_tuned(folder)}

    assert list(found) == ["Local", "Local (full)", "FedAvg", "FedProx"]
    for one in found.values():
        assert one.trial > 1
        assert one.validation > one.untuned + 0.1  # type: ignore[operator]
        assert one.seconds > 0
    for run in runs:
        config = run.config
        assert config["training"]["lr"] == found[run.title].chosen["training.lr"]
    again = run_settings(settings_from(read_toml(folder / "fedprox-seed1" / "config.toml")))
    assert (again.seed, again.rounds) == (1, runs[-1].rounds)
    best = trial_place(folder, comparing.sweep("fedprox"), found["FedProx"].trial - 1)
    assert lines_in(best) == lines_in(folder / "fedprox-seed0")  # a trial is that very run
    tried = [sorted((folder / "tuning" / name).glob("*/config.toml")) for name in comparing.names]
    steps = [[read_toml(config)["training"]["lr"] for config in one] for one in tried]
    assert steps == [steps[0]] * 4  # the same step sizes for all methods
    assert len(steps[0]) == 3


def test_validation_data_choose_and_test_data_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trial 2 has the highest test accuracy, trial 3 the highest validation accuracy: it is trial 3, and the figures of
    trial 2 on test data are nowhere."""
    planted(monkeypatch, {0: (0.5, 0.6), 1: (0.7, 0.918273), 2: (0.8, 0.25)})
    compare(plan(), out=tmp_path / "c")
    found = read_tuned(tmp_path / "c")

    assert [(one.trial, one.validation, one.untuned) for one in found] == [(3, 0.8, 0.5)] * 3
    texts = [p.read_text() for p in (tmp_path / "c").rglob("*") if p.suffix in (".json", ".jsonl", ".csv", ".md")]
    assert len(texts) > 10
    assert not any("0.918273" in text for text in texts)
    assert "91.8" not in (tmp_path / "c" / "tuning" / "fedavg" / "sweep.md").read_text()


def test_every_method_has_the_same_number_of_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """References, safe forms and methods without fields too; a default that is best is kept, also of equals."""
    planted(monkeypatch, {0: (0.5, 0.5), 1: (0.5, 0.6), 2: (None, 0.1)})
    comparing = plan("fedper", "ifca-cam", safe=True)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_module, "run_settings", stop)
    with pytest.raises(KeyboardInterrupt):  # when all are tuned
        compare(comparing, out=tmp_path / "c")

    found = {one.method: (one.trials, one.failed, one.trial) for one in read_tuned(tmp_path / "c")}
    assert found == dict.fromkeys(comparing.names, (3, 1, 1))
    assert len(comparing.names) == 8
    for name in comparing.names:
        first = comparing.sweep(name).settings(comparing.sweep(name).start(), 0)
        assert table_of(first) == table_of(comparing.settings(name, 0))


def test_where_all_trials_fail_the_setting_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The runs are then made as without tuning, which a caveat states."""
    planted(monkeypatch, {0: (None, 0.1), 1: (None, 0.1)})
    runs = compare(plan(tune=2), out=tmp_path / "c")
    found = read_tuned(tmp_path / "c")
    assert [run.config["training"]["lr"] for run in runs] == [0.002] * 3
    assert [(one.trial, one.failed, one.validation) for one in found] == [(0, 2, None)] * 3
    assert tuning_warnings(found)[0][1:] == ("all 2 trials failed or diverged; it has its own setting.", ("Local",))


@pytest.mark.parametrize(
    ("values", "value", "end"),
    [
        (Range(0.001, 1, log=True), 0.0014, ("lower", 0.0005)),
        (Range(0.001, 1, log=True), 0.0015, None),
        (Range(0.001, 1, log=True), 0.9, ("upper", 2.0)),
        (Range(0.001, 1, log=True), 5.0, ("upper", 2.0)),
        (Range(0, 1), 0.04, ("lower", -1.0)),
        (Range(2, 5, whole=True), 5, ("upper", 6)),
        (Range(2, 5, whole=True), 4, None),
        ((0.1, 1.0, 2.0), 0.1, ("lower", 0.05)),
        ((0.1, 1.0, 2.0), 1.0, None),
        (("a", "b"), "a", None),
        ((True, False), True, None),
    ],
    ids=str,
)
def test_the_end_of_a_range(values: Any, value: Any, end: Any) -> None:
    """The last twentieth of a range, the first and the last of values; beyond them as well."""
    assert end_at(values, value) == end


def test_a_choice_at_an_end_is_said() -> None:
    """Unless there is nothing beyond: a step size of 0.99 could be larger, a weight of 0.99 in a mean could not."""
    sweep = plan("apfl").sweep("apfl")
    found = at_ends(sweep, {"training.lr": 0.99, "method.mixing": 0.99})
    assert found == ["lr 0.99 is at the upper end of what was tried (0.001..1.0)"]
    assert at_ends(sweep, {"training.lr": 0.1, "method.mixing": 0.5}) == []
    one = Tuned("apfl", "APFL", 0, 20, 0, 4, {}, 0.5, 0.5, 1.0, found)
    assert tuning_warnings([one]) == [("end of range", f"{found[0]}.", ("APFL",))]


# ---- what is shown --------------------------------------------------------------------------------------------------
def test_tables_and_page_state_the_choice(whole: tuple[Path, list[Result]]) -> None:
    """What was chosen, of how many trials and at what cost, in table.md, table.csv and the page; trials are no runs."""
    folder, runs = whole
    comparing = plan("fedprox", seeds=(0, 1))
    found = write_outcome(comparing.baseline, folder, runs, 1)
    tuned = read_tuned(folder)
    one = tuned[-1]
    grid = tuning_table(tuned)
    assert grid.rows[-1][:2] == ("FedProx", one.text)
    assert grid.columns[-2] == "MB"
    assert float(grid.rows[-1][-2]) == pytest.approx(one.megabytes, rel=0.05)
    assert grid.rows[-1][-1] == f"{one.seconds:,.1f}"
    for name in ("table.md", "report.html"):
        text = (folder / name).read_text()
        assert all(cell in text for cell in grid.rows[-1])
        assert "3 trials of every method on validation data of seed 0" in text
        assert "with the best of 3 settings" in text
    line = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))[-1]
    assert (line["chosen"], line["trials"]) == (one.text, "3")
    assert found.report.tuned == tuned
    assert {run.folder.name for run in listed(folder)} == {f"{name}-seed{seed}" for name, seed in comparing.runs()}
    trials = listed(folder / "tuning" / "fedprox")
    first = json.loads((trials[0].folder / "summary.json").read_text())["final"]
    assert trials[0].validation == first["validation"] != first["accuracy"]


@pytest.mark.thorough
def test_the_table_of_choices_is_a_file(whole: tuple[Path, list[Result]], tmp_path: Path) -> None:
    """Among the figures and tables that `fedkin report --figures` writes."""
    folder, runs = whole
    found = write_outcome(plan("fedprox", seeds=(0, 1)).baseline, folder, runs, 1)
    write_files(tmp_path / "f", found.report)
    lines = list(csv.DictReader((tmp_path / "f" / "tuning.csv").read_text().splitlines()))
    assert [line["chosen"] for line in lines] == [one.text for one in read_tuned(folder)]


# ---- going on -------------------------------------------------------------------------------------------------------
def test_a_kill_while_tuning_changes_nothing(whole: tuple[Path, list[Result]], tmp_path: Path) -> None:
    """Stopped in the second trial of the second method: the same choices and runs, and nothing is run twice."""
    comparing, folder = plan("fedprox", seeds=(0, 1)), tmp_path / "c"
    again: list[tuple[str, int, int]] = []

    def stop(name: str, number: int, count: int, values: Any, seed: int, line: dict[str, Any]) -> None:
        if (name, number, line.round) == ("local-full", 1, 2):
            raise Stop

    def note(name: str, number: int, count: int, values: Any, seed: int, line: dict[str, Any]) -> None:
        again.append((name, number, line.round))

    with pytest.raises(Stop):
        compare(comparing, out=folder, on_trial=stop)
    (folder / "tuning" / "fedavg").mkdir()
    (folder / "tuning" / "fedavg" / "copy.py").write_text("")  # a kill before the sweep's own file
    resumed = comparison_from(read_toml(folder / "compare.toml"), "c")
    compare(resumed, out=folder, resume=True, on_trial=note)

    assert again[:6] == [("local-full", 1, 3), ("local-full", 1, 4), *(("local-full", 2, t) for t in range(1, 5))]
    assert len(again) == 6 + 2 * 3 * 4
    one, other = ([{**dataclasses.asdict(t), "seconds": 0} for t in read_tuned(f)] for f in (whole[0], folder))
    assert one == other
    for place in whole[0].rglob("*-seed*"):
        assert lines_in(folder / place.relative_to(whole[0])) == lines_in(place)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    compare(resumed, out=folder, resume=True)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.thorough
def test_in_memory_as_in_a_folder(tmp_path: Path) -> None:
    """Without a folder the same settings are chosen, and nothing is left on disk."""
    kept, passing = (compare(plan(tune=2), out=out) for out in (tmp_path / "c", None))
    assert [run.config for run in kept] == [run.config for run in passing]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


# ---- what is wrong --------------------------------------------------------------------------------------------------
def test_what_cannot_be_tuned_is_refused() -> None:
    """No validation data, a negative number, in a file anything but a whole number; a plan survives its file."""
    with pytest.raises(ConfigError, match="tuning chooses on validation data: --validation must be above 0"):
        plan(data=DataSettings(validation=0.0))
    with pytest.raises(ConfigError, match="tune: expected `int` >= 0, got -1"):
        plan(tune=-1)
    for wrong in (True, 2.5, "3"):
        with pytest.raises(ConfigError, match=r"my\.toml: tune expected `int`"):
            comparison_from({"methods": ["ifca"], "tune": wrong}, "my.toml")
    one = plan("ifca", data=resolved(SMALL["data"]))
    assert comparison_from(tomllib.loads(one.toml()), "file") == one


def test_saved_data_without_validation_samples_leave_no_folder(tmp_path: Path) -> None:
    """They have what they have: no trial is made for nothing."""
    federation_of(SMALL["data"].but(validation=0.0), 0).save(tmp_path / "data")
    saved = plan(tune=1, data=DataSettings(data=str(tmp_path / "data")))
    with pytest.raises(ConfigError, match="tune = 1 goes by validation accuracy"):
        compare(saved, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_damaged_file_of_choices_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Text that is not JSON, and entries that are no choices; choices by other trials."""
    planted(monkeypatch, {0: (0.5, 0.5)})
    compare(plan(tune=1), out=tmp_path / "c")
    kept = (tmp_path / "c" / "tuning.json").read_text()
    for text in ("[{", '[{"method": "local"}]'):
        (tmp_path / "c" / "tuning.json").write_text(text)
        with pytest.raises(RunFolderError, match="remove it, then make it again: fedkin resume"):
            compare(plan(tune=1), out=tmp_path / "c", resume=True)
    (tmp_path / "c" / "tuning.json").write_text(kept)
    for changed in (plan(tune=2), plan(tune=1, seeds=(1,))):
        with pytest.raises(RunFolderError, match=r"Local was tuned with 1 trial on seed 0 in .*c, and now it would be"):
            compare(changed, out=tmp_path / "c", resume=True)
    assert (tmp_path / "c" / "tuning.json").read_text() == kept


def test_a_method_that_is_added_later_is_tuned_alone(tmp_path: Path) -> None:
    """The choices of the others stay, and the result is that of a comparison of all."""
    compare(plan("ifca", tune=2), out=tmp_path / "c")
    trials = list((tmp_path / "c" / "tuning" / "ifca").rglob("*.jsonl"))
    before = {path: path.stat().st_mtime_ns for path in trials}
    compare(plan("fedprox", "ifca", tune=2), out=tmp_path / "c", resume=True)
    whole = compare(plan("fedprox", "ifca", tune=2), out=tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in trials} == before != {}
    found, wanted = (read_tuned(tmp_path / name) for name in ("c", "whole"))
    assert [dataclasses.replace(one, seconds=0.0) for one in found] == [
        dataclasses.replace(one, seconds=0.0) for one in wanted
    ]
    for run in whole:
        assert run.folder is not None
        assert lines_in(tmp_path / "c" / run.folder.name) == lines_in(run.folder)


def test_privacy_is_that_of_one_run() -> None:
    """The caveat counts the trials, which see the same training data."""
    one = Tuned("fedavg", "FedAvg", 0, 20, 0, 1, {"training.lr": 0.1}, 0.5, 0.5, 1.0)
    assert "20 further runs" in tuning_warnings([one], Privacy(noise_multiplier=1.0).asked)[0][1]


def test_a_choice_by_accuracy_is_said_where_that_is_no_headline() -> None:
    """Accuracy would choose the setting whose models always predict the frequent class."""
    one = Tuned("fedavg", "FedAvg", 0, 20, 0, 1, {"training.lr": 0.1}, 0.5, 0.5, 1.0)
    assert tuning_warnings([one]) == []
    assert tuning_warnings([], fair=False) == []
    (said,) = tuning_warnings([one], fair=False)
    assert said[1].startswith("Settings were chosen by validation accuracy, which a constant answer can lead here")
