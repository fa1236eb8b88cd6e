"""The link: a SuperLink that listens on this machine only, the gate in front of it, and the admitted keys."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedkin.core.errors import ConfigError, EngineError, command_line
from fedkin.display import OneLine, printable
from fedkin_hosts.control import Control
from fedkin_hosts.gate import Gate, Limits, server_context
from fedkin_hosts.keys import CA, SERVER, SERVER_KEY, PublicKey, check_server, fingerprint, pem, public_key
from fedkin_hosts.machine import answers, environment, free_port, listening, locked, private_folder, program
from fedkin_hosts.signed import Keyring

LOOPBACK = "127.0.0.1"
READY_SECONDS = 60.0  # a SuperLink needs 2 s on an idle machine
LOOK_SECONDS = 5.0  # seconds between two looks at the folder of keys
_AGAIN, _RARELY = 5.0, 60.0  # first and longest pause in seconds before the SuperLink is started again
_PATIENCE = 120.0  # seconds of failures after which the link gives up
_END = 10.0  # seconds that programs have for their end
_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # of a terminal, as Flower writes it into its logs too
_LAST = 2048  # bytes of output that are shown when the SuperLink has ended
Printer = Callable[[str], None]

# Runs in the new process before the program: Linux kills the process when its starter dies for any reason, so that no
# SuperLink is left behind that holds the port and the database
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


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
        if self.insecure_test and self.host not in (None, LOOPBACK, "localhost"):
            raise ConfigError(
                f"--insecure-test is for this machine only, without TLS and keys: --host must be {LOOPBACK}, got "
                f"{self.host!r}; omit --insecure-test for a link that other machines reach"
            )

    @property
    def key_folder(self) -> Path:
        """The folder with the link's certificates and keys."""
        return self.keys or self.folder / "keys"

    @property
    def node_folder(self) -> Path:
        """The folder with the public keys of the nodes."""
        return self.nodes or self.folder / "nodes"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.folder / "logs"


