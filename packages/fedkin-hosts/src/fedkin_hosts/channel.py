"""The channel of messages: nodes connect and leave, messages are sent, answers are collected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from fedkin.core.refusals import Code
from fedkin_hosts.wire_format import WireMessage


class Channel(Protocol):
    """A network that reaches nodes. Node numbers belong to the network and change when a node is restarted."""

    def nodes(self) -> Mapping[int, str]:
        """Return the connected nodes, each with the fingerprint of its key, or "" where nodes have none."""

    def names(self) -> Mapping[int, str] | None:
        """Return the registered name of each node's key; None where the network does not register keys."""

    def post(self, messages: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        """Send messages to nodes, each to be answered within ``seconds``; return a ticket for each accepted message."""

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | Code]:
        """Return the answers that have arrived, or why there is none; each is returned once."""
