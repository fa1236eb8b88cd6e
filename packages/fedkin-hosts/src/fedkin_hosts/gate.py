"""The gate in front of a SuperLink: TLS, registered keys, and only the calls that nodes need.

A SuperLink serves its nodes and its operator on one port and does not authenticate the operator: any program that
reaches this port can run code here and send messages to every client. So the SuperLink listens on this machine only,
and the gate is the public side. It passes ``POST /v1/fleet/...`` where a registered node has signed the head, and
refuses all other requests before any of a body is passed on.

HTTP is uvicorn's towards nodes and httpx's towards the SuperLink; the gate decides who may pass, and for how long. A
request is written anew from its parsed parts, so that the SuperLink reads nothing that the gate read differently
(RFC 9112, section 11.2).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h11
import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from fedkin.core.errors import ConfigError
from fedkin_hosts.machine import listening
from fedkin_hosts.signed import Keyring, Unsigned

if sys.platform != "win32":
    import resource

# the fleet's calls are words with hyphens: all else that an address can hold (%2e, .., //, ;, ?, a host) is refused
_CALL = re.compile(rb"POST /v1/fleet(?:/[A-Za-z0-9_-]+)+ HTTP/1\.[01]")
_ODD = re.compile(rb"\r\n[ \t]|(?<!\r)\n|\r(?!\n|\Z)|\0")  # folded lines, lone line ends: parsers disagree about these
_PASSED = frozenset(b"content-type content-length accept accept-encoding user-agent".split())  # and flwr-*
_HOP = frozenset(b"connection keep-alive transfer-encoding upgrade trailer".split())
_HEAD = 1 << 14  # maximum bytes of a request's head: Flower's are below 1 kB
_IDLE_UPSTREAM = 2.0  # seconds; the SuperLink closes idle connections after 5
_LAST = 0.1  # seconds in which requests end when the gate does
_FILES = 10240  # open files; macOS allows no more


@dataclass(frozen=True)
class Limits:
    """Limits of the gate.

    Attributes:
        body: bytes of one request. Flower sends pieces of 5 MB.
        head_seconds: for a TLS handshake, and again for a request's head: a connection's first from its handshake on,
            later ones from their first byte on.
        idle_seconds: between two requests of a registered node.
        request_seconds: for one request with its body and answer.
        stall_seconds: without transfer of a single byte.
        linger_seconds: after a refusal. A client that still sends its body would otherwise meet a reset before it has
            read the reason. Also for the end of TLS.
        strangers: simultaneous connections that have not sent a signed request yet. One more ends the oldest, so that
            idle connections cannot keep others out.
        per_key: simultaneous connections of one registered node. Flower's nodes use 3.
    """

    body: int = 8 << 20
    head_seconds: float = 10.0
    idle_seconds: int = 90
    request_seconds: float = 600.0
    stall_seconds: float = 60.0
    linger_seconds: float = 1.0
    strangers: int = 256
    per_key: int = 32


class RequestRefused(Exception):
    """A request that is not passed on; ``status`` and ``why`` are the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why

    @classmethod
    def check(cls, refused: bool, status: int, why: str) -> None:
        """Raise it if a request is refused."""
        if refused:
            raise cls(status, why)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context (1.2 or newer) with the gate's certificate; `ConfigError` if the certificate or the key
    cannot be read, or they do not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{certificate} and {key} are not a certificate and its key ({error})") from error
    return context


