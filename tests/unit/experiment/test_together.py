"""Comparisons and sweeps whose runs train together: their folders are those of runs one after another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import ConfigError, MethodError, Training
from fedkin.engines import Job, Loop
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_together import Starter
from fedkin.experiment.compare import Comparison, compare
from fedkin.experiment.run import resume
from fedkin.experiment.search_space import space_from
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings
from fedkin.experiment.sweep import Sweep, run_sweep
from fedkin.experiment.together import at_once, execute_all
from fedkin.methods import FedAvg
from fedkin.testing.toys import federation, network
from fedkin.testing.trial import difference
from folders import LINES, records, small, tensors_in
from kills import Killed
from thorough import thorough_except

STACKED = Compute(engine="stacked")


def plan(*methods: str, **changes: Any) -> Comparison:
    """A comparison on stacks that takes a fraction of a second."""
    usual: dict[str, Any] = {
        "data": DataSettings(clients=4, samples_per_client=24, validation=0.2),
        "model": ModelSettings("linear"),
        "training": Training(steps=2, batch_size=5, lr=0.1),
        "run": RunSettings(rounds=3),
        "compute": STACKED,
    }
    return Comparison(methods or ("fedavg", "local", "local-full"), **{**usual, **changes})


def assert_near(a: Any, b: Any) -> None:
    """Asserts that nested lists and tables are equal, numbers to the last digits of float32."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_near(value, b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_near(one, other)
    else:
        assert a == (pytest.approx(b, rel=1e-5, abs=1e-6) if isinstance(a, float) else b)


