"""The process that holds a client's data and does its work, and the watch over it.

A step may hang, run out of memory or be killed. So the work is done in a separate process, which stays alive between
messages (torch, the data and the network are loaded once); `Watch` ends it at a message's deadline, answers in its
place, and starts another.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedkin.core.refusals import OfHost
from fedkin.deploy.heads import envelope
from fedkin.deploy.wire_format import WireError, WireMessage, receive, refusal, send
from fedkin.display import OneLine

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


class Watch:
    """Passes messages to the worker, one at a time, and ends it when it does not answer in time."""

    def __init__(self, duty: Duty) -> None:
        self._duty, self._one = duty, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._to: socket.socket | None = None
        self._closed = False

    def ask(self, message: WireMessage) -> WireMessage:
        """Return the site's answer, or the report that it died or exceeded the message's deadline."""
        with self._one:
            try:
                seconds = max(envelope(message).deadline, 0.1)
            except WireError as e:
                log.error("a message that cannot be read: %s", e)
                return self._no(message, "unreadable")
            try:
                to = self._running()
                to.settimeout(seconds)
                send(to, message)
                answer = receive(to, seconds=seconds)
            except TimeoutError:
                log.error("no answer within %g s: the worker is ended and restarted", seconds)
                self._anew()
                return self._no(message, "deadline")
            except (OSError, WireError, ValueError) as e:
                log.error("the worker cannot be reached: %s", type(e).__name__)
                self._anew()
                return self._no(message, "died")
            if answer is None:
                log.error("the worker died (%s); it is restarted", self._code())
                self._anew()
                return self._no(message, "died")
            return answer

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

    def _running(self) -> socket.socket:
        if self._to is None or self._process is None or self._process.poll() is not None:
            self._end()
            here, there = socket.socketpair()
            # -P: modules are not imported from the working folder, which -m would search first
            command = [sys.executable, "-P", "-m", "fedkin.deploy.worker"]
            command += [str(there.fileno()), json.dumps(asdict(self._duty))]
            self._process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
            there.close()
            self._to = here
            if receive(here, seconds=_START) is None:
                raise ConnectionError("the worker did not start")
        return self._to

    def _anew(self) -> None:
        """End the worker, and start another before one is needed: loading torch takes seconds."""
        self._end()
        threading.Thread(target=self._try_to_start, daemon=True).start()

    def _try_to_start(self) -> None:
        try:
            with self._one:
                if not self._closed:
                    self._running()
        except (OSError, WireError) as e:  # the next message tries again
            log.error("the worker could not be started: %s", e)

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


class Counter:
    """Accepts messages on a socket of this machine, as Flower's client app sends them, and passes them to a watch."""

    def __init__(self, place: Path, watch: Watch) -> None:
        self.place, self._watch = place, watch
        place.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(place))
        place.chmod(0o600)
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the socket and delete its file."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        self.place.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                of, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._one, args=(of,), daemon=True).start()

    def _one(self, of: socket.socket) -> None:
        with of, contextlib.suppress(OSError, WireError, TimeoutError):
            message = receive(of, seconds=600.0)
            if message is not None:
                of.settimeout(600.0)
                send(of, self._watch.ask(message))


def main(args: Sequence[str]) -> None:
    """Answer messages on the given socket until the other side closes it."""
    import torch

    from fedkin.data import SiteData
    from fedkin.deploy.allowed_code import Allowed
    from fedkin.deploy.client import ClientService
    from fedkin.deploy.maskkeys import Signing
    from fedkin.deploy.privacy_budget import PrivacyLimits

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
    with socket.socket(fileno=int(args[0])) as of:
        send(of, WireMessage({"ready": True}))
        while (message := receive(of)) is not None:
            send(of, site.answer(message))


if __name__ == "__main__":
    main(sys.argv[1:])
