"""A node's calls of Flower's fleet API against a link in memory, in the protocol of the installed flwr."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedkin.core.errors import EngineError
from fedkin_hosts import fleet
from fedkin_hosts.flower import from_records, to_records
from fedkin_hosts.heads import WireMessage
from refusals import refuses
from standin import keyring_of


class Ended(BaseException):
    """The link has no more for the node."""


def refused(status: int) -> httpx.HTTPStatusError:
    text = '{"code": 1, "detail": "the gate says no"}'
    return httpx.HTTPStatusError(
        "", request=httpx.Request("POST", "http://link"), response=httpx.Response(status, text=text)
    )


class Link:
    """The link's side of Flower's client.

    Attributes:
        faults: errors that a call raises, by its name; each once.
        calls: names of the calls that were answered, without those for objects and messages.
        answers: contents of the replies that arrived whole, in order.
        forgotten: set when the node has heard that it is unknown, which the first heartbeat says; messages come after
            that. None: it is known.
    """

    def __init__(self, *contents: RecordDict) -> None:
        self.faults: list[tuple[str, Exception]] = []
        self.calls, self.answers = list[str](), list[RecordDict]()
        self.forgotten: threading.Event | None = None
        self._messages, self._objects = list[Message](), dict[str, bytes]()
        self._reply: dict[str, bytes] = {}
        for content in contents:
            message = Message(content, 7, "query")
            message.metadata.__dict__["_message_id"] = message.object_id
            self._messages.append(message)
            self._objects |= {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        def call(request: Any) -> Any:
            for fault in [fault for fault in self.faults if fault[0] == name][:1]:
                self.faults.remove(fault)
                raise fault[1]
            self.calls.append(name)
            return getattr(self, f"_{name}")(request)

        return call

    def _ActivateNode(self, request: Any) -> Any:
        return fleet_pb2.ActivateNodeResponse(node_id=7)

    def _DeactivateNode(self, request: Any) -> Any:
        return fleet_pb2.DeactivateNodeResponse()

    def _SendNodeHeartbeat(self, request: Any) -> Any:
        first = self.forgotten is not None and not self.forgotten.is_set()
        if self.forgotten is not None:
            self.forgotten.set()
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=not first)

    def _PullMessages(self, request: Any) -> Any:
        if self.forgotten is not None and not self.forgotten.wait(0.01):
            return fleet_pb2.PullMessagesResponse()
        if not self._messages:
            raise Ended
        message = self._messages.pop(0)
        tree, bare = get_object_tree(message), Message(RecordDict(), 7, "query")
        bare.metadata.__dict__["_message_id"] = message.metadata.message_id
        return fleet_pb2.PullMessagesResponse(messages_list=[message_to_proto(bare)], message_object_trees=[tree])

    def _PullObject(self, request: Any) -> Any:
        content = self._objects[request.object_id]
        return message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def _ConfirmMessageReceived(self, request: Any) -> Any:
        return message_pb2.ConfirmMessageReceivedResponse()

    def _PushMessages(self, request: Any) -> Any:
        (tree,), self._reply = request.message_object_trees, {}
        self._wanted, found = tree.object_id, []
        todo = [tree]
        while todo:
            one = todo.pop()
            found.append(one.object_id)
            todo += one.children
        return fleet_pb2.PushMessagesResponse(objects_to_push=found, session_id="s")

    def _PushObject(self, request: Any) -> Any:
        self._reply[request.object_id] = request.object_content
        if request.object_id == self._wanted:  # the message itself is pushed last
            made = inflate_object_from_contents(self._wanted, dict(self._reply))
            assert isinstance(made, Message)
            self.answers.append(made.content)
        return message_pb2.PushObjectResponse(stored=True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What nodes say; their pauses take no time."""
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    for name in ("_OFTEN", "_RARELY"):
        monkeypatch.setattr(fleet, name, 0.001)
    return []


