"""Progress of long reading: readers report how far they are, a listener shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str], None]
_EVERY = 0.1  # seconds between two reports, so that their cost is negligible

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard(by: Listener) -> Iterator[None]:
    """Within this context, call ``by`` with what is being read and how much is done, and with "" at the end."""
    token = _listener.set(by)
    try:
        yield
    finally:
        _listener.reset(token)


def each(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items one after another and report "``what``, 1,200 of 20,000" now and then."""
    listener, last = _listener.get(), time.monotonic()
    for i, item in enumerate(items):
        if listener is not None and time.monotonic() - last >= _EVERY:
            listener(f"{what}, {i:,} of {len(items):,}")
            last = time.monotonic()
        yield item
    if listener is not None:
        listener("")
