"""A node at a real SuperLink: apps of others are not run, and an outgoing proxy is used."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin_hosts.submitted import packed_app
from hostprograms import Fleet
from hosttoys import settings

pytestmark = [pytest.mark.hosts, pytest.mark.short]
HERE = "127.0.0.2"  # loopback, but an address that a proxy may be asked for
APPS = """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def query(message, context):
    Path({mark!r}).write_text("ran")
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    while not (ids := list(grid.get_node_ids())):
        time.sleep(0.2)
    content = RecordDict({{"c": ConfigRecord({{"x": 1}})}})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=ids[0], message_type="query")], timeout=300)
    Path({seen!r}).write_text(str({{name: dict(record) for name, record in reply.content.config_records.items()}}))
"""


@pytest.fixture
def proxy() -> Iterator[tuple[int, list[str]]]:
    """The port of a proxy for CONNECT, and the first lines of the requests that it got."""
    lines: list[str] = []

    def pump(a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while piece := a.recv(1 << 16):
                b.sendall(piece)
        for one in (a, b):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def carry(a: socket.socket) -> None:
        with suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := a.recv(4096)):
                    return
                head += piece
            lines.append(head.split(b"\r\n")[0].decode())
            host, port = lines[-1].split()[1].rsplit(":", 1)
            b = ends.enter_context(socket.create_connection((host, int(port))))
            a.sendall(b"HTTP/1.1 200 ok\r\n\r\n")
            for pair in ((a, b), (b, a)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=carry, args=(ends.enter_context(door.accept()[0]),), daemon=True).start()

    with ExitStack() as ends:
        door = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=serve, daemon=True).start()
        yield door.getsockname()[1], lines


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_the_app_of_another_is_not_run(tmp_path: Path, proxy: tuple[int, list[str]]) -> None:
    """Submitted at the operator's port, it reaches the node, which answers that it cannot read it; a run of fedkin is
    played before and after. All of the node's connections go through the proxy that its environment names."""
    port, lines = proxy
    fleet, mark, seen = Fleet(tmp_path, clients=1, host=HERE), tmp_path / "ran", tmp_path / "seen"
    s = settings("fedavg", run={"rounds": 1, "eval_every": 1}, hosts={"min_clients": 1, "reply_timeout": 300.0})
    try:
        fleet.up()
        fleet.start(0, env={"HTTPS_PROXY": f"http://127.0.0.1:{port}"})
        assert [line.answered for line in fleet.finish(fleet.submit(s, "before"), 900)] == [(0,)]
        assert fleet.link is not None
        fleet.link.control.start(packed_app(APPS.format(mark=str(mark), seen=str(seen))), {})
        fleet.until(seen.exists, 300)
        assert "unreadable" in seen.read_text()
        assert not mark.exists()
        assert [line.answered for line in fleet.finish(fleet.submit(s, "after"), 900)] == [(0,)]
        assert set(lines) == {f"CONNECT {HERE}:{fleet.settings.port} HTTP/1.1"}
    finally:
        fleet.down()
