"""The gate: calls of the fleet pass byte for byte, everything else is refused, however it is dressed up."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import logging
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedkin.core.errors import ConfigError
from fedkin_hosts import keys
from fedkin_hosts.gate import Gate, Limits, server_context
from fedkin_hosts.signed import AGE_SECONDS, SKEW_SECONDS, Keyring, Unsigned
from programs import ServedGate
from refusals import refuses
from standin import FORBIDDEN, Everyone, StandIn, keyring_of, signed

LIMITS = Limits(
    body=8 << 20,
    head_seconds=2.0,
    idle_seconds=2,
    request_seconds=10.0,
    stall_seconds=1.0,
    linger_seconds=0.02,
)
CALL = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: link\r\n"


def gate_of(
    authority: keys.Authority,
    upstream: int,
    keyring: Keyring,
    limits: Limits = LIMITS,
    trust: ssl.SSLContext | None = None,
    port: int = 0,
) -> Gate:
    """A gate in front of a port of this machine, which trusts the same authority there unless told otherwise."""
    serving = server_context(authority.server, authority.server_key)
    trust = trust or ssl.create_default_context(cafile=authority.ca)
    return Gate("127.0.0.1", port, serving, f"https://127.0.0.1:{upstream}", trust, keyring, limits)


class Site:
    """A gate with a SuperLink's stand-in behind it, both with TLS."""

    def __init__(self, authority: keys.Authority, limits: Limits, keyring: Keyring | None = None) -> None:
        self.link = StandIn(server_context(authority.server, authority.server_key))
        self.seen = self.link.seen
        self.authority = authority
        self.trust = ssl.create_default_context(cafile=authority.ca)
        self.gate = ServedGate(
            gate_of(authority, self.link.port, Everyone() if keyring is None else keyring, limits, self.trust)
        )

    def close(self) -> None:
        self.gate.stop()
        self.link.close()

    def forget(self) -> Site:
        """What was asked and refused before this test."""
        self.seen.clear()
        self.gate.refused.clear()
        return self

    def raw(self, trust: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.gate.port), timeout=300)
        try:
            return (trust or self.trust).wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    def say(self, *pieces: bytes) -> tuple[int, bytes]:
        """Status and all that follows of the answer to raw bytes; status 0 if the connection ends without one."""
        with self.raw() as link:
            for piece in pieces:
                link.sendall(piece)
            got = b""
            while more := link.recv(1 << 16):
                got += more
        status = int(got.split(b" ", 2)[1]) if got else 0
        return status, got

    def post(self, path: str, body: object = b"", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        with self.node() as link:
            return asked(link, path, body, {k.replace("_", "-"): v for k, v in headers.items()})

    @contextmanager
    def node(self) -> Iterator[http.client.HTTPSConnection]:
        """A connection as a node has one."""
        link = http.client.HTTPSConnection("127.0.0.1", self.gate.port, context=self.trust, timeout=300)
        with contextlib.closing(link):
            yield link


def asked(
    link: http.client.HTTPSConnection, path: str, body: object, headers: dict[str, str]
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, body and headers of the answer to a POST."""
    link.request("POST", path, body, headers)
    answer = link.getresponse()
    return answer.status, answer.read(), answer.headers


@contextmanager
def standing(authority: keys.Authority, limits: Limits = LIMITS, keyring: Keyring | None = None) -> Iterator[Site]:
    """A site of its own for one test."""
    site = Site(authority, limits, keyring)
    try:
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> keys.Authority:
    return keys.make_authority(tmp_path_factory.mktemp("keys"), ["127.0.0.1"])


@pytest.fixture(scope="module")
def module_site(authority: keys.Authority) -> Iterator[Site]:
    site = Site(authority, LIMITS)
    yield site
    site.close()


@pytest.fixture
def site(module_site: Site) -> Site:
    return module_site.forget()


def closing(head: bytes = b"", body: bytes = b"") -> bytes:
    return CALL + b"Connection: close\r\n" + head + b"\r\n" + body


def test_calls_of_the_fleet_pass(site: Site) -> None:
    """Path, body, status and headers of request and answer come through as they were."""
    status, answer, headers = site.post("/v1/fleet/push-object", b"\0\xff" * 1000, flwr_public_key="abc")
    assert status == 200
    assert json.loads(answer) == {
        "path": "/v1/fleet/push-object",
        "sha": hashlib.sha256(b"\0\xff" * 1000).hexdigest(),
    }
    assert headers["X-Flwr"] == "kept"
    assert site.seen[0][1]["flwr-public-key"] == "abc"
    assert site.post("/v1/fleet/odd")[0] == 418
    assert site.post("/v1/fleet/chunked")[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_come_through_both_ways(site: Site, chunked: bool) -> None:
    """5 MB of Flower's, with a length or in chunks, arrive and come back equal to the last byte."""
    body = bytes(range(256)) * (5 * 4096)
    pieces = (body[i : i + 70_001] for i in range(0, len(body), 70_001))
    status, answer, _ = site.post("/v1/fleet/echo", pieces if chunked else body)
    assert status == 200
    assert answer == body


def test_a_body_is_streamed(site: Site) -> None:
    """What a client has sent is on its way to the SuperLink before it has sent all."""
    with site.raw() as link:
        link.sendall(closing(b"Content-Length: 8\r\nExpect: 100-continue\r\n"))
        assert b"100 Continue" in link.recv(1 << 12)
        link.sendall(b"half")
        time.sleep(0.05)
        link.sendall(b"half")
        assert b"200 OK" in link.recv(1 << 16)
    assert site.seen[0][2] == 8
    assert "expect" not in site.seen[0][1]


def test_one_connection_serves_many_requests(site: Site) -> None:
    """A node keeps its connection between calls, as a handshake for each would cost more than the call."""
    with site.node() as link:
        socks = set()
        for n in range(3):
            assert asked(link, "/v1/fleet/echo", b"x" * n, {})[1] == b"x" * n
            socks.add(link.sock)
    assert len(socks) == 1


METHODS = ("GET", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "PRI")
TARGETS = [("POST", target) for target in FORBIDDEN] + [(method, "/v1/fleet/pull-messages") for method in METHODS]


@pytest.mark.parametrize(("method", "target"), TARGETS)
def test_everything_else_is_forbidden(site: Site, method: str, target: str) -> None:
    """403 for whatever is not plainly a call of the fleet; the SuperLink hears nothing of it."""
    call = CALL.replace(b"POST", method.encode()).replace(b"/v1/fleet/pull-messages", target.encode())
    assert site.say(call + b"\r\n")[0] == 403
    assert site.seen == []


SECOND = b"POST /v1/control/start-run HTTP/1.1\r\nHost: link\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 99999999999999999999999999\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: a\r\n Transfer-Encoding: chunked\r\n",
        b"X: a\r\n\tb\r\n",
        b"X: a\nTransfer-Encoding: chunked\r\n",
        b"X: a\rb\r\n",
        b"X: a\0b\r\n",
        b"X a\r\n",
        b": a\r\n",
        b"Host: other\r\n",
    ],
)
def test_requests_that_could_be_read_in_two_ways_are_refused(site: Site, head: bytes) -> None:
    """Two lengths, odd codings, folded lines, lone line ends: refused, the connection ends, nothing is passed on."""
    status, got = site.say(CALL + head + b"\r\n" + b"0\r\n\r\n" + SECOND)
    assert status in (400, 413)
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in got.lower()
    assert site.seen == []


