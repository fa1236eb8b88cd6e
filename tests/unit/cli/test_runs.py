"""`fedkin runs`: every run below a folder, and what became of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli import DIVERGED
from fedkin.storage.lock import writing
from folders import without_end
from owncode import CAUTIOUS


@pytest.fixture
def runs(fedkin: Command, small: str) -> Path:
    """A finished run, one whose end was lost, a comparison, and a folder that is no run."""
    assert fedkin(f"run FedAvg {small} --seed 3 --quiet --out runs/ended").code == 0
    assert fedkin(f"run da-pfl {small} --quiet --out runs/stopped").code == 0
    without_end(Path("runs/stopped"))
    assert fedkin(f"compare fedprox {small} --quiet --out runs/several").code == 0
    Path("runs/notes").mkdir()
    return Path("runs")


def test_a_line_per_run(runs: Path, fedkin: Command) -> None:
    """Those of comparisons among them, with the command that goes on."""
    done = fedkin("runs --json")
    found = {line["folder"]: line for line in json.loads(done.out)}
    names = ("local", "local-full", "fedavg", "fedprox")
    assert sorted(found) == sorted(["runs/ended", "runs/stopped", *(f"runs/several/{n}-seed0" for n in names)])
    summary = json.loads((runs / "ended" / "summary.json").read_text())
    assert found["runs/ended"] == {
        "folder": "runs/ended", "method": "FedAvg", "data": "digits", "seed": 3, "done": 2, "planned": 2,
        "accuracy": summary["final"]["accuracy"], "state": "finished", "validation": None,
    }  # fmt: skip
    last = json.loads((runs / "stopped" / "rounds.jsonl").read_text().splitlines()[-1])["figures"]
    assert (found["runs/stopped"]["state"], found["runs/stopped"]["accuracy"]) == ("interrupted", last["accuracy"])
    assert found["runs/stopped"]["method"] == "DA-PFL"
    shown = fedkin("runs").out
    assert "several/fedprox-seed0" in shown
    assert "1 interrupted; continue with, for example: fedkin resume runs/stopped" in shown


def test_an_interrupted_comparison_goes_on_as_a_whole(fedkin: Command, small: str) -> None:
    """Its method has the name of its class, and the command goes on with all runs, those that have not begun, too."""
    Path("mine.py").write_text(CAUTIOUS)
    assert fedkin(f"compare ./mine.py:Cautious {small} --quiet --out runs/int").code == 0
    assert "interrupted" not in fedkin("runs").out
    without_end(Path("runs/int/Cautious-seed0"))
    names = {Path(line["folder"]).name: line["method"] for line in json.loads(fedkin("runs --json").out)}
    assert names["Cautious-seed0"] == "Cautious"
    assert "\n1 interrupted; continue with, for example: fedkin resume runs/int\n" in fedkin("runs").out
    shutil.rmtree("runs/int/Cautious-seed0")
    assert "\n1 interrupted; continue with, for example: fedkin resume runs/int\n" in fedkin("runs").out
    with writing(Path("runs/int")):
        assert "interrupted" not in fedkin("runs").out


def test_trials_of_a_sweep_have_validation_figures(fedkin: Command, small: str) -> None:
    """Of a trial that has ended and of one that has not; test figures, by which settings must not be chosen, are in
    neither the list nor the table."""
    assert fedkin(f"sweep fedavg {small} --validation 0.3 --grid training.lr=0.01,0.5 --quiet --out s").code == 0
    without_end(Path("s") / "001-seed0")
    found = json.loads(fedkin("runs s --json").out)
    last = json.loads((Path("s") / "001-seed0" / "rounds.jsonl").read_text().splitlines()[-1])["figures"]["validation"]
    final = json.loads((Path("s") / "000-seed0" / "summary.json").read_text())["final"]["validation"]
    assert [(run["accuracy"], run["validation"]) for run in found] == [(None, final), (None, last)]
    shown = fedkin("runs s").out
    assert f"{100 * final:.1f} val." in shown
    assert "val.: validation accuracy, by which a sweep chooses" in shown


def test_what_is_wrong_is_the_state(runs: Path, fedkin: Command) -> None:
    """A run that is being written, one that has failed on hosts, one that diverged, and damaged folders."""
    assert fedkin("run local --data digits --clients 4 --rounds 2 --lr 1e30 --quiet --out runs/nan").code == DIVERGED
    (runs / "stopped" / "failed.txt").write_text("too few clients\n")
    (runs / "several" / "local-seed0" / "commit.json").write_text("{")
    (runs / "several" / "fedavg-seed0" / "config.toml").write_text("[")
    with writing(runs / "several" / "fedprox-seed0"):
        found = {Path(line["folder"]).name: line["state"] for line in json.loads(fedkin("runs --json").out)}
    assert found["nan"] == "diverged in round 1"
    assert found["stopped"] == "failed (failed.txt says why)"
    assert "is damaged" in found["local-seed0"]
    assert "is not a TOML file" in found["fedavg-seed0"]
    assert found["fedprox-seed0"].startswith("running (process ")
    assert found["local-full-seed0"] == "finished"


def test_a_page_of_them(runs: Path, fedkin: Command) -> None:
    """Runs link to their reports, those of a comparison to its own; names from folders are text."""
    (runs / "stopped").rename(runs / "<b>x")
    assert fedkin("runs --html runs/index.html").code == 0
    text = (runs / "index.html").read_text()
    assert text.count('<a href="ended/report.html">') == 1
    assert text.count('<a href="several/report.html">') == 4
    assert "&lt;b&gt;x</a></td><td>DA-PFL</td>" in text
    assert "<b>x" not in text


def test_one_run_and_none(fedkin: Command, small: str) -> None:
    """A run folder by itself, an empty folder, and a folder that is not there."""
    assert fedkin(f"run fedavg {small} --quiet --out a").code == 0
    assert [line["folder"] for line in json.loads(fedkin("runs a --json").out)] == ["a"]
    Path("empty").mkdir()
    assert "no runs in empty" in fedkin("runs empty").out
    done = fedkin("runs")
    assert (done.code, "there is no folder runs" in done.err) == (2, True)


def test_folders_that_may_not_be_read(runs: Path, fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's folder on a shared disk hides no run; a run with an unreadable file is listed with the reason."""
    may, read = os.access, Path.read_text
    (runs / "notes" / "deep").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != runs / "several" and may(path, mode))

    def refused(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if path == runs / "stopped" / "config.toml":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, encoding, errors)

    monkeypatch.setattr(Path, "read_text", refused)
    found = {line["folder"]: line["state"] for line in json.loads(fedkin("runs --json").out)}
    assert found == {"runs/ended": "finished", "runs/stopped": found["runs/stopped"]}
    assert "Permission denied" in found["runs/stopped"]
