"""The link: a SuperLink that listens on this machine only, the gate in front of it, and the admitted keys."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedkin.core.errors import ConfigError, EngineError, command_line, typed
from fedkin.deploy.control import Changes, Control
from fedkin.deploy.gate import Gate, Limits, client_context, server_context
from fedkin.deploy.keys import CA, SERVER, SERVER_KEY, check_server, key_fingerprint
from fedkin.deploy.offline import check_version, environment, program, write_connection
from fedkin.deploy.ports import answers, free_port, listening
from fedkin.deploy.private import private_folder
from fedkin.deploy.programs import Program, locked, wait_until
from fedkin.deploy.signed import Keyring
from fedkin.display import OneLine

LOOPBACK = "127.0.0.1"
READY_SECONDS = 60.0  # a SuperLink needs 2 s on an idle machine
LOOK_SECONDS = 5.0  # seconds between two looks at the folder of keys
Printer = Callable[[str], None]
_State = tuple[list[tuple[str, bytes]], int]  # the files of keys, and the time of the book of keys


@dataclass(frozen=True)
class LinkSettings:
    """Settings of a link.

    Attributes:
        folder: folder of the database, the logs and Flower's own files.
        keys: folder with ``ca.crt``, ``server.pem`` and ``server.key``; FOLDER/keys if None.
        nodes: folder with a NAME.pub for each admitted node; FOLDER/nodes if None.
        host: address on which nodes reach the gate; all IPv4 addresses of this machine if None.
        port: port of the gate, in a test of the SuperLink; 0 takes a free one.
        inner_port: port of the SuperLink on this machine; 0 takes a free one.
        insecure_test: no TLS, no keys, nothing on disk, this machine only.
        limits: limits of the gate.
    """

    folder: Path
    keys: Path | None = None
    nodes: Path | None = None
    host: str | None = None
    port: int = 8443
    inner_port: int = 8000
    insecure_test: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("inner port", self.inner_port)):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{name} must be 0 to 65535, got {port}")
        if self.insecure_test and self.host not in (None, LOOPBACK, "localhost"):
            raise ConfigError(
                f"--insecure-test is for this machine only, without TLS and keys: --host must be {LOOPBACK}, got "
                f"{self.host!r}; omit --insecure-test for a link that other machines reach"
            )

    @property
    def listen(self) -> str:
        """The address that the gate listens on."""
        return self.host or "0.0.0.0"

    @property
    def superlink_port(self) -> int:
        """The port of the SuperLink: the public one in a test, where there is no gate."""
        return self.port if self.insecure_test else self.inner_port

    @property
    def key_folder(self) -> Path:
        """The folder with the link's certificates and keys."""
        return self.keys or self.folder / "keys"

    @property
    def node_folder(self) -> Path:
        """The folder with the public keys of the nodes."""
        return self.nodes or self.folder / "nodes"

    @property
    def home(self) -> Path:
        """The folder of Flower's own files."""
        return self.folder / "flwr"


class Link:
    """A running link, from `start_link` to `stop`.

    Attributes:
        settings: settings that it was started with.
        address: ``HOST:PORT`` for nodes; the SuperLink's own in a test.
        inner: ``HOST:PORT`` of the SuperLink, for this machine's operator.
        control: operator's access to the SuperLink.
        changes: keys that were registered when it started.
        superlink: the program.
        gate: the gate in front of it; None in a test.
        keyring: the keys that may pass.
    """

    def __init__(self, settings: LinkSettings, lock: contextlib.ExitStack) -> None:
        self.settings, self._lock = settings, lock
        self.control = Control(settings.folder, settings.home)
        self.changes = Changes((), (), ())
        self.gate: Gate | None = None
        self.keyring = Keyring()
        self.inner = f"{LOOPBACK}:{settings.superlink_port or free_port()}"
        self._log: logging.Logger | None = None
        self._seen: _State = [], 0
        self._tried, self._said = self._seen, list[str]()
        self.superlink = Program(
            "the SuperLink", self._command(), environment(settings.home), self.logs / "superlink.log"
        )

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.settings.folder / "logs"

    @property
    def address(self) -> str:
        """``HOST:PORT`` for nodes: the gate's, or the SuperLink's own in a test."""
        if self.gate is None:
            return self.inner
        return f"[{self.gate.host}]:{self.gate.port}" if ":" in self.gate.host else f"{self.gate.host}:{self.gate.port}"

    def wait(self, say: Printer | None = None) -> None:
        """Watch the programs until one ends; register new keys meanwhile and limit the size of the logs.

        Args:
            say: receives a line whenever something changes.

        Raises:
            EngineError: the SuperLink or the gate ended.
        """
        looked = time.monotonic()
        while True:
            self.check()
            time.sleep(0.2)
            if time.monotonic() - looked > LOOK_SECONDS:
                self.superlink.trim()
                if not self.settings.insecure_test:
                    self._look(say or (lambda line: None))
                looked = time.monotonic()

    def check(self) -> None:
        """Raise `EngineError` if the SuperLink or the gate has ended."""
        if not self.superlink.alive:
            raise self.superlink.ended()
        if self.gate is not None and not self.gate.alive:
            raise EngineError(f"the gate on {self.address} ended: {self.gate.failure!r}; start the link again")

    def stop(self) -> None:
        """End the gate, the SuperLink and all processes that they started; may be called twice."""
        if self.gate is not None:
            self.gate.stop()
        self.superlink.stop()
        if self._log is not None:
            for handler in list(self._log.handlers):
                self._log.removeHandler(handler)
                handler.close()
        self._lock.close()

    def _command(self) -> list[str]:
        host, _, port = self.inner.rpartition(":")
        command = [program("flower-superlink"), "--host", host, "--port", port]
        if self.settings.insecure_test:
            return [*command, "--insecure"]
        keys = self.settings.key_folder.resolve()
        command += ["--database", str(self.settings.folder.resolve() / "link.db"), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(keys / CA), "--ssl-certfile", str(keys / SERVER)]
        return [*command, "--ssl-keyfile", str(keys / SERVER_KEY)]

    def _open(self) -> None:
        """Finish the start once the SuperLink runs: wait for its answer, register keys, open the gate."""
        host, _, port = self.inner.rpartition(":")
        wait_until(lambda: answers(host, int(port)), self.superlink, READY_SECONDS)
        settings = self.settings
        if settings.insecure_test:
            return
        self.changes = self._registered()
        keys = settings.key_folder
        context, trust = server_context(keys / SERVER, keys / SERVER_KEY), client_context(keys / CA)
        self._log = _gate_log(self.logs / "gate.log")
        upstream, limits = f"https://{self.inner}", settings.limits
        gate = Gate(settings.listen, settings.port, context, upstream, trust, self.keyring, limits, self._log)
        self.gate = gate.start()

    def _look(self, say: Printer) -> None:
        """Register keys that were added to the folder, and drop those that are gone or shut out.

        What fails is tried again at the next look, and said once.
        """
        now = self._now()
        if now == self._seen:
            return
        said = self._said if now == self._tried else []
        try:
            lines = change_lines(self._registered(), self.settings)
        except (ConfigError, EngineError) as error:
            lines = [f"new keys are not accepted yet; this is tried again: {error}"]
        for line in lines:
            if line not in said:
                say(line)
        self._tried, self._said = (now[0], self.control.changed()), lines

    def _registered(self) -> Changes:
        """Register the keys in the folder, and admit those that are not shut out."""
        folder = self.settings.node_folder
        files, book = self._now()  # before Flower is asked, so that a revocation meanwhile is found next
        paths = [folder / name for name, *_ in files]
        self.keyring.keep(paths)  # a file that is gone needs no answer of Flower, which may not come
        changes = self.control.register(folder)
        self.keyring.load(path for path in paths if path.stem not in {*changes.shut, *changes.failed})
        if not changes.failed:
            self._seen = files, book
        return changes

    def _now(self) -> _State:
        return _files(self.settings.node_folder), self.control.changed()