@pytest.mark.parametrize(
    "start",
    [
        b"POST /v1/fleet/a HTTP/1.1\nHost: link\n\n\r\n\r\n",
        b"POST  /v1/fleet/a HTTP/1.1\r\nHost: link\r\n\r\n",
        b"POST /v1/fleet/a\r\nHost: link\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1 x\r\nHost: link\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"\r\n\r\n" + CALL + b"\r\n",
    ],
)
def test_what_is_not_http_is_refused(site: Site, start: bytes) -> None:
    """A request line with other blanks, no host, or no HTTP at all."""
    assert site.say(start)[0] == 400
    assert site.seen == []


def test_a_request_behind_another_is_judged_like_any(site: Site) -> None:
    """Two requests in one write: the second call, of the operator's interface, is refused and ends the connection."""
    status, got = site.say(CALL + b"Content-Length: 2\r\n\r\nab" + SECOND)
    assert status == 200
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"403"]
    assert [path for path, _, _ in site.seen] == ["/v1/fleet/pull-messages"]
    site.seen.clear()
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    site.say(CALL + chunked + SECOND)
    assert [path for path, _, _ in site.seen] == ["/v1/fleet/pull-messages"]


def test_headers_of_the_connection_stay_at_the_gate(site: Site) -> None:
    """Only headers that Flower's nodes send reach the SuperLink: none of one hop, no claim about who is asking."""
    head = b"X-Mine: 1\r\nCookie: a=b\r\nUser-Agent: flower\r\nKeep-Alive: 9\r\nTE: trailers\r\nUpgrade: h2c\r\n"
    head += b"HTTP2-Settings: x\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n"
    status, _ = site.say(
        CALL + b"Connection: close, X-Mine, Content-Length\r\nContent-Length: 2\r\n" + head + b"\r\nab"
    )
    assert status == 200
    got = site.seen[0][1]
    assert got.keys() <= {"host", "x-forwarded-for", "user-agent", "content-length", "connection"}
    assert (got["x-forwarded-for"], got["user-agent"], got["content-length"]) == ("127.0.0.1", "flower", "2")
    assert got["host"] == f"127.0.0.1:{site.link.port}"


