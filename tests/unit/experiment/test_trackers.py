"""Trackers are told of runs, by their real packages; none can stop or change a run."""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from fedkin.capabilities.presets import presets_of
from fedkin.cli import main
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import table_of
from fedkin.experiment.trackers import FILE, TrackedRuns, Tracking, WeightsAndBiases, read_ids
from fedkin.methods import get_method
from fedkin.record.figures import evaluated
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml
from folders import lines_in, records, small
from kills import Stop
from madeup import about, round_line, written

pytestmark = pytest.mark.filterwarnings("default")  # what foreign packages warn of is not ours

FLAGS = "--clients 4 --samples-per-client 24 --model linear --steps 2 --batch-size 5 --rounds 4 --engine loop --quiet"


@pytest.fixture
def fedkin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``fedkin ARGS`` in an empty folder; gives the exit code. Nothing of the environment reaches a tracker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return lambda text: main(text.split())


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'{package} is not installed: pip install "fedkin[{package}]"')


def series(folder: Path, name: str = "accuracy") -> list[float]:
    """The figures of ``rounds.jsonl``, by round."""
    return [value for _, f in evaluated(records(folder, "rounds")) if (value := f.of(name)) is not None]


def stopped_and_resumed(names: tuple[str, ...], place: Path) -> None:
    """A run of four rounds that was stopped after the second, with these trackers all along."""
    settings = small(run={"rounds": 4, "eval_every": 1})

    def told(kept: Tracking) -> Any:
        def on_round(report: Any, line: RoundLine) -> None:
            kept.round(line)
            if line.round == 2 and kept is first:
                raise Stop

        return on_round

    first = Tracking(names, place, "FedAvg", table_of(settings))
    with pytest.raises(Stop):
        run_settings(settings, out=place, on_round=told(first))
    for tracker in (first._open or {}).values():  # as the end of its process would
        if isinstance(tracker, WeightsAndBiases):
            tracker._run.finish()
    ids = read_ids(place)
    assert set(ids) == set(names)
    second = Tracking(tuple(ids), place, "FedAvg", table_of(settings))
    run_settings(settings, out=place, resume=True, on_round=told(second))
    (place / "report.html").write_text("<p>report</p>")
    second.end()
    assert read_ids(place) == ids


def test_tensorboard_goes_on_with_the_same_curves(tmp_path: Path) -> None:
    """Each round once, over both lives; the settings as text; the final figures."""
    needs("tensorboard")
    stopped_and_resumed(("tensorboard",), tmp_path / "r")
    read: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    found = read(str(tmp_path / "r" / "tensorboard"))
    found.Reload()
    curve = found.Scalars("accuracy")

    assert [event.step for event in curve] == [1, 2, 3, 4]
    assert [event.value for event in curve] == pytest.approx(series(tmp_path / "r"))
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert found.Scalars("final/accuracy")[0].value == pytest.approx(summary["final"]["accuracy"])
    assert "config/text_summary" in found.Tags()["tensors"]


