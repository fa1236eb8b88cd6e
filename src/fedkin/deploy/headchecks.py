"""An HTTP server that nginx or Caddy query with the head of a node's request before they read its body.

nginx queries it with ``auth_request``, Caddy with ``forward_auth``. The server listens on this machine only.
"""

from __future__ import annotations

import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from fedkin.core.errors import ConfigError
from fedkin.deploy.signed import Keyring, Unsigned

_HOST = "127.0.0.1"
log = logging.getLogger(__name__)


class HeadChecks:
    """A small HTTP server: 204 for a head that a registered node has signed, 401 for any other.

    Attributes:
        port: port on 127.0.0.1.
    """

    def __init__(self, port: int, keyring: Keyring) -> None:
        handler = type("_Handler", (_Check,), {"keyring": keyring})
        try:
            self._server = ThreadingHTTPServer((_HOST, port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {_HOST} port {port} ({error}), where nginx or Caddy are to ask; choose another "
                "with --check-port"
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="fedkin-checks", daemon=True)

    def start(self) -> HeadChecks:
        """Start to serve in a thread and return this server."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Free the port; may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Check(BaseHTTPRequestHandler):
    keyring: Keyring
    timeout = 10.0

    def do_GET(self) -> None:
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        try:
            self.keyring.holder(headers)
            self.send_response(204)
        except Unsigned as error:
            log.warning("401: %s", error)
            self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: nginx or Caddy keep a log."""
