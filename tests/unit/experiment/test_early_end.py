"""`stop_after`: a run ends when validation accuracy has not risen for a number of evaluations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commandline import Command
from fedkin.cli import BAD_INPUT, OK
from fedkin.core import ConfigError
from fedkin.experiment.records import without_outcomes
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings
from folders import assert_equal_folders, records, tensors_in
from folders import small as settings_of
from grouped import tables as run_tables
from kills import Killed, assert_goes_on, die_before_committing

STILL = {"lr": 1e-12}
"""With steps this small no prediction changes: only the first evaluation is a gain."""


def still(method: str = "fedavg", /, **run: Any) -> Settings:
    """A run whose validation accuracy stays as it is after the first evaluation, and is evaluated in each round."""
    return settings_of(method, training=STILL, **run_tables({"rounds": 20, "eval_every": 1, **run}))


def test_a_run_ends_after_evaluations_without_a_gain(tmp_path: Path) -> None:
    """The first of four evaluations is the highest: the run ends with round 4 of 20, and is the first four rounds of
    the run without the setting. Its last round has the outcomes of single test samples, and no other has them."""
    result = run_settings(still(stop_after=3), out=tmp_path / "a")
    whole = run_settings(still())

    assert (result.rounds, list(result.relations)) == (whole.rounds[:4], whole.relations[: len(result.relations)])
    wanted = "after round 4 of 20: no gain in validation accuracy since round 1 (stop_after = 3)"
    assert (result.ended, result.stopped, result.final.rounds) == ("early", wanted, (4,))
    assert (whole.ended, whole.stopped) == ("rounds", "")
    assert run_settings(still(stop_after=3, rounds=4)).ended == "rounds"  # it ends with its last round
    lines = records(tmp_path / "a", "clients")
    assert {line.round for line in lines if line.right} == {4}
    assert [without_outcomes(line) for line in lines] == [line for line in whole.clients if line.round <= 4]


def test_a_run_that_gains_goes_on() -> None:
    """Real steps: the run ends two evaluations after the highest, and has seen single ones without a gain before."""
    data = {"samples_per_client": 60, "validation": 0.3}
    settings = settings_of(data=data, **run_tables({"rounds": 30, "eval_every": 1, "stop_after": 2}))
    found = [line.figures.validation for line in run_settings(settings).rounds]
    assert 4 < len(found) < 30
    assert max(found[:-3]) < found[-3] >= max(found[-2:])
    assert found[:-2] != sorted(set(found[:-2]))


def test_a_killed_run_ends_in_the_same_round(
    whole: Callable[[Settings], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the checkpoint of its last round, and between that and the summary."""
    settings = still("da-pfl", stop_after=3)
    with monkeypatch.context() as patch:
        die_before_committing(patch, 4)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")

    def stop(report: Any, line: Any) -> None:
        if report.round == 4:
            raise Killed

    with pytest.raises(Killed):
        run_settings(settings, out=tmp_path / "b", on_round=stop)
    assert not (tmp_path / "b" / "summary.json").exists()
    for name in "ab":
        assert_goes_on(tmp_path / name, whole(settings))
        assert int(tensors_in(tmp_path / name)["round"]) == 4


def test_it_needs_validation_data(tmp_path: Path) -> None:
    """Before anything is written."""
    settings = settings_of(data={"validation": 0.0}, **run_tables({"stop_after": 5}))
    with pytest.raises(ConfigError, match=r"stop_after = 5: it goes by validation accuracy, .*--validation 0\.1"):
        run_settings(settings, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigError, match="stop_after = 0"):
        still(stop_after=0)


@pytest.mark.parametrize("stop_after", [4, pytest.param(12, marks=pytest.mark.thorough)])
def test_more_rounds_are_those_of_the_long_run(stop_after: int, tmp_path: Path) -> None:
    """13 rounds, evaluated in round 4 and in each after it, end in round 8, or have all rounds. Of 40 rounds only every
    fourth is evaluated until round 30, so the run goes on, and ends where 40 rounds end."""
    how = {"eval_every": 4, "stop_after": stop_after}
    first = run_settings(still(**how, rounds=13), out=tmp_path / "a")
    assert first.summary["rounds"] == (8 if stop_after == 4 else 13)
    resume(tmp_path / "a", rounds=40)
    long = run_settings(still(**how, rounds=40), out=tmp_path / "long")
    assert long.summary["rounds"] == (20 if stop_after == 4 else 36)
    assert_equal_folders(tmp_path / "a", tmp_path / "long", first.summary["rounds"])


def test_more_rounds_of_a_run_that_ends_early_anyway_are_refused(tmp_path: Path) -> None:
    """The longer run would have the same evaluations and end in the same round; the folder stays as it is."""
    run_settings(still(stop_after=3), out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"with stop_after = 3 it would end early as well, after round 4"):
        resume(tmp_path / "a", rounds=60)
    assert resume(tmp_path / "a").summary["rounds"] == 4


def test_methods_of_a_comparison_end_for_themselves(fedkin: Command) -> None:
    """Each after another number of rounds: table, page, list and log say so, and clients are still compared."""
    data = "--clients 4 --samples-per-client 60 --model linear --steps 2 --batch-size 5 --engine loop"
    done = fedkin(f"compare fedavg {data} --rounds 20 --eval-every 1 --stop-after 3 --seeds 0 1 --out c")
    runs = {run["folder"]: run for run in json.loads(fedkin("runs c --json").out)}
    ends = {name: run["done"] for name, run in runs.items()}

    assert done.code == OK
    assert len(set(ends.values())) > 1
    assert {run["state"] for run in runs.values() if run["done"] < 20} == {"finished early"}
    assert f"seed 1, {ends['c/fedavg-seed1']} rounds, accuracy" in done.err
    assert "ended early, without a gain in validation accuracy: Local after round" in done.out
    summary = json.loads(Path("c/fedavg-seed0/summary.json").read_text())
    assert summary["stopped"].startswith(f"after round {ends['c/fedavg-seed0']} of 20: ")
    page = Path("c/report.html").read_text()
    assert "Training ended early, after round" in page
    assert "A line ends with the first of its seeds to end early." in page
    shutil.copytree("c/fedavg-seed0", "alone")
    refused = fedkin("resume alone --rounds 90")
    assert (refused.code, "begin a run with another --stop-after" in refused.err) == (BAD_INPUT, True)