def assert_same_runs(a: Path, b: Path) -> None:
    """Asserts that two folders hold the same runs, with equal summaries but for the folder's name."""
    names = [p.parent.name for p in sorted(a.glob("*/config.toml"))]
    assert names == [p.parent.name for p in sorted(b.glob("*/config.toml"))]
    for name in names:
        for lines in LINES:
            assert_near(records(a / name, lines), records(b / name, lines))
        mine, theirs = (tensors_in(f / name) for f in (a, b))
        assert difference(mine, theirs, 1e-6) is None
        summaries = [json.loads((f / name / "summary.json").read_text()) for f in (a, b)]
        for summary in summaries:
            del summary["command"], summary["digests"]
        assert_near(*summaries)
        assert {p.name for p in (a / name).iterdir()} == {p.name for p in (b / name).iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison of two seeds, one run after another."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    compare(plan(seeds=(0, 1)), out=folder)
    return folder


def test_folders_do_not_depend_on_it(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six runs, four at a time: order and content of all runs; nothing says how they were made. Copies of data, as on a
    GPU, are those of the run's seed."""
    monkeypatch.setattr(Place, "up", lambda self, t: t.clone())
    made = compare(plan(seeds=(0, 1)), out=tmp_path / "c", together=4)
    assert [(run.title, run.seed) for run in made] == [
        (title, seed) for seed in (0, 1) for title in ("FedAvg", "Local", "Local (full)")
    ]
    assert_same_runs(tmp_path / "c", whole)
    assert (tmp_path / "c" / "compare.toml").read_bytes() == (whole / "compare.toml").read_bytes()


def test_after_a_kill_runs_go_on_from_their_own_checkpoints(whole: Path, tmp_path: Path) -> None:
    """Killed in the second round of one of them: a run by itself, then the rest together, to the same folders."""

    def dies(name: str, seed: int, report: Any, line: dict[str, Any]) -> None:
        if (name, seed, line["round"]) == ("local", 0, 2):
            raise Killed

    with pytest.raises(Killed):
        compare(plan(seeds=(0, 1)), out=tmp_path / "c", together=4, on_round=dies)
    begun = sorted(p.parent.name for p in (tmp_path / "c").glob("*/checkpoint.safetensors"))
    assert begun == ["fedavg-seed0", "fedavg-seed1", "local-full-seed0", "local-seed0"]
    assert not list((tmp_path / "c").glob("**/.lock"))
    resume(tmp_path / "c" / "fedavg-seed0")
    compare(plan(seeds=(0, 1)), out=tmp_path / "c", together=4, resume=True)
    assert_same_runs(tmp_path / "c", whole)


@pytest.mark.thorough
def test_a_run_that_ends_early_ends_alone(tmp_path: Path) -> None:
    """By `stop_after`: the others go on to the end."""
    how = RunSettings(rounds=5, stop_after=1)
    for name, together in (("a", 1), ("b", 3)):
        compare(plan(run=how, training=Training(steps=9, lr=2.0)), out=tmp_path / name, together=together)
    assert_same_runs(tmp_path / "b", tmp_path / "a")
    rounds = {json.loads(p.read_text())["rounds"] for p in (tmp_path / "b").glob("*/summary.json")}
    assert len(rounds) > 1


@pytest.mark.parametrize("sampler", thorough_except(["grid", "sobol", "tpe"], ["grid"]))
def test_trials_of_a_sweep(sampler: str, tmp_path: Path) -> None:
    """The table, the list of trials, and the choice; a setting that cannot train fails alone. With one run after
    another its other seeds do not begin."""
    if sampler == "tpe":
        pytest.importorskip("optuna")
    base = small("fedprox", data={"validation": 0.2}, run={"rounds": 2}, compute={"engine": "stacked"})
    how: dict[str, Any] = {"space": {"training.lr": (0.01, 1e30, 0.1)}} if sampler == "grid" else {
        "space": {"training.lr": "log:1e-3..1"}, "trials": 3, "sampler": sampler
    }  # fmt: skip
    if sampler != "grid":
        how["space"] = space_from(how["space"], "test")
    one, other = (
        run_sweep(Sweep(base, seeds=(0, 1), **how), tmp_path / name, together=together)
        for name, together in (("a", 1), ("b", 3))
    )
    assert one == other
    for file in ("trials.jsonl", "sweep.csv", "chosen.toml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert [bool(trial.failed) for trial in other] == [False, sampler == "grid", False]
    assert (tmp_path / "a" / "001-seed1").exists() == (sampler != "grid")


def test_an_error_ends_its_run_and_then_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that have begun are finished; the others do not begin, as without stacks."""

    def fails(*_: Any) -> Any:
        raise MethodError("as planned")

    monkeypatch.setattr(FedAvg, "aggregate", fails)
    with pytest.raises(MethodError, match="as planned"):
        compare(plan(seeds=(0, 1)), out=tmp_path / "c", together=2)
    assert [p.parent.name for p in (tmp_path / "c").glob("*/summary.json")] == ["local-seed0"]
    assert not (tmp_path / "c" / "local-full-seed0").exists()


def test_runs_of_another_engine_are_made_by_themselves() -> None:
    """After the others, with an engine of their own; the results keep their order."""
    made: list[tuple[int, bool]] = []
    job = Job(FedAvg(), network("mlp"), Training(), federation(), seed=1)

    def run(i: int) -> Callable[[Starter | None], int]:
        def one(start: Starter | None) -> int:
            if i == 1 and start is not None:
                start(Loop(), job)
            made.append((i, start is None))
            return i

        return one

    assert execute_all([run(i) for i in range(3)], 3) == [0, 1, 2]
    assert made == [(0, False), (2, False), (1, True)]
    made.clear()
    assert execute_all([run(i) for i in range(2)], 1) == [0, 1]
    assert made == [(0, True), (1, True)]


def test_how_many_runs_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another without a GPU or with another engine, unless it is asked for; eight on a GPU."""
    auto, workers = Compute(), Compute(workers=2)
    for gpu, asked, compute, wanted in (
        (False, 0, auto, 1), (False, 0, STACKED, 1), (False, 1, auto, 1), (False, 5, STACKED, 5), (True, 0, auto, 8),
        (True, 0, STACKED, 8), (True, 3, auto, 3), (True, 1, STACKED, 1), (True, 0, workers, 1),
        (True, 0, Compute(engine="loop"), 1),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert at_once(asked, compute) == wanted
    for asked, compute, said in (
        (-1, STACKED, "together must be a number of runs"),
        (2, Compute(engine="loop"), "the engine is 'loop'; set engine = 'stacked'"),
        (2, workers, "the engine is workers"),
    ):
        with pytest.raises(ConfigError, match=said):
            at_once(asked, compute)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="'auto' and torch sees no GPU"):
        at_once(2, auto)
