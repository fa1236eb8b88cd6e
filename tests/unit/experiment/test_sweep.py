"""Sweeps: what is tried, that validation alone chooses, that a kill changes nothing."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ClientError, ConfigError, ModelError, RunFolderError
from fedkin.data import federation_of
from fedkin.experiment import sweep as module
from fedkin.experiment.search_space import Range, grid_of, proposal, space_from
from fedkin.experiment.settings import DataSettings, settings_from, sources_of
from fedkin.experiment.sweep import Sweep, chosen, run_sweep, sweep_from, sweep_table
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml
from folders import small
from kills import Stop
from madeup import about, round_line, rounds
from owncode import CAUTIOUS

GRID = {"training.lr": (0.01, 0.1), "method.mu": (0.1, 1)}


def sweep(space: dict[str, Any] = GRID, **more: Any) -> Sweep:
    """A sweep of FedProx that takes a fraction of a second."""
    return Sweep(small("fedprox"), space, **more)


LAST = {"validation": 0.5}
"""Validation accuracy in the last of two rounds whose mean is planted."""


def planted(monkeypatch: pytest.MonkeyPatch, finals: dict[float, dict[str, float] | Exception]) -> None:
    """Runs give what ``finals`` says for their learning rate."""

    def run(settings: Any, **_: Any) -> Result:
        final = finals[settings.training.lr]
        if isinstance(final, Exception):
            raise final
        figures = {"validation": None, **final}
        lost = dict.fromkeys(range(3), "not-finite") if figures.pop("diverged", None) else {}
        both = figures | {"validation": figures["validation"] and 2 * figures["validation"] - 0.5}, figures | LAST
        last = (round_line(9 + k, refused=lost, **one) for k, one in enumerate(both))
        return Result(run=about(), config={}, rounds=[*rounds(*[0.1] * 8), *last], clients=[])

    monkeypatch.setattr(module, "run_settings", run)


# ---- what is tried --------------------------------------------------------------------------------------------------
def test_a_grid_is_every_combination() -> None:
    """The last setting changes fastest."""
    assert grid_of({"a": (1, 2), "b": ("x", True)}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": True},
        {"a": 2, "b": "x"},
        {"a": 2, "b": True},
    ]


def test_ranges_are_read() -> None:
    """Even, logarithmic and whole; written down they read back to the same."""
    found = space_from({"a": "0..0.9", "b": "log:1e-3..1e-1", "c": "int:1..5", "d": [1, 2]}, "w")
    assert found == {"a": Range(0, 0.9), "b": Range(0.001, 0.1, log=True), "c": Range(1, 5, whole=True), "d": (1, 2)}
    written = {n: str(v) for n, v in found.items() if isinstance(v, Range)}
    assert space_from(written, "w") == {n: found[n] for n in written}


@pytest.mark.parametrize(
    "bad", ["0.9..0", "lin:0..1", "log:0..1", "int:0.5..2", "a..b", "1..nan", [], 3, [[1]], [1, 1]]
)
def test_what_is_no_space_is_refused(bad: Any) -> None:
    """By its name and what came."""
    with pytest.raises(ConfigError, match="w: x"):
        space_from({"x": bad}, "w")


@pytest.mark.parametrize(
    ("space", "more", "said"),
    [
        ({}, {}, "settings to try"),
        ({"training.lrr": (1,)}, {}, "did you mean 'lr'"),
        ({"training.lr": ("much",)}, {}, "lr = 'much'"),
        ({"training.lr": (0.1, "much")}, {}, "lr = 'much'"),
        ({"data.alpha": (1,)}, {}, "not the data and the seed"),
        ({"run.seed": (1, 2)}, {}, "not the data and the seed"),
        ({"lr": (1,)}, {}, "training.SETTING"),
        ({"method.inner.x": (1,)}, {}, "unknown setting inner"),
        ({"training.lr": Range(0.1, 1)}, {}, "--trials"),
        ({"training.epochs": (1,), "training.steps": (1,)}, {}, "not both"),
        (GRID, {"seeds": (0, 0)}, "seeds must be one or several"),
        (GRID, {"seeds": ()}, "seeds must be one or several"),
        (GRID, {"trials": -1}, "trials: expected `int` >= 0"),
        (GRID, {"sampler": "sobol"}, "a grid has none"),
        ({"training.batch-size": (5,), "training.batch_size": (6,)}, {}, "are the same setting"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_runs(space: Any, more: Any, said: str) -> None:
    """Every value is looked at when the sweep is made."""
    with pytest.raises(ConfigError, match=said):
        sweep(space, **more)


def test_validation_data_are_needed() -> None:
    """There would be nothing to choose by but test data."""
    with pytest.raises(ConfigError, match="--validation must be above 0"):
        Sweep(small("fedprox", data={"validation": 0.0}), GRID)


def test_data_without_validation_samples_are_refused_first(tmp_path: Path) -> None:
    """A saved federation is what it is; no trial is made for nothing."""
    federation_of(small("fedprox", data={"validation": 0.0}).data, 0).save(tmp_path / "data")
    made = Sweep(small("fedprox").but(data=DataSettings(data=str(tmp_path / "data"))), GRID)
    with pytest.raises(ConfigError, match="a sweep goes by validation accuracy, and no client has validation data"):
        run_sweep(made, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_sweep_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    """Its first trial ends before its first round."""
    made = Sweep(small("fedprox", model={"model": "linear", "head": "tail"}), GRID)
    with pytest.raises(ModelError, match="'tail'"):
        run_sweep(made, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_contradicts_itself_is_passed_over(tmp_path: Path) -> None:
    """Adam has no momentum, and a network does not fit the data: each is told, and the others are compared. Resuming
    comes to the same."""
    space = {"training.momentum": (0, 0.9), "training.optimizer": ("adam", "sgd")}
    made = sweep(space, trials=4, sampler="sobol")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(module, "quasi_random", lambda space, number, seed: grid_of(space)[number])
    done = run_sweep(made, tmp_path / "s")
    assert [t.failed.partition(";")[0] for t in done if t.failed] == [
        "seed 0: momentum = 0.9 belongs to SGD, and the optimizer is 'adam', which has moments of its own"
    ]
    assert run_sweep(made, tmp_path / "s", resume=True) == done
    monkey.undo()
    fitting = run_sweep(sweep({"model.model": ("linear", "dapfl-cnn")}), tmp_path / "t")
    assert [bool(t.failed) for t in fitting] == [False, True]
    assert "dapfl-cnn needs images" in fitting[1].failed


def test_epochs_beat_steps_of_the_base() -> None:
    """As on the command line: otherwise steps would make all of them equal."""
    settings = sweep({"training.epochs": (1, 2)}).settings({"training.epochs": 2}, 0)
    assert (settings.training.epochs, settings.training.steps) == (2, None)


def test_fields_of_a_wrapped_method_go_by_their_own_names() -> None:
    """As on the command line."""
    made = Sweep(small("ifca-cam"), {"method.clusters": (2, 3)})
    assert made.settings({"method.clusters": 3}, 0).method["inner"]["clusters"] == 3


# ---- the choice -----------------------------------------------------------------------------------------------------
def test_what_is_best_on_test_and_worse_on_validation_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """0.1 has the best test accuracy, 0.2 the best validation accuracy: 0.2 it is, and only its test figure is told."""
    finals = {0.1: (0.70, 0.99), 0.2: (0.72, 0.61), 0.3: (0.71, 0.65)}
    planted(monkeypatch, {lr: {"validation": v, "accuracy": a} for lr, (v, a) in finals.items()})
    plan = sweep({"training.lr": (0.1, 0.2, 0.3)})
    trials = run_sweep(plan, tmp_path / "s")
    best = chosen(trials)
    lines = list(csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines()))

    assert best is not None
    assert best.values == {"training.lr": 0.2}
    assert [line["test_mean"] for line in lines] == ["", "0.61", ""]
    assert [line["chosen"] for line in lines] == ["false", "true", "false"]
    assert settings_from(read_toml(tmp_path / "s" / "chosen.toml")).training.lr == 0.2
    shown = sweep_table(plan, trials)
    assert [row[0] for row in shown.rows] == ["0.2", "0.3", "0.1"]
    assert shown.bold == {(0, 1)}
    assert shown.note.endswith("; bold: chosen by it, test accuracy 61.0 %")
    assert shown.note.startswith(
        "validation: accuracy, mean over clients and rounds 9 to 10; last: accuracy in the last"
    )
    assert [row[1:] for row in shown.rows] == [("72.0", "50.0"), ("71.0", "50.0"), ("70.0", "50.0")]
    assert {(line["rounds"], line["last_validation_mean"]) for line in lines} == {("rounds 9 to 10", "0.5")}
    for name in ("sweep.md", "sweep.csv"):
        text = (tmp_path / "s" / name).read_text()
        assert "0.99" not in text
        assert "99.0" not in text


def test_of_equals_the_first_is_chosen_and_a_failure_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A setting whose run fails is passed over, with its reason in the table."""
    same = {"validation": 0.5, "accuracy": 0.5}
    planted(monkeypatch, {0.1: ClientError("update", 3, 7, "not finite"), 0.2: same, 0.3: same})
    trials = run_sweep(sweep({"training.lr": (0.1, 0.2, 0.3)}), tmp_path / "s")
    assert chosen(trials) is trials[1]
    assert "client 3 failed in round 7: not finite" in (tmp_path / "s" / "sweep.csv").read_text()


