"""Programs as child processes of a test: started, watched, and ended with all that they started; and links."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.core.errors import EngineError
from fedkin.display import printable
from fedkin.storage.files import for_this_user
from fedkin_hosts.gate import Gate
from fedkin_hosts.link import Link, LinkSettings

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
        log.parent.mkdir(parents=True, exist_ok=True)
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


class Background:
    """A coroutine that runs in a thread of its own until `stop`.

    Attributes:
        failure: error that ended it; None as long as it runs.
    """

    def __init__(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.failure: BaseException | None = None
        self._serve, self._begun = serve, threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._begun.wait()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Cancels it and waits for its end; may be called twice."""
        if self.alive and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        async def serve() -> None:
            self._task = asyncio.current_task()
            self._begun.set()
            await self._serve()

        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(serve())
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self.failure = error


class Running:
    """A link that serves in a thread, from construction to `stop`; it has the link's attributes.

    Attributes:
        lines: what it said about keys at its start.
        said: what it said since.

    Raises:
        FedkinError: it did not start.
    """

    def __init__(self, settings: LinkSettings) -> None:
        self.link, self.said = Link(settings), list[str]()
        self.lines: list[str] | None = None
        self.background = Background(self._run)
        while self.lines is None and self.background.alive:
            time.sleep(0.05)
        if self.lines is None:
            raise self.background.failure or AssertionError("cancelled")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)

    async def _run(self) -> None:
        try:
            await self.link.run(self.said.append, self._ready)
        finally:
            self.link.close()

    def _ready(self, lines: list[str]) -> None:
        self.lines = lines

    def stop(self) -> None:
        """Ends it; may be called twice."""
        self.background.stop()


class ServedGate:
    """A gate that serves in a thread, from construction to `stop`; it has the gate's attributes."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.background = gate, Background(gate.serve)
        self.port = int(gate.address.rpartition(":")[2])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gate, name)

    def stop(self) -> None:
        """Ends it; may be called twice."""
        self.background.stop()
        self.gate.close()
