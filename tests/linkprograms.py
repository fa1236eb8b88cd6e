"""A link, its folder and nodes as programs on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin_hosts import keys, machine
from programs import Program, Running, descendants

ECHO = """
import sys
from pathlib import Path
from fedkin_hosts.fleet import FleetNode

link, *files = sys.argv[1:]
ca, key = map(Path, files) if files else (None, None)
FleetNode(link, ca, key, lambda message: message, lambda line: print(line, flush=True)).serve()
"""


def until(true: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.1)
    return False


def place_for(folder: Path) -> Path:
    """A link's folder with its authority, one node's key inside and one outside."""
    keys.make_authority(folder / "keys", ["127.0.0.1"])
    for name in ("inside", "outside"):
        keys.make_node_key(folder / "private", name)
    (folder / "nodes").mkdir()
    shutil.copy(folder / "private" / "inside.pub", folder / "nodes")
    return folder


@contextmanager
def node(folder: Path, address: str, key: str, ca: Path | None = None) -> Iterator[Program]:
    """A node without data, which returns each message; with the link's authority if no other trust is given."""
    command = [
        sys.executable,
        "-c",
        ECHO,
        address,
        str(ca or folder / "keys" / "ca.crt"),
        str(folder / "private" / key),
    ]
    log = folder / f"node-{time.monotonic_ns()}.log"
    program = Program("node", command, machine.environment(folder / "node-home"), log)
    try:
        yield program
    finally:
        program.stop()


def statuses(link: Running) -> dict[str, str]:
    return {node.name: node.status for node in link.control.nodes()}


def _interruptible() -> None:
    """Undo a shell's setting for what it starts in the background: SIGINT ignored, which programs inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def command(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[int, str]]]:
    """``fedkin link`` as a process that is up, and what it started; none of it is left behind."""
    words = [sys.executable, "-m", "fedkin", "link", str(folder), "--host", "127.0.0.1", "--port", "0"]
    log = (folder / "out.txt").open("w+")
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*words, "--inner-port", "0", *flags],
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=env,
        preexec_fn=_interruptible,
    )
    family: dict[int, str] = {}
    try:
        assert until(lambda: "stop:" in (folder / "out.txt").read_text(), 300), (folder / "out.txt").read_text()
        assert until(lambda: len(descendants(process.pid)) >= 2)  # the SuperLink and its SuperExec
        family = descendants(process.pid)
        yield process, family
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            if process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        process.wait()
        log.close()


def gone(family: dict[int, str]) -> bool:
    """Whether none of these processes runs; one that nobody waited for yet is no more than a line in a table."""
    states = []
    for pid in family:
        try:
            states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return all(state in "ZX" for state in states)
