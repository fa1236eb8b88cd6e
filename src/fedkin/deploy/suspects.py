"""Clients that did not answer in time: they are asked, but not waited for, until they are heard of again."""

from __future__ import annotations

from fedkin.deploy.heads import code_of
from fedkin.deploy.wire import Letter

_MOST = 1000  # answers that may still come


class Suspects:
    """Their names, and the answers that may still come from them."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._owed: dict[str, str] = {}  # ticket: name

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def owed(self) -> list[str]:
        """Tickets of the answers that may still come."""
        return list(self._owed)

    def missed(self, name: str, ticket: str) -> None:
        """A client's answer did not come while it was waited for."""
        self._names.add(name)
        self._owed[ticket] = name
        while len(self._owed) > _MOST:
            del self._owed[next(iter(self._owed))]

    def passed_over(self, name: str, ticket: str) -> None:
        """Others answered first, and it was not waited for: no fault of its."""
        if name in self._names:
            self.missed(name, ticket)

    def heard(self, name: str, got: Letter | str) -> None:
        """Something came from a client in time. That its step had to be ended does not speak for it."""
        if isinstance(got, Letter) and code_of(got) == "deadline":
            self._names.add(name)
        else:
            self._names.discard(name)

    def late(self, ticket: str, got: Letter | str) -> None:
        """What a client still owed has come: it works again, so the next answer is waited for."""
        name = self._owed.pop(ticket, None)
        if name is not None and isinstance(got, Letter):
            self.heard(name, got)
