"""Ways to kill a run, and what must be true of it when it has been resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import Settings
from fedkin.record.files import LineFiles
from folders import LINES, assert_same_run


class Killed(BaseException):
    """Stands for the end of the process: nobody catches it."""


class Stop(Exception):
    """Ends a run, a comparison or a sweep in the middle, as an error in a program that called it would."""


def assert_goes_on(folder: Path, uninterrupted: Path, *, best: bool = True) -> None:
    """Resumes and compares with the uninterrupted run, its summary too; and its best round, if that can be kept."""
    resume(folder)
    assert_same_run(folder, uninterrupted, best=best)
    mine, other = (json.loads((f / "summary.json").read_text()) for f in (folder, uninterrupted))
    for summary in (mine, other):
        del summary["command"], summary["engine"]  # the folder, and the engine, which decides nothing
        for name in ("engine", "state"):  # decide nothing
            del summary["config"]["compute"][name]
    assert mine == other


def die_before_saving(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """After the round's lines are appended, before its checkpoint is written."""
    save = RunFolder.save

    def dying(self: RunFolder, server: Any, *more: Any) -> None:
        if server.round == round:
            raise Killed
        save(self, server, *more)

    monkeypatch.setattr(RunFolder, "save", dying)


def die_before_replacing(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """When the new checkpoint is written beside the old one and has not taken its place."""
    replace, count = os.replace, iter(range(1, 1000))

    def dying(old: Path, new: Path) -> None:
        if Path(new).name == "checkpoint.safetensors" and next(count) == round:
            shutil.copy(old, Path(new).with_name(".checkpoint.safetensors.1.new"))  # the tidying up does not happen
            raise Killed
        replace(old, new)

    monkeypatch.setattr(os, "replace", dying)


def die_between_files(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """When rounds.jsonl has the round's line and clients.jsonl has not."""
    append = LineFiles.append

    def dying(self: LineFiles, lines: dict[str, Any]) -> None:
        if lines["rounds"][0].round == round:
            append(self, {"rounds": lines["rounds"]})
            raise Killed
        append(self, lines)

    monkeypatch.setattr(LineFiles, "append", dying)


def die_in_a_line(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """When half of the round's line is written, in each of the files."""
    append = LineFiles.append

    def dying(self: LineFiles, lines: dict[str, Any]) -> None:
        append(self, lines)
        if lines["rounds"][0].round == round:
            for name in (name for name in LINES if lines[name]):
                path = self._folder / f"{name}.jsonl"
                path.write_bytes(path.read_bytes()[:-9])
            raise Killed

    monkeypatch.setattr(LineFiles, "append", dying)


def die_before_the_summary(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """When everything is written but summary.json."""

    write = RunFolder.write

    def dying(self: RunFolder, name: str, value: Any) -> None:
        if name == "summary":
            raise Killed
        write(self, name, value)

    monkeypatch.setattr(RunFolder, "write", dying)


def die_before_keeping_the_best(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """After the checkpoint of the first best round from this one on, before it is kept as the best."""
    keep = RunFolder.keep_best

    def dying(self: RunFolder, best: int | None) -> None:
        if best is not None and best >= round:
            raise Killed
        keep(self, best)

    monkeypatch.setattr(RunFolder, "keep_best", dying)


def die_before_naming_the_best(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """When the best round's checkpoint has a second name that is not yet the right one."""
    replace = os.replace

    def dying(old: Path, new: Path) -> None:
        if Path(new).name == "best.safetensors" and (safe_round(old) or 0) >= round:
            os.link(old, Path(new).with_name(".best.safetensors.1.new"))  # the tidying up does not happen
            raise Killed
        replace(old, new)

    monkeypatch.setattr(os, "replace", dying)


def safe_round(path: Path) -> int | None:
    """The round of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["round"])


PLACES = [die_before_saving, die_before_replacing, die_between_files, die_in_a_line, die_before_the_summary]


def begin_and_kill(settings: Settings, out: Path, after: float, send: Callable[[int, int], None]) -> None:
    """Runs in a process of its own and kills it ``after`` seconds beyond its third round.

    The process is forked, so that what is waited for is the run and not the imports.
    """

    def wait_at_twenty(report: Any, line: dict[str, Any]) -> None:
        if report.round == 20:  # no run is over before it is killed, however busy this machine is
            time.sleep(600)

    def child() -> None:
        os.setsid()
        run_settings(settings, out=out, on_round=wait_at_twenty)

    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    assert process.pid is not None
    wait_for_lines(out, 3, process.is_alive)
    time.sleep(after)
    send(process.pid, signal.SIGKILL)
    process.join(timeout=600)
    assert process.exitcode == -signal.SIGKILL


def wait_for_lines(out: Path, count: int, alive: Callable[[], bool]) -> None:
    """Waits until a run has written some rounds."""
    end = time.monotonic() + 600
    while not (out / "rounds.jsonl").exists() or (out / "rounds.jsonl").read_bytes().count(b"\n") < count:
        assert alive() or (out / "rounds.jsonl").exists(), "the run ended before its third round"
        assert time.monotonic() < end, "no third round in ten minutes"
        time.sleep(0.002)


def records_until_torn(folder: Path) -> list[str]:
    """The whole lines of a folder whose run was killed."""
    return [text for text in (folder / "rounds.jsonl").read_text().split("\n")[:-1] if text]
