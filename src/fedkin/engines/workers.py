"""Client programs spread over processes, one thread each: the engine for CPUs.

Processes are forked once per run, so they hold the data and the method without a copy or a pickle. What goes to and
from them travels through shared memory: orders lie in a slab, and workers take them from one queue whenever they are
idle, so that the parent need not wake for each; answers are written to where the server reads them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import selectors
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from fedkin.core import Bundle, ClientError, ConfigError, EngineError, FedkinError, errors
from fedkin.core.machine import cores
from fedkin.engines.forks import forking, why_no_workers
from fedkin.engines.joint_scores import common_model
from fedkin.engines.orders import TOKEN_BYTES, Order, OrderHeading, OrderToken, OrderWords
from fedkin.engines.shared import ALIGN, AnswerRows, Arena, Layout, Ring, Slab, SlabEntry, layout_of, slab_bytes
from fedkin.engines.tasks import Answer, Job, Step, Task
from fedkin.engines.worker import Doing, Failure, PendingReply, SharedMemory, main

if TYPE_CHECKING:  # Windows has neither
    from multiprocessing.context import ForkContext, ForkProcess

_AHEAD = 32 << 20  # bytes of tensors on their way that are one task's alone, at least two tasks for each worker
_QUEUE = 16 << 10  # maximum bytes of orders on their way, so that writing to the queue never blocks
_TOGETHER = getattr(select, "PIPE_BUF", 512) // TOKEN_BYTES  # orders written at once, which no system does in parts
_JOINT = 16  # maximum number of clients that are evaluated together
_HEADING = 64 << 10  # bytes of what the orders of a map have in common
_HEAD, _PER_TENSOR = 512, 512  # maximum bytes of an order's words; with more it is sent by pipe


@dataclass(frozen=True)
class Workers:
    """Processes that train clients side by side; each computes with one thread.

    Results do not depend on their number.

    Raises:
        ConfigError: fewer than one process was asked for.
        EngineError: this system cannot fork processes (Windows): use the loop engine; or torch sees a GPU and has taken
            gradients in this process, after which it refuses them in forked ones.
    """

    number: int = 0
    """Number of processes; 0 means one per core."""

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ConfigError(f"workers must be 0 (one per core) or more, got {self.number}")

    def start(self, job: Job) -> WorkersSession:
        """Fork the processes and return a session on a job."""
        if why := why_no_workers():
            hint = ", or start the run in a new process or with CUDA_VISIBLE_DEVICES=''" if "GPU" in why else ""
            raise EngineError(f"worker processes cannot be used: {why}; use --engine loop here{hint}")
        return WorkersSession(job, self.number or cores())


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    answers: Slab


@dataclass
class _Map:
    """Call of `WorkersSession.map` under way.

    Attributes:
        todo: tasks that are left to send.
        common: where tensors lie that several tasks have in common, by ``id``.
        rows, at: places for the answers, if their form is known, and each client's among them.
        received: name and ``id`` of each tensor that all clients are sent whose orders do not say otherwise.
        heading: bytes of what the orders have in common; 0: it is too long, and each order has it all.
        joint: several clients are evaluated in one order: they predict with the model that all are sent.
        elsewhere: forms of the answers that lie in no place.
    """

    todo: deque[Task]
    common: dict[int, SlabEntry]
    rows: AnswerRows | None
    at: dict[int, int]
    received: list[tuple[str, int]]
    heading: int = 0
    joint: bool = False
    elsewhere: list[Layout] = field(default_factory=list)


class WorkersSession:
    """Worker processes at work on one job."""

    def __init__(self, job: Job, number: int) -> None:
        self._job, self._workers = job, list[_Worker]()
        self._open, self._number, self._over = dict[int, Task](), 0, False  # orders on their way, by number
        self._maps = 0  # calls of `map`
        self._closed = False
        self._answered: selectors.BaseSelector | None = None
        number = max(1, min(number, len(job.shards)))
        size = slab_bytes(number + 6)  # and two for tasks, two regions of each arena
        self._ring = Ring(size)
        memory = Slab(size), Slab(size), Slab(_HEADING), Arena(size), Arena(size)
        self._post = SharedMemory(*memory, Doing(number), *os.pipe())
        os.set_blocking(self._post.reading, False)
        context = multiprocessing.get_context("fork")
        try:
            for me in range(number):
                self._workers.append(self._started(me, Slab(size), context))
        except BaseException:
            os.close(self._post.reading)
            self.close()
            raise
        os.close(self._post.reading)
        self._answered = selectors.DefaultSelector()  # made once, and after the forks, so that no child has it
        for me, w in enumerate(self._workers):
            self._answered.register(w.pipe, selectors.EVENT_READ, me)

    def _started(self, me: int, answers: Slab, context: ForkContext) -> _Worker:
        here, there = context.Pipe()
        others = [w.pipe for w in self._workers] + [here]
        process = context.Process(target=main, args=(self._job, self._post, me, there, answers, others), daemon=True)
        with forking():
            process.start()
        there.close()
        return _Worker(process, here, answers)

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Yield answers as they come; the largest clients are started first, so that no core waits at the end.

        An upload lies in shared memory, side by side with the others of its map, for as long as it is used.
        """
        if self._over or self._open:
            raise EngineError("these workers were closed or stopped in the middle of their tasks; start new ones")
        assert self._answered is not None
        step = tasks[0].step if tasks else "describe"
        now = self._begun(step, tasks)
        self._feed(now)
        while self._open:
            for key, _ in self._answered.select():
                answers = self._receive(key.data, now)
                self._feed(now)
                yield from answers
        if now.elsewhere and step in ("update", "survey", "consult", "evaluate"):
            self._post.arena(step).learn(step, now.elsewhere)

    def close(self) -> None:
        """End the processes and close pipes and queue; may be called twice."""
        if not self._closed:
            self._over = self._closed = True
            os.close(self._post.writing)  # workers that have nothing to do end
        for w in self._workers:
            w.process.join(timeout=0.2 if self._open else 2)
            if w.process.is_alive():
                w.process.terminate()
                w.process.join()
            w.pipe.close()
        self._workers.clear()
        if self._answered is not None:
            self._answered.close()

    def _begun(self, step: Step, tasks: Sequence[Task]) -> _Map:
        """Write what the tasks have in common to shared memory."""
        common = self._post.common.share(task.received for task in tasks)
        first = tasks[0].received if tasks else Bundle()
        received = [(name, id(t)) for name, t in first.items()] if all(id(t) in common for t in first.values()) else []
        now = _Map(
            todo=deque(sorted(tasks, key=lambda t: -len(self._job.shards[t.client].train))),
            common=common,
            rows=self._post.arena(step).rows(step, len(tasks)),
            at={client: i for i, client in enumerate(sorted(task.client for task in tasks))},
            received=received,
        )
        self._maps += 1
        entries = [common[key]._replace(name=name) for name, key in received]
        words = OrderHeading(entries, [] if now.rows is None else now.rows.columns).words()
        if len(words) <= _HEADING:
            self._post.headings.put(0, words)
            now.heading, now.joint = len(words), bool(received) and len(tasks) > 1 and self._joint(tasks)
        else:
            now.rows, now.received = None, []
        return now

    def _joint(self, tasks: Sequence[Task]) -> bool:
        """Return whether the clients predict with one model, so that several can be evaluated together."""
        with contextlib.suppress(Exception):  # client code fails in a worker, which names the client
            return common_model(self._job, tasks) is not None
        return False

    def _feed(self, now: _Map) -> None:
        """Send orders while there is room for them."""
        tokens = list[bytes]()
        while now.todo and (len(self._open) + 1) * TOKEN_BYTES <= _QUEUE:
            if now.joint and (count := min(_JOINT, len(now.todo) // (2 * len(self._workers)))) > 1:
                token = self._joint_token([now.todo[i] for i in range(count)], now)
                if token is None:
                    break
                for _ in range(count):
                    now.todo.popleft()
                tokens.append(token.packed())
                if len(tokens) == _TOGETHER:
                    self._queue(tokens)
                    tokens.clear()
                continue
            task = now.todo[0]
            own = [t for t in task.received.values() if id(t) not in now.common] + list(task.state.values())
            size = sum(ALIGN + t.numel() * t.element_size() for t in own)
            if own and len(self._open) >= max(2 * len(self._workers), _AHEAD // size):
                break  # enough for each worker to go on with; more would only take memory
            token = self._token(task, size, now)
            if token is None:
                break
            now.todo.popleft()
            tokens.append(token.packed())
            if own or len(tokens) == _TOGETHER:  # no worker waits while tensors of the next are copied
                self._queue(tokens)
                tokens.clear()
        self._queue(tokens)
        if now.todo and not self._open:
            self._by_pipe(now)

    def _queue(self, tokens: list[bytes]) -> None:
        """Put orders into the queue, for whichever worker is free next."""
        if tokens:
            try:
                os.write(self._post.writing, b"".join(tokens))
            except OSError:  # the reader has ended
                raise self._died(0) from None

    def _token(self, task: Task, size: int, now: _Map) -> OrderToken | None:
        """Return the entry for a task whose parts are in shared memory; None until there is room.

        Args:
            size: bytes of the tensors that are this task's alone.
        """
        same = [(name, id(t)) for name, t in task.received.items()] == now.received
        self._number += 1
        at = words = 0
        if task.state or not same:
            head = _HEAD + _PER_TENSOR * (len(task.received) + len(task.state))
            start = self._ring.take(self._number, size + head)
            if start is None:
                return None
            received, free = (None, start) if same else self._written(task.received, start, start + size, now)
            state, at = self._written(task.state, free, start + size, now)
            text = OrderWords(received, state).words()
            words = len(text)
            if at + words > start + size + head:  # extremely long names
                self._ring.give(self._number)
                return None
            self._post.tasks.put(at, text)
        self._open[self._number] = task
        row = -1 if now.rows is None else now.at[task.client]
        return OrderToken(self._maps, now.heading, task.step, task.round, self._number, task.client, row, at, words)

    def _joint_token(self, tasks: Sequence[Task], now: _Map) -> OrderToken | None:
        """Return the entry for clients that are evaluated together, which need no state; None until there is room."""
        number = self._number + 1
        rows = [-1 if now.rows is None else now.at[task.client] for task in tasks]
        text = OrderWords(None, [], list(zip((task.client for task in tasks), rows, strict=True))).words()
        at = self._ring.take(number, len(text))
        if at is None:
            return None
        self._post.tasks.put(at, text)
        for task in tasks:
            self._number += 1
            self._open[self._number] = task
        first = tasks[0]
        return OrderToken(self._maps, now.heading, first.step, first.round, number, first.client, -1, at, len(text))

    def _written(self, bundle: Bundle, start: int, stop: int, now: _Map) -> tuple[list[SlabEntry], int]:
        return self._post.tasks.write(bundle, start, stop, now.common)

    def _by_pipe(self, now: _Map) -> None:
        """Send one order to each worker, while none is at work, for tasks too large for the shared memory."""
        for me, w in enumerate(self._workers):
            if now.todo:
                task = now.todo.popleft()
                self._number += 1
                self._open[self._number] = task
                received, state = (self._written(b, 0, 0, now)[0] for b in (task.received, task.state))
                place = [] if now.rows is None else now.rows.place(now.at[task.client])
                order = Order(self._number, task.step, task.client, task.round, received, state, place)
                try:
                    w.pipe.send(order)
                except OSError:
                    raise self._died(me) from None

    def _receive(self, me: int, now: _Map) -> list[Answer]:
        """Return a batch of answers of one worker."""
        w = self._workers[me]
        try:
            batch = [PendingReply(*reply) for reply in w.pipe.recv()]
        except (EOFError, OSError):
            raise self._died(me) from None
        answers = [self._answer(reply, w, now) for reply in batch]
        with contextlib.suppress(OSError):  # a dead worker is met at the next reading
            w.pipe.send(None)
        return answers

    def _answer(self, reply: PendingReply, w: _Worker, now: _Map) -> Answer:
        task = self._open.pop(reply.number)
        self._ring.give(reply.number)
        if reply.failure is not None:
            self._over = True
            raise _error(reply.failure, task)
        if reply.reply is None and now.rows is not None:
            sent = now.rows.read(now.at[task.client])
        else:
            sent = w.answers.read(reply.reply or []).owned()
            now.elsewhere.append(layout_of(sent))
        state = w.answers.read(reply.state).owned() if reply.state else Bundle()
        return Answer(task.client, sent, state, reply.seconds, reply.spent)

    def _died(self, me: int) -> EngineError:
        self._over = True
        process = self._workers[me].process
        process.join(timeout=1)
        code, task = process.exitcode, self._open.get(self._post.doing.now(me))
        doing = "" if task is None else f" during {task.step} of client {task.client} in round {task.round}"
        return EngineError(
            f"a worker process ended with code {code}{doing}; code -9 usually means that memory ran out: "
            "use fewer workers or a smaller batch"
        )


def _error(failure: Failure, task: Task) -> FedkinError:
    """Return the error that a worker sent as text, since not every error survives a pickle."""
    if len(failure) == 4:
        return ClientError(*failure)
    name, text = failure
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FedkinError):
        return kind(text)
    return ClientError(task.step, task.client, task.round, f"{name}: {text}")
