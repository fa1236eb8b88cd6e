"""One process at a time per cell: a file with the owner's number, taken over when its owner is dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Takes a lock file for as long as the block lasts; gives False if a living process has it."""
    got = take(path)
    try:
        yield got
    finally:
        if got:
            path.unlink(missing_ok=True)


def take(path: Path) -> bool:
    """Makes the lock file, or takes that of a dead owner over; False if its owner lives.

    Looking at an owner and replacing its file are one step for other processes: they wait for a second file, which the
    system unlocks when its holder ends. No process is started in between that could inherit it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "guard").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if path.exists() and _alive(path):
            return False
        path.unlink(missing_ok=True)
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        with os.fdopen(number, "w") as file:
            file.write(f"{os.getpid()} {_started(os.getpid())}\n")
    return True


def owner(path: Path) -> int | None:
    """The living process that has the lock; None if none has."""
    with contextlib.suppress(OSError):
        if _alive(path):
            return int(path.read_text().split()[0])
    return None


def _alive(path: Path) -> bool:
    """Whether the process that wrote the file still runs; one that was killed while writing it does not."""
    words = path.read_text().split()
    if len(words) != 2:
        return False
    return _started(int(words[0])) == words[1]


def _started(pid: int) -> str:
    """When a process was started, by the system's clock ticks, so that a reused number is seen; "" if none runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:  # of another user: it runs
        pass
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # a system without it, where a reused number is taken for the owner
        return "unknown"
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
