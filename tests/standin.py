"""A stand-in for the SuperLink behind a gate, and what must not reach it."""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedkin_hosts.keys import public_key
from fedkin_hosts.signed import Keyring

FORBIDDEN = [
    "/", "/v1/control/list-runs", "/v1/runtime/pull", "/v1/fleet", "/v1/fleet/", "/v1/fleetx/a", "/V1/FLEET/a",
    "/v1/Fleet/a", "//v1/fleet/a", "/v1//fleet/a", "/v1/fleet//a", "/v1/fleet/a/", "/v1/fleet/../control/list-runs",
    "/v1/fleet/..", "/v1/fleet/./a", "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/%2E%2E%2Fcontrol",
    "/v1/fleet/..%2fcontrol", "/v1%2ffleet/a", "/v1/fleet/a%00", "/v1/fleet/a;/../../control", "/v1/fleet/a?x=1",
    "/v1/fleet/a?", "/v1/fleet/a#b", "/v1/fleet\\..\\control", "http://127.0.0.1/v1/fleet/a", "https://x/v1/control/a",
    "*", "127.0.0.1:22", "/v1/fleet/a.b", "/v1/control/../fleet/a", "/openapi.json", "/docs",
]  # fmt: skip
"""Targets of requests that are not plainly a call of the fleet."""


def signed(private: Path, age: float = 0.0) -> dict[str, str]:
    """The headers with which a node signs a request, ``age`` seconds ago."""
    key = load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    stamp = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "flwr-public-key": b64encode(public).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(key.sign(stamp.encode(), ec.ECDSA(SHA256()))).decode(),
    }


class Everyone(Keyring):
    """A keyring for tests of HTTP: it takes every request for one of ``c0``."""

    def holder(self, headers: Iterable[tuple[bytes, bytes]], now: datetime | None = None) -> str:
        return "c0"


def keyring_of(*paths: Path) -> Keyring:
    """A keyring with the keys of some files."""
    return Keyring({path.stem: public_key(path) for path in paths})


Seen = list[tuple[str, dict[str, str], int]]


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: Seen

    def do_POST(self) -> None:
        body = self._chunks() if self.headers.get("Transfer-Encoding") else self._exactly()
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, len(body)))
        if self.path.endswith("/slow"):
            time.sleep(0.5)
        if self.path.endswith("/echo"):
            answer = body
        else:
            answer = json.dumps({"path": self.path, "sha": hashlib.sha256(body).hexdigest()}).encode()
        self.send_response(418 if self.path.endswith("/odd") else 200)
        self.send_header("X-Flwr", "kept")
        if self.path.endswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer))
        elif self.path.endswith("/hang-up"):
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def _exactly(self) -> bytes:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionError("ended within its body")  # no request at all
        return body

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *args: object) -> None:
        pass


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def handle_error(self, *args: object) -> None:
        """Requests that the gate broke off end in errors here, as they should."""


class StandIn:
    """Echoes what it gets over TLS, and remembers the requests that reached it.

    Attributes:
        port: on 127.0.0.1.
        seen: path, headers and bytes of the body of each request.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        handler = type("Handler", (_Echo,), {"seen": []})
        self.seen: Seen = handler.seen  # type: ignore[attr-defined]
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