class _Connection(H11Protocol):
    """A connection of uvicorn's with a time for each head, whose first line it keeps, and the name of its key."""

    def __init__(self, gate: Gate, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.gate, self.name, self.line, self.logger = gate, "", b"", gate.log.getChild("http")
        self.app = lambda *_: gate.answer(self, self.cycle)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else "?"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        self.gate.arrives(self)

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and (head := self.conn.trailing_data[0].partition(b"\r\n\r\n")[0]):
            if self._timer is None:
                self._wait_for_head()
            if len(head) > _HEAD or _ODD.search(head):
                return self.send_400_response(f"a head longer than {_HEAD} bytes, or folded or oddly ended lines")
            self.line = head.partition(b"\r\n")[0]
        return super().handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        self.head_is_here()
        self.gate.leaves(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # within a body, where an answer may have begun: `Gate.answer` hears of it
        else:
            self.gate.note(400, self, f"not understood: {msg}")
            super().send_400_response(msg)

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self.gate.limits.head_seconds, self.transport.abort)

    def head_is_here(self) -> None:
        """Stop the time for a head."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gate:
    """A gate, which listens from its construction on and serves as long as `serve` runs.

    Args:
        host, port: where it listens; port 0 takes a free one.
        context: TLS context with the gate's certificate.
        upstream: the SuperLink's URL, such as ``https://127.0.0.1:8000``.
        trust: TLS context for the SuperLink.
        keyring: keys of the nodes that may pass; it may change while the gate runs.

    Attributes:
        address: ``HOST:PORT``.
        refused: number of refused requests by status.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        upstream: str,
        trust: ssl.SSLContext,
        keyring: Keyring,
        limits: Limits | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self.limits, self.log = limits or Limits(), log or logging.getLogger(__name__)
        self.log.getChild("http").setLevel(logging.ERROR)  # what uvicorn warns of is noted here, with its sender
        self.refused: Counter[int] = Counter()
        self._context, self._url, self._trust, self._keyring = context, upstream, trust, keyring
        self._strangers: dict[_Connection, None] = {}  # in the order of their arrival
        self._known: Counter[str] = Counter()  # the other connections, by the names of their keys
        self._socket = listening(host, port)
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Free the port of a gate that does not serve."""
        self._socket.close()

    async def serve(self) -> None:
        """Serve until it is cancelled; then every connection ends, and the port is free."""
        if sys.platform != "win32":  # connections within their handshake are limited by time, not by number
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES)), hard))
        loop, limits, state = asyncio.get_running_loop(), self.limits, ServerState()
        loop.set_exception_handler(lambda _, about: self.log.error("%s", about))  # not on the terminal
        idle, stall, pool = limits.idle_seconds, limits.stall_seconds, httpx.Limits(keepalive_expiry=_IDLE_UPSTREAM)
        config = uvicorn.Config(self.answer, ws="none", log_config=None, access_log=False, timeout_keep_alive=idle)
        async with httpx.AsyncClient(verify=self._trust, trust_env=False, limits=pool, timeout=stall) as self._client:
            self._client.headers.clear()  # of httpx itself
            server = await loop.create_server(
                lambda: _Connection(self, config, state),
                sock=self._socket,
                ssl=self._context,
                backlog=limits.strangers,
                ssl_handshake_timeout=limits.head_seconds,
                ssl_shutdown_timeout=limits.linger_seconds,
            )
            try:
                await asyncio.Event().wait()
            finally:
                server.close()
                for connection in list(state.connections):
                    connection.transport.abort()
                if state.tasks:
                    await asyncio.wait(state.tasks, timeout=_LAST)

    def arrives(self, connection: _Connection) -> None:
        """Admit a connection as one more stranger; the oldest gives way if there are too many."""
        self._strangers[connection] = None
        if len(self._strangers) > self.limits.strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self.note(503, oldest, "connection: had sent no signed request, and gave way")
            oldest.transport.abort()

    def leaves(self, connection: _Connection) -> None:
        """Forget a connection that has ended, or belongs to a node from now on."""
        self._strangers.pop(connection, None)
        if connection.name:
            self._known[connection.name] -= 1

    def note(self, status: int, connection: _Connection, line: str) -> None:
        """Count and log a refusal."""
        self.refused[status] += 1
        self.log.warning("%s %d %s", connection.peer, status, line)

    async def answer(self, connection: _Connection, cycle: RequestResponseCycle) -> None:
        """Serve one request, whose head has arrived."""
        connection.head_is_here()
        try:
            self._admit(connection)
            async with asyncio.timeout(self.limits.request_seconds):
                await self._forward(connection, cycle)
        except RequestRefused as error:
            await self._refuse(connection, cycle, error)
        except TimeoutError:
            await self._refuse(connection, cycle, RequestRefused(408 if cycle.more_body else 504, "too slow"))
        except httpx.TimeoutException:
            await self._refuse(connection, cycle, RequestRefused(504, "the SuperLink took too long"))
        except httpx.HTTPError as error:
            await self._refuse(connection, cycle, RequestRefused(502, f"the SuperLink does not answer ({error})"))
        except asyncio.CancelledError:  # the gate ends, which uvicorn would log as a fault
            connection.transport.abort()

    def _admit(self, connection: _Connection) -> None:
        """Judge a request by its head; from then on the connection belongs to the node that signed it.

        Raises:
            RequestRefused: with 403 for everything that is not exactly a call of the fleet, 401 without the signature
                of a registered node, 412 where a node needs to know the reason, 400 and 413 for lengths, 503 where the
                node has too many connections.
        """
        RequestRefused.check(not _CALL.fullmatch(connection.line), 403, "only POST /v1/fleet/... passes this gate")
        try:
            name = self._keyring.holder(connection.headers)
        except Unsigned as error:
            # a node says what it reads here
            raise RequestRefused(412 if error.honest else 401, str(error)) from error
        given, limits = dict(connection.headers), self.limits
        both = b"content-length" in given and b"transfer-encoding" in given
        RequestRefused.check(both, 400, "both Content-Length and Transfer-Encoding")
        self._check_size(int(given.get(b"content-length", 0)))
        if connection.name != name:
            full = self._known[name] >= limits.per_key
            RequestRefused.check(full, 503, f"{name} has {limits.per_key} connections already")
            self.leaves(connection)
            connection.name = name
            self._known[name] += 1

    def _check_size(self, size: int) -> None:
        RequestRefused.check(size > self.limits.body, 413, f"a body larger than {self.limits.body} bytes")

    async def _forward(self, connection: _Connection, cycle: RequestResponseCycle) -> None:
        """Pass a request to the SuperLink, its body as it arrives, and the answer back."""
        kept = [(n, v) for n, v in connection.headers if n in _PASSED or n.startswith(b"flwr-")]
        kept.append((b"x-forwarded-for", connection.peer.encode()))
        url = self._url + connection.scope["path"]
        async with self._client.stream("POST", url, headers=kept, content=self._body(cycle)) as response:
            head = [(n.lower(), v) for n, v in response.headers.raw if n.lower() not in _HOP]
            await cycle.send({"type": "http.response.start", "status": response.status_code, "headers": head})
            async for piece in response.aiter_raw():
                async with asyncio.timeout(self.limits.stall_seconds):
                    await cycle.send({"type": "http.response.body", "body": piece, "more_body": True})
            await cycle.send({"type": "http.response.body", "body": b""})

    async def _body(self, cycle: RequestResponseCycle) -> AsyncIterator[bytes]:
        """Yield a request's body as it arrives; `RequestRefused` beyond the limit, or where the client leaves."""
        seen, more = 0, True
        while more:
            async with asyncio.timeout(self.limits.stall_seconds):
                event = await cycle.receive()
            if event["type"] != "http.request":
                raise RequestRefused(400, "ended within its body")
            seen, more = seen + len(event["body"]), event["more_body"]
            self._check_size(seen)
            yield event["body"]

    async def _refuse(self, connection: _Connection, cycle: RequestResponseCycle, no: RequestRefused) -> None:
        """Answer a request that is not passed on, unless its answer has begun already; the connection ends."""
        self.note(no.status, connection, f"{connection.line[:200].decode('latin-1')!r}: {no.why}")
        if cycle.response_started:
            return connection.transport.abort()
        # in the form of Flower's own errors
        text = json.dumps({"code": no.status, "detail": f"fedkin gate: {no.why}"}).encode()
        head = {b"content-type": b"application/json", b"content-length": b"%d" % len(text), b"connection": b"close"}
        await cycle.send({"type": "http.response.start", "status": no.status, "headers": head.items()})
        await cycle.send({"type": "http.response.body", "body": text, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.linger_seconds):
                for _ in range(32):
                    if not cycle.more_body or cycle.disconnected:
                        break
                    await cycle.receive()
        await cycle.send({"type": "http.response.body", "body": b""})
        return None
