"""The hardware of this machine, and what systems do differently."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def cores(root: Path = Path("/")) -> int:
    """Return the number of whole cores that this process may use, at least 1; the system's files are in ``root``."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([there, *_limits(root)[0]])))


def memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use, 0 where the system does not say; ``root`` as of `cores`."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return min([there, *_limits(root)[1]])


@cache
def _limits(root: Path) -> tuple[list[float], list[int]]:
    """Return all limits of cores and of bytes of memory by control groups (Linux, versions 1 and 2) of this process.

    Groups around its own limit it as well. A container sees its own group in place of the outermost one.
    """
    processors, sizes = list[float](), list[int]()
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in {controllers, *controllers.split(",")}:
            outermost = root / "sys/fs/cgroup" / name
            place = outermost / path.strip("/")
            for group in (place, *place.parents[: len(place.parts) - len(outermost.parts)]):
                for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                    quota = " ".join(_text(group / file) for file in files).split()
                    processors += [int(quota[0]) / int(quota[1])] if len(quota) == 2 and quota[0].isdigit() else []
                texts = (_text(group / file).strip() for file in ("memory.max", "memory.limit_in_bytes"))
                sizes += [int(text) for text in texts if text.isdigit()]
    return processors, sizes


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


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
