"""A real SuperLink and a real SuperNode with nginx or Caddy between them, where they are installed."""

from __future__ import annotations

import http.client
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.deploy.gate import client_context
from fedkin.deploy.link import LinkSettings, start_link
from fedkin.deploy.ports import answers, free_port
from frontprograms import FRONTS, installed
from linkprograms import node, place_for, statuses, until
from standin import signed

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("name", FRONTS)
def test_a_node_comes_online_behind_another_front(name: str, tmp_path: Path) -> None:
    """With the configuration that is printed a registered node comes online; a request with another key gets 401, and
    the node's own key is refused as soon as its file is gone."""
    installed(name)
    make, write = FRONTS[name]
    place = place_for(tmp_path / "link")
    keys, port = place / "keys", free_port()
    up = start_link(LinkSettings(place, host="127.0.0.1", port=port, inner_port=0, gate=False, check_port=0))
    front: subprocess.Popen[bytes] | None = None
    try:
        assert up.checks is not None
        inner = int(up.inner.rpartition(":")[2])
        files = [str(keys / file) for file in ("ca.crt", "server.pem", "server.key")]
        text = make("127.0.0.1", port, inner, *files, 8, up.checks.port)
        env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        with (tmp_path / "front.log").open("wb") as log:
            front = subprocess.Popen(write(text, tmp_path), env=env, stdout=log, stderr=log)
        assert until(lambda: answers("127.0.0.1", port)), (tmp_path / "front.log").read_text()

        def status(key: str) -> int:
            to = http.client.HTTPSConnection("127.0.0.1", port, context=client_context(keys / "ca.crt"), timeout=300)
            try:
                headers = {"content-type": "application/x-protobuf", **signed(place / "private" / key)}
                to.request("POST", "/v1/fleet/pull-messages", b"", headers)
                return to.getresponse().status
            finally:
                to.close()

        with node(place, f"127.0.0.1:{port}", "inside"):
            assert until(lambda: statuses(up)["inside"] == "online")
        assert status("outside") == 401
        (place / "nodes" / "inside.pub").unlink()
        up._look(lambda line: None)
        with node(place, f"127.0.0.1:{port}", "inside") as program:
            assert until(lambda: not program.alive)
    finally:
        if front is not None:
            front.terminate()
            front.wait()
        up.stop()
