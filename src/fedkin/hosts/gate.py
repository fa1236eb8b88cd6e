"""The gate in front of a SuperLink: TLS, and only what nodes need.

A SuperLink answers its nodes and its operator on one port, and does not ask the operator who he is: whoever reaches
that port can run code on every client. So the SuperLink listens on this machine only, and the gate is what the network
sees. It passes ``POST /v1/fleet/...`` and answers 403 to all else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from fedkin.core.errors import ConfigError, EngineError
from fedkin.hosts.ports import listening
from fedkin.hosts.relay import PIECE, Limits, Upstream, close, relay


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with the gate's certificate.

    Raises:
        ConfigError: certificate or key cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{certificate} and {key} are not a certificate and its key ({error})") from error
    return context


def client_context(authority: Path) -> ssl.SSLContext:
    """TLS towards a SuperLink whose certificate this authority signed.

    Raises:
        ConfigError: the authority's certificate cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise ConfigError(f"{authority} is not an authority's certificate ({error})") from error


class Gate:
    """A gate in a thread of its own, from `start` to `stop`.

    Attributes:
        host: where it listens.
        port: the port, a free one if 0 was asked for.
        refused: how many requests did not pass, by status.
        failure: why it ended by itself; None as long as it serves.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        upstream: Upstream,
        limits: Limits | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self.host, self.port, self.limits = host, port, limits or Limits()
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._context, self._upstream = context, upstream
        self._log = log or logging.getLogger(__name__)
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fedkin-gate", daemon=True)
        self._socket: socket.socket | None = None

    def start(self) -> Gate:
        """Listens; comes back when it does.

        Raises:
            ConfigError: the port is taken, or the host is not this machine's.
        """
        self._socket = listening(self.host, self.port)
        self.port = self._socket.getsockname()[1]
        self._thread.start()
        self._started.wait()
        return self

    def stop(self) -> None:
        """Ends every connection and frees the port; may be called twice."""
        if self._thread.is_alive() and self._loop is not None and self._ended is not None:
            with suppress(RuntimeError):  # the loop may just have ended by itself
                self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # told to whoever supervises; a thread's traceback would be read by nobody
            self.failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        accepting = asyncio.create_task(self._accept())
        ended = asyncio.create_task(self._ended.wait())
        self._started.set()
        done, _ = await asyncio.wait([accepting, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in [accepting, ended, *self._tasks]:
            task.cancel()
        await asyncio.gather(accepting, ended, *self._tasks, return_exceptions=True)
        if accepting in done and (error := accepting.exception()) is not None:
            raise error

    async def _accept(self) -> None:
        """Takes connections, and closes those over the limits before a handshake has cost anything."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, address = await loop.sock_accept(self._socket)
            except OSError as error:  # out of file descriptors, or gone before it was taken
                self._log.warning("no connection could be taken: %s", error)
                await asyncio.sleep(0.2)
                continue
            peer = str(address[0])
            if self._open.total() >= self.limits.connections or self._open[peer] >= self.limits.per_address:
                self._note(f"{peer} 503 connection: too many at once")
                link.close()
                continue
            self._open[peer] += 1
            task = asyncio.create_task(self._one(link, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, link: socket.socket, peer: str) -> None:
        """One connection from its handshake to its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE, loop=loop)
        writer: asyncio.StreamWriter | None = None
        try:
            link.setblocking(False)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            seconds = self.limits.head_seconds
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, link, ssl=self._context, ssl_handshake_timeout=seconds
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await relay(reader, writer, peer, self._upstream, self.limits, self._note)
        except OSError as error:  # also a handshake that failed: no TLS, or a node that does not trust our certificate
            if writer is None:
                self._note(f"{peer} TLS handshake: {error}")
        finally:
            self._open[peer] -= 1
            self._open += Counter()  # forgets addresses without a connection
            if writer is None:
                link.close()
            else:
                await close(writer)

    def _note(self, line: str) -> None:
        self.refused[line.split()[1]] += 1
        self._log.warning("%s", line)


def failed(gate: Gate) -> EngineError:
    """The error of a gate that ended by itself."""
    return EngineError(f"the gate on {gate.host} port {gate.port} ended: {gate.failure!r}; start the link again")
