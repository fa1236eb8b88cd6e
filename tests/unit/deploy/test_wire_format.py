"""Letters as bytes: what goes in comes out; nothing that means harm is believed or makes room for itself."""

from __future__ import annotations

import json
import math
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import Reason
from fedkin.experiment.settings import settings_from
from fedkin_hosts.heads import HEAD_LIMIT, WireError, WireMessage, head_bytes, head_of, refusal
from fedkin_hosts.messages import Clerk
from fedkin_hosts.participants import Members
from fedkin_hosts.submitted import Submitted
from fedkin_hosts.tensors import bundle, wire_message
from fedkin_hosts.worker import receive, send
from hosttoys import crafted, settings
from refusals import refuses

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


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
def test_between_two_processes(body: bytes) -> None:
    """A message larger than any buffer of the system comes whole; what is no message is an error of ours."""
    a, b = multiprocessing.Pipe()
    with a, b:
        sending = threading.Thread(target=send, args=(a, WireMessage({"kind": "hello", "text": "ä"}, body)))
        sending.start()
        assert receive(b) == WireMessage({"kind": "hello", "text": "ä"}, body)
        sending.join()
        a.send_bytes(b"[1]")
        with pytest.raises(WireError):
            receive(b)


BAD: dict[str, tuple[Any, bytes]] = {
    "no list": ("w", b""),
    "no text": ([["w"]], b""),
    "no name": ([""], crafted("", "U8", [1], b"1")),
    "long name": (["w" * 201], crafted("w" * 201, "U8", [1], b"1")),
    "no body": (["w"], b""),
    "another name": (["w"], crafted("v", "U8", [1], b"1")),
    "twice": (["w", "w"], crafted("w", "U8", [1], b"1")),
    "a type that is not sent": (["w"], crafted("w", "F8_E4M3", [1], b"1")),
    "unknown type": (["w"], crafted("w", "OBJECT", [1], b"1")),
    "negative": (["w"], crafted("w", "F32", [-1])),
    "fraction": (["w"], crafted("w", "F32", [0.5])),
    "huge": (["w"], crafted("w", "F64", [2**40, 2**40], b"12345678")),
    "a long side beside an empty one": (["w"], crafted("w", "F32", [0, 2**63])),
    "long sides whose product is 0": (["w"], crafted("w", "F32", [2**62, 2**62, 0])),
    "sides whose strides overflow": (["w"], crafted("w", "U8", [2**30, 2**30, 2**30, 0])),
    "a side beyond all integers": (["w"], crafted("w", "U8", [10**400, 0])),
    "left over": (["w"], crafted("w", "U8", [1], b"12", 1)),
    "missing": (["w"], crafted("w", "U8", [3], b"12")),
    "more than there is": (["w"], crafted("w", "U8", [3], b"12", 3)),
    "no truth values": (["m"], crafted("m", "BOOL", [2], b"\x01\x07")),
    "a list without end": (["w"], (1 << 40).to_bytes(8, "little") + b"{"),
    "no safetensors": (["w"], b"\x80\x04."),
}


@pytest.mark.parametrize("what", BAD)
def test_bodies_that_do_not_fit_are_refused(what: str) -> None:
    """By an error of ours, whatever is wrong."""
    names, body = BAD[what]
    with pytest.raises(WireError):
        bundle(WireMessage({"tensors": names}, body))


def test_an_empty_tensor_with_usual_sides_is_made() -> None:
    """A method may send a matrix without rows."""
    (t,) = bundle(WireMessage({"tensors": ["w"]}, crafted("w", "F32", [0, 650]))).values()
    assert t.shape == (0, 650)


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


def test_no_nan_in_a_head() -> None:
    """JSON has none; a program that made one is at fault, and finds out."""
    with refuses(ValueError, "JSON compliant"):
        head_bytes(WireMessage({"accuracy": math.nan}))


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
        run = Submitted.of(s, tmp_path / name, data="digits")
        assert not set(run.word) & set(" \"'\n={}")
        assert Submitted.read(run.word) == run
        assert (settings_from(run.settings), run.folder) == (s, str(tmp_path / name))
    for bad in ("", "x", run.word[:-8], 7, "e30=", "W10=", "%%%"):
        with refuses(ConfigError, "fedkin submit"):
            Submitted.read(bad)
