"""Steps recorded once and replayed (CUDA graphs): a small step costs a GPU less than starting its kernels does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_train import DeviceSamples, StackRows, Steps, eagerly

_OFTEN = 16  # steps of one shape before it is recorded: recording costs about as much as ten steps
_SHARE = 8  # recordings hold stacks of models in separate memory: an eighth of what a stack may take


class Graphs:
    """Runner of segments by recordings, one per kind of request, number of rows and size of batch.

    Args:
        say: called once if a step cannot be recorded; its steps then run without recording for the rest of the run.
    """

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self._place, self._say = place, say
        self._seen: Counter[object] = Counter()
        self._kept: dict[object, Recording | None] = {}
        self._room = place.room() // _SHARE
        self._pool: Any = None

    def __call__(self, steps: Steps, rows: StackRows, batches: Iterator[DeviceSamples], lr: float | Tensor) -> None:
        first = next(batches, None)
        if first is None:
            return
        shape, batches = _shape(steps, rows, first), chain([first], batches)
        if shape not in self._kept:
            for batch in islice(batches, max(0, _OFTEN - self._seen[shape])):
                self._seen[shape] += 1
                steps(rows, batch, lr)
            first = next(batches, None)
            if first is None:
                return
            batches = chain([first], batches)
            self._kept[shape] = self._recorded(steps, rows, first)
        recording = self._kept[shape]
        if recording is None:
            eagerly(steps, rows, batches, lr)
        else:
            recording.play(rows, batches, lr)

    def _recorded(self, steps: Steps, rows: StackRows, batch: DeviceSamples) -> Recording | None:
        needed = sum(t.nbytes for t in (*rows.tensors(), *batch.tensors()))
        if needed > self._room:  # an older recording is not dropped for it: in the next round it would be needed again
            return None
        try:
            made = Recording(steps, rows, batch, self._place, self._pool)
        except Exception as e:  # whatever it is, the steps can be taken without
            why = str(e).splitlines()[0] if str(e) else type(e).__name__
            name = getattr(steps.key[0], "__name__", str(steps.key[0]))
            self._say(f"the steps of {name} are started one by one, not played from a CUDA graph: {why}")
            return None
        self._pool, self._room = made.pool, self._room - needed
        return made

    def forget(self) -> None:
        """Free the recordings."""
        self._kept.clear()
        self._room, self._pool = self._place.room() // _SHARE, None


class Recording:
    """One step in memory of its own, as a CUDA graph.

    Attributes:
        pool: the memory that the graph works in.

    Raises:
        RuntimeError: the step does something that cannot be recorded, such as reading a value.
    """

    def __init__(self, steps: Steps, rows: StackRows, batch: DeviceSamples, place: Place, pool: Any) -> None:
        self._rows = rows.each(torch.clone)
        self._batch = DeviceSamples(
            batch.x.clone(), batch.y.clone(), {name: t.clone() for name, t in batch.extra.items()}
        )
        self._lr = torch.zeros(len(rows.w), 1, dtype=rows.w.dtype, device=rows.w.device)
        self._replay, self.pool = record(lambda: steps(self._rows, self._batch, self._lr), place, pool)

    def play(self, rows: StackRows, batches: Iterator[DeviceSamples], lr: float | Tensor) -> None:
        """Move ``rows`` in place by a step on each batch."""
        for mine, given in zip(self._rows.tensors(), rows.tensors(), strict=True):
            mine.copy_(given)
        if isinstance(lr, Tensor):
            self._lr.copy_(lr)
        else:
            self._lr.fill_(lr)
        for batch in batches:
            for mine, given in zip(self._batch.tensors(), batch.tensors(), strict=True):
                mine.copy_(given)
            self._replay()
        rows.w.copy_(self._rows.w)
        if rows.velocity is not None and self._rows.velocity is not None:
            rows.velocity.copy_(self._rows.velocity)


def _shape(steps: Steps, rows: StackRows, batch: DeviceSamples) -> object:
    mu = rows.mu if not isinstance(rows.mu, Tensor) else "one each"
    return steps.key, rows.center is None, mu, tuple(batch.y.shape)


def record(step: Callable[[], None], place: Place, pool: Any) -> tuple[Callable[[], None], Any]:
    """Return a call that repeats the kernels of ``step``, and the memory they work in.

    The step is run a few times.
    """
    with torch.cuda.device(place.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up in their first calls
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # recordings may share memory: each leaves its results in tensors made before, and they never run together
        with torch.cuda.graph(graph, pool=pool):
            step()
    return graph.replay, graph.pool()
