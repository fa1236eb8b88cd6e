"""Steps recorded once and replayed (CUDA graphs): a small step costs a GPU less than starting its kernels does.

A graph holds several steps: where all clients of a round take as many on batches of one size, their whole training is
one replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_rows import DeviceSamples, SegmentBatches, StackRows
from fedkin.engines.stacked_train import Steps

_NEAR = 0.05  # maximum distance of a row from where its steps moved it, relative to the distance that it moved
_NEAR_TF32 = 0.25  # with factors rounded to 10 bits: one activation that changes its sign moves a batch of one by 10 %
_MAGNIFIED = 8  # times the distance that rounding alone makes in these steps
_FARTHEST = 0.5  # beyond that a distance is a wrong recording, whatever rounding does


@dataclass(frozen=True)
class Check:
    """Comparison of a recording with the steps that it was made of.

    Attributes:
        start: the rows before the steps, in memory of their own.
        draws: states of the generators before the steps.
        again: takes the same steps with other rows, in place.
    """

    place: Place
    start: StackRows
    draws: list[Tensor]
    again: Callable[[StackRows], None]

    def passes(self, played: tuple[Tensor, Tensor | None], stepped: StackRows) -> bool:
        """Return whether the recording moved every row as the steps did, but for what rounding makes of them.

        Rounding can make much of little: where many activations are near zero, or values in a pooling window nearly
        equal, steps that are rounded otherwise move elsewhere. So if a row is farther away than expected, the steps
        are taken once more, from models that differ by as much as rounding, and set the scale.
        """
        near = _NEAR_TF32 if self.place.tf32 else _NEAR
        wanted, recorded = self._moved(stepped.w, stepped.moments), self._moved(*played)
        if _within(recorded, wanted, self.start.w, near):
            return True
        return _within(recorded, wanted, self.start.w, min(_FARTHEST, max(near, _MAGNIFIED * self._noise(wanted))))

    def _moved(self, w: Tensor, moments: Tensor | None) -> list[Tensor]:
        return [w - self.start.w, *(() if moments is None else (moments,))]

    def _noise(self, wanted: list[Tensor]) -> float:
        """Return the largest distance of a row, relative to the distance it moved, that comes from rounding."""
        signs = 1 - 2 * (torch.arange(self.start.w.shape[1], device=self.start.w.device) % 2)
        start = self.start.w * (1 + self.place.rounding * signs)
        moments = None if self.start.moments is None else self.start.moments.clone()
        rows = replace(self.start, w=start.clone(), moments=moments)
        after = self.place.generators()
        self.place.restore(self.draws)
        self.again(rows)
        self.place.restore(after)
        moved = [rows.w - start, *(() if rows.moments is None else (rows.moments,))]
        least = 1e-6 * _norms(start) + 1e-30  # rows that hardly moved say nothing
        ratios = [_norms(a - b) / _norms(b).maximum(least) for a, b in zip(moved, wanted, strict=True)]
        return float(torch.cat(ratios).nan_to_num(0.0, 0.0).max())


def _within(moved: list[Tensor], wanted: list[Tensor], start: Tensor, near: float) -> bool:
    """Return whether all rows are as near as that to where they should be; a row that diverges in both ways is."""
    for a, b, rounded in zip(moved, wanted, (start, wanted[-1]), strict=False):
        diverged = ~a.isfinite().all(1) & ~b.isfinite().all(1)
        if not bool(((_norms(a - b) <= near * _norms(b) + 1e-6 * _norms(rounded)) | diverged).all()):
            return False
    return True


def _norms(t: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(t, dim=1)
    return norms


# ---- recordings -------------------------------------------------------------------------------------------------
_OFTEN = 16  # steps of one shape before it is recorded: recording costs about as much as ten steps
_LONGEST = 32  # steps of one graph: more would save little, and their batches take memory
_SHARE = 8  # recordings hold stacks of models in separate memory: an eighth of what a stack may take
_MOST = 128  # graphs at a time
_IDLE = 1000  # segments after which a recording that none of them used gives way to another one


class Graphs:
    """Runner of segments by recordings, one per kind of request, size of batch and doubling of the number of rows.

    A recording of M rows also takes the steps of m <= M < 2 m rows: the others compute without use. So a stack whose
    clients finish one after another needs few recordings. A recording has graphs of as many steps as a segment of m
    rows had the last time as well, else of powers of two, which add up to any number of steps.

    Steps are taken one by one when they are recorded. What the new graph computes is compared with them; where it
    differs, nothing is recorded or replayed from then on.

    Args:
        say: called once if steps cannot be recorded or a graph computes something else; none is recorded after that.

    Attributes:
        recordings, played, single: number of graphs made, of steps played from them, and of steps started one by one.
    """

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self._place, self._say = place, say
        self._seen: Counter[object] = Counter()  # steps by shape and number of rows to record
        self._last: dict[object, int] = {}  # shape and number of rows -> steps of the last segment
        self._widest: dict[object, int] = {}  # shape -> largest number of rows met
        self._draws: dict[object, bool] = {}  # shape -> whether its steps draw random numbers
        self._needs: dict[object, int] = {}  # shape -> bytes of memory that a step takes for each row
        self._kept: dict[object, list[Recording]] = {}
        self.recordings = self.played = self.single = self._segments = 0
        self._share, self._works = _SHARE, True
        self._room, self._pool = place.room() // _SHARE, None

    def __call__(self, steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor) -> None:
        shape, m, n = (steps.key, rows.center is None, batches.size), batches.rows, len(batches)
        self._segments += 1
        self._widest[shape] = max(m, self._widest.get(shape, 0))
        taken = 0
        if (made := self._fitting(shape, m)) is None:
            taken = self._first(shape, steps, rows, batches, lr)
            made = self._new(shape, rows, batches) if taken < n else None
        while made is not None and taken < n:
            longest = min(n - taken, _LONGEST)
            length = longest if self._last.get((shape, m)) == n else 1 << longest.bit_length() - 1
            while length and length not in made.graphs and not self._affords(shape, made, batches, length):
                length //= 2
            if length in made.graphs:
                made.play(rows, batches, lr, taken, length)
                self.played += length
            elif not length or not self._recorded(made, steps, rows, batches, lr, slice(taken, taken + length)):
                break
            taken += length
        self._last[shape, m] = n
        self._one_by_one(steps, rows, batches, lr, slice(taken, n))

    def give_up(self) -> bool:
        """Free the recordings, as memory is short, and make do with half of it from now on; whether any was there."""
        had_recordings = bool(self._kept)
        self._share *= 2 if had_recordings else 1
        self.forget()
        return had_recordings

    def forget(self) -> None:
        """Free the recordings."""
        self._kept.clear()
        self._place.recorded, self._pool = 0, None
        self._room = self._place.room() // self._share

    # ---- steps without a recording ----------------------------------------------------------------------------------
    def _one_by_one(
        self, steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, which: slice
    ) -> None:
        _take(steps, rows, batches, lr, which)
        self.single += which.stop - which.start

    def _first(self, shape: object, steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor) -> int:
        """Take the steps that come before a recording pays, short segments as a whole; return their number."""
        m, n = batches.rows, len(batches)
        missing = max(0, _OFTEN - self._seen[shape, self._count(shape, m)])
        count = n if missing and n <= _OFTEN else missing
        for t in range(count):
            self._step(shape, steps, rows, batches.at(t), lr)
        self._seen[shape, self._count(shape, m)] += count
        self.single += count
        return count

    def _step(self, shape: object, steps: Steps, rows: StackRows, batch: DeviceSamples, lr: float | Tensor) -> None:
        """Take a step; of the first one of a shape note what it takes and draws."""
        if shape in self._needs:
            steps(rows, batch, lr)
            return
        before = self._place.generators()
        taken = self._place.peak(lambda: steps(rows, batch, lr))
        self._needs[shape] = -(-taken // len(rows.w))
        self._draws[shape] = any(not torch.equal(a, b) for a, b in zip(before, self._place.generators(), strict=True))

    # ---- recordings -------------------------------------------------------------------------------------------------
    def _fitting(self, shape: object, m: int) -> Recording | None:
        """Return the smallest recording that takes m rows and is not much wider."""
        most = m if self._draws.get(shape) else 2 * m - 1
        fitting = [made for made in self._kept.get(shape, ()) if m <= made.rows <= most]
        smallest = min(fitting, key=lambda made: made.rows, default=None)
        if smallest is not None:
            smallest.used = self._segments
        return smallest

    def _count(self, shape: object, m: int) -> int:
        """Return the number of rows to record for steps of m rows.

        With random draws it is m: these depend on the number of rows, and must not on what has been recorded.
        """
        return m if self._draws.get(shape) else min(1 << (m - 1).bit_length(), self._widest[shape])

    def _new(self, shape: object, rows: StackRows, batches: SegmentBatches) -> Recording | None:
        """Return memory for the recording of such steps, if there is room for it."""
        count = self._count(shape, batches.rows)
        own = sum(t.nbytes for t in rows.tensors()) * count // batches.rows
        if not self._has_room(own + self._needs[shape] * count + batches.bytes_of(1, count)):
            return None
        made = Recording(rows, count, self._segments)
        self._kept.setdefault(shape, []).append(made)
        self._room, made.taken = self._room - own, own
        return made

    def _affords(self, shape: object, made: Recording, batches: SegmentBatches, length: int) -> bool:
        """Return whether there is room for a graph of a number of steps."""
        # a recording's graphs work in the same memory, one after another
        step = 0 if made.graphs else self._needs[shape] * made.rows
        return self._has_room(step + batches.bytes_of(length, made.rows))

    def _has_room(self, taken: int) -> bool:
        """Return whether a graph that takes some bytes may be made, if need be in place of recordings not in use.

        No other one is dropped for it: the next round would need that again.
        """
        if not self._is_room(taken):
            self._drop_idle()
        return self._is_room(taken)

    def _is_room(self, taken: int) -> bool:
        return self._works and taken <= self._room and self._graphs() < _MOST

    def _graphs(self) -> int:
        return sum(len(made.graphs) for recordings in self._kept.values() for made in recordings)

    def _drop_idle(self) -> None:
        for shape, recordings in list(self._kept.items()):
            self._room += sum(made.taken for made in recordings if made.used < self._segments - _IDLE)
            self._kept[shape] = [made for made in recordings if made.used >= self._segments - _IDLE]
            if not self._kept[shape]:
                del self._kept[shape]
        if not self._graphs():  # with the last one their memory is gone
            self._room += self._place.recorded
            self._place.recorded, self._pool = 0, None

    def _recorded(
        self, made: Recording, steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, which: slice
    ) -> bool:
        """Record some steps, and take them one by one; return False, with none taken, if they cannot be recorded."""
        length, before = which.stop - which.start, self._place.generators()
        try:
            self._pool, grown = made.record(steps, batches, which.start, length, self._place, self._pool)
            self._place.restore(before)  # which warming up has moved
            played = made.compute(rows, batches, lr, which.start, length)
        except Exception as e:  # whatever it is, the steps can be taken without
            self._works = False  # after a failure torch's allocator and generator may still expect the recording to end
            made.graphs.pop(length, None)
            self._say(f"the steps of {_name(steps)} are started one by one, not played from a CUDA graph: {_cause(e)}")
            return False
        finally:
            self._place.restore(before)  # draws must not depend on when a step was recorded
        taken = batches.bytes_of(length, made.rows)
        self._room, made.taken = self._room - taken - grown, made.taken + taken
        self._place.recorded += grown
        self.recordings += 1
        check = Check(self._place, rows.models(), before, lambda other: _take(steps, other, batches, lr, which))
        self._one_by_one(steps, rows, batches, lr, which)
        if not check.passes(played, rows):
            self._works = False  # nor are other graphs to be trusted
            self.forget()
            made.graphs.clear()
            self._say(f"the steps of {_name(steps)} are started one by one: their CUDA graph computes other numbers")
        return True


@dataclass(frozen=True)
class StepsGraph:
    """Some steps as a CUDA graph.

    Attributes:
        steps: their constants, which the graph reads at their addresses.
        batches: the memory of their batches, ``[steps, M, B, ...]``.
        replay: repeats them.
    """

    steps: Steps
    batches: DeviceSamples
    replay: Callable[[], None]


class Recording:
    """Models and terms of up to M rows in memory of their own, and graphs of steps there by their number of steps.

    Attributes:
        rows: M.
        graphs: number of steps -> their graph.
        taken: bytes of the device's memory that it takes, but for that in which the graphs work.
        used: number of the segment that it was last used for.
    """

    def __init__(self, rows: StackRows, count: int, used: int) -> None:
        self.rows, self.used, self.taken = count, used, 0
        self.graphs: dict[int, StepsGraph] = {}
        m, device = len(rows.w), rows.w.device
        several = torch.arange(count, device=device).clamp(max=m - 1)  # further rows need values of the right kind
        self._mine = _with_strengths(rows).each(lambda t: t.index_select(0, several))
        self._lr = torch.zeros(count, 1, dtype=rows.w.dtype, device=device)

    def record(
        self, steps: Steps, batches: SegmentBatches, first: int, length: int, place: Place, pool: Any
    ) -> tuple[Any, int]:
        """Add a graph of steps; return the memory that it works in, and the bytes by which that grew.

        Raises:
            RuntimeError: a step does something that cannot be recorded, such as reading a value.
        """
        there = batches.empty(length, self.rows)
        batches.into(first, there)

        def some(count: int) -> None:
            for t in range(count):
                steps.release()  # while it is recorded memory cannot be freed: none is taken for two steps
                steps(self._mine, there.step(t), self._lr)

        try:
            warm_up(lambda: some(1), place)
            steps.release()  # or torch could not give that memory back before it records
            replay, pool, grown = capture(lambda: some(length), place, pool)
        finally:
            steps.release()
        self.graphs[length] = StepsGraph(steps, there, replay)
        return pool, grown

    def compute(
        self, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, first: int, length: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the models of ``rows`` after some steps and what the optimizer keeps, until more are computed here."""
        m, given, graph = len(rows.w), _with_strengths(rows), self.graphs[length]
        for mine, new in zip(self._mine.tensors(), given.tensors(), strict=True):
            mine[:m].copy_(new)
        if isinstance(lr, Tensor):
            self._lr[:m].copy_(lr)
        else:
            self._lr.fill_(lr)
        batches.into(first, graph.batches)
        graph.replay()
        return self._mine.w[:m], None if self._mine.moments is None else self._mine.moments[:m]

    def play(self, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, first: int, length: int) -> None:
        """Move ``rows`` in place by some steps, from the one of number ``first`` on."""
        w, moments = self.compute(rows, batches, lr, first, length)
        rows.w.copy_(w)
        if rows.moments is not None and moments is not None:
            rows.moments.copy_(moments)