class Link:
    """A link, which holds its ports from its construction on and serves as long as `run` does.

    Attributes:
        settings: settings of the link.
        inner: ``HOST:PORT`` of the SuperLink, for this machine's operator.
        control: operator's access to the SuperLink.
        gate: the gate in front of it; None in a test.
        keyring: the keys that may pass.
        process: the SuperLink's process; None before its first start.

    Raises:
        ConfigError: keys are missing or invalid, or a port is taken.
    """

    def __init__(self, settings: LinkSettings) -> None:
        self.settings, self.keyring, keys = settings, Keyring(), settings.key_folder
        self._log = logging.getLogger(f"fedkin.link.{id(self)}")
        port = settings.port if settings.insecure_test else settings.inner_port
        listening(LOOPBACK, port, "--port" if settings.insecure_test else "--inner-port").close()
        self.inner = f"{LOOPBACK}:{port or free_port()}"
        private_folder(settings.folder)
        private_folder(settings.logs)
        self.gate: Gate | None = None
        if not settings.insecure_test:
            check_server(keys)
            private_folder(settings.node_folder, tighten=False)
            context, trust = (
                server_context(keys / SERVER, keys / SERVER_KEY),
                ssl.create_default_context(cafile=keys / CA),
            )
            host, upstream = settings.host or "0.0.0.0", f"https://{self.inner}"
            where, limits = (host, settings.port), settings.limits
            self.gate = Gate(*where, context, upstream, trust, self.keyring, limits, self._log.getChild("gate"))
        self.control = Control(settings.folder, self.inner, None if settings.insecure_test else keys / CA)
        self.process: asyncio.subprocess.Process | None = None
        self._ready, self._output = False, b""

    @property
    def address(self) -> str:
        """``HOST:PORT`` for nodes: the gate's, or the SuperLink's own in a test."""
        return self.inner if self.gate is None else self.gate.address

    def close(self) -> None:
        """Free the port of the gate."""
        if self.gate is not None:
            self.gate.close()

    async def run(self, say: Printer, ready: Callable[[list[str]], None]) -> None:
        """Serve until it is cancelled.

        Args:
            say: receives a line whenever something changes.
            ready: called once nodes can connect, with lines about their keys.

        Raises:
            ConfigError: a link runs in the folder.
            EngineError: the SuperLink does not stay up; the end of its log is in the text.
        """
        logs, form = self.settings.logs, OneLine("%(asctime)s %(message)s")
        with (
            locked(self.settings.folder, "a link", "choose another folder"),
            _written(self._log.getChild("gate"), logs / "gate.log", form),
            _written(self._log.getChild("superlink"), logs / "superlink.log", logging.Formatter(), end=""),
        ):
            superlink = asyncio.create_task(self._keep_up(say))
            tasks = [superlink]
            try:
                await self._until_ready(superlink)
                self.control.publish()
                lines = list[str]()
                if self.gate is not None:
                    lines = await asyncio.to_thread(self.look)
                    tasks += [asyncio.create_task(self.gate.serve()), asyncio.create_task(self._watch(say, lines))]
                ready(lines)
                await next(asyncio.as_completed(tasks))  # none ends but by an error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the SuperLink --------------------------------------------------------------------------------------------
    async def _until_ready(self, superlink: asyncio.Task[None]) -> None:
        """Wait until the SuperLink answers."""
        host, port = LOOPBACK, int(self.inner.rpartition(":")[2])
        end = time.monotonic() + READY_SECONDS
        while not await asyncio.to_thread(answers, host, port):
            if superlink.done():
                superlink.result()
            if time.monotonic() > end:
                raise EngineError(f"the SuperLink is not ready after {READY_SECONDS:g} s; {self._last_lines()}")
            await asyncio.sleep(0.1)
        self._ready = True

    async def _keep_up(self, say: Printer) -> None:
        """Run the SuperLink; one that ends is started again, after longer and longer pauses."""
        pause, failing = _AGAIN, time.monotonic()
        while True:
            begun = time.monotonic()
            code = await self._superlink()
            said = f"the SuperLink ended with exit code {code}; {self._last_lines()}"
            if time.monotonic() - begun > _PATIENCE:
                pause, failing = _AGAIN, time.monotonic()
            if time.monotonic() - failing > _PATIENCE or not self._ready:
                raise EngineError(said)
            say(f"{said}\nIt is started again in {pause:g} s; submit the runs again that were in progress")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RARELY)

    async def _superlink(self) -> int:
        """Run the SuperLink until it ends and return its exit code; all that it started ends with it."""
        words = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *self._command()]
        env = environment(self.settings.folder / "flwr")
        self.process = process = await asyncio.create_subprocess_exec(
            *words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the link, which ends its programs in order
        )
        assert process.stdout is not None
        reading = asyncio.create_task(self._write_down(process.stdout))
        try:
            return await process.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(TimeoutError):  # the output ends with the last of the programs
                    await asyncio.wait_for(asyncio.shield(reading), _END)
            reading.cancel()
            with suppress(TimeoutError):  # its transport closes
                await asyncio.wait_for(process.wait(), _END)

    def _command(self) -> list[str]:
        host, _, port = self.inner.rpartition(":")
        command = [program("flower-superlink"), "--host", host, "--port", port]
        if self.settings.insecure_test:
            return [*command, "--insecure"]
        keys = self.settings.key_folder.resolve()
        command += ["--database", str(self.settings.folder.resolve() / "link.db"), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(keys / CA), "--ssl-certfile", str(keys / SERVER)]
        return [*command, "--ssl-keyfile", str(keys / SERVER_KEY)]

    async def _write_down(self, output: asyncio.StreamReader) -> None:
        """Write the output of the SuperLink and its programs to a log."""
        log = self._log.getChild("superlink")
        while piece := await output.read(1 << 16):
            self._output = (self._output + piece)[-_LAST:]
            log.info("%s", piece.decode("utf-8", "replace"))

    def _last_lines(self) -> str:
        lines = _COLOUR.sub("", self._output.decode("utf-8", "replace")).splitlines()[-8:] or ["(nothing)"]
        log = self.settings.logs / "superlink.log"
        return "\n  ".join([f"the end of {log}:", *(printable(line) for line in lines)])

    # ---- the keys -------------------------------------------------------------------------------------------------
    async def _watch(self, say: Printer, said: list[str]) -> None:
        """Look at the folder of keys again and again; each line is said once, as long as it holds."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            lines = await asyncio.to_thread(self.look)
            for line in lines:
                if line not in said:
                    say(line)
            said = lines

    def look(self) -> list[str]:
        """Register the keys in the folder, admit those that are not shut out, and return lines for the operator."""
        folder, lines, result = self.settings.node_folder, list[str](), dict[str, PublicKey]()
        for path in sorted(folder.glob("*.pub")):
            try:
                result[path.stem] = public_key(path)
            except ConfigError as error:
                lines.append(f"a file is skipped until it changes: {error}")
        self.keyring.keep(result)  # before the SuperLink is asked, which may not answer
        try:
            nodes = {node.key: node for node in self.control.nodes()}
        except EngineError as error:
            return [*lines, f"new keys are not accepted yet; this is tried again: {error}"]
        admitted = dict[str, PublicKey]()
        for name, key in result.items():
            if (node := nodes.get(pem(key))) is None:
                try:
                    self.control.register(name, key)
                except EngineError as error:
                    lines.append(f"the key of {name} is not registered; this is tried again: {error}")
                    continue
                lines.append(f"registered {name} ({fingerprint(key)})")
            elif node.is_shut_out:
                lines.append(
                    f"{name} stays shut out; to come in again it needs a new key (fedkin keys node FOLDER NAME)"
                )
                continue
            admitted[name] = key
        known = {pem(key) for key in result.values()}
        for node in nodes.values():
            if not node.is_shut_out and node.key not in known:
                revoke = command_line(["fedkin", "link", str(self.settings.folder), "--revoke", node.name])
                lines.append(
                    f"{node.name} ({node.fingerprint}) is refused at the gate, as no file in {folder} has its key; to "
                    f"shut it out for good: {revoke}"
                )
        self.keyring.load(admitted)
        return lines


@contextmanager
def _written(log: logging.Logger, path: Path, form: logging.Formatter, end: str = "\n") -> Iterator[None]:
    """Write a log into a file of at most 5 MB and three former ones while the context is open."""
    handler = RotatingFileHandler(path, maxBytes=5 << 20, backupCount=3, encoding="utf-8")
    handler.terminator = end
    handler.setFormatter(form)
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
