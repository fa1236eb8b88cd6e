"""The hardware of this machine, and what systems do differently."""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_position = threading.Lock()  # of files that are read without preadv, as on Windows, where nothing is forked


def cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: whole ones, at least one.

    Args:
        root: of the files in which the system states the limits of control groups, as of containers.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(there, _limits(root)[0])))


def memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use; 0 where the system does not say.

    Args:
        root: as of `cores`.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return int(min(there, _limits(root)[1]))


@cache
def _limits(root: Path) -> tuple[float, float]:
    """Return the cores and the bytes of memory that control groups (Linux, versions 1 and 2) leave to this process.

    The smallest limit of a group and of those around it counts. A container sees its own group at the place of the
    outermost one, whatever path it is told.
    """
    processors = bytes_ = math.inf
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return processors, bytes_
    for _, controllers, path in groups:
        for name in {controllers, *controllers.split(",")}:
            outermost = root / "sys/fs/cgroup" / name
            place = outermost / path.strip("/")
            for group in (place, *place.parents[: len(place.parts) - len(outermost.parts)]):
                quotas = _numbers(group, "cpu.max"), _numbers(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")
                processors = min([processors, *(q[0] / q[1] for q in quotas if len(q) == 2 and q[0] > 0)])
                bytes_ = min([bytes_, *_numbers(group, "memory.max"), *_numbers(group, "memory.limit_in_bytes")])
    return processors, bytes_


def _numbers(group: Path, *files: str) -> list[float]:
    """Return the numbers in files of a control group, one after another; none where a file is not there."""
    try:
        return [float(word.replace("max", "inf")) for name in files for word in (group / name).read_text().split()]
    except OSError:
        return []


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
