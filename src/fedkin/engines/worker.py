"""Worker processes: each takes one task after another from a queue that all share, and sends answers."""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from fedkin.core import Bundle, ClientError, FedkinError
from fedkin.engines.forks import accept_signals
from fedkin.engines.joint_scores import answers_of, compiled_scores
from fedkin.engines.loop import trainer
from fedkin.engines.orders import TOKEN_BYTES, Order, OrderHeading, OrderToken, OrderWords
from fedkin.engines.shared import AnswerColumn, Arena, Slab, SlabEntry
from fedkin.engines.tasks import Answer, Job, Step, Task
from fedkin.engines.turns import perform

_PATIENCE = 0.01  # seconds for which answers are kept back, to be sent together

Failure = tuple[str, int, int, str] | tuple[str, str]  # step, client, round, cause of a `ClientError`; or class, text


class PendingReply(NamedTuple):
    """Answer on its way; ``reply`` is None where it lies at the order's place."""

    number: int
    failure: Failure | None
    reply: list[SlabEntry] | None
    state: list[SlabEntry]
    seconds: float
    spent: dict[float, int]


class Doing:
    """Number of the order that each worker is at, to know what a worker was doing when it died."""

    def __init__(self, workers: int) -> None:
        self._map = mmap.mmap(-1, 8 * workers)

    def begin(self, worker: int, number: int) -> None:
        """Note that a worker begins an order."""
        struct.pack_into("=q", self._map, 8 * worker, number)

    def now(self, worker: int) -> int:
        """Return the number of the order that a worker is at."""
        return int(struct.unpack_from("=q", self._map, 8 * worker)[0])


@dataclass(frozen=True)
class SharedMemory:
    """Resources that the processes of a session share.

    Attributes:
        tasks: orders and what of their tensors belongs to one task alone.
        common: tensors that several tasks of a map have in common.
        headings: what the orders of a map have in common.
        uploads, evaluations: where answers of an expected form go. The last evaluation may be kept for many rounds, in
            which uploads need both regions of their arena.
        reading, writing: the two ends of the queue of tokens.
    """

    tasks: Slab
    common: Slab
    headings: Slab
    uploads: Arena
    evaluations: Arena
    doing: Doing
    reading: int
    writing: int

    def arena(self, step: Step) -> Arena:
        """Return where answers to a step go."""
        return self.evaluations if step == "evaluate" else self.uploads