def test_a_trailer_adds_no_header(site: Site) -> None:
    """Headers behind a chunked body are dropped."""
    body = b"2\r\nab\r\n0\r\nX-Late: 1\r\n\r\n"
    assert site.say(closing(b"Transfer-Encoding: chunked\r\n", body))[0] == 200
    assert "x-late" not in site.seen[0][1]


def test_bodies_over_the_limit_are_refused(site: Site) -> None:
    """413: at once where the length is given, at the limit where it is not; nothing whole reaches the SuperLink."""
    assert site.say(closing(b"Content-Length: %d\r\n" % (LIMITS.body + 1)))[0] == 413
    piece = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    assert site.say(closing(b"Transfer-Encoding: chunked\r\n"), *[piece] * 8, b"1\r\nx\r\n")[0] == 413
    assert site.seen == []
    assert site.gate.refused[413] == 2


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
@pytest.mark.parametrize("size", [17_000, 40_000, 1 << 17])
def test_a_head_over_the_limit_is_refused(site: Site, size: int, end: bytes) -> None:
    """400 for a head longer than any of Flower's, whole or not, in one piece or two; a reset where more follows."""
    for pieces in ([CALL + b"X: " + b"a" * size + end], [CALL, b"X: " + b"a" * size + end]):
        with suppress(OSError):
            assert site.say(*pieces)[0] in (400, 0)
    assert site.seen == []
    assert site.gate.refused[400] == 2


def trickle(link: ssl.SSLSocket, text: bytes) -> None:
    for byte in text:
        link.sendall(bytes([byte]))
        time.sleep(0.02)


def test_slow_clients_are_let_go(authority: keys.Authority) -> None:
    """A head that does not end and an idle connection end without an answer; a body that stalls and one that trickles
    get 408."""
    short = replace(LIMITS, head_seconds=0.3, stall_seconds=0.2, request_seconds=0.4)
    with standing(authority, short) as site:
        for head in (b"", b"POST /v1/fl", CALL):
            assert site.say(head) == (0, b"")
        assert site.say(CALL + b"Content-Length: 10\r\n\r\nabc")[0] == 408
        with site.raw() as link:
            link.sendall(CALL + b"Content-Length: 100\r\n\r\n")
            for _ in range(3):
                time.sleep(0.1)
                link.send(b"x")
            assert b" 408 " in link.recv(1 << 12)
        with site.raw() as link:  # a known connection, whose next head comes byte by byte
            link.sendall(CALL + b"Content-Length: 2\r\n\r\nab")
            assert b"200 OK" in link.recv(1 << 16)
            with pytest.raises(OSError):
                trickle(link, CALL[:-2] + b"a" * 1000)
        assert [size for _, _, size in site.seen] == [2]
        assert site.gate.refused[408] == 2


