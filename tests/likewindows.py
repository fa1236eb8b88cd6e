"""Run commands where Python lacks what it lacks on Windows: ``likewindows.py COMMAND [COMMAND ...]``.

Packages that look at the system while they are imported are imported before. What these commands cannot show is how
files behave: on Windows an open file cannot be removed or replaced.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import multiprocessing
import os
import shlex
import signal
import socket
import sys
import types
from typing import Any

import llvmlite.binding
import numpy as np
import rich.console
import sklearn.datasets
import torch
import tyro
import vl_convert

BEFORE = (llvmlite.binding, np, rich.console, sklearn.datasets, torch, tyro, vl_convert)
# fmt: off
OF_OS = [
    "chown", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg",
    "getpgid", "getpriority", "getuid", "killpg", "mkfifo", "nice", "posix_fadvise", "posix_fallocate", "pread",
    "preadv", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sync",
    "sysconf", "uname", "wait", "waitid",
]
OF_SIGNAL = [
    "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm", "pause",
    "pthread_sigmask", "setitimer", "sigwait",
]
# fmt: on
MODULES = ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog"]

_flock, _open = fcntl.flock, os.open


def locking(number: int, how: int, nbytes: int) -> None:
    """Stand in for ``msvcrt.locking``, by a lock of the whole file."""
    try:
        _flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise PermissionError(errno.EACCES, "Permission denied") from e


def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
    """Open a file; folders cannot be opened on Windows."""
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    return _open(path, flags, *rest, **more)


def take_away() -> None:
    """Take away what there is not on Windows."""
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.locking, msvcrt.LK_NBLCK = locking, 2
    sys.modules["msvcrt"] = msvcrt
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL), (socket, ["AF_UNIX"]), (mmap, ["MADV_DONTNEED"])):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in ("ForkContext", "ForkProcess"):
        delattr(multiprocessing.context, name)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[method-assign,assignment]
    os.open = opened
    sys.platform = "win32"


def main(commands: list[str]) -> None:
    """Run commands of fedkin one after another, and stop at the first that fails."""
    take_away()
    from fedkin.cli import main as fedkin

    for command in commands:
        if code := fedkin(shlex.split(command)):
            sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