def test_a_setting_that_diverges_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its validation accuracy is that of a model from before, however high: it is no choice."""
    fine = {"validation": 0.5, "accuracy": 0.5}
    planted(monkeypatch, {0.1: fine, 0.2: {"validation": 0.9, "accuracy": 0.9, "diverged": 9}})
    plan = sweep({"training.lr": (0.1, 0.2)})
    trials = run_sweep(plan, tmp_path / "s")
    assert chosen(trials) is trials[0]
    assert trials[1].failed.startswith("seed 0: training diverged from round 9 on")
    assert sweep_table(plan, trials).rows[1] == ("0.2", "failed", "–")


def test_after_a_seed_that_fails_no_further_one_of_its_setting_begins(tmp_path: Path) -> None:
    """Real runs, whose step size is too large by far; the next setting is tried with every seed."""
    trials = run_sweep(sweep({"training.lr": (0.01, 1e30, 0.1)}, seeds=(0, 1)), tmp_path / "s")
    assert [bool(trial.failed) for trial in trials] == [False, True, False]
    begun = {place.parent.name for place in (tmp_path / "s").glob("*/config.toml")}
    assert begun == {"000-seed0", "000-seed1", "001-seed0", "002-seed0", "002-seed1"}


@pytest.mark.parametrize(
    ("scores", "shown", "end"),
    [
        (
            {0.1: 0.5, 0.12341: 0.6, 0.12342: 0.7},
            ["0.12342", "0.12341", "0.1"],
            "; lr 0.12342 is at the upper end of what was tried (0.1, 0.12341, 0.12342)",
        ),
        ({0.1: 0.5, 0.123456: 0.7, 0.2: 0.6}, ["0.1235", "0.2", "0.1"], ""),
    ],
)
def test_a_table_keeps_settings_apart_and_says_that_the_best_is_at_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scores: dict[float, float], shown: list[str], end: str
) -> None:
    """Numbers have four digits, or as many as it takes; ``sweep.md`` has the note as well."""
    planted(monkeypatch, {lr: {"validation": v, "accuracy": v} for lr, v in scores.items()})
    plan = sweep({"training.lr": tuple(scores)})
    found = sweep_table(plan, run_sweep(plan, tmp_path / "s"))
    assert [row[0] for row in found.rows] == shown
    assert found.note.endswith(f"test accuracy 70.0 %{end}")
    assert found.note[-40:] in (tmp_path / "s" / "sweep.md").read_text()


def test_seeds_are_averaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Real runs: the figure is the mean over both seeds' validation accuracy."""
    made = sweep({"training.lr": (0.1, 0.5)}, seeds=(1, 2))
    trials = run_sweep(made, tmp_path / "s")
    single = [run_sweep(sweep({"training.lr": (0.1, 0.5)}, seeds=(s,)), tmp_path / f"s{s}") for s in (1, 2)]
    for trial, a, b in zip(trials, *single, strict=True):
        assert trial.validation is not None
        assert trial.validation.values == (*a.validation.values, *b.validation.values)  # type: ignore[union-attr]