def serve(link: Link, said: list[str], monkeypatch: pytest.MonkeyPatch, answer: Any = lambda of: of) -> None:
    """A node at this link, until the link ends it."""
    clock = [1.0]
    monkeypatch.setattr(fleet.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(fleet.time, "monotonic", lambda: clock[0])
    node = fleet.FleetNode("link:1", None, None, answer, said.append)
    node._client, node._registers = link, False  # type: ignore[assignment]
    try:
        node.serve()
    except Ended:
        return


def message(seq: int) -> RecordDict:
    return to_records(WireMessage({"kind": "update", "seq": seq}, bytes(range(9))))


def heads(link: Link) -> list[Any]:
    return [from_records(content).head for content in link.answers]


def test_messages_are_answered(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and body arrive as they were sent, and the node says goodbye at its end."""
    link = Link(message(1), message(2))
    serve(link, said, monkeypatch)
    assert [head["seq"] for head in heads(link)] == [1, 2]
    assert from_records(link.answers[0]).body == bytes(range(9))
    assert (link.calls[0], link.calls[-1], said) == ("ActivateNode", "DeactivateNode", [])


def test_the_message_of_another_app_is_not_read(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered as unreadable, and no client sees it."""
    link = Link(RecordDict({"c": ConfigRecord({"x": 1})}), message(2))
    seen: list[WireMessage] = []
    serve(link, said, monkeypatch, lambda of: seen.append(of) or of)
    assert [head.get("code") for head in heads(link)] == ["unreadable", None]
    assert [of.head["seq"] for of in seen] == [2]


@pytest.mark.parametrize("call", ["PullObject", "ConfirmMessageReceived", "PushMessages", "PushObject"])
def test_a_message_of_an_ended_run_is_skipped(call: str, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower answers 403 for such a run; the next message is answered."""
    link = Link(message(1), message(2))
    link.faults = [(call, refused(403))]
    serve(link, said, monkeypatch)
    assert [head["seq"] for head in heads(link)] == [2]
    assert link.calls.count("ActivateNode") == 1


@pytest.mark.parametrize("call", ["ActivateNode", "PullMessages", "PullObject", "PushMessages", "PushObject"])
@pytest.mark.parametrize("fault", [httpx.ConnectError("no route"), refused(502)])
def test_a_failing_network_costs_no_message(
    call: str, fault: Exception, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is repeated, and from the third time on the node says why."""
    link = Link(message(1))
    link.faults = [(call, fault)] * 5
    serve(link, said, monkeypatch)
    assert [head["seq"] for head in heads(link)] == [1]
    (line,) = said
    assert ("no route" in line) or ("the gate says no" in line)


def test_a_node_that_the_link_lost_comes_again(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A link with a new database gives the node another number."""
    link = Link(message(1))
    link.faults = [("PullMessages", refused(401))]
    serve(link, said, monkeypatch)
    assert [head["seq"] for head in heads(link)] == [1]
    assert link.calls.count("ActivateNode") == 2


def test_a_refused_node_gives_up(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For two minutes it tries again and says the gate's reason."""
    link = Link(message(1))
    link.faults = [("ActivateNode", refused(412))] * 99
    with refuses(EngineError, "the gate says no"):
        serve(link, said, monkeypatch)
    assert len(said) == 25
    assert link.calls == []


def test_an_answer_that_fails_is_no_end(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reading of one message raises, the next one is answered."""

    def answer(of: WireMessage) -> WireMessage:
        if of.head["seq"] == 1:
            raise RuntimeError("patient 4711")
        return of

    link = Link(message(1), message(2))
    serve(link, said, monkeypatch, answer)
    assert [head["seq"] for head in heads(link)] == [2]


def test_a_heartbeat_finds_out_that_the_node_is_unknown(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ends, and the node comes online again."""
    monkeypatch.setattr(fleet, "_HEARTBEAT", 0.01)
    link = Link(message(1), message(2))
    link.forgotten = threading.Event()
    serve(link, said, monkeypatch)
    assert len(link.answers) == 2
    assert link.calls.count("ActivateNode") == 2


def test_the_key_of_a_node_signs_its_calls(tmp_path: Path) -> None:
    """The gate's keyring knows the node by the headers that Flower's client adds."""
    from fedkin_hosts import keys

    made, sent = keys.make_node_key(tmp_path, "c0"), list[httpx.Request]()
    ca = keys.make_authority(tmp_path / "ca", ["127.0.0.1"]).ca
    node = fleet.FleetNode("127.0.0.1:1", ca, made.private, lambda of: of, print)
    node._client._client.send = lambda request: sent.append(request) or httpx.Response(404, request=request)
    with pytest.raises(httpx.HTTPStatusError):
        node._serve_session()
    headers = [(name.lower(), value) for name, value in sent[0].headers.raw]
    assert keyring_of(made.public).holder(headers) == "c0"
    assert str(sent[0].url) == "https://127.0.0.1:1/v1/fleet/activate-node"
