"""A node: its folder is for one process, and its worker answers again whatever happens to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ConfigError
from fedkin.storage.files import open_to_others
from fedkin_hosts import fleet
from fedkin_hosts import node as nodes
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.machine import locked
from fedkin_hosts.messages import Clerk
from fedkin_hosts.node import Node, Watch, run_node
from fedkin_hosts.participants import Members
from hosttoys import settings
from refusals import refuses


class Ended(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_folder_is_for_one_node(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node, of the same client or of another, is refused at once with the first one's process and the remedy;
    its end frees the folder."""
    monkeypatch.setattr(nodes.Watch, "start", lambda self: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    folder = tmp_path / "node"

    def serve(self: Any) -> None:
        with refuses(ConfigError, folder, os.getpid(), "--folder"):
            run_node(Node(data="digits", client_id=other, folder=folder, share=1, insecure_test=True), print)
        raise Ended

    monkeypatch.setattr(fleet.FleetNode, "serve", serve)
    for _ in range(2):
        with pytest.raises(Ended):
            run_node(Node(data="digits", client_id="a", folder=folder, share=0, insecure_test=True), print)


def test_a_key_that_others_can_read_is_told_of(tmp_path: Path) -> None:
    """The advice has the file, its mode and the command as it is typed; a private key needs none."""
    key = tmp_path / "my key"
    key.write_text("x")
    key.chmod(0o644)
    assert open_to_others(key) == (
        f"{key} can be read by other users of this machine (mode 0644); run: chmod 600 '{key}'"
    )
    key.chmod(0o600)
    assert open_to_others(key) is None


def test_a_folder_is_for_one(tmp_path: Path) -> None:
    """The text names what runs there, its process and the remedy; afterwards the folder is free."""
    with (
        locked(tmp_path, "a node", "choose another"),
        refuses(ConfigError, "a node", tmp_path, os.getpid(), "choose another"),
        locked(tmp_path, "a node", "choose another"),
    ):
        pass
    with locked(tmp_path, "a node", "choose another"):
        pass


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """One for all tests: it starts a process when a message comes and none is there, which takes seconds."""
    made = Watch(
        Node(client_id="c0", data="digits", folder=tmp_path_factory.mktemp("disk"), insecure_test=True, share=0)
    )
    yield made
    made.close()


def hello(tmp_path: Path, seconds: float = 60.0) -> WireMessage:
    return Clerk(settings("fedavg"), Members.load(tmp_path)).write("hello", 0, seconds, inline=True)


def test_it_answers_and_stays(watch: Watch, tmp_path: Path) -> None:
    """Two messages, one process."""
    first = watch.ask(hello(tmp_path))
    assert first.head["ok"] is True
    assert first.head["client"] == "c0"
    process = watch._process
    assert watch.ask(hello(tmp_path)).head["ok"] is True
    assert watch._process is process


def test_one_that_hangs_is_ended_at_the_deadline(watch: Watch, tmp_path: Path) -> None:
    """F2: stopped by a signal, it does not answer; the watch answers for it, and the next message has a new process."""
    watch.start()
    assert watch._process is not None
    os.kill(watch._process.pid, signal.SIGSTOP)
    assert watch.ask(hello(tmp_path, 0.5)).head["code"] == "deadline"
    assert watch.ask(hello(tmp_path)).head["ok"] is True


def test_one_that_is_killed_is_started_again(watch: Watch, tmp_path: Path) -> None:
    """F2: killed, as by a machine that is out of memory."""
    watch.start()
    assert watch._process is not None
    pid = watch._process.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    assert watch.ask(hello(tmp_path)).head["code"] == "died"
    assert watch.ask(hello(tmp_path)).head["ok"] is True
