"""nginx and Caddy with the configurations that `fedkin link --no-gate` prints: the gate's rule, where they are
installed."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedkin.deploy import fronts, keys
from fedkin.deploy.headchecks import HeadChecks
from fedkin.deploy.ports import answers, free_port
from fedkin.deploy.signed import Keyring
from frontprograms import FRONTS, installed
from standin import FORBIDDEN, Everyone, StandIn, signed

pytest.importorskip("cryptography", reason="cryptography comes with fedkin[flower]")
MEGABYTES = 1


class Front:
    """A front that runs, with a SuperLink's stand-in behind it.

    Attributes:
        link: the stand-in.
        port: the front's.
    """

    def __init__(self, link: StandIn, port: int, trust: ssl.SSLContext) -> None:
        self.link, self.port, self._trust = link, port, trust

    def status(self, target: str, method: str = "POST") -> int:
        """That of the answer to a request as it stands; 0 if there is none."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        with plain, self._trust.wrap_socket(plain, server_hostname="127.0.0.1") as of:
            of.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            got = of.recv(1 << 12)
        return int(got.split(b" ", 2)[1]) if got else 0

    def post(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        to = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._trust, timeout=300)
        try:
            to.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = to.getresponse()
            return answer.status, answer.read()
        finally:
            to.close()


@contextmanager
def running(
    name: str,
    here: Path,
    authority: keys.Authority,
    trusted: Path,
    keyring: Keyring | None = None,
    megabytes: int = MEGABYTES,
) -> Iterator[Front]:
    """A front that lets calls through to a SuperLink whose certificate ``trusted`` signed."""
    installed(name)
    make, write = FRONTS[name]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server, authority.server_key)
    link, port = StandIn(context), free_port()
    checks = HeadChecks(0, keyring or Everyone()).start()
    files = str(trusted), str(authority.server), str(authority.server_key)
    text = make("x", port, link.port, *files, megabytes, checks.port)
    env = {**os.environ, "HOME": str(here), "XDG_DATA_HOME": str(here), "XDG_CONFIG_HOME": str(here)}
    try:
        with (here / "log").open("wb") as log:
            process = subprocess.Popen(write(text, here), env=env, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 300
            while not answers("127.0.0.1", port):
                assert process.poll() is None, (here / "log").read_text()
                assert time.monotonic() < end, (here / "log").read_text()
                time.sleep(0.02)
            yield Front(link, port, ssl.create_default_context(cafile=str(authority.ca)))
        finally:
            process.terminate()
            process.wait(300)
    finally:
        checks.stop()
        link.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> keys.Authority:
    return keys.make_authority(tmp_path_factory.mktemp("keys"), ["127.0.0.1"])


@pytest.fixture(scope="module", params=FRONTS)
def module_front(
    request: pytest.FixtureRequest, authority: keys.Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    with running(request.param, tmp_path_factory.mktemp(request.param), authority, authority.ca) as front:
        yield front


@pytest.fixture
def front(module_front: Front) -> Front:
    module_front.link.seen.clear()
    return module_front


def test_calls_of_the_fleet_pass(front: Front) -> None:
    """With their bodies and headers, but for what a node could say of itself in the place of a proxy."""
    body = bytes(range(256)) * 1000
    lies = {"X_Forwarded_For": "6.6.6.6", "Forwarded": "for=6.6.6.6"}
    assert front.post("/v1/fleet/echo", body, flwr_public_key="abc", **lies) == (200, body)
    ((path, headers, size),) = front.link.seen
    assert (path, size, headers["flwr-public-key"]) == ("/v1/fleet/echo", len(body), "abc")
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert "6.6.6.6" not in str(headers)
    assert front.post("/v1/fleet/odd")[0] == 418


def test_the_operators_calls_are_forbidden(front: Front) -> None:
    """403, as docs/deploy.md says, whatever the method."""
    assert [front.status("/v1/control/list-runs", method) for method in ("POST", "GET")] == [403, 403]
    assert front.status("/v1/fleet/pull-messages", "GET") == 403
    assert front.link.seen == []


def test_nothing_else_passes(front: Front) -> None:
    """No spelling of another address; some are refused as no request before the rule is asked. nginx takes a whole URL
    apart (RFC 9112, 3.2.2), so one of a call of the fleet is that call."""
    url = "http://127.0.0.1/v1/fleet/a"
    passed = {target for target in FORBIDDEN if front.status(target) not in (400, 403, 405)}
    assert passed <= {url}
    assert [path for path, _, _ in front.link.seen] == ["/v1/fleet/a"] * len(passed)


def test_a_body_beyond_the_limit_is_refused(front: Front) -> None:
    """413; the SuperLink does not get it whole."""
    assert front.post("/v1/fleet/echo", bytes((MEGABYTES << 20) + 1))[0] == 413
    assert front.link.seen == []


@pytest.mark.parametrize("name", FRONTS)
def test_unsigned_heads_are_refused_before_the_body(name: str, authority: keys.Authority, tmp_path: Path) -> None:
    """A registered node's request passes; without its signature the answer is 401 while none of a body of 6 MB has been
    sent, and the SuperLink is not asked."""
    made = keys.make_node_key(tmp_path / "private", "c0")
    other = keys.make_node_key(tmp_path / "private", "c1")
    with running(name, tmp_path, authority, authority.ca, Keyring([made.public]), 8) as front:
        body = bytes(6_000_000)
        assert front.post("/v1/fleet/echo", body, **signed(made.private)) == (200, body)
        front.link.seen.clear()
        assert front.post("/v1/fleet/echo", b"", **signed(other.private))[0] == 401
        plain = socket.create_connection(("127.0.0.1", front.port), timeout=120)
        with plain, front._trust.wrap_socket(plain, server_hostname="127.0.0.1") as of:
            of.sendall(b"POST /v1/fleet/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 6000000\r\n\r\n")
            assert of.recv(1 << 12).split(b" ", 2)[1] == b"401"
        assert front.link.seen == []


@pytest.mark.parametrize("name", FRONTS)
def test_a_superlink_of_another_authority_is_not_asked(name: str, authority: keys.Authority, tmp_path: Path) -> None:
    """502: the certificate on the inner port is looked at."""
    other = keys.make_authority(tmp_path / "other", ["127.0.0.1"])
    with running(name, tmp_path, authority, other.ca) as front:
        assert front.post("/v1/fleet/echo", b"x")[0] == 502
        assert front.link.seen == []


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed on this machine")
def test_caddy_listens_on_one_port(tmp_path: Path) -> None:
    """By itself it would open port 80 for redirections, and UDP for HTTP/3."""
    (tmp_path / "Caddyfile").write_text(fronts.caddy("x", 8443, 8000, "ca.crt", "server.pem", "server.key"))
    command = ["caddy", "adapt", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (server,) = json.loads(done.stdout)["apps"]["http"]["servers"].values()
    assert (server["listen"], server["protocols"]) == ([":8443"], ["h1"])
    assert server["automatic_https"]["disable"] is True
