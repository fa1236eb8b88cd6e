"""Letters between server and clients: a small JSON head and the bytes of tensors. No pickle, no torch, no surprises.

The head says of every tensor its name, type and shape (``"tensors": [[name, type, shape], ...]``); the body is their
bytes one after another. Nothing is made of a letter before its sizes have been checked.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1
HEAD_LIMIT = 4 << 20
"""Bytes of a head at most: settings, a card of the data, reasons."""
BODY_LIMIT = 1 << 30
"""Bytes of a body at most, unless a run says less."""

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
_MOST_TENSORS, _MOST_DIMENSIONS, _LONGEST_NAME = 10_000, 16, 200


class LetterError(Exception):
    """A letter cannot be what it says: damaged, too large, or made to do harm."""


@dataclass(frozen=True)
class Letter:
    """What travels: ``head`` is plain JSON, ``body`` the bytes of the tensors that the head lists."""

    head: Mapping[str, Any]
    body: bytes = b""


@dataclass(frozen=True)
class Entry:
    """One tensor of a letter: where it is in the body, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def head_bytes(letter: Letter) -> bytes:
    """The head as UTF-8 JSON."""
    return json.dumps(letter.head, separators=(",", ":"), allow_nan=False).encode()


def head_of(text: bytes | str) -> dict[str, Any]:
    """A head from its JSON.

    Raises:
        LetterError: too long, no JSON, no table, or of another format.
    """
    if len(text) > HEAD_LIMIT:
        raise LetterError(f"a head of {len(text)} bytes, at most {HEAD_LIMIT} are read")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise LetterError("the head is not JSON") from e
    if not isinstance(head, dict):
        raise LetterError("the head is not a table")
    return head


def stamp(head: Mapping[str, Any], client: str) -> dict[str, Any]:
    """The head of an answer: to which letter it is, by the letter's ``head``, and who answers."""
    return {"format": FORMAT, "client": client, **{name: head.get(name) for name in ("kind", "run", "session", "seq")}}


def refusal(head: Mapping[str, Any], client: str, code: str, **more: Any) -> Letter:
    """The answer of a client that cannot do what a letter asks: a code of `fedkin.hosts.post.CODES`, and what else it
    says."""
    return Letter({**stamp(head, client), "ok": False, "code": code, **more})


def entries(letter: Letter, limit: int = BODY_LIMIT) -> list[Entry]:
    """The tensors of a letter, checked against its body before anything is made of them.

    Raises:
        LetterError: sizes that do not fit the body or exceed ``limit`` bytes, unknown types, names twice.
    """
    if len(letter.body) > limit:
        raise LetterError(f"{len(letter.body)} bytes of tensors, at most {limit} are read")
    listed = letter.head.get("tensors", [])
    if not isinstance(listed, list) or len(listed) > _MOST_TENSORS:
        raise LetterError("the list of tensors is none, or too long")
    found, at, names = [], 0, set()
    for item in listed:
        name, dtype, shape = _item(item)
        if name in names:
            raise LetterError(f"tensor {name[:40]!r} is there twice")
        names.add(name)
        size = math.prod(shape) * _SIZES[dtype]
        if size > len(letter.body) - at:
            raise LetterError(f"tensor {name[:40]!r} claims {size} bytes, {len(letter.body) - at} are left")
        found.append(Entry(name, dtype, shape, at, at + size))
        at += size
    if at != len(letter.body):
        raise LetterError(f"the tensors take {at} of {len(letter.body)} bytes")
    return found


def _item(item: Any) -> tuple[str, str, tuple[int, ...]]:
    if not (isinstance(item, list) and len(item) == 3):
        raise LetterError("a tensor is listed as name, type and shape")
    name, dtype, shape = item
    if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME):
        raise LetterError("a tensor's name must be a text of 1 to 200 characters")
    if not (isinstance(dtype, str) and dtype in _SIZES):
        raise LetterError(f"tensor {name[:40]!r} is of an unknown type")
    whole = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not whole:
        raise LetterError(f"tensor {name[:40]!r} has no usable shape")
    return name, dtype, tuple(shape)


# ---- over a socket of one machine ----------------------------------------------------------------------------------
def send(to: socket.socket, letter: Letter) -> None:
    """Writes a letter whole."""
    head = head_bytes(letter)
    to.sendall(_FRAME.pack(_MAGIC, len(head), len(letter.body)) + head)
    if letter.body:  # without one the other side may have answered and closed by now, and writing nothing would fail
        to.sendall(letter.body)


def receive(of: socket.socket, limit: int = BODY_LIMIT, seconds: float | None = None) -> Letter | None:
    """Reads a letter; None when the other side has gone.

    Args:
        seconds: for the whole letter; None: for ever.

    Raises:
        LetterError: not a letter, or larger than ``limit``.
        TimeoutError: it was not there in time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    start = _exactly(of, _FRAME.size, end)
    if start is None:
        return None
    magic, head, body = _FRAME.unpack(start)
    if magic != _MAGIC or head > HEAD_LIMIT or body > limit:
        raise LetterError(f"not a letter, or one too large ({body} bytes; at most {limit} are read)")
    text, content = _exactly(of, head, end), _exactly(of, body, end)
    if text is None or content is None:
        return None
    return Letter(head_of(text), content)


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