# ---- going on -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trials", [0, 4])
def test_a_sweep_that_was_stopped_goes_on_to_the_same_end(trials: int, tmp_path: Path) -> None:
    """Stopped in the third setting's second round: the same files as without; nothing that was done is run again."""
    if trials:
        pytest.importorskip("optuna", reason="the extra optuna is not installed")
    made = sweep({**GRID, "training.momentum": Range(0, 0.9)} if trials else GRID, trials=trials)
    run_sweep(made, tmp_path / "whole")
    again: list[int] = []

    def stop(number: int, count: int, values: Any, seed: int, line: Any) -> None:
        if (number, line.round) == (2, 2):
            raise Stop

    with pytest.raises(Stop):
        run_sweep(made, tmp_path / "s", on_trial=stop)
    assert not (tmp_path / "s" / "sweep.csv").exists()
    back = sweep_from(read_toml(tmp_path / "s" / "sweep.toml"), "s")
    run_sweep(back, tmp_path / "s", resume=True, on_trial=lambda number, *_: again.append(number))

    for name in ("sweep.csv", "chosen.toml", "sweep.md", "sweep.toml"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert again == [2, 2, 3, 3, 3, 3]


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    """Neither a new sweep into it, nor another one resumed."""
    run_sweep(sweep({"training.lr": (0.1,)}), tmp_path / "s")
    with pytest.raises(RunFolderError, match="exists already"):
        run_sweep(sweep(), tmp_path / "s")
    with pytest.raises(RunFolderError, match="another sweep"):
        run_sweep(sweep(), tmp_path / "s", resume=True)


def test_a_sweep_goes_on_with_another_engine(tmp_path: Path) -> None:
    """The engine decides no figure; other values are another sweep."""
    run_sweep(sweep({"training.lr": (0.1,)}), tmp_path / "s")
    file = tmp_path / "s" / "sweep.toml"
    assert 'engine = "loop"' in file.read_text()
    file.write_text(file.read_text().replace('engine = "loop"', 'engine = "workers"'))
    (trial,) = run_sweep(sweep({"training.lr": (0.1,)}), tmp_path / "s", resume=True)
    assert trial.validation is not None
    file.write_text(file.read_text().replace("batch_size = ", "batch_size = 1"))
    with pytest.raises(RunFolderError, match="another sweep"):
        run_sweep(sweep({"training.lr": (0.1,)}), tmp_path / "s", resume=True)


def test_proposals_depend_on_what_was_tried_and_lie_in_the_space() -> None:
    """The same history gives the same proposal; after enough trials it leans to where the score is high."""
    pytest.importorskip("optuna", reason="the extra optuna is not installed")
    space = {"a": Range(0, 1), "b": Range(1, 3, whole=True), "c": ("x", "y")}
    before: list[Any] = []
    for _ in range(40):
        values = proposal(space, before, 7)
        assert proposal(space, before, 7) == values
        assert 0 <= values["a"] <= 1
        assert values["b"] in (1, 2, 3)
        assert values["c"] in ("x", "y")
        before.append((values, None if len(before) == 3 else -abs(values["a"] - 0.8)))
    late = [abs(v["a"] - 0.8) for v, _ in before[20:]]
    assert sum(late) / len(late) < 0.15  # 0.34 if drawn at random


@pytest.mark.parametrize("trials", [0, 3])
def test_networks_of_ones_own_are_swept(trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder keeps copies of all of them, so that it can be resumed from anywhere, and its choice be run."""
    text = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text + f"# {name}\n")
    monkeypatch.chdir(tmp_path)
    base = small("fedprox", model={"model": "./one.py:build"})
    made = Sweep(
        base, {"model.model": ("./one.py:build", "./two.py:build")}, trials=trials, sampler="sobol" if trials else "tpe"
    )
    done = run_sweep(made, tmp_path / "s")
    assert not any(t.failed for t in done)
    (tmp_path / "s").rename(tmp_path / "moved")
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").unlink()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert Path(settings_from(read_toml("../moved/chosen.toml")).model.model).parent == tmp_path / "moved"
    again = run_sweep(sweep_from(read_toml("../moved/sweep.toml"), "s"), Path("../moved"), resume=True)
    assert [t.validation for t in again] == [t.validation for t in done]


def test_a_method_of_ones_own_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From wherever its file lies; the folder keeps a copy, so that the chosen settings run when it has moved."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part.py").write_text(CAUTIOUS)
    monkeypatch.chdir(tmp_path)
    done = run_sweep(Sweep(small("./mine/part.py:Cautious"), {"method.step": (0.1, 1.0)}), tmp_path / "s")
    best = chosen(done)
    assert best is not None
    (tmp_path / "s").rename(tmp_path / "moved")
    (tmp_path / "mine" / "part.py").unlink()
    settings = settings_from(read_toml(tmp_path / "moved" / "chosen.toml"))
    assert settings.method["step"] == best.values["method.step"]  # type: ignore[attr-defined]
    assert sources_of(settings) == {"part.py": CAUTIOUS.encode()}
    assert run_sweep(sweep_from(read_toml(tmp_path / "moved" / "sweep.toml"), "s"), tmp_path / "moved", resume=True)
