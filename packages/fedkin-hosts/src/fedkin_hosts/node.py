"""A client's host: the connection to the link, and the process that holds the data and does the work.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch

from fedkin.core import ConfigError
from fedkin.core.refusals import OfHost
from fedkin.data import SOURCES, SiteData
from fedkin.display import OneLine
from fedkin.storage.files import for_this_user, open_to_others
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.client_memory import checked_name
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
from fedkin_hosts.machine import locked, private_folder
from fedkin_hosts.masks import Signing
from fedkin_hosts.privacy_budget import PrivacyLimits

Printer = Callable[[str], None]
log = logging.getLogger("fedkin.node")
_START = 120.0  # seconds for a worker to load torch


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A client's data and its way to the link."""

    data: str
    """Data of this client: a csv or npz file, a folder of idx files or images; with --share, anything."""
    client_id: str
    """Name of this client: 1 to 64 of the characters A-Z a-z 0-9 . _ -"""
    link: str = "127.0.0.1:8000"
    """HOST:PORT of the link."""
    folder: Path = Path("fedkin-node")
    """Folder for this client's state and its models: one for each node; keep it between starts."""
    ca: Path | None = None
    """Certificate of the authority that signed the link's (ca.crt)."""
    key: Path | None = None
    """This node's private key, as made by fedkin keys node."""
    share: int | None = None
    """For trials: use this share of a data set that is split by the run's settings."""
    text: tuple[str, ...] = ()
    """Columns of a table to read as texts although they contain numbers at this client."""


@dataclass(frozen=True, kw_only=True)
class Node(PrivacyLimits, _Place):
    """A client and its connection to the link; the fields are the flags of ``fedkin node``."""

    peers: Path | None = None
    """Folder with the public keys (NAME.pub) of the other clients, received from them and not from the link's operator:
    an upload is masked only for a sum with these. Without it, a server may invent all other clients of a sum."""
    allow_code: tuple[str, ...] = ()
    """Code that runs may name in addition to the built-in methods and networks: installed packages (team), modules
    (team.nets) or files (./nets.py, named nets:build). A run that names other code is refused."""
    insecure_test: bool = False
    """No certificates and no keys: for trials on one machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_name(self.client_id, "client-id")
        Allowed.of(self.allow_code)
        trial, missing = self.insecure_test, [path for path in (self.ca, self.key) if path and not path.is_file()]
        for wrong, why in (
            (
                self.peers and not self.only_masked,
                "--peers restricts the clients whose masked uploads are added up, and without --only-masked a run may "
                "ask for uploads without masks; add --only-masked",
            ),
            (
                self.data not in SOURCES and not Path(self.data).exists(),
                f"no data at {self.data}; set --data to this client's file or folder",
            ),
            (
                (self.ca or self.key) if trial else not (self.ca and self.key),
                "a node needs --ca (the link's authority) and --key (its own private key), see fedkin keys; "
                "or --insecure-test alone, for trials on one machine",
            ),
            (missing, f"no file {', '.join(map(str, missing))}"),
        ):
            if wrong:
                raise ConfigError(why)
        self.signing.check(self.client_id)

    @property
    def signing(self) -> Signing:
        """The keys with which its uploads are masked."""
        return Signing(self.key, self.peers)

    def resolved(self) -> Node:
        """Return it with absolute paths."""
        data = self.data if self.data in SOURCES else str(Path(self.data).resolve())
        code = (str(Path(word).expanduser().resolve()) if word.endswith(".py") else word for word in self.allow_code)
        ca, key, peers = (path and path.resolve() for path in (self.ca, self.key, self.peers))
        folder = self.folder.resolve()
        return replace(self, data=data, folder=folder, ca=ca, key=key, peers=peers, allow_code=tuple(code))


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
            command = [sys.executable, "-P", "-m", "fedkin_hosts.node"]
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


def run_node(node: Node, say: Printer) -> None:
    """Run until the user stops it.

    Raises:
        ConfigError: a node runs in the folder.
        EngineError: the link refuses this node.
    """
    from fedkin_hosts.fleet import FleetNode  # imported here: --help needs no Flower

    folder = node.folder.resolve()
    if private_folder(folder):
        say(f"{folder} was open to other users of this machine; it is this user's alone now (mode 0700)")
    if node.key is not None and (advice := open_to_others(node.key)):
        say(advice)
    with for_this_user(), locked(folder, "a node", "choose another folder with --folder"):
        watch = Watch(node.resolved())
        try:
            watch.start()
            say(f"{node.client_id} is at work for {node.link}; its state is in {folder}. Stop it with Ctrl-C.")
            FleetNode(node.link, node.ca, node.key, watch.ask, say).serve()
        finally:
            watch.close()


def main(args: Sequence[str]) -> None:
    """Answer messages on the given connection until the other side closes it."""
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
