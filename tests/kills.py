"""Ways to kill a run, and what must be true of it when it has been resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import Settings
from folders import assert_same_run


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


class Operations:
    """What is done to the files of a folder: each opening for writing, renaming, removal, cut, new folder.

    With ``at`` the run ends before this operation, and the last file that was written is cut in half. Later operations
    fail as well: nothing is tidied up by a process that is gone.
    """

    now: Operations | None = None

    def __init__(self, folder: Path, at: int | None = None) -> None:
        self.folder, self.at, self.count = f"{folder}{os.sep}", at, 0
        self.written: tuple[str, int] | None = None

    def __enter__(self) -> Operations:
        Operations.now = self
        return self

    def __exit__(self, *error: object) -> None:
        Operations.now = None

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        opened = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if not (opened or event in ("os.rename", "os.remove", "os.truncate", "os.mkdir")):
            return
        path = os.fspath(args[0]) if isinstance(args[0], (str, Path)) else ""
        if not path.startswith(self.folder) or path.endswith(".lock"):
            return
        self.count += 1
        if self.at is not None and self.count >= self.at:
            Operations.now = None
            if self.count == self.at and self.written is not None and os.path.exists(self.written[0]):
                file, before = self.written
                os.truncate(file, (before + os.path.getsize(file)) // 2)
            Operations.now = self
            raise Killed
        if opened:
            there = "a" in (args[1] or "") and os.path.exists(path)
            self.written = path, os.path.getsize(path) if there else 0
        elif event == "os.rename" and self.written is not None and self.written[0] == path:
            self.written = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if Operations.now is not None:
        Operations.now.see(event, args)


sys.addaudithook(_audit)


def die_before_committing(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """After the round's objects and lines are written."""
    save = RunFolder.save

    def dying(self: RunFolder, server: Any, *more: Any, **named: Any) -> None:
        if server.round == round:
            raise Killed
        save(self, server, *more, **named)

    monkeypatch.setattr(RunFolder, "save", dying)


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
