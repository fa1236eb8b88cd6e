"""Flower as the message bus on the server's side.

fedkin uses Flower's grid (push and pull of messages) and its apps, and nothing else: the round loop, deadlines,
the clients' memory and the checks are fedkin's. A message is one `RecordDict`: its head as JSON in a `ConfigRecord`,
its body as one array of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkin.core.refusals import Code
from fedkin_hosts.heads import (
    BODY_LIMIT,
    Envelope,
    TooLarge,
    WireError,
    WireMessage,
    decode,
    head_bytes,
    head_of,
    reason,
    refusal,
)

log = logging.getLogger("fedkin.node")
_HEAD, _BODY, _BYTES = "head", "body", "fedkin.bytes"
_KINDS = {"update": "train", "evaluate": "evaluate"}  # other kinds are queries
_REASONS: dict[int, Code] = {3: "expired", 4: "expired", 5: "gone", 8: "died"}  # Flower's error codes
_CALLS = 8  # calls per look for answers: few, as each takes the link 10 ms, but several, as a bad reply fails its call


def to_records(wired: WireMessage) -> RecordDict:
    """Return a message as Flower's records."""
    records = RecordDict({_HEAD: ConfigRecord({"json": head_bytes(wired).decode()})})
    if wired.body:
        body = Array(dtype="uint8", shape=(len(wired.body),), stype=_BYTES, data=bytes(wired.body))
        records[_BODY] = ArrayRecord({"bytes": body})
    return records


def from_records(records: RecordDict) -> WireMessage:
    """Return a message read from Flower's records; `WireError` if the records hold something else, or more than
    `BODY_LIMIT` bytes."""
    head = records.config_records.get(_HEAD)
    text = None if head is None else head.get("json")
    arrays = records.array_records.get(_BODY)
    strange = set(records) - {_HEAD, _BODY} or (arrays is not None and set(arrays) != {"bytes"})
    if not isinstance(text, str) or strange:
        raise WireError("the records are not a message")
    if arrays is None:
        return WireMessage(head_of(text))
    body = arrays["bytes"]
    if body.stype != _BYTES or not isinstance(body.data, bytes):
        raise WireError("the body is of another kind")
    if len(body.data) > BODY_LIMIT:
        raise TooLarge(f"the body has {len(body.data)} bytes, at most {BODY_LIMIT} are read")
    return WireMessage(head_of(text), body.data)


# ---- a client that Flower simulates --------------------------------------------------------------------------------
def client_app() -> ClientApp:
    """Return the app of the clients that Flower simulates; nodes on real hosts run no app (`fedkin_hosts.fleet`)."""
    app = ClientApp()

    def answered(message: Message, context: Context) -> Message:
        from fedkin_hosts.scaleout import answer  # imported here: only a simulated node needs torch

        try:
            of = from_records(message.content)
            reply = answer(of, context.node_config, context.run_config.get("fedkin", ""))
        except Exception:  # the text of an exception may contain data and must not leave the node
            log.exception("a message was not answered")
            reply = refusal({}, "", "failed")
        return Message(to_records(reply), reply_to=message)

    app.query()(answered)
    app.train()(answered)
    app.evaluate()(answered)
    return app


# ---- the server's side ---------------------------------------------------------------------------------------------
class FlowerPost:
    """The channel over Flower's grid.

    Args:
        grid: Flower's grid.
        keys: whether nodes have keys; keys of simulated nodes are made up by Flower for each run and are ignored.
        link: folder of the link, whose book has the names of the keys; None where it is not known.
    """

    def __init__(self, grid: Grid, keys: bool = True, link: Path | None = None) -> None:
        self._grid, self._with_keys, self._link = grid, keys, link
        self._apart = False  # whether replies are fetched one by one, after one that could not be read

    def nodes(self) -> Mapping[int, str]:
        """Return the connected nodes, each with the SHA-256 of its key; "" for nodes without keys."""
        return {
            node.node_id: sha256(node.public_key).hexdigest() if node.public_key and self._with_keys else ""
            for node in self._grid.get_nodes()
        }

    def names(self) -> Mapping[int, str] | None:
        """Return the registered names of the nodes' keys by node number; None if there are none."""
        if self._link is None or not (self._link / "link.db").exists():  # a link without keys keeps nothing
            return None
        return {node.node_id: node.name for node in self._grid.get_nodes() if node.name}

    def post(self, outgoing: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        """Send messages to nodes, each to be answered within ``seconds``; return a ticket per accepted message."""
        messages = [
            Message(to_records(wired), node, _KINDS.get(decode(wired, Envelope).kind, "query"), ttl=max(seconds, 1.0))
            for node, wired in outgoing.items()
        ]
        tickets = list(self._grid.push_messages(messages))
        return {node: ticket for node, ticket in zip(outgoing, tickets, strict=False) if ticket}

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | Code]:
        """Return the answers that have arrived for some tickets, or why there is none; each is returned once."""
        result: dict[str, WireMessage | Code] = {}
        whole = list(tickets)
        calls = min(len(whole), len(whole) if self._apart else _CALLS if self._with_keys else 1)
        for i in range(calls):
            result |= self._pulled(whole[i::calls])
        return result

    def _pulled(self, tickets: list[str]) -> dict[str, WireMessage | Code]:
        """Return the answers to a few messages by one call of Flower's, which raises if any of them cannot be read.

        The replies that such a failed call took from the link are lost; from then on each is fetched by a call of its
        own, so that a client whose replies cannot be read costs the others one round at most.
        """
        try:
            messages = list(self._grid.pull_messages(tickets))
        except Exception as e:
            self._grid.get_nodes()  # raises if the link fails, rather than the reading of a reply
            log.warning("a reply is not a message of Flower's: %s: %s", type(e).__name__, reason(e))
            self._apart = True
            if len(tickets) == 1:
                return {tickets[0]: "garbled"}
            return {ticket: got for one in tickets for ticket, got in self._pulled([one]).items()}
        result: dict[str, WireMessage | Code] = {}
        for message in messages:
            # the id that a message replies to is chosen by its sender; for a single message the ticket is known
            ticket = tickets[0] if len(tickets) == 1 else _ticket(message)
            if ticket in tickets:
                result[ticket] = self._letter(message)
        return result

    def _letter(self, message: Message) -> WireMessage | Code:
        try:
            if message.has_error():
                return _REASONS.get(message.error.code, "undelivered")
            return from_records(message.content)
        except TooLarge:
            return "too-many-bytes"
        except Exception as e:  # the sender chose every part of it
            log.warning("a reply is not a message: %s: %s", type(e).__name__, reason(e))
            return "garbled"


def _ticket(message: Message) -> str:
    try:
        return str(message.metadata.reply_to_message_id)
    except Exception:  # the sender chose every part of it
        return ""


def server_app() -> ServerApp:
    """Return the app that Flower runs on the server: `fedkin_hosts.serve` over the grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedkin_hosts import submitted  # imported here: a node's process needs no torch

        word = context.run_config.get("fedkin", "")
        with submitted.says_why(word):
            run = submitted.Submitted.read(word)
            post = FlowerPost(grid, run.data is None, Path(run.link) if run.link else None)
        submitted.run_submitted(post, word)

    return app
