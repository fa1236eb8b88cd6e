"""Detection of late answers at a node: it notices, reports, and restarts its SuperNode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

EXPIRED = 2
"""Consecutive hellos that a node answers too late before it and the server react."""

_SLOW_SITE = 30.0  # from this many seconds for a hello on, the client is the slow part and not Flower's programs
_FIRST, _LONGEST = 300.0, 3600.0  # seconds between two restarts, doubled each time


class Lateness:
    """Decides from the server's letters whether a restart of the SuperNode is due.

    The ``seq`` of a hello is the number of hellos before it that this node did not answer in time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._expired, self._seconds = 0, 0.0
        self._wait, self._next = _FIRST, float("-inf")

    def record(self, head: Mapping[str, Any], seconds: float) -> None:
        """Record a letter that the client has answered within ``seconds``."""
        expired = head.get("seq")
        with self._lock:
            if head.get("kind") == "hello":
                self._expired, self._seconds = expired if type(expired) is int else 0, seconds
            else:  # this node is enrolled, so its hello was in time
                self._expired, self._wait, self._next = 0, _FIRST, float("-inf")

    def due(self) -> str | None:
        """Return the reason to restart the SuperNode now, or None; the next restart is due after a longer pause."""
        with self._lock:
            if self._expired < EXPIRED or self._seconds > _SLOW_SITE or self._now() < self._next:
                return None
            reason = (
                f"the server got no answer to its last {self._expired} hellos in time, though this client answers one "
                f"within {max(self._seconds, 0.01):.2f} s: the SuperNode is started again. If this goes on, look at "
                f"the load of this machine and at its network; the next restart is in {self._wait:g} s at the earliest"
            )
            self._next, self._expired = self._now() + self._wait, 0
            self._wait = min(2 * self._wait, _LONGEST)
            return reason