def wrong(records: list[logging.LogRecord]) -> list[str]:
    """What went wrong within the gate: refusals are warnings, a fault of its own is an error."""
    return [record.getMessage() for record in records if record.levelno > logging.WARNING]


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("head", [b"", b"flwr-public-key: x\r\n"])
@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + b"zz\r\n",),
        (CHUNKED, b"5\r\nhello, and more\r\n0\r\n\r\n"),
        (CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"),
        (CHUNKED, b"\0" * 200_000),
        (CHUNKED + b"5;" + b"x" * 1_000_000 + b"\r\nhello\r\n0\r\n\r\n",),
        (b"Content-Length: 5\r\n\r\nhel",),
        (b"\0" * 200_000, b"\n" * 200_000),
    ],
)
def test_a_body_that_breaks_is_no_request(
    authority: keys.Authority, head: bytes, pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Odd chunks, of nodes and of strangers, also while a refusal is on its way: the SuperLink gets no whole request,
    the connection ends, and the gate does not stumble."""
    limits, keyring = replace(LIMITS, stall_seconds=0.1), Keyring() if head else Everyone()
    with standing(authority, limits, keyring) as site, suppress(OSError):
        site.say(CALL + head + pieces[0], *pieces[1:])
    assert site.seen == []
    assert site.gate.refused.total() > 0
    assert wrong(caplog.records) == []


def test_an_unsigned_request_is_not_asked_for_its_body(authority: keys.Authority) -> None:
    """A client that waits for leave to send its body gets the refusal instead."""
    with standing(authority, LIMITS, Keyring()) as site:
        status, got = site.say(CALL + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert (status, got.count(b"HTTP/1.1 ")) == (401, 1)


def test_a_client_that_leaves_within_its_body_harms_nobody(site: Site) -> None:
    """The SuperLink gets no whole request, and the next client is served."""
    with site.raw() as link:
        link.sendall(CALL + b"Content-Length: 10\r\n\r\nabc")
    assert site.post("/v1/fleet/echo", b"x")[1] == b"x"
    assert [size for _, _, size in site.seen] == [1]


def test_an_absent_superlink_is_a_bad_gateway(authority: keys.Authority) -> None:
    """502 when nothing listens behind the gate, or when it hangs up: nodes try those again."""
    site = Site(authority, LIMITS)
    try:
        assert site.say(closing().replace(b"pull-messages", b"hang-up"))[0] in (200, 502)
        site.link.close()
        assert site.post("/v1/fleet/echo", b"x")[0] == 502
    finally:
        site.gate.stop()


def test_a_superlink_of_another_authority_is_not_asked(authority: keys.Authority, tmp_path: Path) -> None:
    """What listens on the inner port without the authority's certificate gets no request."""
    other = Site(keys.make_authority(tmp_path, ["127.0.0.1"]), LIMITS)
    other.gate.stop()
    trust = ssl.create_default_context(cafile=authority.ca)
    other.gate = ServedGate(gate_of(other.authority, other.link.port, Everyone(), trust=trust))
    try:
        assert other.post("/v1/fleet/echo", b"x")[0] == 502
        assert other.seen == []
    finally:
        other.close()


def test_tls_is_a_must(site: Site, tmp_path: Path) -> None:
    """Plain HTTP gets nothing, and a client with another authority's certificate does not speak to the gate."""
    with socket.create_connection(("127.0.0.1", site.gate.port), timeout=300) as plain:
        plain.sendall(closing())
        try:
            answer = plain.recv(1 << 12)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP" not in answer
    with pytest.raises(ssl.SSLCertVerificationError):
        site.raw(ssl.create_default_context(cafile=keys.make_authority(tmp_path, ["127.0.0.1"]).ca))
    old = ssl.create_default_context(cafile=str(site.authority.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with site.raw(old) as link:
        assert link.version() == "TLSv1.2"
    assert site.seen == []


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """Nodes do not speak to a gate whose certificate has run out."""
    authority = keys.make_authority(tmp_path, ["127.0.0.1"], days=-0.5)
    gate = ServedGate(gate_of(authority, 1, Keyring()))
    try:
        plain = socket.create_connection(("127.0.0.1", gate.port), timeout=300)
        with plain, refuses(ssl.SSLCertVerificationError, "expired"):
            ssl.create_default_context(cafile=authority.ca).wrap_socket(plain, server_hostname="127.0.0.1")
    finally:
        gate.stop()


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys ``c0`` and ``c1``."""
    folder = tmp_path_factory.mktemp("private")
    for name in ("c0", "c1"):
        keys.make_node_key(folder, name)
    return folder


@pytest.fixture(scope="module")
def module_guarded(authority: keys.Authority, private: Path) -> Iterator[Site]:
    """A gate that knows the key of c0, and nobody else's."""
    site = Site(authority, LIMITS, keyring_of(private / "c0.pub"))
    yield site
    site.close()


@pytest.fixture
def guarded(module_guarded: Site) -> Site:
    return module_guarded.forget()


def lines(headers: dict[str, str]) -> bytes:
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())


def test_a_signed_request_passes(guarded: Site, private: Path) -> None:
    """The signature of a registered key over the time is all that a head needs, with Flower's headers kept."""
    assert guarded.post("/v1/fleet/echo", b"x" * 1000, **signed(private / "c0"))[:2] == (200, b"x" * 1000)
    assert "flwr-signature" in guarded.seen[0][1]


def test_flowers_own_signature_passes(guarded: Site, private: Path) -> None:
    """The headers that the installed flwr puts on a request are the ones that the gate looks at."""
    httpx = pytest.importorskip("httpx")
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    class Context:
        request = httpx.Request("POST", "https://link/v1/fleet/echo")

    key = load_ssh_private_key((private / "c0").read_bytes(), None)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(Context, lambda context: None)
    made = {name: value for name, value in Context.request.headers.items() if name.startswith("flwr-")}
    assert guarded.post("/v1/fleet/echo", b"x", **made)[:2] == (200, b"x")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h: {}, "0 headers flwr-public-key"),
        (lambda h: {**h, "flwr-signature": ""}, "not made with the key of c0"),
        (lambda h: {**h, "flwr-signature": "&"}, "cannot be read"),
        (lambda h: {**h, "flwr-timestamp": "now"}, "cannot be read"),
        (lambda h: {**h, "flwr-timestamp": "2026-01-01T00:00:00"}, "cannot be read"),
        (lambda h: {**h, "flwr-timestamp": h["flwr-timestamp"].replace("+00:00", "+00:01")}, "not made with"),
        (lambda h: {**h, "FLWR-Signature ": "x"}, None),
        (lambda h: {**h, "flwr-signature": h["flwr-signature"] + "\r\nflwr-signature: x"}, "2 headers"),
    ],
)
def test_an_unsigned_head_is_refused_before_the_body(
    guarded: Site, private: Path, change: Any, why: str | None
) -> None:
    """The answer comes while not a byte of the announced body was sent, in the form of Flower's errors."""
    headers = change(signed(private / "c0"))
    status, got = guarded.say(CALL + lines(headers) + b"Content-Length: 6000000\r\n\r\n")
    assert status == (401 if why else 400)
    assert guarded.seen == []
    if why:
        told = json.loads(got.partition(b"\r\n\r\n")[2])
        assert told["code"] == 401
        assert why in told["detail"]


