"""A real SuperLink behind the gate on loopback: who gets in, what passes, what is looked up, and that it all ends."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkin.core.errors import ConfigError, EngineError
from fedkin_hosts import keys, machine
from programs import Program, Running, ServedGate

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin_hosts.control import Control
from fedkin_hosts.gate import Gate, server_context
from fedkin_hosts.link import LinkSettings
from fedkin_hosts.machine import answers
from fedkin_hosts.signed import Keyring
from linkprograms import ECHO, command, gone, node, place_for, statuses, until

pytestmark = pytest.mark.hosts

LOOKUPS = Path(__file__).with_name("lookups.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place_for(tmp_path_factory.mktemp("link"))


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[Running]:
    up = Running(LinkSettings(folder, host="127.0.0.1", port=0, inner_port=0))
    yield up
    up.stop()


def post(address: str, folder: Path, path: str) -> int:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=folder / "keys" / "ca.crt")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=300)
    try:
        connection.request("POST", path, b"", {"content-type": "application/x-protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def refused(node: Program) -> bool:
    """Whether a node has said that the gate does not know its key."""
    return "put NAME.pub into the link's folder nodes/" in " ".join(node.log.read_text().split())


def test_a_registered_node_comes_online_through_the_gate(link: Running, folder: Path) -> None:
    """Certificate, key and path are all right: nothing is refused, and the node is listed under its name."""
    assert [line.split(" (")[0] for line in link.lines] == ["registered inside"]
    link.gate.refused.clear()
    with node(folder, link.address, "inside"):
        assert until(lambda: statuses(link).get("inside") == "online")
        assert not link.gate.refused
    assert until(lambda: statuses(link).get("inside") == "offline")


def test_an_unregistered_key_is_refused(link: Running, folder: Path) -> None:
    """F14: a node with a key that the link was not told of says the reason, and is not listed."""
    with node(folder, link.address, "outside") as program:
        assert until(lambda: refused(program))
    assert set(statuses(link)) == {"inside"}


def test_another_authority_is_refused(link: Running, folder: Path, tmp_path: Path) -> None:
    """F14: a node that trusts another authority does not speak to this link."""
    other = keys.make_authority(tmp_path, ["127.0.0.1"])
    with node(folder, link.address, "inside", other.ca) as program:
        assert until(lambda: "certificate verify failed" in program.log.read_text())
        assert statuses(link)["inside"] != "online"


def test_plain_text_is_refused(link: Running, folder: Path) -> None:
    """F14: a node without TLS gets nothing."""
    command = [sys.executable, "-c", ECHO, link.address]
    program = Program("node", command, machine.environment(folder / "node-home"), folder / "plain.log")
    try:
        assert until(lambda: "cannot be reached" in program.log.read_text())
        assert statuses(link) == {"inside": statuses(link)["inside"]}
    finally:
        program.stop()


def test_an_expired_certificate_is_refused(link: Running, folder: Path, tmp_path: Path) -> None:
    """F14: nodes do not speak to a gate whose certificate has run out, and a link does not start with one."""
    old = keys.make_authority(tmp_path / "keys", ["127.0.0.1"], days=-0.5)
    trust = ssl.create_default_context(cafile=folder / "keys" / "ca.crt")
    serving = server_context(old.server, old.server_key)
    gate = ServedGate(Gate("127.0.0.1", 0, serving, f"https://{link.inner}", trust, Keyring()))
    try:
        with node(folder, f"127.0.0.1:{gate.port}", "inside", old.ca) as program:
            assert until(lambda: "certificate has expired" in program.log.read_text())
            assert statuses(link)["inside"] != "online"
    finally:
        gate.stop()
    with pytest.raises(ConfigError, match=r"ran out on .* fedkin keys server"):
        Running(LinkSettings(tmp_path, host="127.0.0.1", port=0, inner_port=0))


@pytest.mark.parametrize("call", ["list-runs", "list-nodes", "register-node", "start-run"])
def test_the_operators_calls_do_not_pass_the_gate(link: Running, folder: Path, call: str) -> None:
    """F14: 403 outside for what the SuperLink itself answers on this machine: without the gate it would be open."""
    assert post(link.address, folder, f"/v1/control/{call}") == 403
    assert post(link.inner, folder, f"/v1/control/{call}") not in (401, 403, 404)
    assert post(link.address, folder, "/v1/fleet/../control/list-runs") == 403
    assert post(link.address, folder, "/v1/fleet/%2e%2e/control/list-runs") == 403


def test_an_operator_outside_is_refused(link: Running, folder: Path, tmp_path: Path) -> None:
    """F14: with the address that nodes know and the authority's certificate nobody lists runs or registers a key."""
    outside = Control(tmp_path, link.address, folder / "keys" / "ca.crt")
    link.gate.refused.clear()
    key = keys.public_key(folder / "private" / "outside.pub")
    for ask in (outside.runs, outside.nodes, lambda: outside.register("outside", key)):
        with pytest.raises(EngineError):
            ask()
    assert link.gate.refused[403] >= 3
    assert set(statuses(link)) == {"inside"}
    assert link.control.runs() == []


