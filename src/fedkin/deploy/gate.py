"""The gate in front of a SuperLink: TLS, registered keys, and only the calls that nodes need.

A SuperLink serves its nodes and its operator on one port and does not authenticate the operator: any program that
reaches this port can run code on every client. So the SuperLink listens on this machine only, and the gate is the
public side. It passes ``POST /v1/fleet/...`` where a registered node has signed the head, and refuses all other
requests before a body is read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import h11

from fedkin.core.errors import ConfigError, EngineError
from fedkin.deploy.ports import listening
from fedkin.deploy.relay import PIECE, ConnectionLimits, RequestRefused, Upstream, close, relay
from fedkin.deploy.signed import Keyring, Unsigned


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context (1.2 or newer) with the gate's certificate.

    Raises:
        ConfigError: the certificate or the key cannot be read, or they do not belong together.
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
    """Return a TLS context for a SuperLink whose certificate this authority signed.

    Raises:
        ConfigError: the authority's certificate cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise ConfigError(f"{authority} is not an authority's certificate ({error})") from error


class Gate:
    """A gate that runs in its own thread, from `start` to `stop`.

    Args:
        context: TLS context with the gate's certificate.
        upstream: the SuperLink behind the gate.
        keyring: keys of the nodes that may pass; it may change while the gate runs.

    Attributes:
        host: host on which the gate listens.
        port: port, a free one if 0 was requested.
        refused: number of refused requests by status.
        failure: the error that ended the gate; None as long as it serves.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        upstream: Upstream,
        keyring: Keyring,
        limits: ConnectionLimits | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self.host, self.port, self.limits = host, port, limits or ConnectionLimits()
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._context, self._upstream, self._keyring = context, upstream, keyring
        self._log = log or logging.getLogger(__name__)
        self._strangers: dict[asyncio.Task[None], str] = {}  # connections without a signed request so far
        self._known: dict[asyncio.Task[None], str] = {}  # the other connections, with the names of their keys
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fedkin-gate", daemon=True)
        self._socket: socket.socket | None = None

    def start(self) -> Gate:
        """Start to listen and return the gate when it does.

        Raises:
            ConfigError: the port is taken, or the host is not an address of this machine.
        """
        self._socket = listening(self.host, self.port)
        self.port = self._socket.getsockname()[1]
        self._thread.start()
        self._started.wait()
        return self

    def stop(self) -> None:
        """End every connection and free the port; may be called twice."""
        if self._thread.is_alive() and self._loop is not None and self._ended is not None:
            with suppress(RuntimeError):  # the loop may have ended already
                self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    @property
    def alive(self) -> bool:
        """Whether the gate serves: it was started and has not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # kept for the supervising thread; a traceback here would go unread
            self.failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        accepting = asyncio.create_task(self._accept())
        ended = asyncio.create_task(self._ended.wait())
        self._started.set()
        done, _ = await asyncio.wait([accepting, ended], return_when=asyncio.FIRST_COMPLETED)
        tasks = [accepting, ended, *self._strangers, *self._known]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if accepting in done and (error := accepting.exception()) is not None:
            raise error

    async def _accept(self) -> None:
        """Accept connections within the limits."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, address = await loop.sock_accept(self._socket)
            except OSError as error:  # no file descriptor left, or the peer has closed
                self._log.warning("no connection could be accepted: %s", error)
                await asyncio.sleep(0.2)
                continue
            peer = str(address[0])
            if not self._room():
                self._note(f"{peer} 503 connection: {self.limits.connections} are open, all of registered nodes")
                link.close()
                continue
            task = asyncio.create_task(self._one(link, peer))
            self._strangers[task] = peer
            task.add_done_callback(partial(self._forget, link))

    def _room(self) -> bool:
        """Return whether one more connection may be accepted; close an unauthenticated one if that makes room."""
        limits, total = self.limits, len(self._strangers) + len(self._known)
        if len(self._strangers) < limits.strangers and total < limits.connections:
            return True
        if not self._strangers:
            return False
        ((crowd, count),) = Counter(self._strangers.values()).most_common(1)
        oldest = next(task for task, peer in self._strangers.items() if peer == crowd)
        del self._strangers[oldest]
        oldest.cancel()
        self._note(f"{crowd} 503 connection: had sent no signed request, and gave way ({count} such from this address)")
        return True

    def _admit(self, request: h11.Request) -> None:
        """Admit a request that a registered node has signed; from then on the connection belongs to that node.

        Raises:
            Refused: with 401 for any other request, 412 where a node needs to know the reason, 503 where the node has
                too many connections.
        """
        try:
            name = self._keyring.holder(request.headers)
        except Unsigned as error:
            # a SuperNode ends silently at 401; at 412 the reason is the last line of its log
            raise RequestRefused(412 if error.honest else 401, str(error)) from error
        task = asyncio.current_task()
        assert task is not None
        if self._known.get(task) == name:
            return
        if sum(holder == name for holder in self._known.values()) >= self.limits.per_key:
            raise RequestRefused(503, f"{name} has {self.limits.per_key} connections already")
        self._strangers.pop(task, None)
        self._known[task] = name

    def _forget(self, link: socket.socket, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._known.pop(task, None)
        link.close()  # a task cancelled before it began has not closed it

    async def _one(self, link: socket.socket, peer: str) -> None:
        """Serve one connection from its handshake to its end."""
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
            await relay(reader, writer, peer, self._upstream, self.limits, self._admit, self._note)
        except asyncio.CancelledError:  # it gave way, or the gate ends: no closing handshake, which takes seconds
            if writer is not None:
                writer.transport.abort()
            raise
        except OSError as error:  # also a failed handshake: no TLS, or a node that distrusts the certificate
            if writer is None:
                self._note(f"{peer} TLS handshake: {error}")
        finally:
            if writer is not None:
                await close(writer)

    def _note(self, line: str) -> None:
        self.refused[line.split()[1]] += 1
        self._log.warning("%s", line)


def failed(gate: Gate) -> EngineError:
    """Return the error of a gate that ended by itself."""
    return EngineError(f"the gate on {gate.host} port {gate.port} ended: {gate.failure!r}; start the link again")
