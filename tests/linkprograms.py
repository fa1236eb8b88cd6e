"""A link, its folder and Flower's nodes as programs on loopback."""

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

from fedkin.deploy import keys, offline
from fedkin.deploy.link import Link
from fedkin.deploy.ports import free_port
from fedkin.deploy.programs import Program, descendants


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
def node(folder: Path, address: str, key: str, *flags: str) -> Iterator[Program]:
    """A SuperNode; with the link's authority if no other trust is given."""
    command = [offline.program("flower-supernode"), "--superlink", address, "--port", str(free_port())]
    command += ["--auth-supernode-private-key", str(folder / "private" / key)]
    command += flags or ("--root-certificates", str(folder / "keys" / "ca.crt"))
    log = folder / f"node-{time.monotonic_ns()}.log"
    program = Program("node", command, offline.environment(folder / "node-home"), log)
    try:
        yield program
    finally:
        program.stop()


def statuses(link: Link) -> dict[str, str]:
    return {n["name"]: n["status"] for n in link.control.nodes()}


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
        assert until(lambda: len(descendants(process.pid)) >= 2)  # SuperLink and SuperExec
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