def test_mlflow_goes_on_with_the_same_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry with settings, each round once, final figures and the report, finished."""
    needs("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    stopped_and_resumed(("mlflow",), tmp_path / "r")
    client: Any = importlib.import_module("mlflow").MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedkin").experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy")

    assert run.info.status == "FINISHED"
    assert sorted((m.step, m.value) for m in history) == list(enumerate(series(tmp_path / "r"), start=1))
    assert run.data.params["training.lr"] == "0.1"
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert run.data.metrics["final_accuracy"] == summary["final"]["accuracy"]
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_wandb_writes_offline_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lives write files of the same run, which hold figures, settings and the report."""
    needs("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    stopped_and_resumed(("wandb",), tmp_path / "r")
    name = read_ids(tmp_path / "r")["wandb"]
    words = (b"accuracy", b"training.lr", b"final/accuracy", b"report")
    content = b""
    for _ in range(300):  # a process of wandb's own writes; on a busy machine it may still be at it
        files = sorted((tmp_path / "r" / "wandb").glob(f"offline-run-*/run-{name}.wandb"))
        content = b"".join(path.read_bytes() for path in files)
        if all(word in content for word in words):
            break
        time.sleep(0.1)

    assert [word for word in words if word not in content] == []


def test_the_flag_tracks_a_comparison_run_by_run(fedkin: Any, tmp_path: Path) -> None:
    """Every run has its own curves; resume knows what was asked for."""
    needs("tensorboard")
    assert fedkin(f"compare fedprox {FLAGS} --track tensorboard --out a") == 0
    for name in ("local", "local-full", "fedavg", "fedprox"):
        assert list((tmp_path / "a" / f"{name}-seed0" / "tensorboard").glob("events.*"))
    assert set(read_ids(tmp_path / "a")) == {"tensorboard"}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Figures by the title of an entry, of a tracker that only notes their names."""
    found: dict[str, set[str]] = {}

    class Notes:
        id = "x"

        def __init__(self, folder: Path, title: str, config: Any, known: str | None) -> None:
            self.names = found.setdefault(title, {f"lr {config['training.lr']}"} if config else set())

        def round(self, number: int, figures: Any) -> None:
            self.names |= set(figures)

        def end(self, figures: Any, report: Path | None) -> None:
            self.names |= {f"final {name}" for name in figures}

    monkeypatch.setattr("fedkin.experiment.trackers._KINDS", {"tensorboard": Notes})
    monkeypatch.setattr("fedkin.cli.commands.require", lambda names: None)
    return found


def test_trials_have_validation_figures_alone(seen: dict[str, set[str]], tmp_path: Path) -> None:
    """So that settings are not chosen by test figures; a run by itself has all."""
    for sweep, place in (("sweep", tmp_path / "s" / "0"), ("run", tmp_path / "r")):
        place.mkdir(parents=True)
        (place.parent / f"{sweep}.toml").touch()
        line = round_line(1, accuracy=0.5, validation=0.4, bytes_up=7)
        written(place, Result(run=about(), config={}, rounds=[line]))
        tracking = Tracking(("tensorboard",), place, sweep, {})
        tracking.round(line)
        tracking.end()
    counts = {"bytes_up", "bytes_down", "bytes_evaluation", "answered", "refused"}
    assert seen["sweep"] == {"validation", "final validation", *counts}
    assert seen["run"] == seen["sweep"] | {"accuracy", "final accuracy"}


@pytest.mark.thorough
def test_the_flag_tracks_the_trials_of_a_comparison(fedkin: Any, seen: dict[str, set[str]]) -> None:
    """An entry with its settings for each trial of each method, before those of the runs."""
    short = FLAGS.replace("--rounds 4", "--rounds 1")
    assert fedkin(f"compare fedprox {short} --tune 2 --validation 0.2 --track tensorboard --out a") == 0
    titles = ("Local", "Local (full)", "FedAvg", "FedProx")
    trials = [f"{title}, trial {n} of 2" for title in titles for n in (1, 2)]
    assert [title.partition(":")[0] for title in seen] == [*trials, *titles]
    for title, names in seen.items():
        assert {"validation", "final validation"} <= names
        assert ("accuracy" in names) == ("trial" not in title)
    assert [any(name == "lr 0.01" for name in names) for names in seen.values()][:8] == [True, False] * 4


def test_the_flag_tracks_a_sweep_trial_by_trial(fedkin: Any, tmp_path: Path) -> None:
    """Resume knows what was asked for."""
    needs("tensorboard")
    grid = "--validation 0.2 --preset code --grid training.lr=0.1,0.2"
    assert fedkin(f"sweep da-pfl {FLAGS} {grid} --track tensorboard --out a") == 0
    for name in ("000-seed0", "001-seed0"):
        assert list((tmp_path / "a" / name / "tensorboard").glob("events.*"))
        assert set(read_ids(tmp_path / "a" / name)) == {"tensorboard"}
    assert set(read_ids(tmp_path / "a")) == {"tensorboard"}
    preset = presets_of(get_method("da-pfl"))["code"]
    assert read_toml(tmp_path / "a" / "sweep.toml")["method"].items() >= {
        (k, v) for k, v in preset.items() if k != "training"
    }


def test_a_run_that_fails_is_closed_without_final_figures(tmp_path: Path) -> None:
    """A setting of a sweep, say: it has no summary; the next run is told of as usual."""
    needs("tensorboard")
    runs = TrackedRuns(("tensorboard",), tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        runs.round(tmp_path / name, name, {}, round_line(1, accuracy=0.5))
    runs.end()
    read: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    for name in ("a", "b"):
        found = read(str(tmp_path / name / "tensorboard"))
        found.Reload()
        counts = ["answered", "bytes_down", "bytes_evaluation", "bytes_up", "refused"]
        assert sorted(found.Tags()["scalars"]) == ["accuracy", *counts]


def test_runs_are_closed_when_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, the last one at the end."""
    ended: list[str] = []
    monkeypatch.setattr(Tracking, "round", lambda self, line: None)
    monkeypatch.setattr(Tracking, "end", lambda self: ended.append(self._folder.name))
    runs = TrackedRuns(("tensorboard",), tmp_path)
    for name in ("a", "a", "b", "c"):
        runs.round(tmp_path / name, name, {}, RoundLine(1))
    assert ended == ["a", "b"]
    runs.end()
    runs.end()
    assert ended == ["a", "b", "c"]


def test_a_tracker_that_fails_is_named_once_and_changes_nothing(
    fedkin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One fails when it is opened, one at the second round: the run ends with the same lines as without them."""

    class Breaks:
        id = "x"

        def __init__(self, *_: Any) -> None:
            self.rounds = 0

        def round(self, number: int, figures: Any) -> None:
            if number == 2:
                raise OSError("disk full")
            assert number == 1

        def end(self, figures: Any, report: Any) -> None:
            raise AssertionError("it was left out")

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no server")

    monkeypatch.setattr("fedkin.experiment.trackers._KINDS", {"tensorboard": Breaks, "mlflow": refuses})
    monkeypatch.setattr("fedkin.cli.commands.require", lambda names: None)
    with caplog.at_level(logging.WARNING, "fedkin.experiment.trackers"):
        assert fedkin(f"run fedavg {FLAGS} --track tensorboard mlflow --out a") == 0
    assert fedkin(f"run fedavg {FLAGS} --out b") == 0

    assert lines_in(tmp_path / "a") == lines_in(tmp_path / "b")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "mlflow" in said[0]
    assert "no server" in said[0]
    assert "tensorboard" in said[1]
    assert "disk full" in said[1]


def test_a_tracker_that_is_not_installed_is_said_before_anything_runs(
    fedkin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to install; no folder is made."""
    monkeypatch.setattr("fedkin.experiment.trackers.importlib.util.find_spec", lambda name: None)
    assert fedkin(f"run fedavg {FLAGS} --track wandb --out a") == 2
    assert 'pip install "fedkin[wandb]"' in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_without_trackers_nothing_is_written(fedkin: Any, tmp_path: Path) -> None:
    """No file, no folder beside the run's own."""
    assert fedkin(f"run fedavg {FLAGS} --out a") == 0
    assert not (tmp_path / "a" / FILE).exists()
    assert not (tmp_path / "mlruns").exists()
