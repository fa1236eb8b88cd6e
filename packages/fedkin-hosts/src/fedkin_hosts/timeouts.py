"""Clients that did not answer in time: they are asked, but not waited for, until they answer in time again."""

from __future__ import annotations

from fedkin_hosts.heads import code_of
from fedkin_hosts.wire_format import WireMessage

_MOST = 1000  # number of pending answers that are remembered


class Suspects:
    """Names of the late clients, and their answers that may still arrive."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._owed: dict[str, str] = {}  # ticket: name

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def owed(self) -> list[str]:
        """Return the tickets of the answers that may still arrive."""
        return list(self._owed)

    def missed(self, name: str, ticket: str) -> None:
        """Record that a client's answer did not arrive while it was waited for."""
        self._names.add(name)
        self._owed[ticket] = name
        while len(self._owed) > _MOST:
            del self._owed[next(iter(self._owed))]

    def passed_over(self, name: str, ticket: str) -> None:
        """Record that others answered first and this client was not waited for, which is not a fault of the client."""
        if name in self._names:
            self.missed(name, ticket)

    def record(self, name: str, got: WireMessage | str) -> None:
        """Record that an answer arrived in time. A step that had to be ended at its deadline makes the client late."""
        if isinstance(got, WireMessage) and code_of(got) == "deadline":
            self._names.add(name)
        else:
            self._names.discard(name)

    def late(self, ticket: str, got: WireMessage | str) -> None:
        """Record that a pending answer has arrived: the client works again, so its next answer is waited for."""
        name = self._owed.pop(ticket, None)
        if name is not None and isinstance(got, WireMessage):
            self.record(name, got)
