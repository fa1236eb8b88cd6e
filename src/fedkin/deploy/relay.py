"""One connection through the gate: each request is judged by its signed head, then streamed to the SuperLink.

No byte of a body is read, and the SuperLink is not contacted, before the head's signature is known to be that of a
registered node. Requests are parsed by h11 and written again from the parsed events, so that nothing can reach the
SuperLink that the gate read differently (RFC 9112, section 11.2); every request uses a separate connection to the
SuperLink.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import h11

PIECE = 1 << 16  # bytes read at once
HEAD = 1 << 14  # maximum bytes of a request's head: Flower's are below 1 kB

# the fleet's calls are words with hyphens: all else that an address can hold (%2e, .., //, ;, ?, a host) is refused
_FLEET = re.compile(rb"/v1/fleet(?:/[A-Za-z0-9_-]+)+")
_ODD = re.compile(rb"\r\n[ \t]|(?<!\r)\n|\r(?!\n)|\0")  # folded lines, lone line ends: parsers disagree about these
_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade http2-settings".split()
)
_OURS = frozenset([b"host", b"expect", b"forwarded", b"x-real-ip"])  # and x-forwarded-*: a node could lie about itself
_REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    408: "Request Timeout",
    412: "Precondition Failed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
Note = Callable[[str], None]
Admit = Callable[[h11.Request], None]
"""Raises `RequestRefused` for a request without the signature of a registered node, or whose node has too many
connections."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        body: bytes of one request. Flower sends pieces of 5 MB.
        first_seconds: until a connection's first request begins. A node sends it as soon as it is connected.
        head_seconds: for a request's head, from its first byte on; also for a TLS handshake.
        idle_seconds: between two requests of a registered node.
        body_seconds: for one request with its body and answer.
        stall_seconds: without transfer of a single byte.
        linger_seconds: after a refusal. A client that still sends its body would otherwise meet a reset before it has
            read the reason.
        connections: simultaneous connections of all nodes.
        strangers: simultaneous connections that have not sent a signed request yet. One more replaces the oldest of the
            address that has the most, so that idle connections cannot keep others out.
        per_key: simultaneous connections of one registered node. Flower's nodes use 3.
    """

    body: int = 8 << 20
    first_seconds: float = 10.0
    head_seconds: float = 15.0
    idle_seconds: float = 90.0
    body_seconds: float = 600.0
    stall_seconds: float = 60.0
    linger_seconds: float = 1.0
    connections: int = 512
    strangers: int = 256
    per_key: int = 32


@dataclass(frozen=True)
class Upstream:
    """The place where the SuperLink listens on this machine; ``context`` is None where it uses plain HTTP."""

    host: str
    port: int
    context: ssl.SSLContext | None

    async def connect(self) -> tuple[Reader, Writer]:
        """Open a connection to the SuperLink."""
        return await asyncio.open_connection(self.host, self.port, ssl=self.context, limit=PIECE)


class RequestRefused(Exception):
    """A request that is not passed on; ``status`` and ``why`` are the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def judge(request: h11.Request, limit: int) -> None:
    """Check that a request is a call of the fleet, and of an acceptable size.

    Raises:
        Refused: with 403 for everything that is not exactly such a call, 413 for a body that is declared larger than
            ``limit`` bytes, 400 where its length is given in two ways.
    """
    if request.method != b"POST" or not _FLEET.fullmatch(request.target):
        raise RequestRefused(403, "only POST /v1/fleet/... passes this gate")
    given = {name: value for name, value in request.headers if name in (b"content-length", b"transfer-encoding")}
    if len(given) > 1:
        raise RequestRefused(400, "both Content-Length and Transfer-Encoding")
    if int(given.get(b"content-length", b"0")) > limit:
        raise RequestRefused(413, f"a body of {given[b'content-length'].decode()} bytes, the limit is {limit}")


