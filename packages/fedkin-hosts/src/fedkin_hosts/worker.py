"""The process that holds a client's data and does its work, and the watch over it.

A step may hang, run out of memory or be killed. So the work is done in a separate process, which stays alive between
messages (torch, the data and the network are loaded once); `Watch` ends it at a message's deadline, answers in its
place, and starts another.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from fedkin.core.refusals import OfHost
from fedkin.display import OneLine
from fedkin_hosts.heads import (
    BODY_LIMIT,
    HEAD_LIMIT,
    Envelope,
    WireError,
    WireMessage,
    decode,
    head_bytes,
    head_of,
    refusal,
)

if TYPE_CHECKING:
    from fedkin_hosts.node import Node

log = logging.getLogger("fedkin.node")
_START = 120.0  # seconds for a worker to load torch


def send(to: Connection, message: WireMessage) -> None:
    """Write a message to a process of this machine."""
    to.send_bytes(head_bytes(message))
    to.send_bytes(message.body)


def receive(of: Connection) -> WireMessage:
    """Read a message.

    Raises:
        WireError: it is not a message.
        EOFError, OSError: the other side has ended, or the message is too large.
    """
    head = of.recv_bytes(HEAD_LIMIT)
    return WireMessage(head_of(head), of.recv_bytes(BODY_LIMIT))


class Watch:
    """Passes messages to the worker, one at a time, and ends it when it does not answer in time."""

    def __init__(self, node: Node) -> None:
        self._node, self._one = node, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to: Connection | None = None
        self._closed = False

    def ask(self, message: WireMessage) -> WireMessage:
        """Return the site's answer, or the report that it died or exceeded the message's deadline."""
        with self._one:
            try:
                seconds = max(decode(message, Envelope).deadline, 0.1)
            except WireError as e:
                log.error("a message that cannot be read: %s", e)
                return self._no(message, "unreadable")
            timer, end = threading.Timer(seconds, self._kill), math.inf
            try:
                to = self._running()
                end = time.monotonic() + seconds
                timer.start()
                send(to, message)
                return receive(to)
            except (EOFError, OSError, WireError) as e:
                late = time.monotonic() >= end
                why = f"no answer within {seconds:g} s" if late else f"the worker died ({self._code()}, {e!r})"
                log.error("%s: the worker is restarted", why)
                self._end()
                threading.Thread(target=self._try_to_start, daemon=True).start()  # loading torch takes seconds
                return self._no(message, "deadline" if late else "died")
            finally:
                timer.cancel()

    def start(self) -> None:
        """Start the worker, so that the first message need not wait for it; `OSError` if it could not be started."""
        with self._one:
            self._running()

    def close(self) -> None:
        """End the worker; may be called twice."""
        with self._one:
            self._closed = True
            self._end()

    def _running(self) -> Connection:
        if self._to is None or self._process is None or self._process.poll() is not None:
            self._end()
            self._to, there = multiprocessing.Pipe()
            # -P: modules are not imported from the working folder, which -m would search first
            command = [sys.executable, "-P", "-m", "fedkin_hosts.worker"]
            command += [str(there.fileno()), msgspec.json.encode(self._node, enc_hook=str).decode()]
            self._process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
            there.close()
            if not self._to.poll(_START):
                raise ConnectionError("the worker did not start")
            receive(self._to)
        return self._to

    def _try_to_start(self) -> None:
        try:
            with self._one:
                if not self._closed:
                    self._running()
        except (EOFError, OSError, WireError) as e:  # the next message tries again
            log.error("the worker could not be started: %r", e)

    def _kill(self) -> None:
        """End the process at a deadline, which ends the wait for it."""
        if self._process is not None:
            self._process.kill()

    def _end(self) -> None:
        if self._to is not None:
            self._to.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._to = self._process = None

    def _code(self) -> str:
        if self._process is None:
            return "gone"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit status {self._process.wait(5)}"
        return "no exit status"

    def _no(self, message: WireMessage, code: OfHost) -> WireMessage:
        return refusal(message.head, self._node.client_id, code)


def main(args: Sequence[str]) -> None:
    """Answer messages on the given connection until the other side closes it."""
    import torch

    from fedkin.data import SiteData
    from fedkin_hosts.allowed_code import Allowed
    from fedkin_hosts.client import ClientService
    from fedkin_hosts.node import Node

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    torch.set_num_threads(1)  # the same sums as in the simulator, on any machine
    node = msgspec.json.decode(args[1], type=Node, dec_hook=lambda kind, text: kind(text))
    allowed = Allowed.of(node.allow_code)
    allowed.findable()
    data = SiteData(node.data, share=node.share, texts=node.text)
    site = ClientService(node.client_id, data, node.folder / "clients", node, allowed, node.signing)
    with Connection(int(args[0])) as of, contextlib.suppress(EOFError, ConnectionError):  # until the node has ended
        send(of, WireMessage({"ready": True}))
        while True:
            send(of, site.answer(receive(of)))


if __name__ == "__main__":
    main(sys.argv[1:])
