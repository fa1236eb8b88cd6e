"""The channel of messages: nodes connect and leave, messages are sent, answers are collected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from fedkin.deploy.wire_format import WireMessage
from fedkin.privacy.secure_sum import OUT_OF_RANGE

CODES: Mapping[str, str] = {
    "versions": "it runs another version of fedkin",
    "unreadable": "it could not read the message",
    "data": "its data do not fit this run; its own log says why",
    "disk": "its disk could not be written or read; its own log says why",
    "failed": "its program failed; its own log says why",
    "settings": "it cannot use the run's settings; its own log says why",
    "code": "its owner does not allow the code that the run names (fedkin node --allow-code); its own log says which",
    "budget": "its data's owner allows no more of them to be told (--max-epsilon, --max-metadata-epsilon); its own "
    "log says how much was",
    "deadline": "it needed longer than the deadline",
    "died": "its process died",
    "late": "the message came too late",
    "range": OUT_OF_RANGE,
    "masked": "it has masked an upload of this round for others, and does so only once",
    "other-key": "its key for masks is a new one, as its program was restarted; it is used from the next round on",
    "strangers": "it does not know a client with whom its upload would be added up (--peers); its own log says which",
    "scores": "its owner lets no results of evaluations leave (--keep-scores)",
    "no-node": "no fedkin node runs next to its SuperNode",
    "expired": "no answer within the deadline",
    "gone": "it is not connected",
    "flower": "Flower could not deliver the message or its answer",
    "too-large": "its answer is larger than 1 GiB",
    "garbled": "its answer cannot be read: it is not a message of fedkin",
}
"""Meaning of each code. Only codes are sent: the text of a client's exception may contain its data."""


class Channel(Protocol):
    """A network that reaches nodes. Node numbers belong to the network and change when a node is restarted."""

    def nodes(self) -> Mapping[int, str]:
        """Return the connected nodes, each with the fingerprint of its key, or "" where nodes have none."""

    def names(self) -> Mapping[int, str] | None:
        """Return the registered name of each node's key; None where the network does not register keys."""

    def post(self, messages: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        """Send messages to nodes, each to be answered within ``seconds``; return a ticket for each accepted message."""

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | str]:
        """Return the answers that have arrived, or a code of `CODES`; each is returned once."""