def _with_strengths(rows: StackRows) -> StackRows:
    """Return the rows with a strength of the proximal term for each, so that one recording is good for all of them."""
    if rows.center is None or isinstance(rows.mu, Tensor):
        return rows
    return replace(rows, mu=torch.full((len(rows.w), 1), rows.mu, dtype=rows.w.dtype, device=rows.w.device))


def _take(steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, which: slice) -> None:
    """Take some steps one by one."""
    for t in range(which.start, which.stop):
        steps(rows, batches.at(t), lr)


def _name(steps: Steps) -> str:
    return getattr(steps.key[0], "__name__", str(steps.key[0]))


def _cause(e: BaseException) -> str:
    """Return the first error's first line: recording that ends early fails once more, with an error that says less."""
    while e.__context__ is not None:
        e = e.__context__
    return str(e).splitlines()[0] if str(e) else type(e).__name__


def warm_up(step: Callable[[], None], place: Place) -> None:
    """Run a step a few times: libraries set themselves up in their first calls, which cannot be recorded."""
    with torch.cuda.device(place.device):
        place.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(place.side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(place.side)


def capture(step: Callable[[], None], place: Place, pool: Any) -> tuple[Callable[[], None], Any, int]:
    """Return a call that repeats the kernels of ``step``, the memory they work in, and the bytes it grew by."""
    with torch.cuda.device(place.device):
        graph, pool = torch.cuda.CUDAGraph(), pool or torch.cuda.graph_pool_handle()
        try:
            # recordings may share memory: each leaves its results in tensors made before, and they never run together
            with torch.cuda.graph(graph, pool=pool, stream=place.side):
                before = place.reserved()  # in here: on entering torch frees what it can
                step()
                grown = place.reserved() - before
        except Exception:
            _end_recording(place, pool)
            raise
    return graph.replay, pool, grown


def _end_recording(place: Place, pool: Any) -> None:
    """End a recording that failed, which torch leaves open.

    Its allocator would never give memory back on demand again, and all that draws random numbers, such as dropout,
    would fail. The generator takes the end of any other recording for that of the one that failed.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)  # an older torch has another name for it
    if end is not None:
        end(place.device.index, pool)
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device=place.device)
