"""Flower's programs as child processes: started, watched, and ended with all processes that they started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedkin.core.errors import ConfigError, EngineError
from fedkin.deploy.private import private_folder
from fedkin.display import printable
from fedkin.storage import lock as locks
from fedkin.storage.files import for_this_user

LOG_BYTES = 20 << 20  # a log longer than this becomes NAME.1
_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # of a terminal, as Flower writes it into its logs too

# Runs in the new process before the program: Linux kills the process when its starter dies for any reason, so that no
# SuperLink is left behind that holds the port and the database. Files that it writes are readable by this user only
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.umask(0o077)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Program:
    """A program whose output goes to a log file.

    On Linux it ends with the *thread* that started it, so start it from one that lives as long as it is needed.

    Attributes:
        name: name of the program in messages.
        log: file that its output is appended to.
        command: program and arguments.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name, self.log, self.command = name, log, list(command)
        private_folder(log.parent, tighten=False)
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
        with contextlib.ExitStack() as undo, for_this_user():
            self._output = undo.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                launch,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # fedkin receives Ctrl-C and ends its programs in order
            )
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._process.poll() is None

    def stop(self, seconds: float = 10.0) -> None:
        """Ask the program to end, then kill it; also kill its descendants that do not end by themselves."""
        family = descendants(self.pid)
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                family |= descendants(self.pid)
                self._process.kill()
                self._process.wait()
        for signum, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            end = time.monotonic() + patience / 2
            while _left(family) and time.monotonic() < end:
                time.sleep(0.05)
            for pid in _left(family):
                os.kill(pid, signum)
        self._output.close()

    def trim(self) -> None:
        """Truncate the log if it has become long; the former one is kept next to it.

        A log that was deleted or renamed still receives the program's output, so it is truncated too, without a copy.
        """
        there = os.fstat(self._output.fileno())  # by its handle: its name may be gone, or be another file's
        if there.st_size <= LOG_BYTES:
            return
        with contextlib.suppress(OSError):  # without a copy, as on a full disk, the program goes on
            if os.path.samestat(self.log.stat(), there):
                shutil.copyfile(self.log, self.log.with_name(self.log.name + ".1"))
        os.ftruncate(self._output.fileno(), 0)  # it is opened for appending, so later output begins at the new end

    def ended(self) -> EngineError:
        """Return the error of a program that ended by itself, with the last lines that it wrote."""
        return EngineError(
            f"{self.name} ended with exit code {self._process.returncode}; the end of {self.log}:\n"
            + last_lines(self.log)
        )


def wait_until(ready: Callable[[], bool], program: Program, seconds: float) -> None:
    """Wait until a program is ready.

    Raises:
        EngineError: the program ended, or the time is over.
    """
    end = time.monotonic() + seconds
    while program.alive:
        if ready():
            return
        if time.monotonic() > end:
            raise EngineError(
                f"{program.name} is not ready after {seconds:g} s; the end of {program.log}:\n"
                + last_lines(program.log)
            )
        time.sleep(0.1)
    raise program.ended()


def locked(folder: Path, what: str, remedy: str) -> contextlib.ExitStack:
    """Lock a folder for the programs of one link or node; closing the returned stack releases the lock.

    Args:
        folder: folder, which exists.
        what: what runs in it, such as "a link".
        remedy: what to do if another process has the folder, in addition to stopping that process.

    Raises:
        ConfigError: another process has the folder; its process id is in the text.
    """
    lock = contextlib.ExitStack()
    if not lock.enter_context(locks.held(folder / locks.NAME)):
        raise ConfigError(
            f"{what} runs in {folder} already ({locks.owner(folder / locks.NAME) or 'another process'}); stop that one "
            f"first, or {remedy}"
        )
    return lock


def last_lines(log: Path, count: int = 8) -> str:
    """Return the end of a log file, indented, without the colour codes of a terminal."""
    if not log.exists():
        return "  (nothing)"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(f"  {printable(_COLOUR.sub('', line))}" for line in text.splitlines()[-count:]) or "  (nothing)"


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process started, and their descendants: id -> start time, which reveals a reused id.

    The mapping is empty where the machine has no ``/proc``.
    """
    parents: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (known := _stat(int(folder.name))) is not None:
            _, parent, begun = known
            parents.setdefault(parent, []).append(int(folder.name))
            started[int(folder.name)] = begun
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            found[child] = started[child]
            todo.append(child)
    return found


def _left(family: Mapping[int, str]) -> list[int]:
    """Return the processes that still run."""
    left = []
    for pid, begun in family.items():
        known = _stat(pid)
        if known is not None and known[0] not in "ZX" and known[2] == begun:
            left.append(pid)
    return left


def _stat(pid: int) -> tuple[str, int, str] | None:
    """Return state, parent and start time of a process; None if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), words[19]