def start_link(settings: LinkSettings) -> Link:
    """Start a SuperLink, register the nodes' keys, and open the gate.

    Call it from a thread that lives as long as the link: on Linux the SuperLink ends with it.

    Raises:
        ConfigError: flwr is missing or of another version, keys are missing, a port is taken.
        EngineError: the SuperLink did not come up; the end of its log is in the text.
    """
    check_version()
    if not settings.insecure_test:
        check_server(settings.key_folder)
        server_context(settings.key_folder / SERVER, settings.key_folder / SERVER_KEY)
    inner = "--port" if settings.insecure_test else "--inner-port"
    listening(LOOPBACK, settings.superlink_port, inner).close()  # before anything is started
    if not settings.insecure_test:
        listening(settings.listen, settings.port).close()
    private_folder(settings.folder)
    lock = locked(settings.folder, "a link", "choose another folder")
    link: Link | None = None
    try:
        private_folder(settings.home)
        if not settings.insecure_test:
            private_folder(settings.node_folder, tighten=False)
        link = Link(settings, lock)
        write_connection(settings.home, link.inner, None if settings.insecure_test else settings.key_folder / CA)
        link._open()
    except BaseException:
        if link is not None:
            link.stop()
        lock.close()
        raise
    return link


def change_lines(changes: Changes, settings: LinkSettings) -> list[str]:
    """Return the lines about the keys that the operator needs to read."""
    folder = settings.node_folder
    lines = [f"registered {name} ({key_fingerprint(folder / f'{name}.pub')})" for name in changes.new]
    for name in changes.gone:
        file, command = folder / f"{name}.pub", command_line(["fedkin", "link", str(settings.folder), "--revoke", name])
        if file.exists():
            lines.append(f"the former key of {name} is refused at the gate, as {file} no longer contains it")
        else:
            lines.append(f"{name} is refused at the gate as long as {file} is gone; to shut it out for good: {command}")
    shut = "stays shut out; to let the node in again it needs a new key (fedkin keys node FOLDER NAME)"
    lines += [f"{name} {shut}" for name in changes.shut]
    lines += [f"a file is skipped until it changes: {reason}" for reason in changes.unreadable.values()]
    return lines + [f"{reason}; this is tried again" for reason in changes.failed.values()]


def find_link(folder: Path) -> Control:
    """Return the operator's access to the link in a folder.

    Raises:
        ConfigError: the folder does not hold a link.
    """
    home = LinkSettings(folder).home
    if not (home / "config.toml").is_file():
        raise ConfigError(f"{folder} is not a link's folder; start one there: fedkin link {typed(folder)}")
    return Control(folder, home)


def _files(folder: Path) -> list[tuple[str, bytes]]:
    """Return the name and a digest of each file of a key.

    Times do not tell a changed file: a second write within one tick of the system's clock leaves them as they are.
    """
    found = []
    for path in sorted(folder.glob("*.pub")):
        try:
            found.append((path.name, hashlib.sha256(path.read_bytes()).digest()))
        except OSError:  # it is gone again, may not be read, or is a link to nothing
            found.append((path.name, b""))
    return found


def _gate_log(path: Path) -> logging.Logger:
    """Return a log for refusals: at most 5 MB and three former files, however often requests are refused."""
    handler = RotatingFileHandler(path, maxBytes=5 << 20, backupCount=3, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(message)s"))
    log = logging.getLogger(f"fedkin.gate.{os.getpid()}.{path}")
    log.addHandler(handler)
    log.propagate = False
    return log
