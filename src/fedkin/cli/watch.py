"""``fedkin report FOLDER --watch``: the page of runs that go on, served to browsers of this machine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedkin.cli import screen
from fedkin.core.errors import ConfigError, FedkinError
from fedkin.record.files import COMMIT
from fedkin.storage import lock

HOST = "127.0.0.1"
_LOOK = 2.0  # seconds from one look at the folder to the next
_AGAIN = "15"  # seconds after which a browser asks again while runs go on
_SHARE = 5  # times the seconds of writing the page until it is written again


class PageServer(ThreadingHTTPServer):
    """Serves one page on this machine alone.

    Attributes:
        text: the page; going: whether it will change.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # where it would let other programs take the port as well

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), PageRequest)
        self.text, self.going = b"<!DOCTYPE html><title>fedkin</title>No round is done yet.", True


class PageRequest(BaseHTTPRequestHandler):
    """One request of a browser."""

    server: PageServer
    timeout = 30
    server_version, sys_version = "fedkin", ""

    def do_GET(self) -> None:
        """Answer with the page, under its own name only: a web page elsewhere could lead its name to this machine."""
        named = (self.headers.get("Host") or "").partition(":")[0]
        if named not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            for name, value in (("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store"),
                                ("Content-Length", str(len(self.server.text))), ("X-Frame-Options", "DENY"),
                                ("Cross-Origin-Resource-Policy", "same-origin")):  # fmt: skip
                self.send_header(name, value)
            if self.server.going:
                self.send_header("Refresh", _AGAIN)
            self.end_headers()
            self.wfile.write(self.server.text)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: standard error belongs to the command."""


def watch(folder: Path, port: int, write: Callable[[], Path]) -> None:
    """Serve the page of a folder and write it again whenever a round is done, until Ctrl-C.

    Args:
        folder: a run folder, or that of a comparison.
        port: port of the page; 0 takes a free one.
        write: writes the page and returns its path.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        server = PageServer(port)
    except (OSError, OverflowError) as e:
        raise ConfigError(f"port {port} cannot be used ({e}); name another with --port, or none") from e
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        screen.note(f"page: http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
        before: object = None
        try:
            while True:
                now, going, began = _state(folder), lock.owner(folder / lock.NAME) is not None, time.monotonic()
                try:
                    if now != before:
                        server.text, before = write().read_bytes(), now
                    server.going = going
                except FedkinError:
                    if not going:  # otherwise a line may be half written
                        raise
                time.sleep(max(_LOOK, _SHARE * (time.monotonic() - began)))
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """Return what changes with each round."""
    commits = [path for path in (folder / COMMIT, *folder.glob(f"*/{COMMIT}")) if path.exists()]
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in commits)
