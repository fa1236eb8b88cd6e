"""Letters as bytes and their heads: what goes in comes out, and nothing else is read."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, ConfigError, DataError
from fedkin.core.refusals import Reason
from fedkin.experiment.settings import settings_from
from fedkin_hosts import heads
from fedkin_hosts.heads import HEAD_LIMIT, WireError, WireMessage, head_bytes, head_of, refusal
from fedkin_hosts.messages import Clerk, OtherKey, OtherUpload, Reply, attempt
from fedkin_hosts.node import Node, Watch, receive, send
from fedkin_hosts.participants import Members
from fedkin_hosts.submitted import Submitted
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, Heard, crafted, on_hosts, settings, sites, through_bytes
from refusals import refuses

STAMP = {"format": 1, "client": "c0", "kind": "update", "run": "r", "session": 1, "seq": 1}
BODY = crafted("model", "F32", [2], bytes(8))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[WireMessage, WireMessage]]:
    """A message of every kind and its answer, as they are between programs of one run."""
    folder, heard = tmp_path_factory.mktemp("heads"), Heard(*heads.ANSWERS)
    s = settings("fedrep", run={"rounds": 1}, aggregation={"secure": True})
    on_hosts(s, folder, Direct(sites(folder), touch=heard))
    found = {of.head["kind"]: (through_bytes(of), through_bytes(answer)) for _, _, of, answer in heard.found}
    for kind in ("survey", "consult"):
        found[kind] = WireMessage({**found["evaluate"][0].head, "kind": kind}), WireMessage({**STAMP, "ok": True})
    return found


@pytest.mark.parametrize("kind", list(heads.ANSWERS))
def test_what_programs_write_is_read(kind: heads.Kind, written: dict[str, tuple[WireMessage, WireMessage]]) -> None:
    """Letters of every kind and their answers fit their types, and keep their values."""
    asked, answer = written[kind]
    head = heads.decode(asked, heads.RequestHead)
    assert through_bytes(WireMessage(msgspec.to_builtins(head))).head == {
        n: v for n, v in asked.head.items() if v != []
    }
    assert (head.kind, head.seq, head.setup) == (kind, asked.head["seq"], asked.head["setup"])
    assert (head.inline is not None) == (kind in ("hello", "describe"))
    assert heads.decode(answer, heads.ANSWERS[kind]).seq == answer.head["seq"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown entry": ({"more": 1}, "unknown field `more`"),
    "no entry": ({"ack": ...}, "missing required field `ack`"),
    "a text for a number": ({"round": "1"}, r"\$\.round"),
    "a truth value for a number": ({"seq": True}, r"\$\.seq"),
    "a fraction for a number": ({"client": 0.5}, r"\$\.client"),
    "a number below 0": ({"ack": -1}, r"\$\.ack"),
    "a number beyond 64 bits": ({"session": 2**64}, r"\$\.session"),
    "no time": ({"deadline": 0}, r"\$\.deadline"),
    "endless time": ({"deadline": 1e300}, r"\$\.deadline"),
    "a name that leaves its folder": ({"run": "../x"}, "`run` must match"),
    "a name with a line end": ({"run": "x\n"}, "`run` must match"),
    "an unknown step": ({"kind": "erase"}, r"\$\.kind"),
    "a list for settings": ({"inline": {"settings": []}}, r"\$\.inline\.settings"),
    "another name for its setup": ({"inline": {"settings": {}}}, "`setup` is not the name of `inline`"),
    "a name that is none": ({"setup": "../x", "inline": ...}, "`setup` must match"),
    "nested tensors": ({"tensors": [[[[]]]]}, r"\$\.tensors\[0\]"),
    "a member without a key": (
        {"pool": {"members": [[0, "x", 1]]}},
        r"`key` must match .* at `\$\.pool\.members\[0\]",
    ),
    "a member with a signature of other messages": (
        {"pool": {"members": [[0, "a" * 64, 1, "c0", "%"]]}},
        r"`signature` must match .* at `\$\.pool\.members\[0\]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_message_that_does_not_fit_is_refused_with_its_place(
    what: str, written: dict[str, tuple[WireMessage, WireMessage]], tmp_path: Path
) -> None:
    """The decoder names the entry; a site answers that it could not read the message."""
    changes, place = WRONG[what]
    whole = {**written["update"][0].head, **changes}
    bad = WireMessage({n: v for n, v in whole.items() if v is not ...}, written["update"][0].body)
    with pytest.raises(WireError, match=f"its head does not fit: .*{place}"):
        heads.decode(bad, heads.RequestHead)
    assert sites(tmp_path, 1)[100].answer(bad).head["code"] == "unreadable"


def test_another_format_is_another_version(written: dict[str, tuple[WireMessage, WireMessage]], tmp_path: Path) -> None:
    """A site says so, whatever else the head holds."""
    assert sites(tmp_path, 1)[100].answer(WireMessage({"format": 2, "more": 1})).head["code"] == "versions"


FALSE: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown entry": ("update", {"more": 1}, "unknown field `more`"),
    "seconds below 0": ("update", {"training_s": -1.0}, r"\$\.training_s"),
    "seconds without end": ("update", {"training_s": 1e300}, r"\$\.training_s"),
    "a rate of 0": ("update", {"spent": [[0.0, 1]]}, r"\$\.spent\[0\]\[0\]"),
    "steps below 0": ("update", {"spent": [[0.5, -1]]}, r"\$\.spent\[0\]\[1\]"),
    "rates without end": ("update", {"spent": [[1 / n, 1] for n in range(1, 66)]}, r"\$\.spent"),
    "a key of another length": ("describe", {"public": "ab"}, "`public` must match"),
    "a signature of other messages": ("describe", {"public": "a" * 64, "signature": "%"}, "`signature` must match"),
    "versions that are a list": ("hello", {"versions": [], "card": {}}, r"\$\.versions"),
    "no card": ("hello", {"versions": {}}, "missing required field `card`"),
    "a truth value as a text": ("update", {"ok": "yes"}, r"\$\.ok"),
    "a code that is a number": ("update", {"ok": False, "code": 3}, r"\$\.code"),
    "an upload below 0": ("update", {"ok": False, "code": "out-of-step", "have": -1}, r"\$\.have"),
    "a list of lists": ("evaluate", {"tensors": [[[]]]}, r"\$\.tensors\[0\]"),
}


@pytest.mark.parametrize("what", FALSE)
def test_an_answer_that_does_not_fit_is_a_reason_with_its_place(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's clerk gives a reason, never an exception; the place is in the link's log."""
    kind, changes, place = FALSE[what]
    clerk = Clerk(settings("fedavg"), Members.load(tmp_path), session=1)
    answer = WireMessage({**STAMP, "kind": kind, "run": clerk.members.run, "ok": True, **changes})
    found = clerk.read(answer, kind, "c0", 1)  # type: ignore[arg-type]
    assert found == Reason("garbled")
    assert re.search(place, caplog.text)