async def relay(
    reader: Reader, writer: Writer, peer: str, upstream: Upstream, limits: ConnectionLimits, admit: Admit, note: Note
) -> None:
    """Serve one client's requests, one after another, until it leaves or one is refused.

    Args:
        peer: the client's address, for the logs of the gate and the SuperLink.
        admit: called with the head of each request before its body is read.
        note: receives a line for each refused request.
    """
    passage = _Passage(reader, writer, peer, upstream, limits, admit)
    try:
        while await passage.next():
            pass
    except RequestRefused as error:
        note(f"{peer} {error.status} {passage.what}: {error.why}")
        await passage.refuse(error)


async def close(writer: Writer) -> None:
    """Close a connection; without the peer's closing handshake if that does not arrive within a second."""
    writer.close()
    try:
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except OSError:
        writer.transport.abort()
        await asyncio.sleep(0.01)  # the loop releases the socket in its next turns


class _Passage:
    """The state of one client's connection."""

    def __init__(
        self, reader: Reader, writer: Writer, peer: str, upstream: Upstream, limits: ConnectionLimits, admit: Admit
    ) -> None:
        self.reader, self.writer, self.peer, self.upstream, self.limits = reader, writer, peer, upstream, limits
        self.admit, self.patience = admit, limits.first_seconds
        self.ours = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
        self.what = "?"

    async def next(self) -> bool:
        """Serve the next request; return whether another may follow."""
        self.what = "?"
        try:
            async with asyncio.timeout(self.patience):
                first = await self.reader.read(1)
        except TimeoutError:  # no request arrived
            return False
        try:
            if not first:
                return False
            async with asyncio.timeout(self.limits.head_seconds):
                request = await self.head(first)
            async with asyncio.timeout(self.limits.body_seconds):
                again = await self.carry(request)
        except h11.RemoteProtocolError as error:
            raise RequestRefused(error.error_status_hint, f"not understood: {error}") from error
        except TimeoutError as error:
            raise RequestRefused(408, "too slow") from error
        if again:
            self.ours.start_next_cycle()
            self.patience = self.limits.idle_seconds
        return again

    async def head(self, first: bytes) -> h11.Request:
        """Return the next request's head, of which ``first`` has arrived already."""
        try:
            text = first + await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise RequestRefused(431, f"a head longer than {HEAD} bytes") from error
        except asyncio.IncompleteReadError as error:
            raise RequestRefused(400, "ended within its head") from error
        self.what = repr(text.partition(b"\r\n")[0][:200].decode("latin-1"))
        if len(text) > HEAD:
            raise RequestRefused(431, f"a head longer than {HEAD} bytes")
        if _ODD.search(text):
            raise RequestRefused(400, "folded or oddly ended lines")
        if re.search(rb"(?i)\r\ncontent-length:", text) and re.search(rb"(?i)\r\ntransfer-encoding:", text):
            raise RequestRefused(400, "both Content-Length and Transfer-Encoding")
        self.ours.receive_data(text)
        request = self.ours.next_event()
        if not isinstance(request, h11.Request):
            raise RequestRefused(400, "not a request")
        return request

    async def carry(self, request: h11.Request) -> bool:
        """Pass a judged request to the SuperLink and its answer back; return whether another may follow."""
        judge(request, self.limits.body)
        self.admit(request)
        try:
            async with asyncio.timeout(self.limits.stall_seconds):
                reader, writer = await self.upstream.connect()
        except OSError as error:
            raise RequestRefused(502, "the SuperLink does not answer") from error
        theirs = h11.Connection(h11.CLIENT)
        try:
            await self._ask(request, writer, theirs)
            await self._answer(reader, theirs)
        finally:
            await close(writer)
        return self.ours.our_state is h11.DONE and self.ours.their_state is h11.DONE and not self.ours.trailing_data[0]

    async def refuse(self, error: RequestRefused) -> None:
        """Answer a request that is not passed on, unless its answer has begun already; the connection ends."""
        if self.ours.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        # in the form of Flower's own errors, so that a SuperNode has the reason in its log
        text = json.dumps({"code": error.status, "detail": f"fedkin gate: {error.why}"}).encode() + b"\n"
        headers = [("content-type", "application/json"), ("content-length", str(len(text))), ("connection", "close")]
        reason = _REASONS.get(error.status, "RequestRefused").encode()
        with suppress(OSError):
            response = h11.Response(status_code=error.status, headers=headers, reason=reason)
            for event in (response, h11.Data(data=text), h11.EndOfMessage()):
                self._send(event)
            await self._drained(self.writer)
            async with asyncio.timeout(self.limits.linger_seconds):
                for _ in range(32):
                    if not await self.reader.read(PIECE):
                        break

    def _written(self, request: h11.Request) -> h11.Request:
        """Return the request for the SuperLink: without the headers that concern this connection only."""
        named = b",".join(value for name, value in request.headers if name == b"connection").lower().split(b",")
        dropped = _HOP | _OURS | {name.strip() for name in named}
        dropped -= {b"content-length"}  # a header that names it must not make the body's end ambiguous
        kept = [(n, v) for n, v in request.headers if n not in dropped and not n.startswith(b"x-forwarded-")]
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            kept.append((b"transfer-encoding", b"chunked"))
        host = f"{self.upstream.host}:{self.upstream.port}".encode()
        ours = [(b"host", host), (b"x-forwarded-for", self.peer.encode()), (b"connection", b"close")]
        return h11.Request(method=request.method, target=request.target, headers=[*ours, *kept])

    async def _ask(self, request: h11.Request, writer: Writer, theirs: h11.Connection) -> None:
        """Send the request to the SuperLink, its body as it arrives."""
        try:
            writer.write(theirs.send(self._written(request)) or b"")
            if self.ours.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            seen = 0
            while isinstance(event := await self._piece(), h11.Data):
                seen += len(event.data)
                if seen > self.limits.body:
                    raise RequestRefused(413, f"a body of more than {self.limits.body} bytes")
                writer.write(theirs.send(h11.Data(data=event.data)) or b"")
                await self._drained(writer)
            writer.write(theirs.send(h11.EndOfMessage()) or b"")  # trailing headers, if there were any, stay here
            await self._drained(writer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the SuperLink may answer, and close, before it has read a whole body: its answer counts

    async def _piece(self) -> h11.Data | h11.EndOfMessage:
        """Return the next piece of the client's body, or its end."""
        while (event := self.ours.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(self.limits.stall_seconds):
                try:
                    self.ours.receive_data(await self.reader.read(PIECE))
                except ConnectionError as error:
                    raise RequestRefused(400, "broke off within its body") from error
        if not isinstance(event, h11.Data | h11.EndOfMessage):
            raise RequestRefused(400, "ended within its body")
        return event

    async def _answer(self, reader: Reader, theirs: h11.Connection) -> None:
        """Stream the SuperLink's answer to the client."""
        while not isinstance(event := await self._received(reader, theirs), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                headers = [(n, v) for n, v in event.headers if n not in _HOP]
                if any(name == b"transfer-encoding" for name, _ in event.headers):
                    headers.append((b"transfer-encoding", b"chunked"))
                self._send(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
            elif isinstance(event, h11.Data):
                self._send(h11.Data(data=event.data))
                await self._drained(self.writer)
        self._send(h11.EndOfMessage())
        await self._drained(self.writer)

    async def _received(self, reader: Reader, theirs: h11.Connection) -> h11.Event:
        """Return the next event from the SuperLink."""
        try:
            while (event := theirs.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self.limits.stall_seconds):
                    theirs.receive_data(await reader.read(PIECE))
        except TimeoutError as error:
            raise RequestRefused(504, "the SuperLink took too long") from error
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise RequestRefused(502, "the SuperLink broke off") from error
        if not isinstance(event, h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage):
            raise RequestRefused(502, "the SuperLink ended without an answer")
        return event

    def _send(self, event: h11.Event) -> None:
        self.writer.write(self.ours.send(event) or b"")

    async def _drained(self, writer: Writer) -> None:
        async with asyncio.timeout(self.limits.stall_seconds):
            await writer.drain()
