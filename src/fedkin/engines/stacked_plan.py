"""The order in which a stack's clients are trained: which clients step together, and on which samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
