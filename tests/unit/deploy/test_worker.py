"""The process that does a site's work: it answers, and whatever happens to it the next message is answered again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkin_hosts.heads import WireMessage
from fedkin_hosts.messages import Clerk
from fedkin_hosts.node import Node
from fedkin_hosts.participants import Members
from fedkin_hosts.worker import Watch
from hosttoys import settings


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
