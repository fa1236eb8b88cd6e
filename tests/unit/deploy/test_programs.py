"""Programs of a link or node: their logs may be deleted, renamed or long, and one folder has one of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkin.core.errors import ConfigError
from fedkin.deploy import programs
from fedkin.deploy.programs import Program, locked

WRITES = "import time\nwhile True:\n    print('x' * 99, flush=True)\n    time.sleep(0.01)"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """One that writes to its log all the time."""
    made = Program("it", [sys.executable, "-c", WRITES], os.environ, tmp_path / "logs" / "it.log")
    yield made
    made.stop()


def grown(log: Path, size: int = 0) -> bool:
    end = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size > size):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_long_log_is_kept_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit it becomes NAME.1, and the program goes on at the beginning."""
    assert grown(program.log, 1000)
    program.trim()
    assert not program.log.with_name("it.log.1").exists()
    monkeypatch.setattr(programs, "LOG_BYTES", 1000)
    program.trim()
    assert program.log.with_name("it.log.1").stat().st_size > 1000
    assert grown(program.log)
    assert program.log.read_bytes()[:1] == b"x"


def test_a_deleted_log_ends_nothing(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at once nor when it would be too long."""
    assert grown(program.log)
    program.log.unlink()
    program.trim()
    monkeypatch.setattr(programs, "LOG_BYTES", 0)
    program.trim()
    assert program.alive
    assert list(program.log.parent.iterdir()) == []


@pytest.mark.parametrize("new", [False, True])
def test_a_renamed_log_ends_nothing(program: Program, new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As logrotate renames it, with or without a new file in its place: the program's output stays limited."""
    assert grown(program.log)
    former = program.log.rename(program.log.with_name("it.log.1"))
    if new:
        program.log.write_text("new\n")
    program.trim()
    assert grown(former, 1000)
    monkeypatch.setattr(programs, "LOG_BYTES", 1000)
    os.kill(program.pid, signal.SIGSTOP)  # it writes nothing while its log is looked at
    program.trim()
    assert former.stat().st_size == 0
    os.kill(program.pid, signal.SIGCONT)
    assert grown(former)
    assert program.alive
    assert program.log.exists() == new
    assert not new or program.log.read_text() == "new\n"


def test_a_full_disk_costs_the_copy_of_a_log_only(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is truncated all the same."""

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    assert grown(program.log, 1000)
    monkeypatch.setattr(programs, "LOG_BYTES", 1000)
    monkeypatch.setattr(programs.shutil, "copyfile", full)
    program.trim()
    assert grown(program.log)
    assert program.alive


def _refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"a node runs in {folder} already \(process {os.getpid()} on .*, or choose"):
        locked(folder, "a node", "choose another")


def test_a_folder_is_for_one(tmp_path: Path) -> None:
    """The text names what runs there, its process and the remedy; afterwards the folder is free."""
    with locked(tmp_path, "a node", "choose another"):
        _refused(tmp_path)
    locked(tmp_path, "a node", "choose another").close()