def test_new_keys_are_taken_while_it_runs_and_old_ones_shut_out(folder: Path, tmp_path: Path) -> None:
    """A key put into the folder comes in; a link started again knows its keys; a revoked one stays out for good."""
    place = place_for(tmp_path / "own")
    settings = LinkSettings(place, host="127.0.0.1", port=0, inner_port=0)
    up = Running(settings)
    try:
        shutil.copy(place / "private" / "outside.pub", place / "nodes")
        said: list[str] = []
        said += up.look()
        assert [line.split(" (")[0] for line in said] == ["registered outside"]
        with node(place, up.address, "outside"):
            assert until(lambda: statuses(up)["outside"] == "online")
        (place / "nodes" / "outside.pub").unlink()
        said += up.look()
        assert "--revoke outside" in said[-1]
        with node(place, up.address, "outside") as program:
            assert until(lambda: refused(program))
        with pytest.raises(ConfigError, match=r"a link runs in .* already"):
            Running(settings)
    finally:
        up.stop()
    up = Running(settings)
    try:
        assert [line.split(" (")[0] for line in up.lines] == ["outside"]
        shutil.copy(place / "private" / "outside.pub", place / "nodes")
        said += up.look()
        assert len(up.keyring) == 2
        up.control.revoke("outside")
        said += up.look()
        assert len(up.keyring) == 1
        with node(place, up.address, "outside") as program:
            assert until(lambda: refused(program))
        assert "outside stays shut out" in up.look()[0]
    finally:
        up.stop()


def test_bad_files_and_lost_logs_harm_nobody(tmp_path: Path) -> None:
    """What is not a key is said at the start and later, and keeps no removed key admitted; mended, it is registered;
    the link goes on without its log."""
    place = place_for(tmp_path / "own")
    (place / "nodes" / "outside.pub").write_text((place / "private" / "outside.pub").read_text()[:99])
    up = Running(LinkSettings(place, host="127.0.0.1", port=0, inner_port=0))
    said: list[str] = []
    try:
        assert ["registered inside" in line or "outside.pub" in line for line in up.lines] == [True, True]
        assert len(up.keyring) == 1
        (up.settings.logs / "superlink.log").unlink()
        (place / "nodes" / "inside.pub").unlink()
        said += up.look()
        assert len(up.keyring) == 0
        with node(place, up.address, "inside") as program:
            assert until(lambda: refused(program))
        shutil.copy(place / "private" / "outside.pub", place / "nodes")
        said += up.look()
        assert any(line.startswith("registered outside (") for line in said)
        with node(place, up.address, "outside"):
            assert until(lambda: statuses(up)["outside"] == "online")
        assert up.background.alive
    finally:
        up.stop()


def test_a_test_link_is_for_this_machine(tmp_path: Path) -> None:
    """`--insecure-test`: plain HTTP on loopback, nothing but logs on disk, any node of this machine is let in."""
    up = Running(LinkSettings(tmp_path / "link", port=0, insecure_test=True))
    try:
        assert up.address.startswith("127.0.0.1:")
        command = [sys.executable, "-c", ECHO, up.address]
        program = Program("node", command, machine.environment(tmp_path / "home"), tmp_path / "node.log")
        try:
            assert until(lambda: [node.status for node in up.control.nodes()] == ["online"])
        finally:
            program.stop()
        assert not list((tmp_path / "link").glob("*.db*"))
    finally:
        up.stop()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_is_left_behind(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    """However ``fedkin link`` ends, the SuperLink and what that started end with it."""
    with command(place_for(tmp_path / "link")) as (process, family):
        process.send_signal(signum)
        assert process.wait(300) == code
        assert until(lambda: gone(family))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_dead_superlink_comes_back(link: Running, folder: Path) -> None:
    """The link says what it said last and starts another; a node that was online is online again."""
    with node(folder, link.address, "inside"):
        assert until(lambda: statuses(link).get("inside") == "online")
        former = link.process.pid
        os.kill(former, signal.SIGKILL)
        assert until(lambda: link.process.pid != former)
        assert any("the SuperLink ended with exit code -9" in line for line in link.said)
        assert until(lambda: answers("127.0.0.1", int(link.inner.rpartition(":")[2])))
        assert until(lambda: statuses(link).get("inside") == "online")


def test_a_superlink_that_does_not_start_ends_the_link(tmp_path: Path) -> None:
    """With a damaged database: at once, with its last lines."""
    place = place_for(tmp_path / "own")
    (place / "link.db").write_text("no database" * 99)
    with pytest.raises(EngineError, match=r"superlink\.log"):
        Running(LinkSettings(place, host="127.0.0.1", port=0, inner_port=0))


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs Linux's network namespaces")
@pytest.mark.parametrize("switches", [True, False])
def test_nothing_outside_is_asked_for(tmp_path: Path, switches: bool) -> None:
    """F17: a link, a node and a run look up no name at all; without the switches Flower does, so the recorder works."""
    alone = ["unshare", "--net", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*alone, "mount", "--bind", "/etc/hosts", "/etc/hosts"], capture_output=True).returncode:
        pytest.skip("this machine does not let us have a network of our own")
    words = [*alone, sys.executable, str(LOOKUPS), str(tmp_path), *([] if switches else ["without-switches"])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    if switches:
        assert answer == {"status": "finished:completed", "seen": {}}
    else:
        assert {"telemetry.flower.ai", "api.flower.ai"} <= set(answer["seen"])
