"""The format of messages: a small JSON head, and a body of tensors in safetensors. It uses no pickle and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

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


class WireError(Exception):
    """A message is invalid: damaged, too large, or malicious."""


class TooLarge(WireError):
    """A message has more bytes than `BODY_LIMIT`."""


@dataclass(frozen=True)
class WireMessage:
    """A message between server and client: ``head`` is plain JSON, ``body`` the tensors that it names."""

    head: Mapping[str, Any]
    body: bytes = b""


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
