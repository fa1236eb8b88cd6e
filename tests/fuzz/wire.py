"""Fuzz the decoders of letters: heads and bodies of every kind are damaged, and only refusals may come out.

    python -m tests.fuzz --minutes 2 wire

Every case is drawn from its own generator, so the seed in the message of an `AssertionError` repeats it with
``run(seed, 0)``.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from fedkin.core import DataError, FedkinError
from fedkin.core.refusals import Reason
from fedkin.data import Card
from fedkin_hosts import heads
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireError, WireMessage, head_of
from fedkin_hosts.masks import MemberTable
from fedkin_hosts.messages import Clerk, NoSetup, OtherKey, OtherUpload, Reply, attempt
from fedkin_hosts.participants import Members
from fedkin_hosts.tensors import bundle
from fedkin_hosts.transport import Suspects
from grouped import tables
from hosttoys import Direct, crafted, on_hosts, settings, sites, through_bytes

Pair = tuple[WireMessage, WireMessage]
_NUMBERS: list[Any] = [
    0, -1, 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308, 5e-324, 1e-400,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
_TEXTS = ["", "x", "x" * 300, "../x", "a\nb", "\0", "ä", "\ud800", "𝔘", "float32", "bool", "object", "c0", "update"]
_SHAPES: list[Any] = [[0, 2**63], [2**62, 2**62, 0], [2**30] * 4 + [0], [1] * 40, [-1], [[]], [True], [10**400], []]
_KEYS = [
    "tensors",
    "pool",
    "spent",
    "card",
    "setup",
    "inline",
    "seq",
    "ok",
    "code",
    "have",
    "public",
    "versions",
    "more",
]


def run(seed: int, seconds: float) -> None:
    """Damages letters for a time, at least once.

    Raises:
        AssertionError: something other than a refusal came out; the message has the seed of the case.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("fedkin").setLevel(logging.CRITICAL + 1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedkin-fuzz-") as place:
        desk, end = _Desk(Path(place)), time.monotonic() + seconds
        while True:
            draw = random.Random(seed)
            try:
                desk.case(draw)
            except Exception as e:
                raise AssertionError(f"fuzz of letters, seed {seed}: {type(e).__name__}: {e}") from e
            if time.monotonic() >= end:
                return
            seed += 1


class _Desk:
    """Letters of a real run, and both ends that read them."""

    def __init__(self, place: Path) -> None:
        self.members = Members.load(place / "server")
        self.clerks = {
            name: Clerk(settings(name, **tables(run)), self.members, session=1) for name, run in _RUNS.items()
        }
        self.pairs = [(name, pair) for name in _RUNS for pair in _written(name, place / name).values()]
        self.site: ClientService = sites(place / "site", 1)[100]
        self.reads: list[Callable[[random.Random], None]] = [self.answer, self.asked, self.parts]
        self.count = 0

    def case(self, draw: random.Random) -> None:
        self.count += 1
        draw.choice(self.reads)(draw)

    # ---- the server's side ----------------------------------------------------------------------------------------
    def answer(self, draw: random.Random) -> None:
        """A damaged answer: a reply, another upload or key, or a text on one line; never an exception."""
        name, (asked, said) = draw.choice(self.pairs)
        clerk, kind = self.clerks[name], asked.head["kind"]
        stamp = {"run": self.members.run, "session": 1, "client": "c0", "seq": 1, "kind": kind, "format": 1}
        bad = _damaged(draw, WireMessage({**said.head, **stamp}, said.body))
        if bad is None:
            return
        found = clerk.read(bad, kind, "c0", 1)
        assert isinstance(found, Reply | OtherUpload | OtherKey | NoSetup | Reason), found
        assert not isinstance(found, Reason) or str(found).isprintable(), found
        if isinstance(found, Reply):
            assert all(isinstance(t, torch.Tensor) for t in found.body.values())
            if isinstance(found.head, heads.Hello):
                got = attempt(lambda: Card.from_json(found.head.card), "the card")
                assert isinstance(got, Card | Reason), got
        Suspects().record("c0", bad)

    # ---- the client's side ----------------------------------------------------------------------------------------
    def asked(self, draw: random.Random) -> None:
        """A damaged letter to a site: an answer that the server can read, whatever it says."""
        _, (asked, _) = draw.choice(self.pairs)
        bad = _damaged(draw, asked)
        if bad is None:
            return
        _only_refusals(lambda: heads.decode(bad, heads.Envelope))
        _only_refusals(lambda: MemberTable.read(WireMessage({**bad.head, "setup": "", "run": "r", "round": 1})))
        try:
            head = heads.decode(bad, heads.RequestHead)
        except WireError:
            head = None
        if head is None or draw.random() < 0.02:  # work is asked for, so few are let through
            said = through_bytes(self.site.answer(bad))
            told = heads.decode(said, heads.AnswerHead)
            if not told.ok:
                heads.decode(said, heads.Refusal)

    # ---- on the way -----------------------------------------------------------------------------------------------
    def parts(self, draw: random.Random) -> None:
        """Single decoders on values that no letter holds."""
        value = _value(draw, 3)
        _only_refusals(lambda: bundle(WireMessage({"tensors": value}, bytes(draw.randrange(9)))))
        _only_refusals(lambda: MemberTable.read(WireMessage({"setup": "", "run": "r", "round": 1, "pool": value})))
        for kind in {*heads.ANSWERS.values(), heads.Refusal, heads.RequestHead, heads.AnswerHead}:
            _only_refusals(lambda kind=kind: heads.decode(WireMessage(value if isinstance(value, dict) else {}), kind))
        _only_refusals(lambda: Card.from_json(value))
        _only_refusals(lambda: head_of(_flipped(draw, json.dumps(value).encode())))


_RUNS: dict[str, dict[str, Any]] = {
    "fedrep": {"rounds": 1, "secure": True},
    "fedfomo": {"rounds": 1},
    "creff": {"rounds": 1, "eval_every": 1},
    "fedavg": {"rounds": 1, "noise_multiplier": 1.0},
}


def _written(name: str, place: Path) -> dict[str, Pair]:
    """A letter of each kind with its answer, of one run."""
    found: dict[str, Pair] = {}

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        said = post.ask(client, of)
        found[of.head["kind"]] = through_bytes(of), through_bytes(said)
        return said

    place.mkdir(parents=True)
    on_hosts(settings(name, **tables(_RUNS[name])), place, Direct(sites(place), touch=touch))
    return found


# ---- damage --------------------------------------------------------------------------------------------------------
def _damaged(draw: random.Random, whole: WireMessage) -> WireMessage | None:
    """A letter with one to three things wrong, as it comes out of JSON; None if its head is none any more."""
    head, body = copy.deepcopy(dict(whole.head)), whole.body
    for _ in range(draw.randrange(1, 4)):
        how = draw.randrange(6)
        if how == 0:
            body = _flipped(draw, body)
        elif how == 1:
            body = body[: draw.randrange(len(body) + 1)]
        elif how == 2:
            head[draw.choice(_KEYS)] = _value(draw, 4)
        elif how == 3 and head:
            head.pop(draw.choice(list(head)))
        elif how == 4 and isinstance(head.get("tensors"), list) and head["tensors"]:
            kind, shape = draw.choice(["F32", "I64", "BOOL", "x"]), draw.choice(_SHAPES)
            body = crafted(str(draw.choice(head["tensors"])), kind, shape, body)
        else:
            _replaced(draw, head)
    text = _text(head)
    if draw.random() < 0.1:
        text = _flipped(draw, text)
    try:
        return WireMessage(head_of(text), body)
    except WireError:
        return None


def _replaced(draw: random.Random, inside: Any) -> None:
    """Puts another value somewhere into nested tables and lists."""
    while True:
        places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not places:
            return
        place = draw.choice(places)
        deeper = isinstance(inside[place], dict | list) and len(inside[place])
        if not deeper or draw.random() < 0.3:
            inside[place] = _value(draw, 3)
            return
        inside = inside[place]


def _value(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(8 if depth else 5)
    if kind == 0:
        return draw.choice(_NUMBERS)
    if kind == 1:
        return draw.choice(_TEXTS)
    if kind == 2:
        return draw.choice([None, True, False])
    if kind == 3:
        return list(draw.choice(_SHAPES))
    if kind == 4:
        return [["w", draw.choice(["float32", "bool", "int64", "object"]), list(draw.choice(_SHAPES))]]
    if kind == 5:
        return {draw.choice(_KEYS + _TEXTS): _value(draw, depth - 1) for _ in range(draw.randrange(4))}
    if kind == 6 and draw.random() < 0.02:
        nested: Any = 1
        for _ in range(draw.choice([50, 900])):
            nested = [nested] if draw.random() < 0.5 else {"a": nested}
        return nested
    return [_value(draw, depth - 1) for _ in range(draw.randrange(4))]


def _text(head: Any) -> bytes:
    """JSON as a program that means harm would write it: NaN, lone surrogates and huge numbers as they are."""
    try:
        return json.dumps(head).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 100_000


def _flipped(draw: random.Random, content: bytes) -> bytes:
    """Some bits turned, some bytes taken out or put in."""
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        how = draw.randrange(3)
        if how == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            changed[at : at + draw.randrange(4)] = b""
        else:
            changed[at:at] = draw.choice([b"\xff", b"\x00", b'"', b"]", b"}", b"9" * 400])
    return bytes(changed)


def _only_refusals(read: Callable[[], Any]) -> None:
    """Reads; what is raised must be an error of fedkin's."""
    try:
        read()
    except (WireError, DataError, FedkinError):
        return
