"""The process that holds a client's data and does its work, and the watch over it.

A step may hang, run out of memory or be killed. So the work is done in a separate process, which stays alive between
messages (torch, the data and the network are loaded once); `Watch` ends it at a message's deadline, answers in its
place, and starts another.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path

from fedkin.core.refusals import OfHost
from fedkin.display import OneLine
from fedkin_hosts.heads import BODY_LIMIT, HEAD_LIMIT, WireError, WireMessage, envelope, head_bytes, head_of, refusal

log = logging.getLogger("fedkin.node")
_START = 120.0  # seconds for a worker to load torch


@dataclass(frozen=True)
class Duty:
    """The start parameters of a worker.

    Attributes:
        client: what the site is called.
        data: its data, see `SiteData`; share and texts likewise.
        folder: where it keeps its memory.
        max_metadata_epsilon: what the owner of the data allows, see `PrivacyLimits`; the next two likewise.
        only_masked, keep_scores, target: likewise.
        allow_code: code that runs may name, see `Allowed.of`.
        key: file of the node's private key, which signs its keys for masks.
        peers: folder of the keys of the clients that its uploads may be added up with.
    """

    client: str
    data: str
    folder: str
    share: int | None = None
    texts: tuple[str, ...] = ()
    max_metadata_epsilon: float | None = None
    min_noise_multiplier: float | None = None
    max_epsilon: float | None = None
    only_masked: bool = False
    keep_scores: bool = False
    target: str | None = None
    allow_code: tuple[str, ...] = ()
    key: str | None = None
    peers: str | None = None


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

    def __init__(self, duty: Duty) -> None:
        self._duty, self._one = duty, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to: Connection | None = None
        self._closed = False

    def ask(self, message: WireMessage) -> WireMessage:
        """Return the site's answer, or the report that it died or exceeded the message's deadline."""
        with self._one:
            try:
                seconds = max(envelope(message).deadline, 0.1)
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
        """Start the worker, so that the first message need not wait for it.

        Raises:
            OSError: it could not be started.
        """
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
            command += [str(there.fileno()), json.dumps(asdict(self._duty))]
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
        return refusal(message.head, self._duty.client, code)


def main(args: Sequence[str]) -> None:
    """Answer messages on the given connection until the other side closes it."""
    import torch

    from fedkin.data import SiteData
    from fedkin_hosts.allowed_code import Allowed
    from fedkin_hosts.client import ClientService
    from fedkin_hosts.masks import Signing
    from fedkin_hosts.privacy_budget import PrivacyLimits

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    torch.set_num_threads(1)  # the same sums as in the simulator, on any machine
    options = json.loads(args[1])
    duty = Duty(**{**options, "texts": tuple(options["texts"]), "allow_code": tuple(options["allow_code"])})
    limits = PrivacyLimits(**{f.name: getattr(duty, f.name) for f in fields(PrivacyLimits)})
    allowed = Allowed.of(duty.allow_code)
    allowed.findable()
    data = SiteData(duty.data, share=duty.share, texts=duty.texts)
    key, peers = (None if path is None else Path(path) for path in (duty.key, duty.peers))
    site = ClientService(duty.client, data, Path(duty.folder), limits, allowed, Signing(key, peers))
    with Connection(int(args[0])) as of, contextlib.suppress(EOFError, ConnectionError):  # until the node has ended
        send(of, WireMessage({"ready": True}))
        while True:
            send(of, site.answer(receive(of)))


if __name__ == "__main__":
    main(sys.argv[1:])
