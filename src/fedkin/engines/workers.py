"""Client programs spread over processes, one thread each: the engine for CPUs.

Processes are forked once per run, so they hold the data and the method without a copy or a pickle. What goes to and
from them travels through shared memory; a pipe carries only the addresses.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import selectors
import signal
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import torch

from fedkin.core import ClientError, ConfigError, EngineError, FedkinError, errors
from fedkin.core.machine import cores
from fedkin.engines.loop import trainer
from fedkin.engines.shared import Entry, Slab, slab_bytes
from fedkin.engines.tasks import Answer, Job, Step, Task, perform

_Failure = tuple[str, int, int, str] | tuple[str, str]  # step, client, round, cause of a `ClientError`; or class, text


@dataclass(frozen=True)
class Workers:
    """Processes that train clients side by side; each computes with one thread.

    Results do not depend on their number.

    Raises:
        ConfigError: fewer than one process was asked for.
        EngineError: this system cannot fork processes (Windows): use the loop engine.
    """

    number: int = 0
    """How many processes; 0 means as many as there are cores."""

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ConfigError(f"workers must be 0 (one per core) or more, got {self.number}")

    def start(self, job: Job) -> WorkersSession:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise EngineError("the workers engine needs a system that can fork processes; use --engine loop here")
        return WorkersSession(job, self.number or cores())


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    tasks: Slab
    answers: Slab
    sent: int = 0  # tasks sent; each takes one half of the slab in turn
    open: deque[Task] | None = None


class WorkersSession:
    def __init__(self, job: Job, number: int) -> None:
        self._job, self._workers, self._shared = job, list[_Worker](), dict[int, Entry]()
        self._answered: selectors.BaseSelector | None = None
        number = max(1, min(number, len(job.shards)))
        size = slab_bytes(number)
        context = multiprocessing.get_context("fork")
        self._common = Slab(size)  # what all tasks of a map have in common: a global model is written once
        try:
            for _ in range(number):
                here, there = context.Pipe()
                pipes = [w.pipe for w in self._workers] + [here]
                tasks, answers = Slab(size), Slab(size)
                process = context.Process(
                    target=_main, args=(job, there, pipes, tasks, answers, self._common), daemon=True
                )
                with warnings.catch_warnings():  # Python warns on fork with threads; children use none
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                there.close()
                self._workers.append(_Worker(process, here, tasks, answers, open=deque()))
        except BaseException:
            self.close()
            raise
        self._answered = selectors.DefaultSelector()  # made once, and after the forks, so that no child has it
        for w in self._workers:
            self._answered.register(w.pipe, selectors.EVENT_READ, w)

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Answers as they come; the largest clients are started first, so that no core waits for one at the end."""
        if not self._workers or any(w.open for w in self._workers):
            raise EngineError("these workers were closed or stopped in the middle of their tasks; start new ones")
        assert self._answered is not None
        todo = deque(sorted(tasks, key=lambda t: -len(self._job.shards[t.client].train)))
        self._shared = self._common.share(task.received for task in tasks)
        # one task per worker, then a second one each to work on while the first answer is read
        for _ in range(2):
            for w in self._workers:
                if todo and self._takes(w, todo[0]):
                    self._send(w, todo.popleft())
        while any(w.open for w in self._workers):
            for key, _ in self._answered.select():
                worker: _Worker = key.data
                answer = self._receive(worker)
                while todo and self._takes(worker, todo[0]):
                    self._send(worker, todo.popleft())
                yield answer

    def close(self) -> None:
        for w in self._workers:
            with contextlib.suppress(OSError):
                w.pipe.send(None)
        for w in self._workers:
            w.process.join(timeout=0.2 if w.open else 2)
            if w.process.is_alive():
                w.process.terminate()
                w.process.join()
            w.pipe.close()
        self._workers.clear()
        if self._answered is not None:
            self._answered.close()

    def _takes(self, w: _Worker, task: Task) -> bool:
        """Whether a worker may be sent this now: it has two tasks at most, the second if it cannot block the pipe."""
        own = [t for t in task.received.values() if id(t) not in self._shared] + list(task.state.values())
        room = w.tasks.size // 2 - 64 * len(own)
        return not w.open or (len(w.open) == 1 and sum(t.numel() * t.element_size() for t in own) < room)

    def _send(self, w: _Worker, task: Task) -> None:
        half = w.tasks.size // 2
        start = half * (w.sent % 2)
        received, free = w.tasks.write(task.received, start, start + half, self._shared)
        state, _ = w.tasks.write(task.state, free, start + half)
        w.sent += 1
        assert w.open is not None
        w.open.append(task)
        try:
            w.pipe.send((task.step, task.client, task.round, received, state))
        except OSError:
            raise self._died(w) from None

    def _receive(self, w: _Worker) -> Answer:
        assert w.open is not None
        try:
            failure, client, reply, state, seconds, spent = w.pipe.recv()
        except (EOFError, OSError):
            raise self._died(w) from None
        task = w.open.popleft()
        if failure is not None:
            raise _error(failure, task)
        return Answer(client, w.answers.read(reply).owned(), w.answers.read(state).owned(), seconds, spent)

    def _died(self, w: _Worker) -> EngineError:
        w.process.join(timeout=1)
        code, task = w.process.exitcode, w.open[0] if w.open else None
        doing = "" if task is None else f" during {task.step} of client {task.client} in round {task.round}"
        return EngineError(
            f"a worker process ended with code {code}{doing}; code -9 usually means that memory ran out: "
            "use fewer workers or a smaller batch"
        )


def _main(job: Job, pipe: Connection, others: list[Connection], tasks: Slab, answers: Slab, common: Slab) -> None:
    """A worker's life: one task after another until the pipe says stop or its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler came along with the fork
    for other in others:  # else a dead parent's pipes would stay open in its other children
        other.close()
    torch.set_num_threads(1)
    half, done = answers.size // 2, 0
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if message is None:
            return
        start = half * (done % 2)
        done += 1
        with contextlib.suppress(BrokenPipeError):
            pipe.send(_work(job, message, tasks, common, answers, start, start + half))


def _error(failure: _Failure, task: Task) -> FedkinError:
    """The error that a worker sent as words, since not every error survives a pickle."""
    if len(failure) == 4:
        return ClientError(*failure)
    name, text = failure
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FedkinError):
        return kind(text)
    return ClientError(task.step, task.client, task.round, f"{name}: {text}")


_Reply = tuple[_Failure | None, int, list[Entry], list[Entry], float, dict[float, int]]


def _work(
    job: Job,
    message: tuple[Step, int, int, list[Entry], list[Entry]],
    tasks: Slab,
    common: Slab,
    answers: Slab,
    start: int,
    stop: int,
) -> _Reply:
    step, client, round, received, state = message
    try:
        answer = perform(job, Task(step, client, round, tasks.read(received, common), tasks.read(state)), trainer(job))
    except ClientError as e:
        return (e.step, e.client, e.round, str(e).split(": ", 1)[1]), client, [], [], 0.0, {}
    except FedkinError as e:
        return (type(e).__name__, str(e)), client, [], [], 0.0, {}
    reply, free = answers.write(answer.reply, start, stop)
    kept, _ = answers.write(answer.state, free, stop)
    return None, client, reply, kept, answer.training_s, answer.spent
