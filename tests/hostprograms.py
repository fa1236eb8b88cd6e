"""A fleet of real programs on loopback: a link behind its gate with TLS and keys, and `fedkin node` for every client.

The nodes' workers run with `tests/hosts/faulty` on their path, whose `sitecustomize` makes them fail as a test wants.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file

from fedkin.experiment.settings import Settings
from fedkin.record.files import read_commit
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin_hosts import keys
from fedkin_hosts.control import Control
from fedkin_hosts.link import LinkSettings
from fedkin_hosts.machine import free_port
from fedkin_hosts.submitted import submit
from programs import Program, Running, descendants, last_lines

FAULTY = Path(__file__).parent / "hosts" / "faulty"


class Fleet:
    """A link and nodes ``c0``, ``c1``, ..., each with its share of the digits.

    Args:
        folder: for all that they write.
        clients: how many keys are made.
        host: where nodes reach the gate.
    """

    def __init__(self, folder: Path, clients: int = 3, host: str = "127.0.0.1") -> None:
        self.folder, self.host = folder, host
        self.place = folder / "link"
        keys.make_authority(self.place / "keys", [host])
        (self.place / "nodes").mkdir()
        for i in range(clients):
            made = keys.make_node_key(folder / "private", f"c{i}")
            shutil.copy(made.public, self.place / "nodes")
        self.settings = LinkSettings(self.place, host=host, port=free_port(host), inner_port=free_port())
        self.link: Running | None = None
        self.nodes: dict[int, Program] = {}

    # ---- starting and ending ------------------------------------------------------------------------------------
    def up(self, *clients: int) -> Fleet:
        """Starts the link, and the nodes of some clients."""
        self.link = Running(self.settings)
        for i in clients:
            self.start(i)
        return self

    def start(self, i: int, *before: str, env: Mapping[str, str] | None = None, name: str | None = None) -> Program:
        """Starts a client's node, through another command or under another name if one is given."""
        words = [
            *before,
            sys.executable,
            "-m",
            "fedkin",
            "node",
            "--data",
            "digits",
            "--share",
            str(i),
            "--client-id",
            name or f"c{i}",
        ]
        words += ["--link", f"{self.host}:{self.settings.port}", "--folder", str(self.disk(i))]
        words += ["--ca", str(self.place / "keys" / "ca.crt")]
        words += ["--key", str(self.folder / "private" / f"c{i}")]
        path = os.pathsep.join([str(FAULTY), *filter(None, [os.environ.get("PYTHONPATH")])])
        around = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": path,
            "FAULTS": str(self.faults(i)),
            **(env or {}),
        }
        self.nodes[i] = Program(f"node c{i}", words, around, self.folder / f"node-c{i}.log")
        return self.nodes[i]

    def kill(self, i: int) -> None:
        """Ends a node as a power cut does."""
        family = {self.nodes[i].pid, *descendants(self.nodes[i].pid)}
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        self.nodes.pop(i).stop()

    def kill_server(self) -> None:
        """Ends SuperLink, ServerApp and gate as a power cut does."""
        assert self.link is not None
        for pid in [self.link.process.pid, *descendants(self.link.process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.link.stop()
        self.link = None

    def down(self) -> None:
        for node in self.nodes.values():
            node.stop()
        self.nodes.clear()
        if self.link is not None:
            self.link.stop()
            self.link = None

    # ---- places -------------------------------------------------------------------------------------------------
    def disk(self, i: int) -> Path:
        return self.folder / f"disk-c{i}"

    def faults(self, i: int) -> Path:
        return self.folder / f"faults-c{i}.json"

    def fail(self, i: int, what: Mapping[int | str, str] | Mapping[int, str]) -> None:
        """From now on: what goes wrong with a client's updates, by round, and with other letters; see `faulty`."""
        new = self.faults(i).with_suffix(".new")  # a worker may read at any moment
        new.write_text(json.dumps(what))
        new.replace(self.faults(i))

    # ---- runs ---------------------------------------------------------------------------------------------------
    def submit(self, s: Settings, name: str) -> Path:
        """Hands a run to the link; its folder."""
        folder = self.folder / name
        (folder / "failed.txt").unlink(missing_ok=True)  # as the command does
        submit(s, folder, Control.at(self.place))
        return folder

    def finish(self, folder: Path, seconds: float = 300.0) -> list[RoundLine]:
        """Waits for a run's end; the lines of its rounds."""
        self.until(lambda: (folder / "report.html").exists() or (folder / "failed.txt").exists(), seconds)
        assert not (folder / "failed.txt").exists(), (folder / "failed.txt").read_text()
        return rounds(folder)

    def until(self, true: Callable[[], bool], seconds: float = 300.0) -> None:
        """Waits until something is true; the test fails with the programs' last words if it never is."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise AssertionError(f"not after {seconds:g} s\n{self.words()}")
            time.sleep(0.2)

    def words(self) -> str:
        """The last words of all programs."""
        logs = sorted(self.folder.glob("*.log")) + sorted(self.place.glob("logs/*.log"))
        return "\n".join(f"{log.name}:\n{last_lines(log, 15)}" for log in logs)


def rounds(folder: Path) -> list[RoundLine]:
    """The lines of the rounds that are whole."""
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=RoundLine) for line in lines]


def events(folder: Path) -> str:
    """What happened to clients, as text."""
    path = folder / "events.jsonl"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def server_equals(folder: Path, theirs: Result) -> bool:
    """Whether the server of a run ended with the state of another, bit for bit."""
    stored = load_file(folder / "objects" / read_commit(folder).last.server)
    ours = {name.removeprefix("server."): t for name, t in stored.items() if name.startswith("server.")}
    state = theirs.server.state
    return ours.keys() == state.keys() and all(torch.equal(ours[name], t) for name, t in state.items())


def say(**line: object) -> None:
    """One line of JSON on the screen."""
    sys.stdout.write(json.dumps({"time": time.strftime("%H:%M:%S"), **line}) + "\n")
    sys.stdout.flush()
