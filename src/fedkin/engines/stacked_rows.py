"""Tensors of a stack on the device: its models and terms by rows, and the batches that each step takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Orders = Sequence[tuple[bool, Tensor]]
"""One client's epochs as `fedkin.engines.loop.orders` gives them: ``(whole, samples in their order)``."""

_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Segment:
    """Steps that the same clients take together on batches of one size.

    Attributes:
        rows: the clients' rows, ascending; a slice if they are the first N.
        m, size, steps: number of clients, samples per batch and steps.
        first: where the segment's part ``[steps, m, size]`` of `Plan.index` starts.
        epochs: epochs that each of them has finished before, ``[m]``.
    """

    rows: slice | Tensor
    m: int
    size: int
    steps: int
    first: int
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class StackPlan:
    """All steps of a stack.

    Attributes:
        index: int64, the samples of all batches, one segment after another.
        row: int64 like ``index``, each sample's row of the stack.
    """

    segments: tuple[Segment, ...]
    index: Tensor
    row: Tensor


@dataclass(frozen=True)
class _Run:
    """Consecutive steps of one client on batches of one size."""

    size: int
    steps: int
    epoch: int


def steps_of(orders: Orders, batch: int) -> int:
    """Return the number of steps that a client takes."""
    return sum(-(-len(order) // batch) for _, order in orders)


def plan(clients: Sequence[Orders], batch: int, *, decays: bool) -> StackPlan:
    """Plan which clients step together.

    No batch is padded, and few steps are taken by few clients.

    The next steps are always those of the client with most steps left, joined by all whose next batch is as large. So
    a client before a short last batch waits for others before one of the same size, until it has as many steps left as
    the one that leads. Of those with equally many the one with the smallest batch leads: it frees itself for the rest.

    Args:
        clients: each row's epochs, rows with most steps first, so that those left over are the first rows.
        decays: whether the step size changes with the epoch, so that steps of two epochs must not be joined.
    """
    runs = [_runs(orders, batch, decays) for orders in clients]
    left = [sum(run.steps for run in mine) for mine in runs]
    now = [deque(mine) for mine in runs]
    each = [torch.cat([order for _, order in orders]) if orders else _NONE for orders in clients]
    starts = torch.tensor([0, *(len(mine) for mine in each)]).cumsum(0).tolist()  # of what is left of each one's
    samples = torch.cat([_NONE, *each])
    segments, index, row, first = list[Segment](), list[Tensor](), list[Tensor](), 0
    while (most := max(left, default=0)) > 0:
        active = [i for i, n in enumerate(left) if n]
        size = min(now[i][0].size for i in active if left[i] == most)
        rows = [i for i in active if now[i][0].size == size]
        waiting = max((left[i] for i in active if now[i][0].size != size), default=0)
        steps = min(now[i][0].steps for i in rows)
        steps = min(steps, max(1, most - waiting)) if waiting else steps
        who, m, n = torch.tensor(rows), len(rows), steps * size
        taken = samples[torch.tensor([starts[i] for i in rows])[:, None] + torch.arange(n)]
        index.append(taken.view(m, steps, size).transpose(0, 1).reshape(-1))
        row.append(who.repeat_interleave(size).repeat(steps))
        together = slice(0, m) if rows[-1] == m - 1 else who
        segments.append(Segment(together, m, size, steps, first, tuple(now[i][0].epoch for i in rows)))
        first += m * n
        for i in rows:
            run = now[i].popleft()
            if run.steps > steps:
                now[i].appendleft(_Run(run.size, run.steps - steps, run.epoch))
            left[i], starts[i] = left[i] - steps, starts[i] + n
    return StackPlan(tuple(segments), torch.cat([_NONE, *index]), torch.cat([_NONE, *row]))


def _runs(orders: Orders, batch: int, decays: bool) -> list[_Run]:
    runs: list[_Run] = []
    epoch = 0
    for whole, order in orders:
        full, rest = divmod(len(order), batch)
        for size, steps in ((batch, full), (rest, 1)):
            if runs and runs[-1].size == size and not decays:
                runs[-1] = _Run(size, runs[-1].steps + steps, runs[-1].epoch)
            elif size and steps:
                runs.append(_Run(size, steps, epoch))
        epoch += whole
    return runs


# ---- rows of a stack --------------------------------------------------------------------------------------------
@dataclass
class StackRows:
    """Tensors of a stack with a row for each request.

    Attributes:
        w: models ``[S, P]``.
        moments: what the optimizer keeps for the part that moves ``[S, k]``, see `Terms.moments`; or None.
        center, linear: ``[S, p]`` or None.
        mu: one number for all, or ``[S, 1]``.
        aux: what the loss needs, ``[S, ...]`` each.
    """

    w: Tensor
    moments: Tensor | None
    center: Tensor | None
    linear: Tensor | None
    mu: float | Tensor
    aux: dict[str, Tensor]

    def at(self, rows: slice | Tensor) -> StackRows:
        """Return some of the rows: in place for a slice, otherwise copies."""
        return self.each(lambda t: t[rows] if isinstance(rows, slice) else t.index_select(0, rows))

    def each(self, f: Callable[[Tensor], Tensor]) -> StackRows:
        """Return the same with ``f`` of every tensor."""
        moments, center, linear = (None if t is None else f(t) for t in (self.moments, self.center, self.linear))
        mu = f(self.mu) if isinstance(self.mu, Tensor) else self.mu
        return StackRows(f(self.w), moments, center, linear, mu, {name: f(t) for name, t in self.aux.items()})

    def models(self) -> StackRows:
        """Return the same with copies of what steps change: the models, and what the optimizer keeps."""
        return replace(self, w=self.w.clone(), moments=None if self.moments is None else self.moments.clone())

    def tensors(self) -> list[Tensor]:
        """Return all tensors that are there."""
        values = (self.w, self.moments, self.center, self.linear, self.mu, *self.aux.values())
        return [t for t in values if isinstance(t, Tensor)]

    def put(self, rows: slice | Tensor, trained: StackRows) -> None:
        """Store trained rows, if they are copies."""
        for mine, new in ((self.w, trained.w), (self.moments, trained.moments)):
            if mine is not None and new is not None and not isinstance(rows, slice):
                mine.index_copy_(0, rows, new)


@dataclass(frozen=True)
class DeviceSamples:
    """Samples on the device and further inputs of the loss: ``[n, ...]`` or, as a batch, ``[m, B, ...]``."""

    x: Tensor
    y: Tensor
    extra: dict[str, Tensor]

    def each(self, f: Callable[[Tensor], Tensor]) -> DeviceSamples:
        """Return the same with ``f`` of every tensor."""
        return DeviceSamples(f(self.x), f(self.y), {name: f(t) for name, t in self.extra.items()})

    def step(self, number: int) -> DeviceSamples:
        """Return one of several batches ``[steps, m, B, ...]``."""
        return self.each(lambda t: t[number])

    def tensors(self) -> list[Tensor]:
        """Return inputs, labels and the further inputs of the loss."""
        return [self.x, self.y, *self.extra.values()]


@dataclass(frozen=True)
class SegmentBatches:
    """Batches of consecutive steps of the same rows, gathered when a step takes them.

    Attributes:
        samples: those of all rows.
        index: int64 ``[steps, m, size]``, the samples of each step.
        extra: the same for the further inputs of the loss.
    """

    samples: DeviceSamples
    index: Tensor
    extra: Tensor

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.index)

    @property
    def rows(self) -> int:
        """Number of rows m."""
        return int(self.index.shape[1])

    @property
    def size(self) -> int:
        """Number of samples in each row's batch."""
        return int(self.index.shape[2])

    def at(self, step: int) -> DeviceSamples:
        """Return the batch of one step, ``[m, size, ...]``."""
        index, extra, s = self.index[step], self.extra[step], self.samples
        return DeviceSamples(_take(s.x, index), _take(s.y, index), {n: _take(t, extra) for n, t in s.extra.items()})

    def bytes_of(self, steps: int, rows: int) -> int:
        """Return the bytes that the batches of some steps take for a number of rows."""
        return steps * rows * self.size * sum(t[:1].nbytes for t in self.samples.tensors())

    def empty(self, steps: int, rows: int) -> DeviceSamples:
        """Return memory for the batches of some steps, ``[steps, rows, size, ...]``."""
        return self.samples.each(lambda t: t.new_empty(steps, rows, self.size, *t.shape[1:]))

    def into(self, first: int, there: DeviceSamples) -> None:
        """Write the batches of as many steps as fit, from ``first`` on, without a copy in between.

        Where there are more than m rows, the further ones have the batches of the first.
        """
        steps, rows = there.y.shape[:2]

        def wanted(index: Tensor) -> Tensor:
            these = index[first : first + steps]
            more = these[:, :1].expand(-1, rows - self.rows, -1)
            return (torch.cat([these, more], 1) if rows > self.rows else these).flatten()

        index = wanted(self.index)
        extra = wanted(self.extra) if self.samples.extra else index
        for source, target, which in (
            (self.samples.x, there.x, index),
            (self.samples.y, there.y, index),
            *((t, there.extra[n], extra) for n, t in self.samples.extra.items()),
        ):
            torch.index_select(source, 0, which, out=target.flatten(0, 2))


def _take(t: Tensor, index: Tensor) -> Tensor:
    return t.index_select(0, index.flatten()).view(*index.shape, *t.shape[1:])