def test_other_keys_and_old_signatures_are_refused(guarded: Site, private: Path) -> None:
    """A key that is not registered, and signatures older than Flower takes or made by a clock that is ahead, which the
    text says."""
    status, answer, _ = guarded.post("/v1/fleet/echo", bytes(1 << 20), **signed(private / "c1"))
    assert status == 412
    assert b"put NAME.pub into the link's folder nodes/" in answer
    for age, told in (
        (AGE_SECONDS + 60, rb"c0 signed it 36\d s ago"),
        (-600.0, rb"clock of c0 is (600\.0|59\d\.\d) s ahead"),
    ):
        status, answer, _ = guarded.post("/v1/fleet/echo", b"", **signed(private / "c0", age))
        assert status == 412
        assert re.search(told + rb" .*; set the clocks of both machines", answer)
    assert guarded.seen == []


def test_a_clock_may_be_ahead_as_far_as_flower_allows(private: Path) -> None:
    """The limits are those of the installed Flower; beyond them the text says by how much the node's clock is ahead."""
    flowers = pytest.importorskip("flwr.supercore.constant", reason="Flower comes with fedkin[flower]")
    assert (flowers.MIN_TIMESTAMP_DIFF_SECONDS, flowers.MAX_TIMESTAMP_DIFF_SECONDS) == (-SKEW_SECONDS, AGE_SECONDS)
    keyring = keyring_of(private / "c0.pub")
    head = [(name.encode(), value.encode()) for name, value in signed(private / "c0").items()]
    stamp = datetime.fromisoformat(dict(head)[b"flwr-timestamp"].decode())
    assert keyring.holder(head, stamp - timedelta(seconds=4.9)) == "c0"
    with refuses(Unsigned, "c0 is 6.0 s ahead", "5 s"):
        keyring.holder(head, stamp - timedelta(seconds=6))


