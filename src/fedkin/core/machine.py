"""The hardware of this machine, and what systems do differently."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_position = threading.Lock()  # of files that are read without preadv, as on Windows, where nothing is forked


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of this machine's memory; 0 where the system does not say."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def open_to_read(path: Path) -> int:
    """Return the number of a file that is open for `read_at`.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def read_at(file: int, into: memoryview, at: int) -> int:
    """Read bytes of an open file from a position on, and return their number, which may be smaller than asked.

    Threads may read from one file, and so may forked processes.
    """
    if hasattr(os, "preadv"):
        return os.preadv(file, [into], at)
    with _position:
        os.lseek(file, at, os.SEEK_SET)
        piece = os.read(file, len(into))
    into[: len(piece)] = piece
    return len(piece)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the search for garbage in cycles, which passes over all rows again and again while many are read."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
