"""The order in which a stack's clients are trained: who takes a step together with whom, and on which samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Orders = Sequence[tuple[bool, Tensor]]
"""One client's epochs as `fedkin.engines.loop.orders` gives them: ``(whole, samples in their order)``."""


@dataclass(frozen=True)
class Segment:
    """Steps that the same clients take together on batches of one size.

    Attributes:
        rows: who, ascending; a slice where it is the first so many.
        m, size, steps: how many clients, samples per batch, steps.
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
class Plan:
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
    """Steps that a client takes."""
    return sum(-(-len(order) // batch) for _, order in orders)


def plan(clients: Sequence[Orders], batch: int, *, decays: bool) -> Plan:
    """Who steps with whom; no batch is padded, nobody waits who could be last.

    The next steps are always those of the client with most steps left, joined by all whose next batch is as large. So
    a client before a short last batch waits, and those that wait for one of the same size take it together, as long as
    it does not become the one that all others would have to wait for.

    Args:
        clients: each row's epochs, rows with most steps first, so that those left over are the first rows.
        decays: whether the step size changes with the epoch, so that steps of two epochs must not be joined.
    """
    runs = [_runs(orders, batch, decays) for orders in clients]
    left = [sum(run.steps for run in mine) for mine in runs]
    at, used, done = [0] * len(runs), [0] * len(runs), [0] * len(runs)  # the run, its steps used, samples used
    longest = max((sum(len(order) for _, order in orders) for orders in clients), default=0)
    samples = torch.zeros(len(clients), longest, dtype=torch.int64)
    for i, orders in enumerate(clients):
        mine = torch.cat([order for _, order in orders]) if orders else torch.empty(0, dtype=torch.int64)
        samples[i, : len(mine)] = mine
    segments, index, row, first = list[Segment](), list[Tensor](), list[Tensor](), 0
    while any(left):
        lead = left.index(max(left))
        size = runs[lead][at[lead]].size
        rows = [i for i in range(len(runs)) if left[i] and runs[i][at[i]].size == size]
        steps = min(runs[i][at[i]].steps - used[i] for i in rows)
        who, m = torch.tensor(rows), len(rows)
        columns = torch.tensor([done[i] for i in rows])[:, None] + torch.arange(steps * size)
        taken = samples[who].gather(1, columns).view(m, steps, size).transpose(0, 1)
        index.append(taken.reshape(-1))
        row.append(who[None, :, None].expand(steps, m, size).reshape(-1))
        together = slice(0, m) if rows[-1] == m - 1 else who
        segments.append(Segment(together, m, size, steps, first, tuple(runs[i][at[i]].epoch for i in rows)))
        first += steps * m * size
        for i in rows:
            left[i], used[i], done[i] = left[i] - steps, used[i] + steps, done[i] + steps * size
            if used[i] == runs[i][at[i]].steps:
                at[i], used[i] = at[i] + 1, 0
    none = torch.empty(0, dtype=torch.int64)
    return Plan(tuple(segments), torch.cat([none, *index]), torch.cat([none, *row]))


def _runs(orders: Orders, batch: int, decays: bool) -> list[_Run]:
    runs: list[_Run] = []
    epoch = 0
    for whole, order in orders:
        full, rest = divmod(len(order), batch)
        new = [_Run(batch, full, epoch)] * (full > 0) + [_Run(rest, 1, epoch)] * (rest > 0)
        if len(new) == 1 and new[0].steps == 1 and runs and runs[-1].size == new[0].size and not decays:
            runs[-1] = _Run(runs[-1].size, runs[-1].steps + 1, runs[-1].epoch)  # epochs of a single step
        else:
            runs += new
        epoch += whole
    return runs
