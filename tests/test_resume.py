"""A kill at any moment loses at most the round in progress; the run then goes on bit for bit.

Every test compares a run that was stopped and resumed with one that was not: the lines byte for byte, the checkpoint
tensor by tensor. Some are killed for good (SIGKILL to the process or to all of its group), some by an error raised at
one exact place.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fedkin.experiment.run_folder
from fedkin.core import RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings, toml_of
from fedkin.record.files import read_commit
from folders import LINES, assert_same_run, content, lines_in, records, small
from grouped import tables as run_tables
from kills import (
    Killed,
    Operations,
    assert_goes_on,
    begin_and_kill,
    die_before_committing,
    records_until_torn,
    wait_for_lines,
)

HARD = {"dropout": 0.2, "late_joiners": "1@4"}
METHODS = {  # private states; private states and a bank; clusters and a warm-up
    "pfedcs": {},
    "da-pfl": {},
    "fesem-cam": {"inner": {"clusters": 2}},
}


def settings_of(name: str, rounds: int = 6, **run: Any) -> Settings:
    """A run of a method with drop-outs and a late joiner."""
    return small(name, METHODS.get(name), **run_tables({**HARD, "rounds": rounds, **run}))


# ---- killed at every operation on files ---------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["memory", "file"])
@pytest.mark.parametrize("name", ["da-pfl", pytest.param("fesem-cam", marks=pytest.mark.thorough)])
def test_killed_at_every_operation(name: str, state: str, whole: Any, tmp_path: Path) -> None:
    """A kill at each operation of rounds 3 and 4, in which a client joins, and again in the recovery from
    it, leaves a folder from which the run goes on to the same lines and tensors, the best round's as well."""
    settings = settings_of(name, rounds=4, state=state, eval_every=1, late_joiners="1@4", dropout=0.0)

    def stop(report: Any, line: Any) -> None:
        if report.round == 2:
            raise Killed

    with pytest.raises(Killed):
        run_settings(settings, out=tmp_path / "a", on_round=stop)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Operations(tmp_path / "b") as operations:
        resume(tmp_path / "b")
    for at in range(1, max(20, operations.count) + 1):
        place = tmp_path / str(at)
        shutil.copytree(tmp_path / "a", place)
        with Operations(place, at), pytest.raises(Killed):
            resume(place)
        with Operations(place, 1 + at % 11), suppress(Killed):  # nothing may be left to do
            resume(place)
        assert_goes_on(place, whole(settings))
        shutil.rmtree(place)


def test_killed_in_the_first_round(whole: Any, tmp_path: Path) -> None:
    """Killed before there was any commit, the run begins again and gives what it would have given."""
    settings = settings_of("da-pfl")
    for at in range(8, 40, 3):
        place = tmp_path / str(at)
        with Operations(place, at), pytest.raises(Killed):
            run_settings(settings, out=place)
        assert_goes_on(place, whole(settings))


def test_killed_before_the_first_round(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with nothing but its config, and how inputs are made, is one to go on in."""
    settings = settings_of("da-pfl")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["fedkin.experiment.execute"], "run_rounds", killed)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")

    assert {p.name for p in (tmp_path / "a").iterdir()} == {"config.toml", "preparation.json", "run.json"}
    assert_goes_on(tmp_path / "a", whole(settings))


def killed(*args: Any, **more: Any) -> Iterator[Any]:
    """Nothing more happens."""
    raise Killed


def test_killed_while_the_config_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which not even the config is whole counts as none: the same command works again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".config.toml.1.new").write_text("[method")

    run_settings(settings_of("fedavg"), out=tmp_path / "a")
    assert not list((tmp_path / "a").glob(".*"))


def test_stopped_after_every_round(whole: Any, tmp_path: Path) -> None:
    """A run that is stopped after each single round and resumed each time ends as if it had not been stopped."""
    settings = settings_of("fesem-cam")

    def stop(report: Any, line: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        run_settings(settings, out=tmp_path / "a", on_round=stop)
    for _ in range(settings.run.rounds - 1):
        with pytest.raises(Killed):
            resume(tmp_path / "a", on_round=stop)
    assert_goes_on(tmp_path / "a", whole(settings))


def test_another_number_of_workers_may_go_on(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine and workers are no part of what a run is: another engine goes on to the same end."""
    settings = settings_of("da-pfl")
    with monkeypatch.context() as patch:
        die_before_committing(patch, 4)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace('engine = "loop"\nworkers = 0', 'engine = "workers"\nworkers = 2'))

    assert_goes_on(tmp_path / "a", whole(settings))