def main(job: Job, post: SharedMemory, me: int, pipe: Connection, answers: Slab, others: Sequence[Connection]) -> None:
    """Run a worker: one task after another until the queue or the pipe ends, because the parent closed it or died.

    Args:
        others: ends of pipes that were copied by the fork and belong to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler was copied by the fork
    accept_signals()
    for other in others:
        other.close()
    os.close(post.writing)
    torch.set_num_threads(1)
    out, train = _Outbox(pipe, answers), trainer(job)
    orders = _Inbox(post, pipe, out)
    try:
        while (opened := orders.next()) is not None:
            if len(opened) > 1 and _evaluated_together(job, post, me, opened, orders.columns, out):
                continue
            for number, task, row, place in opened:
                post.doing.begin(me, number)
                try:
                    done = perform(job, task, train)
                except ClientError as e:
                    out.fail(number, (e.step, e.client, e.round, str(e).split(": ", 1)[1]))
                except FedkinError as e:
                    out.fail(number, (type(e).__name__, str(e)))
                else:
                    place = place if row < 0 else [column.at(row) for column in orders.columns]
                    out.add(number, done, bool(place) and post.arena(task.step).fill(place, done.reply))
    except (EOFError, OSError):
        return


class _Opened(NamedTuple):
    """Order that was read: its task and where its answer goes, a row among those of the map (-1: none) or a place."""

    number: int
    task: Task
    row: int
    place: list[SlabEntry]


def _evaluated_together(
    job: Job, post: SharedMemory, me: int, opened: list[_Opened], columns: list[AnswerColumn], out: _Outbox
) -> bool:
    """Answer orders of clients that predict with one model; return False if each is to be evaluated alone."""
    post.doing.begin(me, opened[0].number)
    tasks, rows = [order.task for order in opened], [order.row for order in opened]
    scores = compiled_scores(job, tasks)
    if scores is None:
        return False
    placed = min(rows) >= 0 and post.evaluations.fill_rows(columns, rows, scores)
    for order, answer in zip(opened, answers_of(tasks, scores), strict=True):
        out.add(order.number, answer, placed)
    return True


class _Inbox:
    """Orders from the queue, or from the pipe if they are too large."""

    def __init__(self, post: SharedMemory, pipe: Connection, out: _Outbox) -> None:
        self._post, self._pipe, self._out = post, pipe, out
        self._map, self._received, self.columns = 0, Bundle(), list[AnswerColumn]()  # of the last heading

    def next(self) -> list[_Opened] | None:
        """Return the next order, or several of clients that are evaluated together; None when the parent wants no more.

        Kept answers are sent before waiting.
        """
        while True:
            try:
                token = os.read(self._post.reading, TOKEN_BYTES)
                return self._opened(OrderToken.of(token)) if token else None
            except BlockingIOError:
                self._out.flush()
            waiting = select.poll()
            for place in (self._post.reading, self._pipe.fileno()):
                waiting.register(place, select.POLLIN)
            for place, _ in waiting.poll():
                if place == self._pipe.fileno() and (order := self._out.receive()) is not None:
                    received, state = self._read(order.received), self._read(order.state)
                    task = Task(order.step, order.client, order.round, received, state)
                    return [_Opened(order.number, task, -1, order.place)]

    def _opened(self, token: OrderToken) -> list[_Opened]:
        """Return orders with their parts read; the heading is read once for all orders of a map."""
        if token.map != self._map:
            self._map, self._received, self.columns = token.map, Bundle(), []
            if token.heading:
                heading = OrderHeading.of(self._post.headings.get(0, token.heading))
                self._received, self.columns = self._read(heading.received), heading.columns
        received, state, joint = self._received, Bundle(), list[tuple[int, int]]()
        if token.size:
            words = OrderWords.of(self._post.tasks.get(token.at, token.size))
            received = received if words.received is None else self._read(words.received)
            state, joint = self._read(words.state), words.joint
        return [
            _Opened(token.number + i, Task(token.step, client, token.round, Bundle(received), state), row, [])
            for i, (client, row) in enumerate(joint or [(token.client, token.row)])
        ]

    def _read(self, entries: list[SlabEntry]) -> Bundle:
        return self._post.tasks.read(entries, self._post.common)


class _Outbox:
    """Answers, kept back for a moment so that the parent need not wake for each.

    They are written into one half of a slab while the parent may still be reading the other.
    """

    def __init__(self, pipe: Connection, slab: Slab) -> None:
        self._pipe, self._slab, self._half = pipe, slab, slab.size // 2
        self._kept, self._free = list[PendingReply](), 0
        self._sent, self._read, self._last = 0, 0, time.monotonic()

    def add(self, number: int, answer: Answer, placed: bool) -> None:
        """Add the answer to an order; what does not lie at its place goes into the slab, or through the pipe."""
        own = Bundle() if placed else answer.reply
        need = sum(64 + t.numel() * t.element_size() for b in (own, answer.state) for t in b.values())
        if self._kept and self._free + need > self._half:
            self.flush()
        while self._read < self._sent - 1:  # the half is still being read
            self.receive()
        start = self._half * (self._sent % 2)
        stop = start + self._half
        reply, free = self._slab.write(own, start + self._free, stop)
        state, free = self._slab.write(answer.state, free, stop)
        self._free = free - start
        self._keep(PendingReply(number, None, None if placed else reply, state, answer.training_s, answer.spent))

    def fail(self, number: int, failure: Failure) -> None:
        self._keep(PendingReply(number, failure, [], [], 0.0, {}))
        self.flush()

    def _keep(self, reply: PendingReply) -> None:
        self._kept.append(reply)
        if time.monotonic() - self._last > _PATIENCE:
            self.flush()

    def flush(self) -> None:
        if self._kept:
            self._pipe.send([tuple(reply) for reply in self._kept])
            self._kept, self._free = [], 0
            self._sent += 1
        self._last = time.monotonic()

    def receive(self) -> Order | None:
        """Read what the parent sends: that it has read one more batch of answers, or an order that is too large.

        Raises:
            EOFError: it is gone.
        """
        said: Order | None = self._pipe.recv()
        if said is None:
            self._read += 1
        return said