def test_answers_that_fit(tmp_path: Path) -> None:
    """Tensors, another upload and another key are told apart."""
    clerk = Clerk(settings("fedavg"), Members.load(tmp_path), session=1)
    stamp = {**STAMP, "run": clerk.members.run}
    good = clerk.read(
        WireMessage({**stamp, "ok": True, "training_s": 2, "tensors": ["model"]}, BODY), "update", "c0", 1
    )
    assert isinstance(good, Reply)
    assert isinstance(good.head, heads.Updated)
    assert (good.head.training_s, list(good.body)) == (2.0, ["model"])
    assert clerk.read(refusal(stamp, "c0", "out-of-step", have=4), "update", "c0", 1) == OtherUpload(4)
    assert clerk.read(refusal(stamp, "c0", "new-key", public="a" * 64), "update", "c0", 1) == OtherKey("a" * 64)


def test_a_refusal_repeats_only_what_it_could_read() -> None:
    """Entries of another type, or that the message does not have, are left empty."""
    head = refusal({"kind": ["update"], "run": {}, "seq": 2}, "c0", "late").head
    assert head == {**STAMP, "kind": "", "run": "", "session": 0, "seq": 2, "ok": False, "code": "late"}


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError(), MemoryError(), RecursionError(), DataError("x")])
def test_whatever_reading_raises_is_a_reason(error: Exception) -> None:
    """Also what nobody thought of."""

    def read() -> str:
        raise error

    assert attempt(read, "its answer") == Reason("garbled")


def test_a_reason_holds_no_line_ends_and_little_of_what_was_sent() -> None:
    """An entry's name is the sender's: it makes no lines of its own in a log."""
    with pytest.raises(WireError) as found:
        heads.decode(WireMessage({**STAMP, "ok": True, "a\nround 7, c1: " + "x" * 9999: 1}), heads.Updated)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize("deadline", [None, [], "soon", -1, 1e300])
def test_a_deadline_that_is_none_is_refused_by_the_watch(deadline: Any, tmp_path: Path) -> None:
    """The watch over the worker answers that the message cannot be read, and starts no worker for it."""
    bad = WireMessage({**STAMP, "deadline": deadline})
    watch = Watch(Node(client_id="c0", data="digits", folder=tmp_path, insecure_test=True, share=0))
    assert watch.ask(bad).head["code"] == "unreadable"
    assert watch._process is None


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
