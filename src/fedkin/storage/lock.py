"""One writer at a time: a lock file that the system releases when its process ends for any reason.

The lock is the system's (``flock``; on Windows a byte), not the file: the file names the process that has it, and the
file of a killed process is taken over. Readers of a folder need no lock and never wait.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from fedkin.core.errors import FolderBusyError, RunFolderError
from fedkin.storage.files import PRIVATE_FILE, require_plain

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".lock"
"""The lock file in a folder that is being written."""
_TRIES = 20  # a process that only reads the owner also has the lock for a moment
_PAUSE = 0.01
_BYTE = 1 << 30  # the byte that is locked on Windows, beyond the owner's name: a locked byte cannot be read
# a lock file may be looked at before anything is known of its folder: no link is followed, no pipe is waited for
_HERE = 0 if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
log = logging.getLogger("fedkin.storage.lock")


@dataclass(frozen=True)
class Owner:
    """The process that has a lock, as named in its file."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass
class _Hold:
    """A folder that a thread of this process is writing to, and whether it ends with that."""

    thread: int
    depth: int = 1
    removed: bool = False


_open: set[int] = set()
_writing: dict[str, _Hold] = {}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keep every other process and thread from writing into a folder; make the folder if it is missing.

    The same thread may enter several times.

    Raises:
        FolderBusyError: another process or thread is writing into it.
        RunFolderError: the folder cannot be made or written to, or leads out of itself (`require_plain`).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as e:
        raise RunFolderError(f"{folder} exists already and is a file; choose another folder with --out") from e
    except OSError as e:
        raise RunFolderError(f"no folder can be made at {folder} ({e}); choose another with --out") from e
    key = os.path.realpath(folder)
    hold = _writing.get(key)
    if hold is not None and hold.thread == threading.get_ident():
        hold.depth += 1
        try:
            yield
        finally:
            hold.depth -= 1
        return
    with contextlib.ExitStack() as stack:
        try:
            require_plain(folder)
            got = stack.enter_context(held(folder / NAME))
        except OSError as e:
            raise RunFolderError(
                f"{folder} cannot be written to ({e.strerror}); make it writable, or copy it to where you may write"
            ) from e
        if not got:
            raise FolderBusyError(
                f"{folder} is being written by {owner(folder / NAME) or 'another process'}; wait for its end, or stop "
                "it first"
            )
        _writing[key] = _Hold(threading.get_ident())
        try:
            yield
        finally:
            if _writing.pop(key).removed:
                stack.close()
                with contextlib.suppress(OSError):  # another process has begun to write there
                    folder.rmdir()


def remove(folder: Path) -> None:
    """Remove what is in a folder that this thread is `writing` to, and the folder when that ends.

    Its lock is the last file: it cannot be removed on Windows while it is held.
    """
    _writing[os.path.realpath(folder)].removed = True
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != NAME:
            path.unlink()


def require_free(folder: Path) -> None:
    """Raise `FolderBusyError` if a process is writing into a folder, which may be missing."""
    if folder.is_dir():
        with writing(folder):
            pass


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock file until the block ends; yield False if another process or thread has it.

    Raises:
        OSError: the file cannot be made.
    """
    number = _take(path)
    try:
        yield number is not None
    finally:
        if number in _open:  # a forked child leaves the release to its parent
            _open.discard(number)
            _release(path, number)


@contextmanager
def awaited(path: Path) -> Iterator[None]:
    """Hold a lock file, which stays, until the block ends; wait while another process or thread has it.

    Raises:
        OSError: the file cannot be made or locked.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | _HERE, PRIVATE_FILE)
    try:
        _wait(number)
        yield
    finally:
        os.close(number)


def owner(path: Path) -> Owner | None:
    """Return the process that has the lock file now; None if no process has it, or its name is not written yet."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        number = os.open(path, os.O_RDONLY | _HERE)
        try:
            if not _locked(number, shared=True):
                record = json.loads(path.read_text(encoding="utf-8"))
                return Owner(int(record["pid"]), str(record["host"]), str(record["since"]))
        finally:
            os.close(number)
    return None


def _take(path: Path) -> int | None:
    """Return the open lock file with this process's name in it; None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(_TRIES)):
        number = os.open(path, os.O_RDWR | os.O_CREAT | _HERE, 0o666)
        if not _locked(number):
            os.close(number)
            if left:
                time.sleep(_PAUSE)
            continue
        if not _names(path, number):  # its owner removed it in the meantime
            os.close(number)
            continue
        me = Owner(os.getpid(), socket.gethostname(), datetime.now().astimezone().isoformat(" ", "seconds"))
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
        os.write(number, json.dumps(asdict(me)).encode() + b"\n")
        _open.add(number)
        return number
    return None


def _locked(number: int, *, shared: bool = False) -> bool:
    """Lock an open file; return False if another process has it."""
    try:
        _lock(number, shared=shared)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _WITHOUT_LOCKS:
            raise
        log.warning("the file system has no locks (%s): two processes could write into one folder", e.strerror)
    return True


if sys.platform == "win32":

    def _lock(number: int, *, shared: bool) -> None:
        os.lseek(number, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # there are no shared ones
        except PermissionError as e:
            raise BlockingIOError(e.errno, e.strerror) from e

    def _wait(number: int) -> None:
        while not _locked(number):
            time.sleep(_PAUSE)

    def _release(path: Path, number: int) -> None:
        os.close(number)
        with contextlib.suppress(OSError):  # open files cannot be removed there, such as one that has its next owner
            path.unlink()

else:

    def _lock(number: int, *, shared: bool) -> None:
        fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def _wait(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX)

    def _release(path: Path, number: int) -> None:
        path.unlink(missing_ok=True)  # before the lock is released: the next owner makes a file of its own
        os.close(number)


def _names(path: Path, number: int) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        there, here = path.stat(), os.fstat(number)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _leave_to_parent() -> None:
    """Close the locks in a forked child: they would survive in it when the process that has them is killed."""
    for number in _open:
        os.close(number)
    _open.clear()
    _writing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
