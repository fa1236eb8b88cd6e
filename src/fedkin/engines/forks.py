"""Gradients in forked processes, which torch refuses where it sees a GPU and its parent took gradients before.

The first gradient of a process starts a thread for each GPU. A forked process has no such threads, and cannot start
them: every gradient there is an error, on the CPU as well. So nothing that comes before a fork may take a gradient.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator

import torch

_SECONDS = 60  # for which a forked process may take; torch's threads may hang in one
_STOPPING = {signal.SIGINT, signal.SIGTERM}  # that a command turns into exceptions


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Fork within this: SIGINT and SIGTERM wait, and the forked process starts with both blocked.

    Otherwise Ctrl-C at that moment runs a copy of this process's handler in the forked one, before that can set its own
    (``accept_signals``). The signals reach this process at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        with warnings.catch_warnings():  # Python warns on fork with threads; forked processes here use none
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_signals() -> None:
    """Let SIGINT and SIGTERM through in a forked process, which has set its handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


def sees_gpu() -> bool:
    """Return whether torch sees a GPU."""
    return torch.cuda.is_available()


def why_no_workers() -> str:
    """Return why worker processes cannot train here; "" if they can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system cannot fork processes"
    if multiprocessing.current_process().daemon:
        return "this process is a daemon, such as one of a multiprocessing.Pool, and cannot have processes of its own"
    if not children_can_train():
        return "this process took gradients where torch sees a GPU, so forked ones cannot"
    return ""


def children_can_train() -> bool:
    """Return whether processes that are forked now can take gradients; without a GPU they always can."""
    return not sees_gpu() or in_child(_gradient) is True


def before_forks(takes_gradients: Callable[[], bool]) -> bool:
    """Return what a function returns, without a gradient in this process where that would keep forked ones from any."""
    answer = in_child(takes_gradients) if sees_gpu() else None
    return takes_gradients() if answer is None else answer


def in_child(f: Callable[[], bool], seconds: int = _SECONDS) -> bool | None:
    """Return what ``f`` returns in a forked process; None if it fails, takes too long, or nothing can be forked."""
    if not hasattr(os, "fork"):
        return None
    with forking():
        child = os.fork()
        if child == 0:
            code = 2
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(seconds)
                torch.set_num_threads(1)
                code = int(f())
            finally:
                os._exit(code)  # whatever was raised: nothing of the parent may be carried on with here
    return {0: False, 1: True}.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _gradient() -> bool:
    w = torch.ones(1, requires_grad=True)
    return bool(torch.autograd.grad(w.square().sum(), w)[0] == 2)
