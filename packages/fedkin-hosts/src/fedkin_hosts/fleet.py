"""A node's calls of Flower's fleet API: messages are fetched and answered, and no code of an app is run.

Flower's own SuperNode installs and runs the app that a message belongs to, so whoever can submit an app to the link
could run code here. This node makes the same calls through Flower's client and reads nothing but fedkin's messages. The
modules of flwr that it uses are not public: the versions in `fedkin_hosts.machine` bound them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable import inflatable_protobuf_utils as over_http
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedkin.core.errors import EngineError
from fedkin_hosts.flower import from_records, to_records
from fedkin_hosts.heads import WireError, WireMessage, reason, refusal
from fedkin_hosts.keys import pem, private_key

log = logging.getLogger("fedkin.node")
_HEARTBEAT, _ALIVE = 10.0, 30.0  # seconds between heartbeats; after twice the second the link takes a node for offline
_OFTEN, _RARELY = 0.3, 3.0  # seconds between two looks for messages: soon after a message, and long after
_AGAIN, _PATIENCE = 5.0, 120.0  # seconds between two attempts of a refused node, and until it gives up
_PASSING = (502, 503, 504)  # the gate has no SuperLink behind it, or too many connections
_ENDED = 403  # a call for a run that has ended
Answer = Callable[[WireMessage], WireMessage]


class FleetNode:
    """A node at a link.

    Args:
        link: ``HOST:PORT``.
        ca: certificate of the authority that signed the link's; None for plain HTTP.
        key: the node's private key; None for plain HTTP, where the node registers a new one.
        answer: returns the answer to a message.
        say: receives a line about the connection.
    """

    def __init__(
        self, link: str, ca: Path | None, key: Path | None, answer: Answer, say: Callable[[str], None]
    ) -> None:
        self._link, self._answer, self._say, self._registers, self._refused = link, answer, say, key is None, 0.0
        private = ec.generate_private_key(ec.SECP384R1()) if key is None else private_key(key)
        self._public = pem(private.public_key())
        signing = NodeAuthHttpInterceptor(private, private.public_key())
        trust = None if ca is None else ca.read_bytes()
        self._client = FleetHttpClient.from_server_address(link, ca is None, trust, interceptors=[signing])

    def serve(self) -> None:
        """Answer messages until the process is interrupted.

        Raises:
            EngineError: the link has refused this node for two minutes; it takes a node that was killed for connected
                up to a minute, and refuses a second one with its key.
        """
        while True:
            try:
                self._serve_session()
            except httpx.HTTPStatusError as error:
                why = f"the link refuses this node: {_text(error.response)}"
                self._refused = self._refused or time.monotonic()
                if time.monotonic() - self._refused > _PATIENCE:
                    raise EngineError(why) from error
                self._say(f"{why}; again in {_AGAIN:g} s")
                time.sleep(_AGAIN)

    def _serve_session(self) -> None:
        """Come online and answer messages until the link does not know the node any more."""
        if self._registers:
            with suppress(httpx.HTTPStatusError):  # it is registered already
                self._call(self._client.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=self._public))
        asked = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=_ALIVE)
        node, lost = Node(node_id=self._call(self._client.ActivateNode, asked).node_id), threading.Event()
        TaskIdentity.node_id, self._refused = node.node_id, 0.0
        threading.Thread(target=self._beat, args=(node, lost), daemon=True).start()
        try:
            last = time.monotonic()
            while not lost.is_set():
                result = self._call(self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=node))
                for stub, tree in zip(result.messages_list, result.message_object_trees, strict=True):
                    self._answer_one(node, stub.metadata.run_id, tree)
                    last = time.monotonic()
                if not result.messages_list:
                    time.sleep(min(_RARELY, max(_OFTEN, (time.monotonic() - last) / 20)))
        finally:
            lost.set()
            with suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node.node_id))

    def _beat(self, node: Node, lost: threading.Event) -> None:
        beat = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=_ALIVE)
        while not lost.wait(_HEARTBEAT):
            with suppress(httpx.HTTPError):  # the calls for messages meet the same error and say so
                if not self._client.SendNodeHeartbeat(beat).success:
                    lost.set()

    def _answer_one(self, node: Node, run: int, tree: Any) -> None:
        """Answer a message; one that cannot be read, or whose run has ended, is skipped."""
        TaskIdentity.run_id, TaskIdentity.task_id, client, begun = run, 1, self._client, time.monotonic()
        pull = over_http.make_pull_object_fn_protobuf(partial(self._call, client.PullObject), node, run)
        received = partial(self._call, client.ConfirmMessageReceived)
        confirm = over_http.make_confirm_message_received_fn_protobuf(received, node, run)
        try:
            message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
            message.metadata.__dict__["_message_id"] = tree.object_id
            reply = Message(self._answered(message.content), reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            with no_object_id_recompute():
                asked = fleet_pb2.PushMessagesRequest(
                    node=node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[time.monotonic() - begun],
                )
                taken = self._call(client.PushMessages, asked)
                pushed = partial(self._call, client.PushObject)
                push = over_http.make_push_object_fn_protobuf(pushed, node, run, taken.session_id)
                push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(taken.objects_to_push))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != _ENDED:
                raise
            log.warning("a message of a run that has ended is skipped")
        except Exception as error:
            log.warning("a message is skipped: %s: %s", type(error).__name__, reason(error))

    def _answered(self, records: RecordDict) -> RecordDict:
        try:
            return to_records(self._answer(from_records(records)))
        except WireError:  # the message of another program
            return to_records(refusal({}, "", "unreadable"))

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        """Return the answer to a call, which is repeated as long as the network or the link fails."""
        pause = 1.0
        while True:
            try:
                return call(request)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in _PASSING:
                    raise
                why = _text(error.response)
            if pause == 4:
                self._say(f"the link at {self._link} cannot be reached: {why}; this is tried again")
            time.sleep(pause)
            pause = min(2 * pause, 16.0)


def _text(response: httpx.Response) -> str:
    return reason(FlowerError.from_json(response.text) or ValueError(f"status {response.status_code}"))
