"""Algebra on stacked models ``[m, P]``: means, distances, mixtures. Sums are computed in float64, in blocks.

Models of all clients, one row each, are a bank ``[K, P]``: made by `grow`, changed by `put`, by nothing else. Then a
run can keep banks that are too large for the memory in files (`kept_by`).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from itertools import islice
from threading import local
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from fedkin.core.errors import MethodError
from fedkin.core.machine import cores

T = TypeVar("T")

_WORTH = 1 << 24  # minimum number of products to use threads: waking a thread takes as long as a small mean
_BLOCK = 1 << 20  # elements of float64 held at a time: 8 MiB, so that a block stays in the cache of one core
_WIDTH = 256  # columns of a block at least: a bank in a file is read by pages, for any number of rows
_THERE = 1 << 24  # elements of float64 held at a time on another device, which takes long to start a product
ROWS = 256
"""Rows that are summed at a time: a mixture of more is the sum, in float64, of mixtures of this number each."""


def blocks(rows: Tensor, copies: int = 1) -> Iterator[slice]:
    """Yield spans of columns of ``rows [m, P]`` of which a number of copies in float64 fit into a block."""
    width = max(1, min(_WIDTH, _BLOCK), _BLOCK // max(1, copies * rows.shape[0]))
    for start in range(0, rows.shape[1], width):
        yield slice(start, min(start + width, rows.shape[1]))


def side_by_side(f: Callable[[slice], T], spans: Iterable[slice], products: int) -> Iterator[T]:
    """Yield ``f`` of every span, in their order, computed on all cores if there is enough to do.

    Each call computes on one core, so results do not depend on the number of cores. There is no gain where torch itself
    uses several threads; in a process that trains clients the other cores are busy.
    """
    if products < _WORTH or _cores() == 1 or torch.get_num_threads() > 1:
        yield from map(f, spans)
        return
    todo, pool = iter(spans), _pool()
    while group := list(islice(todo, _cores())):
        yield from pool.map(f, group)


_ALONE: list[bool] = []


def _forked() -> None:
    _ALONE.append(True)  # threads are not copied by a fork


@cache
def _pool() -> ThreadPoolExecutor:
    # a new thread has OpenMP's default number, not torch's: a product that it shares out has other last bits
    return ThreadPoolExecutor(_cores(), "rows", initializer=torch.set_num_threads, initargs=(1,))


def _cores() -> int:
    return 1 if _ALONE else cores()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def mix(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``weights [a, m] @ rows [m, P]``, computed in float64, as ``[a, P]`` in the rows' type.

    Mixtures of whole or boolean numbers are float32. It needs memory for ``min(a, 256)`` rows in float64 in addition to
    the result, for any m. Rows on another device are mixed there; the result is on the host, as the weights are.
    """
    w, rows = weights.double(), _with_fractions(rows)
    if rows.device != w.device:
        return _mixed_there(w, rows)
    out = rows.new_empty((w.shape[0], rows.shape[1]))
    if rows.shape[0] <= ROWS:
        held = local()  # what was converted, in each thread: new memory for every block takes as long as the product

        def one(block: slice) -> None:
            if not hasattr(held, "memory"):
                held.memory = torch.empty(rows.shape[0] * (block.stop - block.start), dtype=torch.float64)
            part = rows[:, block]
            out[:, block] = w @ held.memory[: part.numel()].view(part.shape).copy_(part)

        # the last bit of one mixture alone depends on no block: half ones are faster, as both copies stay in the cache
        spans = blocks(rows, copies=2 if len(w) == 1 else 1)
        deque(side_by_side(one, spans, len(w) * rows.numel()), 0)
        return out
    for start in range(0, len(w), ROWS):
        some = w[start : start + ROWS]
        out[start : start + ROWS] = _mixed(some, rows).to(rows.dtype)
    return out


def _with_fractions(rows: Tensor) -> Tensor:
    """Return rows whose type has fractions."""
    return rows if rows.is_floating_point() else rows.float()


def _mixed(w: Tensor, rows: Tensor) -> Tensor:
    """Return `mix` before rounding, one block of rows after another; blocks with zero weight are not even read."""
    total = torch.zeros(w.shape[0], rows.shape[1], dtype=torch.float64)
    for start in range(0, rows.shape[0], ROWS):
        mine, some = w[:, start : start + ROWS], rows[start : start + ROWS]
        if bool(mine.any()):
            deque(side_by_side(partial(_add_mixed, total, mine, some), blocks(some), len(w) * some.numel()), 0)
    return total


def _add_mixed(total: Tensor, w: Tensor, rows: Tensor, block: slice) -> None:
    total[:, block] += w @ rows[:, block].double()


