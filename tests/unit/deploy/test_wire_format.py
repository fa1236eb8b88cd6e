"""Letters as bytes: what goes in comes out; nothing that means harm is believed or makes room for itself."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import Reason
from fedkin.deploy.messages import Clerk
from fedkin.deploy.participants import Members
from fedkin.deploy.submitted import packed, unpacked
from fedkin.deploy.tensors import bundle, wire_message
from fedkin.deploy.wire_format import HEAD_LIMIT, WireError, WireMessage, entries, head_of, receive, refusal, send
from hosttoys import settings

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_tensors_survive(made: list[tuple[torch.dtype, list[int]]]) -> None:
    """Any mixture of types and shapes, scalars and empty ones among them, bit for bit, and in memory of its own."""
    rng = torch.Generator().manual_seed(0)
    b = Bundle()
    for i, (dtype, shape) in enumerate(made):
        b[f"t{i}"] = torch.randint(0, 2, shape, generator=rng).to(dtype)
    sent = wire_message({"kind": "update"}, b)
    found = bundle(WireMessage(head_of(json.dumps(sent.head)), bytes(sent.body)))
    assert list(found) == list(b)
    assert all(
        found[n].dtype == t.dtype and found[n].shape == t.shape and torch.equal(found[n], t) for n, t in b.items()
    )


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 8000])
def test_over_a_socket(ends: tuple[socket.socket, socket.socket], body: bytes) -> None:
    """A message larger than any buffer of the system comes whole."""
    a, b = ends
    sending = threading.Thread(target=send, args=(a, WireMessage({"kind": "hello", "text": "ä"}, body)))
    sending.start()
    got = receive(b, seconds=20)
    sending.join()
    assert got == WireMessage({"kind": "hello", "text": "ä"}, body)


def test_nothing_is_written_behind_a_message_without_body(ends: tuple[socket.socket, socket.socket]) -> None:
    """The other side may have read the message, answered and closed before the sender goes on: that is no fault."""
    a, b = ends

    class Quick:
        """A socket whose other side closes as soon as the head is there."""

        def sendall(self, data: bytes) -> None:
            a.sendall(data)
            b.close()

    send(Quick(), WireMessage({"kind": "evaluate"}))  # type: ignore[arg-type]


def test_a_frame_that_claims_much_makes_no_room(ends: tuple[socket.socket, socket.socket]) -> None:
    """A terabyte is announced: refused before any of it is read; likewise a head beyond the limit, another magic."""
    a, b = ends
    for frame in ((b"FK01", 10, 1 << 40), (b"FK01", HEAD_LIMIT + 1, 0), (b"GET ", 1, 1)):
        a.sendall(struct.pack(">4sIQ", *frame))
        with pytest.raises(WireError, match="not a message, or too large"):
            receive(b, seconds=5)


def test_who_goes_away_or_sleeps(ends: tuple[socket.socket, socket.socket]) -> None:
    """Half a message and silence end at the time, half a message and the end is nothing."""
    a, b = ends
    a.sendall(b"FK0")
    with pytest.raises(TimeoutError):
        receive(b, seconds=0.2)
    a.close()
    assert receive(b, seconds=5) is None


BAD: dict[str, tuple[Any, bytes]] = {
    "no list": ("w", b""),
    "no item": ([["w", "float32"]], b""),
    "unknown type": ([["w", "object", [1]]], b"1234"),
    "negative": ([["w", "float32", [-1]]], b""),
    "fraction": ([["w", "float32", [0.5]]], b""),
    "truth value": ([["w", "uint8", [True]]], b"1"),
    "too many dimensions": ([["w", "uint8", [1] * 17]], b"1"),
    "huge": ([["w", "float64", [2**40, 2**40]]], b"1234"),
    "a long side beside an empty one": ([["w", "float32", [0, 2**63]]], b""),
    "long sides whose product is 0": ([["w", "float32", [2**62, 2**62, 0]]], b""),
    "sides whose strides overflow": ([["w", "uint8", [2**30, 2**30, 2**30, 0]]], b""),
    "a side beyond all integers": ([["w", "uint8", [10**400, 0]]], b""),
    "twice": ([["w", "uint8", [1]], ["w", "uint8", [1]]], b"12"),
    "left over": ([["w", "uint8", [1]]], b"12"),
    "missing": ([["w", "uint8", [3]]], b"12"),
    "long name": ([["w" * 201, "uint8", [1]]], b"1"),
    "no name": ([["", "uint8", [1]]], b"1"),
}


@pytest.mark.parametrize("what", BAD)
def test_lists_that_do_not_fit_are_refused(what: str) -> None:
    """Before anything is made of them."""
    listed, body = BAD[what]
    with pytest.raises(WireError):
        entries(WireMessage({"tensors": listed}, body))


@pytest.mark.parametrize("shape", [[0, 2**63], [2**62, 2**62, 0], [2**30, 2**30, 2**30, 0]])
def test_an_empty_tensor_with_long_sides_is_refused_with_its_place_or_name(shape: list[int]) -> None:
    """The product of the sides is 0, so that they fit an empty body, and torch could not make such a tensor."""
    with pytest.raises(WireError, match=r"\$\[0\]\[2\]|tensor 'w' has the sides"):
        bundle(WireMessage({"tensors": [["w", "float32", shape]]}))


def test_an_empty_tensor_with_usual_sides_is_made() -> None:
    """A method may send a matrix without rows."""
    (t,) = bundle(WireMessage({"tensors": [["w", "float32", [0, 650]]]})).values()
    assert t.shape == (0, 650)


def test_whatever_keeps_a_tensor_from_being_made_is_the_messages_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory, for example, is an error of ours and names the tensor."""

    def empty(*args: Any, **more: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(WireError, match="tensor 'w' cannot be made: no room"):
        bundle(WireMessage({"tensors": [["w", "uint8", [1]]]}, b"1"))


def test_bytes_that_are_no_truth_values_are_refused() -> None:
    """A boolean of 7 would be true and not equal to true."""
    with pytest.raises(WireError, match="not truth values"):
        bundle(WireMessage({"tensors": [["m", "bool", [2]]]}, b"\x01\x07"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        "3",
        "[" * 100000,
        '"' + "x" * HEAD_LIMIT + '"',
        '{"a":NaN}',
        '{"a":1e999}',
        b'{"a":"\xff"}',
        '{"a":' * 100000,
    ],
)
def test_heads_that_are_none(text: str | bytes) -> None:
    """No JSON, no table, too deep, too long: an error of ours each time."""
    with pytest.raises(WireError):
        head_of(text)


def test_no_nan_in_a_head(ends: tuple[socket.socket, socket.socket]) -> None:
    """JSON has none; a program that made one is at fault, and finds out."""
    with pytest.raises(ValueError, match="JSON compliant"):
        send(ends[0], WireMessage({"accuracy": math.nan}))


def test_a_refusal_is_the_answer_to_its_message(tmp_path: Path) -> None:
    """It carries what identifies the message and nothing else of it; the server reads a reason from its code."""
    clerk = Clerk(settings("fedavg"), Members.load(tmp_path))
    asked = clerk.write("update", 3, 5.0, client=2, seq=7)
    said = refusal(asked.head, "c2", "disk", have=6)
    assert set(said.head) == {"format", "client", "kind", "run", "session", "seq", "ok", "code", "have"}
    assert clerk.read(said, "update", "c2", 7) == Reason("disk")
    assert clerk.read(said, "update", "c2", 8) == Reason("other-message")
    for name, seq in (("c1", 7), ("c2", 6)):
        assert clerk.read(said, "update", name, seq) == Reason("other-message")
    assert clerk.read(refusal({}, "c2", "unreadable"), "update", "c2", 7) == Reason("other-message")


def test_a_submitted_run_survives(tmp_path: Path) -> None:
    """Settings and folder through one word without quotes, spaces or line ends; any other word is refused."""
    s = settings("da-pfl", hosts={"min_clients": 7})
    for name in ("a run", "a run.", "a run..", "a run..."):  # of every length, as its coding goes by threes
        word = packed(s, tmp_path / name)
        assert not set(word) & set(" \"'\n={}")
        again, folder = unpacked(word)
        assert (again.table(), folder) == (s.table(), tmp_path / name)
    for bad in ("", "x", word[:-8], 7):
        with pytest.raises(ConfigError, match="fedkin submit"):
            unpacked(bad)
