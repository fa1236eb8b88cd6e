"""What programs without a registered key can do to a link, over TLS on loopback: memory, and room for others."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin_hosts.gate import Limits
from fedkin_hosts.link import LinkSettings
from linkprograms import command, node, place_for, statuses, until
from programs import Running, descendants
from standin import signed

pytestmark = pytest.mark.hosts
MEGABYTE = 1 << 20


def connected(address: str, trust: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    return trust.wrap_socket(socket.create_connection((host, int(port)), timeout=300), server_hostname=host)


def peak(pids: Iterable[int]) -> float:
    """The largest resident memory that processes have had so far, added up, in MB."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(found[1]) for text in texts if (found := re.search(r"VmHWM:\s+(\d+) kB", text))) / 1024


def upload(address: str, trust: ssl.SSLContext, headers: dict[str, str], answers: list[bytes]) -> None:
    """Sends a call of the fleet with 60 MB, as much of it as is taken, and keeps the beginning of the answer."""
    head = {"Host": "link", "Content-Type": "application/x-protobuf", "Content-Length": str(60 * MEGABYTE), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    with connected(address, trust) as link:
        with suppress(OSError):
            link.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}\r\n".encode())
            for _ in range(60):
                link.sendall(bytes(MEGABYTE))
        with suppress(OSError):
            answers.append(link.recv(1 << 12))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read in /proc")
@pytest.mark.parametrize(("key", "status"), [(None, 401), ("outside", 412)])
def test_bodies_without_a_registered_key_take_no_memory(tmp_path: Path, key: str | None, status: int) -> None:
    """Six requests of 60 MB at once, unsigned or signed with an unknown key, are refused by their heads: the largest
    memory of the link's processes grows by less than the size of two, where the operator allows bodies of 64 MB."""
    place = place_for(tmp_path / "link")
    trust = ssl.create_default_context(cafile=place / "keys" / "ca.crt")
    with command(place, "--max-body", "64") as (process, _):
        found = re.search(r"nodes reach: (\S+)", (place / "out.txt").read_text())
        assert found is not None
        family = [process.pid, *descendants(process.pid)]
        before, answers, said = peak(family), list[bytes](), (place / "out.txt").read_text()
        headers = signed(place / "private" / key) if key else {}
        threads = [threading.Thread(target=upload, args=(found[1], trust, headers, answers)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert peak(family) - before < 120
        assert all(b" %d " % status in answer for answer in answers if answer)
        with connected(found[1], trust) as link:
            link.sendall(b"\0" * 99 + b"\r\n\r\n")
            assert b" 400 " in link.recv(1 << 12)
        assert (place / "out.txt").read_text() == said, "what strangers send is not on the operator's screen"
        log = (place / "logs" / "gate.log").read_text()
        assert log.count(f" {status} 'POST /v1/fleet/push-object") == 6


def test_idle_connections_do_not_lock_a_node_out(tmp_path: Path) -> None:
    """With more idle TLS connections from one address than strangers may have, none of which is ended for idleness, a
    node at that address comes online and stays."""
    place = place_for(tmp_path / "link")
    trust = ssl.create_default_context(cafile=place / "keys" / "ca.crt")
    limits = Limits(head_seconds=3600.0, idle_seconds=3600, strangers=64)
    up = Running(LinkSettings(place, host="127.0.0.1", port=0, inner_port=0, limits=limits))
    try:
        with ExitStack() as idle:
            for _ in range(80):
                with suppress(OSError):  # a gate that takes no more resets them
                    idle.enter_context(connected(up.address, trust))
            with node(place, up.address, "inside"):
                assert until(lambda: statuses(up)["inside"] == "online")
                for _ in range(80):  # they come again, and the node's connections are not theirs to take
                    with suppress(OSError):
                        idle.enter_context(connected(up.address, trust))
                assert statuses(up)["inside"] == "online"
                assert up.gate is not None
                assert set(up.gate.refused) == {503}, "a request of the node was refused"
    finally:
        up.stop()