def _mixed_there(w: Tensor, rows: Tensor) -> Tensor:
    """Return `mix` of float64 weights on the host and rows on another device, which computes it; on the host."""
    w, width = w.to(rows.device), max(1, _THERE // len(rows))
    return torch.cat([(w @ part.double()).to(rows.dtype) for part in rows.split(width, 1)], 1).cpu()


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Return ``sum_i weights_i rows_i / sum_i weights_i``: ``[P]`` of ``[m, P]`` and non-negative weights ``[m]``.

    Raises:
        MethodError: the weights are not one for each row, one is negative or not finite, or all are 0.
    """
    w = weights.double()
    if w.shape != rows.shape[:1]:
        raise MethodError(f"a mean of {len(rows)} rows needs as many weights, got the shape {list(w.shape)}")
    if not (len(w) and w.min() >= 0 and 0 < w.sum() < math.inf):
        raise MethodError(f"a mean needs weights of 0 or more, not all 0; got {_shown(w)}")
    flat = rows.reshape(rows.shape[0], -1)
    return mix((w / w.sum())[None], flat)[0].reshape(rows.shape[1:])


def _shown(w: Tensor) -> str:
    some = ", ".join(f"{x:g}" for x in w[:8].tolist())
    return f"[{some}, ...]" if len(w) > 8 else f"[{some}]"


def group_mean(rows: Tensor, weights: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
    """Return the weighted mean of each group ``[G, P]``; a group without rows keeps its row of ``otherwise [G, P]``.

    Args:
        rows: ``[m, P]``.
        weights: non-negative ``[m]``.
        group: int64 ``[m]``, the group of every row.
        otherwise: ``[G, P]``, what an empty group keeps.
    """
    share = torch.zeros(otherwise.shape[0], rows.shape[0], dtype=torch.float64)
    share[group, torch.arange(rows.shape[0])] = weights.double()
    total = share.sum(1, keepdim=True)
    filled = (total > 0).flatten()
    out = _with_fractions(otherwise).clone()
    if bool(filled.any()):
        out[filled] = mix(share[filled] / total[filled], rows).to(out.dtype)
    return out


def gram(rows: Tensor) -> Tensor:
    """Return inner products of all pairs of ``rows [m, P]``, float64 ``[m, m]``."""
    out = torch.zeros(len(rows), len(rows), dtype=torch.float64)

    def one(block: slice) -> Tensor:
        x = rows[:, block].double()
        return x @ x.T

    for part in side_by_side(one, blocks(rows), len(rows) * rows.numel()):
        out += part
    return out


def squared_distances(rows: Tensor, *, around: Literal["mean", "median"] = "mean") -> Tensor:
    """Return squared Euclidean distances of all pairs, float64 ``[m, m]``, zero on the diagonal.

    The mean row is subtracted first: on close models the Gram formula loses every digit without it.

    Args:
        around: the row that is subtracted; with the median, distant rows do not reduce the precision of the others.
    """
    m = rows.shape[0]
    gram = torch.zeros(m, m, dtype=torch.float64)

    def one(block: slice) -> Tensor:
        x = rows[:, block].double()
        x -= x.mean(0) if around == "mean" else x.median(0).values
        return x @ x.T

    for part in side_by_side(one, blocks(rows), len(rows) * rows.numel()):
        gram += part
    norm = gram.diagonal()
    return (norm[:, None] + norm[None] - 2 * gram).clamp_(min=0).fill_diagonal_(0)


class Keeper(Protocol):
    """Storage for banks elsewhere than in memory; a bank that it keeps is read as a tensor like any other."""

    def grow(self, bank: Tensor | None, total: int, fill: Tensor) -> Tensor | None:
        """Do the same as the function `grow`; None for a bank that is better kept in memory."""

    def put(self, bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor | None:
        """Do the same as the function `put`, but in place; None if the bank is not one that it keeps."""


_keeper: ContextVar[Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def kept_by(keeper: Keeper | None) -> Iterator[None]:
    """Within this context, let ``keeper`` make and change banks; None: in memory."""
    token = _keeper.set(keeper)
    try:
        yield
    finally:
        _keeper.reset(token)


def put(bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Return ``bank [K, ...]`` with the rows of ``ids [m]`` replaced by ``rows [m, ...]``; one row may stand for all.

    A copy, unless the run keeps its banks in files: then ``bank`` itself is changed. So read the old rows that you need
    before the call, and do not use the old bank after it.
    """
    keeper = _keeper.get()
    if keeper is not None and (kept := keeper.put(bank, ids, rows)) is not None:
        return kept
    out = bank.clone()
    out[ids] = rows.to(bank.dtype)
    return out


def grow(bank: Tensor | None, total: int, fill: Tensor) -> Tensor:
    """Return ``bank`` with rows added up to ``total``, each equal to ``fill``; a bank of None is empty."""
    keeper = _keeper.get()
    if keeper is not None and (kept := keeper.grow(bank, total, fill)) is not None:
        return kept
    known = 0 if bank is None else bank.shape[0]
    new = fill.expand(total - known, *fill.shape)
    return new.clone() if bank is None else torch.cat([bank, new.to(bank.dtype)])
