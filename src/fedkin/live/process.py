"""The live page's server as a process of its own, next to a command that computes.

It is not a thread of the command, where workers are forked: a fork copies the locks of threads as they are. The command
opens the socket, so that the address is known at once, and hands it on. The server ends with the command, as soon
as an open page has got the last round, and at once when its standard input is closed, as the system does if the command
is killed. Where nothing is forked and sockets cannot be handed on (Windows), it is a thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.live.server import LiveServer, address, listening, new_token


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve the page of a folder, which need not exist yet, from another process; yield the address.

    Raises:
        ConfigError: the port cannot be used.
    """
    if sys.platform == "win32":
        with _thread(folder, port) as where:
            yield where
        return
    with listening(port) as listener:
        token = new_token()
        where = address(listener, token)
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedkin.live.process", str(listener.fileno()), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the command, which then ends the server
        )
    assert server.stdin is not None
    try:
        with contextlib.suppress(OSError):  # a server that could not start must not end the run
            server.stdin.write(f"{token}\n".encode())  # not an argument: other users can read those
            server.stdin.flush()
        yield where
    finally:
        server.terminate()  # first, so that it does not take the command for killed
        server.wait()
        with contextlib.suppress(OSError):
            server.stdin.close()


@contextmanager
def _thread(folder: Path, port: int) -> Iterator[str]:
    """Serve the page of a folder from a thread of this process."""
    listener, token = listening(port), new_token()
    where = address(listener, token)
    with LiveServer(listener, token, folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield where
        finally:
            server.linger()
            server.shutdown()


def main() -> None:
    """Serve a folder on an inherited socket: ``python -m fedkin.live.process SOCKET FOLDER``, the token on input."""
    listener, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    token = sys.stdin.readline().strip()
    with LiveServer(listener, token, folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            signal.signal(signal.SIGTERM, _end)
            sys.stdin.read()
        except _CommandEnded:
            server.linger()
        server.shutdown()


class _CommandEnded(Exception):
    """The command has ended and asks the server to do so."""


def _end(signum: int, frame: object) -> None:
    raise _CommandEnded


if __name__ == "__main__":
    main()
