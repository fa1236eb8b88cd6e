"""Typed heads of messages: the server's requests, the clients' answers, and the strict decoder of both.

A head travels as a JSON object. Every program that reads one decodes it here first: unknown entries, missing entries,
other types and numbers out of range raise `WireError` with the path of the invalid entry, such as
``$.pool.members[0][2]``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from fedkin.core.refusals import OfHost
from fedkin.display import one_line

FORMAT: Final = 1

HEAD_LIMIT = 4 << 20
"""Maximum bytes of a head: settings, a card of the data, reasons."""
BODY_LIMIT = 1 << 30
"""Maximum bytes of a body, checked before anything is made of it."""

_LONGEST_REASON = 200
_NOTHING: Mapping[str, str | int] = {"kind": "", "run": "", "session": 0, "seq": 0}

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]

T = TypeVar("T")
Json: TypeAlias = Mapping[str, Any]
"""A JSON object."""
Kind = Literal["hello", "describe", "survey", "consult", "update", "evaluate", "keep"]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
Number = Annotated[int, Meta(ge=0, le=2**31)]
Tensors = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=10_000)]
LONGEST = 1e6
"""Maximum seconds that a message may grant a client."""
MOST_RATES = 64
"""Sampling rates of private training of one client in a run at most: each takes the server a tenth of a second."""


# checked here and not by `Meta(pattern=...)`, with which msgspec 0.22 can crash when a process ends
# (github.com/msgspec/msgspec/issues/717)
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Pattern of the names of clients and runs: they become names of folders."""
_SETUP = re.compile(r"[0-9a-f]{32}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/=]{0,200}")


class WireError(ValueError):
    """A message is invalid: damaged, too large, or malicious."""


def require(sound: bool, otherwise: str) -> None:
    """Raise `WireError` with a text unless a message is sound."""
    if not sound:
        raise WireError(otherwise)


class TooLarge(WireError):
    """A message has more bytes than `BODY_LIMIT`."""


@dataclass(frozen=True)
class WireMessage:
    """A message between server and client: ``head`` is plain JSON, ``body`` the tensors that it names."""

    head: Json
    body: bytes = b""


def head_bytes(message: WireMessage) -> bytes:
    """Return the head as UTF-8 JSON."""
    return json.dumps(message.head, separators=(",", ":"), allow_nan=False).encode()


def head_of(text: bytes | str) -> Json:
    """Return a head from its JSON; `WireError` if it is too long, too deep, not JSON (no NaN), or not an object."""
    require(len(text) <= HEAD_LIMIT, f"a head of {len(text)} bytes, at most {HEAD_LIMIT} are read")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as e:  # msgspec's errors, and those of texts that are not UTF-8
        raise WireError(f"the head is not a JSON object: {reason(e)}") from e


def convert(value: object, kind: type[T], what: str) -> T:
    """Return a value of plain types as a typed one, strictly: nothing is rounded, cut or left out.

    Raises:
        WireError: ``what`` does not fit; the text has the path of the invalid entry.
    """
    try:
        return msgspec.convert(value, kind)
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise WireError(f"{what} does not fit: {reason(e)}") from e


def reason(e: BaseException) -> str:
    """Return the text of an exception on one line, cut and without control characters: it can hold a client's bytes."""
    return one_line(str(e)[:_LONGEST_REASON])


def stamp(head: Json, client: str) -> Json:
    """Return the head of an answer: it identifies the message, by the message's ``head``, and the client.

    An entry that the message lacks, or that has another type, is left empty: the answer can be read all the same.
    """
    echo = ((n, head.get(n), empty) for n, empty in _NOTHING.items())
    return {"format": FORMAT, "client": client, **{n: v if type(v) is type(empty) else empty for n, v, empty in echo}}


def refusal(head: Json, client: str, code: OfHost, **more: Any) -> WireMessage:
    """Return the answer of a client that cannot do what a message asks: why, and further entries.

    Only the code is sent: the text of a client's exception may contain its data.
    """
    return WireMessage({**stamp(head, client), "ok": False, "code": code, **more})


def _require(pattern: re.Pattern[str], text: str | None, entry: str) -> None:
    """Raise `WireError`, to which msgspec adds the path, if a text does not match a pattern; None always matches."""
    matches = text is None or pattern.fullmatch(text) is not None
    require(matches, f"`{entry}` must match {pattern.pattern}, got {(text or '')[:80]!r}")


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a message's head that programs along the way read; other entries are ignored.

    Attributes:
        kind, run, session, seq: identify the message.
        deadline: seconds within which the message is to be answered.
    """

    kind: str = ""
    run: str = ""
    session: int = 0
    seq: int = 0
    deadline: Seconds = 60.0


class PoolMember(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member of a sum: its number, its public key for masks, its weight and, where nodes sign keys, its name and
    signature."""

    number: Number
    key: str
    weight: Annotated[float, Meta(gt=0, lt=2.0**53)]
    name: Annotated[str, Meta(max_length=64)] = ""
    signature: str = ""

    def __post_init__(self) -> None:
        _require(_KEY, self.key, "key")
        _require(_SIGNATURE, self.signature, "signature")


class PoolHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members of a secure sum."""

    members: Annotated[tuple[PoolMember, ...], Meta(max_length=10_000)]


class RunSetup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the clients of a run have in common. It is sent once, and later messages name it.

    Attributes:
        settings: settings of the run as tables.
        card: properties that the data of all clients have in common; None before they are known.
        network: fingerprint of the network; "" before it is known.
    """

    settings: Json
    card: Json | None = None
    network: Annotated[str, Meta(max_length=128)] = ""

    @property
    def name(self) -> str:
        """BLAKE2b-128 of its JSON with sorted keys, in 32 hexadecimal digits."""
        return hashlib.blake2b(msgspec.json.encode(self, order="sorted"), digest_size=16).hexdigest()


class RequestHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The head of a message from the server.

    Attributes:
        format: version of the format of messages.
        kind: requested step.
        run: name of the run, by which clients find their memory of it.
        session: number of the server's start; messages of an earlier session are stale.
        round: number of the round.
        client: number of the receiver; -1 before it has one.
        seq: number of this message.
        ack: number of the receiver's last upload that was used.
        deadline: seconds within which the message is to be answered.
        setup: name of the run's setup.
        inline: the setup itself; None where the receiver has it.
        pool: members of a secure sum.
        tensors: names of the tensors in the body, in order.
    """

    format: Literal[1]
    kind: Kind
    run: str
    session: Count
    round: Number
    client: Annotated[int, Meta(ge=-1, le=2**31)]
    seq: Count
    ack: Count
    deadline: Seconds
    setup: str
    inline: RunSetup | None = None
    pool: PoolHead | None = None
    tensors: Tensors = ()

    def __post_init__(self) -> None:
        _require(NAME, self.run, "run")
        require(self.inline is None or self.inline.name == self.setup, "`setup` is not the name of `inline`")
        _require(_SETUP, self.setup, "setup")


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that all answers have in common.

    Attributes:
        client: name of the client.
        kind, run, session, seq: identify the message that is answered.
        ok: whether the client did what was requested.
    """

    format: Literal[1]
    client: str
    kind: str
    run: str
    session: int
    seq: int
    ok: bool


class Accepted(AnswerHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of an answer with tensors and nothing else: to ``keep``."""

    tensors: Tensors = ()


class Hello(Accepted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to ``hello``.

    Attributes:
        versions: versions of the programs that compute.
        card: description of the client's data; `Card.from_json` decodes it.
    """

    versions: Annotated[dict[str, Annotated[str, Meta(max_length=64)]], Meta(max_length=20)]
    card: Json


class Description(Accepted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to ``describe``; in runs with secure aggregation ``public`` is the client's public key for masks and
    ``signature`` its node's signature of that key, if the node has a key."""

    public: str | None = None
    signature: str = ""

    def __post_init__(self) -> None:
        _require(_KEY, self.public, "public")
        _require(_SIGNATURE, self.signature, "signature")


class PrivateStep(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A number of steps of private training at one sampling rate."""

    # no actual rate is smaller, and no run has more steps
    rate: Annotated[float, Meta(ge=1e-12, le=1)]
    count: Annotated[int, Meta(ge=0, le=10**9)]


class Evaluated(Accepted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to ``survey`` and ``evaluate``; ``spent`` is all private training of the client in this run."""

    spent: Annotated[tuple[PrivateStep, ...], Meta(max_length=MOST_RATES)] = ()


class Updated(Evaluated, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to ``update``; ``training_s`` is the time of local training in seconds by the client's own clock."""

    training_s: Annotated[float, Meta(ge=0, lt=1e9)] = 0.0


class Refusal(AnswerHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a client that did not do what was requested.

    Attributes:
        code: why.
        have: number of the upload that the client continues from.
        public, signature: the client's public key for masks, where the server knows another, and its node's signature.
    """

    code: OfHost
    have: Count | None = None
    public: str | None = None
    signature: str = ""

    def __post_init__(self) -> None:
        _require(_KEY, self.public, "public")
        _require(_SIGNATURE, self.signature, "signature")


ANSWERS: dict[Kind, type[Accepted]] = {
    "hello": Hello,
    "describe": Description,
    "survey": Evaluated,
    "consult": Evaluated,
    "update": Updated,
    "evaluate": Evaluated,
    "keep": Accepted,
}
"""The type of the head of an answer, by the kind of the message."""


def decode(message: WireMessage, kind: type[T]) -> T:
    """Return the head of a message as one of the types of this file.

    Raises:
        WireError: the head does not fit the type; the text says where.
    """
    return convert(message.head, kind, "its head")
