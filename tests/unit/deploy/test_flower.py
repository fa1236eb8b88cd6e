"""Letters as Flower's messages: what goes in comes out, every method ends as in the simulator, nothing else leaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedkin.methods import METHODS
from fedkin_hosts.client import ClientService
from fedkin_hosts.flower import FlowerPost, from_records, to_records
from fedkin_hosts.heads import BODY_LIMIT, WireError, WireMessage
from fedkin_hosts.serve import serve
from hosttoys import Time, same_server, settings, simulated, sites
from thorough import thorough_except
from toys import refused


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can only be made inside a run."""
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


def over_the_wire(message: Message) -> Message:
    """The message from its serialised objects, as at the other end."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}
    made = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(made, Message)
    made.metadata.__dict__["_message_id"] = message.metadata.message_id
    return made


class Nodes:
    """A grid whose clients are in this process; messages go through their serialised form both ways."""

    def __init__(self, sites: Mapping[int, ClientService]) -> None:
        self._sites, self._ready = sites, dict[str, Message]()

    def get_nodes(self) -> list[Any]:
        class Node:
            def __init__(self, number: int) -> None:
                self.node_id, self.public_key = number, str(number).encode()

        return [Node(n) for n in self._sites]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        tickets = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_created_at"] = message.metadata.created_at + 1e-3 * number
            there = over_the_wire(message)
            content = to_records(self._sites[there.metadata.dst_node_id].answer(from_records(there.content)))
            answer = Message(content, reply_to=there)
            tickets.append(there.metadata.message_id)
            self._ready[tickets[-1]] = over_the_wire(answer)
        return tickets

    def pull_messages(self, tickets: Iterable[str]) -> list[Message]:
        return [self._ready.pop(t) for t in list(tickets) if t in self._ready]


EVERY_KIND = ("fedavg", "da-pfl", "cfic", "pfedcs", "ifca", "fedproto", "fedgh", "fedrod", "creff")
"""One model; rows; whole numbers; features and teachers; surveys; prototypes; heads; several tensors; matrices."""


@pytest.mark.parametrize("name", thorough_except([n for n in METHODS if n != "oracle"], EVERY_KIND))
def test_messages_equal_the_simulator(name: str, tmp_path: Path) -> None:
    """Methods over Flower's own message objects: server state and all lines, bit for bit. What a method does over
    messages is tested without Flower (`test_parity`); this is about tensors of every type and shape in its records."""
    s = settings(name, run={"rounds": 2})
    ours = serve(s, FlowerPost(Nodes(sites(tmp_path))), tmp_path / "run", clock=Time().clock())  # type: ignore[arg-type]
    theirs = simulated(s)
    assert same_server(ours, theirs)
    assert ours.rounds == theirs.rounds
    assert ours.clients == theirs.clients


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 50_000])
def test_a_message_survives(body: bytes) -> None:
    """Head and body are the same afterwards, also without a body and with one of several chunks."""
    letter = WireMessage({"kind": "update", "seq": 2**62, "text": "ä"}, body)
    again = from_records(to_records(letter))
    assert (again.head, again.body) == (letter.head, letter.body)


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"head": ConfigRecord({"json": 3})}),
        RecordDict({"head": ConfigRecord({"json": "[]"})}),
        RecordDict({"head": ConfigRecord({"json": "{}"}), "more": ConfigRecord({})}),
        RecordDict({"head": ConfigRecord({"json": "{}"}), "body": ArrayRecord()}),
    ],
)
def test_other_records_are_no_message(records: RecordDict) -> None:
    """Whatever a client sends instead is refused with an error of ours."""
    with pytest.raises(WireError):
        from_records(records)


@pytest.mark.parametrize(("size", "fits"), [(BODY_LIMIT, True), (BODY_LIMIT + 1, False)])
def test_the_server_reads_no_larger_answer_than_a_message_may_be(size: int, fits: bool) -> None:
    """To the byte, and before anything is made of it."""

    class Sized(bytes):
        def __len__(self) -> int:
            return size

    class Large:
        client = "c0"

        def answer(self, of: WireMessage) -> WireMessage:
            return WireMessage(of.head, b"x")

    class Claims(Nodes):
        def pull_messages(self, ids: Any) -> Any:
            for message in super().pull_messages(ids):
                message.content["body"]["bytes"].data = Sized(b"x")
                yield message

    post = FlowerPost(Claims({7: Large()}))  # type: ignore[arg-type,dict-item]
    tickets = post.post({7: WireMessage({"kind": "update"})}, 5.0)
    (answer,) = post.collect(tickets.values()).values()
    assert isinstance(answer, WireMessage) if fits else answer == "too-many-bytes"


class Spoilt(Nodes):
    """Nodes one of which sends what Flower cannot read, as a program other than its SuperNode could.

    As Flower does, a pull takes all replies that are there from the link before it reads the first.
    """

    def __init__(self, sites: Mapping[int, ClientService], bad: int, kinds: set[str], how: str) -> None:
        super().__init__(sites)
        self._bad, self._kinds, self._how, self._false = bad, kinds, how, set[str]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        whole = list(messages)
        false = [
            m.metadata.dst_node_id == self._bad and from_records(m.content).head["kind"] in self._kinds for m in whole
        ]
        tickets = super().push_messages(whole)
        self._false |= {ticket for ticket, bad in zip(tickets, false, strict=True) if bad}
        return tickets

    def pull_messages(self, tickets: Iterable[str]) -> list[Message]:
        asked = list(tickets)
        found = super().pull_messages(asked)
        for i, message in enumerate(found):
            if message.metadata.reply_to_message_id in self._false:
                if self._how == "raises":
                    raise ValueError("malformed object")
                if self._how == "another ticket":
                    message.metadata.__dict__["_reply_to_message_id"] = "f" * 64
                if self._how == "not a message":
                    found[i] = "text"  # type: ignore[call-overload]
        return found


@pytest.mark.parametrize("how", ["raises", "not a message"])
@pytest.mark.parametrize("kind", ["describe", "update", "evaluate"])
def test_a_reply_that_flower_cannot_read_costs_its_sender_the_round(kind: str, how: str, tmp_path: Path) -> None:
    """Flower raises for all replies of one call; the others are used nevertheless, and the run ends as usual."""
    s = settings("fedavg", run={"rounds": 2}, hosts={"min_clients": 2 if kind == "describe" else 3})
    nodes: Any = Spoilt(sites(tmp_path), 101, {kind}, how)
    ours = serve(s, FlowerPost(nodes), tmp_path / "run", clock=Time().clock())
    if kind == "describe":
        assert len(ours.server.sizes) == 2
    if kind == "update":
        assert [list(line.answered) for line in ours.rounds] == [[0, 2], [0, 2]]
        assert refused(ours.rounds[0], "update") == {1: "garbled"}
    if kind == "evaluate":
        assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2]] * 2
        assert list(refused(ours.rounds[1], "evaluate")) == [1]


def test_a_client_whose_replies_cannot_be_read_costs_others_one_look(tmp_path: Path) -> None:
    """Flower hands out and deletes all replies of a call before it raises for one of them: with more than eight clients
    others are lost with it, once; from then on each is fetched by itself."""

    class Grid:
        def __init__(self) -> None:
            self.there: set[str] = set()

        def get_nodes(self) -> list[Any]:
            return []

        def pull_messages(self, tickets: Iterable[str]) -> list[Any]:
            got = [t for t in list(tickets) if t in self.there]
            self.there -= set(got)
            if any(t.startswith("bad") for t in got):
                raise ValueError("malformed object")
            yes = to_records(WireMessage({"ok": True}, b""))
            return [
                SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=t), content=yes, has_error=lambda: False)
                for t in got
            ]

    grid: Any = Grid()
    post = FlowerPost(grid)

    def look() -> tuple[int, list[str]]:
        tickets = [*(f"good {i}" for i in range(23)), "bad"]
        grid.there = set(tickets)
        found = post.collect(tickets)
        return sum(not isinstance(v, str) for v in found.values()), [t for t, v in found.items() if v == "garbled"]

    assert look()[0] == 21  # three in each of eight calls
    assert [look() for _ in range(3)] == [(23, ["bad"])] * 3


def test_a_reply_to_another_message_is_counted_for_its_own(tmp_path: Path) -> None:
    """What a reply says that it answers is its sender's word: the run goes on, and nobody else's answer is touched."""
    s = settings("fedavg", run={"rounds": 2}, hosts={"min_clients": 3})
    nodes: Any = Spoilt(sites(tmp_path), 101, {"describe", "update", "evaluate"}, "another ticket")
    ours = serve(s, FlowerPost(nodes), tmp_path / "run", clock=Time().clock())
    assert same_server(ours, simulated(s))


def test_a_link_that_fails_is_not_taken_for_a_bad_reply(tmp_path: Path) -> None:
    """What the link itself raises ends the run, as before."""

    class Gone(Nodes):
        def pull_messages(self, tickets: Iterable[str]) -> list[Message]:
            raise ConnectionError("the link is gone")

        def get_nodes(self) -> list[Any]:
            raise ConnectionError("the link is gone")

    nodes: Any = Gone({})
    with pytest.raises(ConnectionError):
        FlowerPost(nodes).collect(["a", "b"])


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_every_ticket_is_asked_for_once_in_a_look(count: int) -> None:
    """In eight calls at most, one for each ticket where there are no more than that."""
    asked: list[list[str]] = []

    class Grid:
        def pull_messages(self, tickets: Iterable[str]) -> list[Message]:
            asked.append(list(tickets))
            return []

    grid: Any = Grid()
    tickets = [str(i) for i in range(count)]
    assert FlowerPost(grid).collect(tickets) == {}
    assert sorted(t for few in asked for t in few) == sorted(tickets)
    assert len(asked) == min(count, 8)
