"""Orders for worker processes: what those of one map have in common is written once, each is a short entry of a queue.

A heading lies in shared memory; an entry of the queue has numbers of a fixed size. Only what one task does not share
with others, such as a client's state, is described by words of its own.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple, get_args

from fedkin.engines.shared import AnswerColumn, SlabEntry
from fedkin.engines.tasks import Step

_STEPS: tuple[Step, ...] = get_args(Step)
_PACKED = struct.Struct("=qibiqiiqi")
TOKEN_BYTES = _PACKED.size
"""Size of an entry of the queue."""


class Order(NamedTuple):
    """Task on its way: where what the client was sent and keeps lies, and where its answer is to go."""

    number: int
    step: Step
    client: int
    round: int
    received: list[SlabEntry]
    state: list[SlabEntry]
    place: list[SlabEntry]


class OrderToken(NamedTuple):
    """Entry of the queue: an order whose parts lie in shared memory.

    Attributes:
        map: number of the map whose heading belongs to the order.
        heading: bytes of the heading, 0 for none.
        row: place of the answer among those of the map, -1 for none.
        at, size: where the order's own words lie; none if it has no bytes.
    """

    map: int
    heading: int
    step: Step
    round: int
    number: int
    client: int
    row: int
    at: int
    size: int

    def packed(self) -> bytes:
        """Return the entry as `TOKEN_BYTES` bytes."""
        map, heading, step, *rest = self
        return _PACKED.pack(map, heading, _STEPS.index(step), *rest)

    @classmethod
    def of(cls, raw: bytes) -> OrderToken:
        """Return the entry that `packed` wrote."""
        map, heading, step, *rest = _PACKED.unpack(raw)
        return cls(map, heading, _STEPS[step], *rest)


class OrderHeading(NamedTuple):
    """Common part of the orders of one map.

    Attributes:
        received: what is sent to all clients whose words do not say otherwise.
        columns: where answers go, each to its row.
    """

    received: list[SlabEntry]
    columns: list[AnswerColumn]

    def words(self) -> bytes:
        """Return the heading as JSON."""
        return _words(self)

    @classmethod
    def of(cls, words: bytes) -> OrderHeading:
        """Return the heading that `words` wrote."""
        received, columns = json.loads(words)
        answer_columns = [AnswerColumn(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in columns]
        return cls(_entries(received), answer_columns)


class OrderWords(NamedTuple):
    """Part of one order alone.

    Attributes:
        received: None where it is the heading's.
        joint: clients that are evaluated together, and the place of each answer, -1 for none; they have the order's
            number and those after it.
    """

    received: list[SlabEntry] | None
    state: list[SlabEntry]
    joint: list[tuple[int, int]] = []  # noqa: RUF012 - never changed

    def words(self) -> bytes:
        """Return them as JSON."""
        return _words(self)

    @classmethod
    def of(cls, words: bytes) -> OrderWords:
        """Return what `words` wrote."""
        received, state, joint = json.loads(words)
        return cls(None if received is None else _entries(received), _entries(state), joint)


def _words(parts: tuple[Any, ...]) -> bytes:
    return json.dumps(parts, default=bytes.hex).encode()  # bytes only of empty tensors: all others are in a slab


def _entries(listed: list[list[Any]]) -> list[SlabEntry]:
    return [
        SlabEntry(name, dtype, tuple(shape), offset, None if raw is None else bytes.fromhex(raw), common)
        for name, dtype, shape, offset, raw, common in listed
    ]
