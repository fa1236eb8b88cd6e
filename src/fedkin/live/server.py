"""The server of the live page, for a browser on this machine.

It listens on 127.0.0.1 alone. The address holds a random token, without which it answers nothing, and the request must
name this machine (``Host``), so that a web page elsewhere cannot read the runs by rebinding its name to 127.0.0.1.
It answers GET for a few fixed names, takes no path of a file from a request, and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fedkin.core.errors import ConfigError
from fedkin.live.folder import LiveFolder
from fedkin.report import palette

HOST = "127.0.0.1"
_DIGITS = 10  # of a client's number, fewer than that
_HOSTS = (HOST, "localhost")
_ASSETS, _REPORT = Path(__file__).parent / "assets", Path(palette.__file__).parent / "assets"
_FILES = {"": "page.html", "page.css": "page.css", "charts.js": "charts.js", "clients.js": "clients.js",
          "table.js": "table.js", "page.js": "page.js"}  # fmt: skip
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def listening(port: int = 0) -> socket.socket:
    """Return a socket that listens on this machine alone; port 0 takes a free one.

    Raises:
        ConfigError: the port cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must be a number from 0 to 65535, got {port}; 0 takes a free one")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would let other programs take the port as well
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as e:
        listener.close()
        raise ConfigError(f"port {port} cannot be used ({e.strerror}); name another with --port, or none") from e
    return listener


def new_token() -> str:
    """Return a random token for an address."""
    return secrets.token_urlsafe(16)


def address(listener: socket.socket, token: str) -> str:
    """Return the address of the page."""
    return f"http://{HOST}:{listener.getsockname()[1]}/{token}/"


class LiveServer(ThreadingHTTPServer):
    """Serves the page of a folder on a socket that listens already, until `shutdown`.

    Args:
        listener: the socket, as from `listening`; the server closes it.
        token: the token of the address.
        folder: the folder with the runs.
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, token: str, folder: Path) -> None:
        super().__init__((HOST, 0), PageRequest, bind_and_activate=False)
        self.socket.close()
        self.socket, self.token, self.folder = listener, token, LiveFolder(folder)
        self._asked = {"runs.json": -math.inf, "clients.json": -math.inf}
        self._ending, self._seen = math.inf, threading.Event()

    def asked(self, name: str) -> None:
        """Note that a page has got its runs, or its clients, which it asks for afterwards."""
        self._asked[name] = time.monotonic()
        if name == "clients.json" and self._asked["runs.json"] > self._ending:
            self._seen.set()

    def linger(self, seconds: float = 4.0) -> bool:
        """Wait until an open page has got the end of the runs; return whether one has.

        Args:
            seconds: how long at most; not at all if no page has asked for three times as long.
        """
        self._ending = time.monotonic()
        return self._asked["clients.json"] > self._ending - 3 * seconds and self._seen.wait(seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent where a browser has closed its connection, and report any other error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class PageRequest(BaseHTTPRequestHandler):
    """One request of the page."""

    server: LiveServer
    timeout = 30
    server_version, sys_version = "fedkin", ""

    def do_GET(self) -> None:
        """Answer with a file of the page, the runs, or the clients of a run."""
        path, _, query = self.path.partition("?")
        token, stroke, name = path.removeprefix("/").partition("/")
        host = self.headers.get("Host") or ""
        if (host.rpartition(":")[0] or host) not in _HOSTS:
            self._refuse(HTTPStatus.FORBIDDEN)
        elif not (stroke and secrets.compare_digest(token.encode(), self.server.token.encode())):
            self._refuse(HTTPStatus.NOT_FOUND)
        elif name in _FILES:
            self._send(HTTPStatus.OK, _KINDS[Path(_FILES[name]).suffix], _asset(_FILES[name]))
        elif name in ("runs.json", "clients.json"):
            self._answer(name, {key: values[-1] for key, values in parse_qs(query).items()})
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _answer(self, name: str, query: Mapping[str, str]) -> None:
        """Send JSON with its version; nothing if the page has this version."""
        client, folder = query.get("client", ""), self.server.folder
        number = int(client) if client.isdecimal() and len(client) < _DIGITS else None
        found = folder.runs() if name == "runs.json" else folder.clients(query.get("run", ""), number)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        text = json.dumps(found, allow_nan=False).encode()
        version = hashlib.blake2b(text, digest_size=8).hexdigest()
        if query.get("seen") == version:
            self._send(HTTPStatus.NO_CONTENT, "application/json", b"")
        else:
            self._send(HTTPStatus.OK, "application/json", text, {"Version": version})
        self.server.asked(name)

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, "text/plain", f"{status.phrase}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(header, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: standard error belongs to the command."""


@cache
def _asset(name: str) -> bytes:
    text = _read(_ASSETS, name)
    if name == "page.css":
        text = palette.css() + text.replace("FONT", palette.FONT) + _slots()
    if name == "page.html":  # the same head as that of a report
        text = text.replace("LOGO", _read(_REPORT, "logo.html")).replace("THEME", _read(_REPORT, "theme.html"))
    return text.encode()


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _slots() -> str:
    """Return a class for each slot of the palette."""
    return "".join(f".s{slot}{{--c:var(--m{slot})}}" for slot in range(1, palette.SLOTS + 1))