def test_keys_may_change_while_the_gate_runs(authority: keys.Authority, private: Path) -> None:
    """A key that is loaded passes, one that is dropped does not, on a connection that was open before, too."""
    keyring = keyring_of(private / "c1.pub")
    with standing(authority, LIMITS, keyring) as site, site.node() as link:
        for name, key, status in (("", "c1", 200), ("c0", "c0", 200), ("", "c1", 412)):
            if name:
                keyring.load({name: keys.public_key(private / f"{name}.pub")})
            assert asked(link, "/v1/fleet/echo", b"x", signed(private / key))[0] == status


def test_a_key_that_is_not_kept_admits_nobody(private: Path) -> None:
    """And none is admitted by being kept."""
    keyring, c1 = keyring_of(private / "c0.pub"), keys.public_key(private / "c1.pub")
    keyring.keep({"c1": c1})
    assert len(keyring) == 0
    keyring.load({"c1": c1})
    assert keyring.holder([(n.encode(), v.encode()) for n, v in signed(private / "c1").items()]) == "c1"


def test_idle_connections_keep_nobody_out(authority: keys.Authority, private: Path) -> None:
    """With more idle connections than strangers may have, all from one address, the next one from there is served; the
    oldest idle ones gave way."""
    keyring = keyring_of(private / "c0.pub")
    limits = replace(LIMITS, strangers=4, head_seconds=600.0)
    with standing(authority, limits, keyring) as site, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(site.raw()) for _ in range(12)]
        assert site.post("/v1/fleet/echo", b"x", **signed(private / "c0"))[:2] == (200, b"x")
        assert site.gate.refused[503] == 9
        assert idle[0].recv(1) == b""


Strangers = Callable[[Site, list[socket.socket], threading.Event], None]


def answers_beside(site: Site, private: Path, strangers: Strangers, seconds: float) -> Counter[str]:
    """The answers to two registered nodes, which connect anew for each request while strangers do what they do."""
    trust, ended, answers = ssl.create_default_context(cafile=site.authority.ca), threading.Event(), Counter[str]()
    opened: list[socket.socket] = []

    def node(key: str) -> None:
        while not ended.wait(0.02):
            link = http.client.HTTPSConnection("127.0.0.1", site.gate.port, context=trust, timeout=30)
            try:
                link.request("POST", "/v1/fleet/echo", b"x", signed(private / key))
                answer = link.getresponse()
                answers[f"{answer.status} {answer.read().decode()}"] += 1
            except OSError as error:
                answers[type(error).__name__] += 1
            finally:
                link.close()

    threads = [threading.Thread(target=node, args=[key]) for key in ("c0", "c1")]
    threads.append(threading.Thread(target=strangers, args=[site, opened, ended]))
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join()
    for link in opened:
        link.close()
    return answers


def waves(site: Site, opened: list[socket.socket], ended: threading.Event) -> None:
    """As many idle connections as strangers may have; when their time is up, and the gate is about to end them, others
    come in their place, which makes them give way."""
    while not ended.is_set():
        begun, limits = time.monotonic(), site.gate.limits
        for _ in range(limits.strangers):
            come(site, opened)
        ended.wait(begun + limits.head_seconds + 0.05 - time.monotonic())
        while time.monotonic() < begun + limits.head_seconds + 0.8 and not ended.is_set():
            come(site, opened)


def crowd(site: Site, opened: list[socket.socket], ended: threading.Event) -> None:
    """300 connections at any time, the next in place of the oldest: idle ones, ones that never begin TLS or end within
    their hello, halves of heads, unsigned requests with half a body, signatures of nobody."""
    call = CALL + b"Content-Length: 9\r\n"
    for said in itertools.cycle((None, b"\x16\x03\x01\x02\x00\x01", b"", CALL[:30], call + b"\r\nhalf", call[:-2])):
        if ended.is_set():
            return
        come(site, opened, said)
        while len(opened) > 300:
            opened.pop(0).close()


