"""F7: a client whose network fails for a while, in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from hostprograms import Fleet, events, rounds, server_equals
from hosttoys import settings, traced

pytestmark = pytest.mark.hosts
SPACE, OUTER, INNER = (f"{name}-{os.getpid()}" for name in ("fedkin", "fkout", "fkin"))
HERE, THERE = "10.213.77.1", "10.213.77.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def cable() -> Iterator[None]:
    """A namespace for c1, and a pair of virtual interfaces between it and this one."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs Linux, root and iproute2: the test cuts a virtual network cable")
    try:
        ip("netns", "add", SPACE)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not let us have a network of our own: {error.stderr!r}")
    try:
        ip("link", "add", OUTER, "type", "veth", "peer", "name", INNER, "netns", SPACE)
        ip("addr", "add", f"{HERE}/30", "dev", OUTER)
        ip("-n", SPACE, "addr", "add", f"{THERE}/30", "dev", INNER)
        for words in ((OUTER,), ("-n", INNER), ("-n", "lo")):
            ip(*(("-n", SPACE) if len(words) > 1 else ()), "link", "set", words[-1], "up")
        yield
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], capture_output=True)
        subprocess.run(["ip", "link", "del", OUTER], capture_output=True)


@pytest.mark.usefixtures("cable")
def test_a_network_that_fails_for_two_rounds(tmp_path: Path) -> None:
    """Rounds go on with the others; c1 is back when the network is, without a restart of anything."""
    fleet = Fleet(tmp_path, host=HERE)
    hosts = {"min_clients": 3, "min_connected": 3, "reply_timeout": 20.0, "wait_timeout": 180.0}
    s = settings("fedrep", run={"rounds": 9, "eval_every": 9}, hosts=hosts)
    try:
        fleet.up(0, 2)
        node = fleet.start(1, str(shutil.which("ip")), "netns", "exec", SPACE)
        folder = fleet.submit(s, "cut")
        fleet.until(lambda: len(rounds(folder)) >= 2)
        ip("link", "set", OUTER, "down")
        fleet.until(lambda: sum(1 not in line.answered for line in rounds(folder)) >= 2)
        ip("link", "set", OUTER, "up")
        back = len(rounds(folder))
        lines = fleet.finish(folder)
        assert [0, 1, 2] in [list(line.answered) for line in lines[back:]], events(folder) + fleet.words()
        assert all({0, 2} <= set(line.answered) for line in lines)
        assert node.alive
        assert "newcomer" not in events(folder)
        assert server_equals(folder, traced(s, lines))
    finally:
        fleet.down()
