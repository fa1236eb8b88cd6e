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
from fedkin.engines.arena import Arena
from fedkin.engines.loop import trainer
from fedkin.engines.orders import TOKEN_BYTES, Order, OrderHeading, OrderToken, OrderWords
from fedkin.engines.shared import Slab, SlabEntry
from fedkin.engines.tasks import Answer, Job, Task
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
        arena: where answers of an expected form go.
        reading, writing: the two ends of the queue of tokens.
    """

    tasks: Slab
    common: Slab
    headings: Slab
    arena: Arena
    doing: Doing
    reading: int
    writing: int


def main(job: Job, post: SharedMemory, me: int, pipe: Connection, answers: Slab, others: Sequence[Connection]) -> None:
    """Run a worker: one task after another until the queue or the pipe ends, because the parent closed it or died.

    Args:
        others: ends of pipes that were copied by the fork and belong to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler was copied by the fork
    for other in others:
        other.close()
    os.close(post.writing)
    torch.set_num_threads(1)
    out, train = _Outbox(pipe, answers), trainer(job)
    orders = _Inbox(post, pipe, out)
    try:
        while (order := orders.next()) is not None:
            post.doing.begin(me, order.number)
            received, state = post.tasks.read(order.received, post.common), post.tasks.read(order.state)
            try:
                done = perform(job, Task(order.step, order.client, order.round, received, state), train)
            except ClientError as e:
                out.fail(order, (e.step, e.client, e.round, str(e).split(": ", 1)[1]))
            except FedkinError as e:
                out.fail(order, (type(e).__name__, str(e)))
            else:
                out.add(order, done, bool(order.place) and post.arena.fill(order.place, done.reply))
    except (EOFError, OSError):
        return


class _Inbox:
    """Orders from the queue, or from the pipe if they are too large."""

    def __init__(self, post: SharedMemory, pipe: Connection, out: _Outbox) -> None:
        self._post, self._pipe, self._out = post, pipe, out
        self._map, self._heading = 0, OrderHeading([], [])

    def next(self) -> Order | None:
        """Return the next order; None when the parent wants no more. Kept answers are sent before waiting."""
        post, pipe = self._post, self._pipe
        while True:
            try:
                token = os.read(post.reading, TOKEN_BYTES)
                return self._order(OrderToken.of(token)) if token else None
            except BlockingIOError:
                self._out.flush()
            waiting = select.poll()
            for place in (post.reading, pipe.fileno()):
                waiting.register(place, select.POLLIN)
            for place, _ in waiting.poll():
                if place == pipe.fileno() and (order := self._out.receive()) is not None:
                    return order

    def _order(self, token: OrderToken) -> Order:
        """Return an order with its parts read."""
        if token.map != self._map:
            words = self._post.headings.get(0, token.heading)
            self._map, self._heading = token.map, OrderHeading.of(words) if words else OrderHeading([], [])
        heading, received, state = self._heading, self._heading.received, list[SlabEntry]()
        if token.size:
            own, state = OrderWords.of(self._post.tasks.get(token.at, token.size))
            received = heading.received if own is None else own
        place = [] if token.row < 0 else [column.at(token.row) for column in heading.columns]
        return Order(token.number, token.step, token.client, token.round, received, state, place)


class _Outbox:
    """Answers, kept back for a moment so that the parent need not wake for each.

    They are written into one half of a slab while the parent may still be reading the other.
    """

    def __init__(self, pipe: Connection, slab: Slab) -> None:
        self._pipe, self._slab, self._half = pipe, slab, slab.size // 2
        self._kept, self._free = list[PendingReply](), 0
        self._sent, self._read, self._last = 0, 0, time.monotonic()

    def add(self, order: Order, answer: Answer, placed: bool) -> None:
        """Add an answer; what does not lie at its place already goes into the slab, or through the pipe."""
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
        self._keep(PendingReply(order.number, None, None if placed else reply, state, answer.training_s, answer.spent))

    def fail(self, order: Order, failure: Failure) -> None:
        self._keep(PendingReply(order.number, failure, [], [], 0.0, {}))
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