def come(site: Site, opened: list[socket.socket], said: bytes | None = b"") -> None:
    """One more connection of a stranger; bytes that begin a handshake are sent without TLS, None is TCP alone."""
    with suppress(OSError):
        if said is None or said.startswith(b"\x16"):
            opened.append(socket.create_connection(("127.0.0.1", site.gate.port), timeout=30))
        else:
            opened.append(site.raw())
        opened[-1].sendall(said or b"")


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("strangers", [waves, crowd])
def test_strangers_cost_nodes_no_request(
    authority: keys.Authority, private: Path, strangers: Strangers, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request of registered nodes is answered, whatever connections without a key come and go, and nothing goes
    wrong within the gate."""
    limits = Limits(strangers=16, head_seconds=0.3 if strangers is waves else 10.0)
    with standing(authority, limits, keyring_of(*private.glob("*.pub"))) as site:
        answers = answers_beside(site, private, strangers, seconds)
    assert answers.keys() == {"200 x"}, answers
    assert answers.total() > seconds
    assert strangers is waves or site.gate.refused[503] > 0
    assert wrong(caplog.records) == []


def test_a_connection_without_a_request_ends_after_seconds(authority: keys.Authority, private: Path) -> None:
    """The first request has to come soon; between two requests of a registered node there may be more time."""
    limits = replace(LIMITS, head_seconds=0.3, idle_seconds=600)
    with standing(authority, limits, keyring_of(private / "c0.pub")) as site, site.node() as link:
        assert asked(link, "/v1/fleet/echo", b"x", signed(private / "c0"))[1] == b"x"
        known = link.sock
        with site.raw() as quiet:
            assert quiet.recv(1) == b""  # it ends, and the known node's, which is older and idle too, does not
        assert asked(link, "/v1/fleet/echo", b"y", signed(private / "c0"))[1] == b"y"
        assert link.sock is known


def test_connections_are_limited_by_key(authority: keys.Authority, private: Path) -> None:
    """A node's connections beyond its limit are refused by name; another node at the same address is not touched; when
    one of them ends, another may come."""
    limits = replace(LIMITS, per_key=2, idle_seconds=600)
    with standing(authority, limits, keyring_of(*private.glob("*.pub"))) as site, contextlib.ExitStack() as stack:
        links = [stack.enter_context(site.node()) for _ in "abcd"]

        def ask(i: int, key: str) -> tuple[int, bytes]:
            return asked(links[i], "/v1/fleet/echo", b"x", signed(private / key))[:2]

        assert [ask(0, "c0"), ask(1, "c0")] == [(200, b"x")] * 2
        status, why = ask(2, "c0")
        assert (status, b"c0 has 2 connections already" in why) == (503, True)
        assert ask(3, "c1") == (200, b"x")
        links[0].close()
        end = time.monotonic() + 120
        while ask(2, "c0")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_refusals_are_written_down(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each: who, which status, the request as it was, why; with no way to write lines of one's own."""
    with caplog.at_level(logging.WARNING):
        site.say(CALL.replace(b"fleet/pull-messages", b"control/\x1b[2Jstart") + b"\r\n")
        site.say(CALL.replace(b"fleet/pull-messages", b"control/start-run") + b"\r\n")
    lines = [r.getMessage() for r in caplog.records]
    assert lines[-1].startswith("127.0.0.1 403 'POST /v1/control/start-run HTTP/1.1': only POST /v1/fleet/")
    assert all(line.isprintable() for line in lines)


def test_a_taken_port_is_said(site: Site) -> None:
    """Address and remedy are in the text."""
    with refuses(ConfigError, f"127.0.0.1 port {site.gate.port}"):
        gate_of(site.authority, 1, Keyring(), port=site.gate.port)


@pytest.mark.parametrize("keyring", [Keyring(), Everyone()])
def test_a_gate_ends_with_open_connections(
    authority: keys.Authority, keyring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    """`stop` frees the port at once and twice is no harm, whoever is still connected, and whatever is under way."""
    site = Site(authority, replace(LIMITS, linger_seconds=10.0), keyring)
    links = [site.raw(), site.raw(), socket.create_connection(("127.0.0.1", site.gate.port))]
    links[0].sendall(CALL + b"Content-Length: 9\r\n\r\nhalf")
    links[1].sendall(CALL.replace(b"pull-messages", b"slow") + b"\r\n")
    time.sleep(0.2)
    started = time.monotonic()
    site.close()
    site.gate.stop()
    assert time.monotonic() - started < 3
    assert not site.gate.background.alive
    assert wrong(caplog.records) == []
    for link in links:
        link.close()
    socket.create_server(("127.0.0.1", site.gate.port)).close()
