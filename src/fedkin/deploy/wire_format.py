"""The format of messages: a small JSON head and the bytes of tensors. It uses no pickle and no torch.

The head lists name, type and shape of every tensor (``"tensors": [[name, type, shape], ...]``); the body is their bytes
one after another. All sizes are checked before anything is allocated.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from fedkin.core.refusals import OfHost
from fedkin.display import one_line

FORMAT: Final = 1

HEAD_LIMIT = 4 << 20
"""Maximum bytes of a head: settings, a card of the data, reasons."""
BODY_LIMIT = 1 << 30
"""Maximum bytes of a body, checked before anything is made of it."""

_SIZES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_FRAME = struct.Struct(">4sIQ")
_MAGIC = b"FK01"
_MOST_TENSORS, _MOST_DIMENSIONS = 10_000, 16
_LONGEST_REASON = 200
_NOTHING: Mapping[str, str | int] = {"kind": "", "run": "", "session": 0, "seq": 0}

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Type = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]  # the keys of _SIZES
_Side = Annotated[int, Meta(ge=0, le=BODY_LIMIT)]  # the limit is reached by single bytes if the other sides are 1

T = TypeVar("T")


class WireError(Exception):
    """A message is invalid: damaged, too large, or malicious."""


class TooLarge(WireError):
    """A message has more bytes than `BODY_LIMIT`."""


@dataclass(frozen=True)
class WireMessage:
    """A message between server and client: ``head`` is plain JSON, ``body`` the bytes of the tensors listed in it."""

    head: Mapping[str, Any]
    body: bytes = b""


class Listed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor as a head lists it: name, type and shape."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    dtype: _Type
    shape: Annotated[tuple[_Side, ...], Meta(max_length=_MOST_DIMENSIONS)]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a message: its position in the body, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def head_bytes(message: WireMessage) -> bytes:
    """Return the head as UTF-8 JSON."""
    return json.dumps(message.head, separators=(",", ":"), allow_nan=False).encode()


def head_of(text: bytes | str) -> dict[str, Any]:
    """Return a head from its JSON.

    Raises:
        WireError: too long, too deep, not JSON (which has no NaN), or not an object.
    """
    if len(text) > HEAD_LIMIT:
        raise WireError(f"a head of {len(text)} bytes, at most {HEAD_LIMIT} are read")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as e:  # msgspec's errors, and those of texts that are not UTF-8
        raise WireError(f"the head is not a JSON object: {reason(e)}") from e


def convert(value: object, kind: type[T], what: str) -> T:
    """Return a value of plain types as a typed one, strictly: nothing is rounded, cut or left out.

    Args:
        value: value as returned by `head_of`.
        kind: type of the result.
        what: subject of the message.

    Raises:
        WireError: it does not fit; the text has the path of the invalid entry.
    """
    try:
        return msgspec.convert(value, kind)
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise WireError(f"{what} does not fit: {reason(e)}") from e


def reason(e: BaseException) -> str:
    """Return the text of an exception on one line, cut and without control characters: it can hold a client's bytes."""
    return one_line(str(e)[:_LONGEST_REASON])


def stamp(head: Mapping[str, Any], client: str) -> dict[str, Any]:
    """Return the head of an answer: it identifies the message, by the message's ``head``, and the client.

    An entry that the message lacks, or that has another type, is left empty: the answer can be read all the same.
    """
    echo = {name: head.get(name) for name in _NOTHING}
    return {
        "format": FORMAT,
        "client": client,
        **{n: v if type(v) is type(_NOTHING[n]) else _NOTHING[n] for n, v in echo.items()},
    }


def refusal(head: Mapping[str, Any], client: str, code: OfHost, **more: Any) -> WireMessage:
    """Return the answer of a client that cannot do what a message asks: why, and further entries.

    Only the code is sent: the text of a client's exception may contain its data.
    """
    return WireMessage({**stamp(head, client), "ok": False, "code": code, **more})


def entries(message: WireMessage) -> list[TensorEntry]:
    """Return the tensors of a message, checked against its body before anything is made of them.

    Raises:
        WireError: sizes that do not fit the body, unknown types, names twice.
    """
    listed = convert(message.head.get("tensors", []), tuple[Listed, ...], "the list of tensors")
    if len(listed) > _MOST_TENSORS:
        raise WireError(f"a list of {len(listed)} tensors, at most {_MOST_TENSORS} are read")
    found, at, names = [], 0, set()
    for t in listed:
        if t.name in names:
            raise WireError(f"tensor {t.name[:40]!r} is listed twice")
        names.add(t.name)
        size = math.prod(t.shape) * _SIZES[t.dtype]
        if size > len(message.body) - at:
            raise WireError(f"tensor {t.name[:40]!r} claims {size} bytes, {len(message.body) - at} are left")
        # a side of 0 makes the product 0 whatever the others are; strides are computed from these and would overflow
        if math.prod(max(n, 1) for n in t.shape) > BODY_LIMIT:
            raise WireError(f"tensor {t.name[:40]!r} has the sides {list(t.shape)}, which are too long for a tensor")
        found.append(TensorEntry(t.name, t.dtype, t.shape, at, at + size))
        at += size
    if at != len(message.body):
        raise WireError(f"the tensors take {at} of {len(message.body)} bytes")
    return found


# ---- over a socket of one machine ----------------------------------------------------------------------------------
def send(to: socket.socket, message: WireMessage) -> None:
    """Write a whole message."""
    head = head_bytes(message)
    to.sendall(_FRAME.pack(_MAGIC, len(head), len(message.body)) + head)
    if message.body:  # without a body the other side may have answered and closed by now, and an empty write would fail
        to.sendall(message.body)


def receive(of: socket.socket, limit: int = BODY_LIMIT, seconds: float | None = None) -> WireMessage | None:
    """Read a message; return None if the other side has closed.

    Args:
        seconds: timeout for the whole message; None: no timeout.

    Raises:
        WireError: not a message, or larger than ``limit``.
        TimeoutError: the message did not arrive in time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    start = _exactly(of, _FRAME.size, end)
    if start is None:
        return None
    magic, head, body = _FRAME.unpack(start)
    if magic != _MAGIC or head > HEAD_LIMIT or body > limit:
        raise WireError(f"not a message, or too large ({body} bytes; at most {limit} are read)")
    text, content = _exactly(of, head, end), _exactly(of, body, end)
    if text is None or content is None:
        return None
    return WireMessage(head_of(text), content)


def _exactly(of: socket.socket, size: int, end: float | None) -> bytes | None:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            of.settimeout(left)
        try:
            got = of.recv_into(view[at:])
        except ConnectionError:
            return None
        if got == 0:
            return None
        at += got
    return bytes(found)