# ---- killed for good ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "after",
    [0.0, 0.013, *(pytest.param(seconds, marks=pytest.mark.thorough) for seconds in (0.003, 0.007, 0.029, 0.041))],
)
@pytest.mark.parametrize("name", METHODS)
def test_sigkill(name: str, after: float, whole: Any, tmp_path: Path) -> None:
    """A run on two workers, killed with SIGKILL somewhere in a round, goes on to the same lines and tensors."""
    settings = settings_of(name, rounds=24, engine="workers@n=2")
    send = os.kill if after < 0.01 else os.killpg
    begin_and_kill(settings, tmp_path / "a", after, send)
    reached = len(records_until_torn(tmp_path / "a"))

    assert 3 <= reached <= 20
    assert_goes_on(tmp_path / "a", whole(settings))


@pytest.mark.thorough
def test_sigkill_of_the_command(whole: Any, tmp_path: Path) -> None:
    """``fedkin run`` as people start it, killed in mid-round, and ``fedkin resume`` after it."""
    settings = settings_of("pfedcs", rounds=100, engine="workers@n=2")
    (tmp_path / "run.toml").write_text(toml_of(settings))
    command = [sys.executable, "-m", "fedkin"]
    path = str(Path(fedkin.experiment.run_folder.__file__).parents[2])
    how: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}}
    process = subprocess.Popen([*command, "run", "run.toml", "--quiet", "--out", "a"], start_new_session=True, **how)
    wait_for_lines(tmp_path / "a", 3, lambda: process.poll() is None)
    time.sleep(0.01)
    process.kill()
    assert process.wait(timeout=600) == -signal.SIGKILL

    done = subprocess.run([*command, "resume", "a", "--quiet"], capture_output=True, text=True, timeout=600, **how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_same_run(tmp_path / "a", whole(settings))


# ---- nothing to do, and nothing to go on from ---------------------------------------------------------------------
def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """It gives the same result and does not even write the files again."""
    first = run_settings(settings_of("da-pfl"), out=tmp_path / "a")
    before = {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in (tmp_path / "a").rglob("*")}
    again = resume(tmp_path / "a")

    assert (again.rounds, again.clients, again.relations) == (first.rounds, first.clients, first.relations)
    assert (again.final, again.best, again.summary) == (first.final, first.best, first.summary)
    assert (again.title, again.seed) == (first.title, first.seed)
    assert {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in (tmp_path / "a").rglob("*")} == before


def test_a_commit_is_one_round_ahead_of_nothing(tmp_path: Path) -> None:
    """After every round the commit is that round's: what a kill loses is at most the round in progress."""
    seen: list[tuple[int, int]] = []

    def look(report: Any, line: dict[str, Any]) -> None:
        seen.append((read_commit(tmp_path / "a").round, len(records(tmp_path / "a", "rounds"))))

    run_settings(small(), out=tmp_path / "a", on_round=look)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("damage", ["cut in the middle", "a round missing", "gone"])
def test_damaged_lines_are_named(damage: str, tmp_path: Path) -> None:
    """Lines that a kill cannot have damaged are not silently left out: resume says which file and changes nothing."""
    run_settings(small(), out=tmp_path / "a")
    path = tmp_path / "a" / "rounds.jsonl"
    texts = path.read_text().splitlines(keepends=True)
    if damage == "cut in the middle":
        path.write_text(texts[0][:-20] + "\n" + "".join(texts[1:]))
    elif damage == "a round missing":
        path.write_text("".join([texts[0], *texts[2:]]))
    else:
        path.unlink()
    before = content(tmp_path / "a")

    with pytest.raises(RunFolderError, match=r"rounds\.jsonl"):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_lines_of_equal_runs_are_equal_and_of_others_are_not(whole: Any) -> None:
    """What these tests compare tells runs apart."""
    one, other = whole(settings_of("da-pfl")), whole(settings_of("da-pfl", seed=1))

    assert all(lines_in(one)[name] != lines_in(other)[name] for name in LINES)
