"""Requests for local training, carried out by the program of their chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor

from fedkin.core.parts import Spans
from fedkin.engines.chain import Layer
from fedkin.engines.compiled.code import Target, host
from fedkin.engines.compiled.layout import Layout, block_of
from fedkin.engines.compiled.machine_code import Linked, linked
from fedkin.engines.compiled.units import NotCovered, PoolUnit, units_of

_MEMORY = 256 << 20
"""Bytes that a program may take in each process."""


@dataclass(frozen=True)
class RequestTerms:
    """Terms that a request and a run add to the loss's gradient, as in `fedkin.engines.terms.Terms`.

    Attributes:
        center, linear: ``[P]`` or None.
        mu: weight of the proximal term in the gradient; ``after``: step size times weight of a separate step.
        teacher: ``[H]`` or None, a last layer whose probabilities pull the model's, with the weight ``pull``, kappa T,
            and ``inverse``, 1 / T.
        decay, decay_biases: weight decay of matrices, and of biases.
    """

    center: Tensor | None = None
    linear: Tensor | None = None
    mu: float = 0.0
    after: float = 0.0
    teacher: Tensor | None = None
    pull: float = 0.0
    inverse: float = 1.0
    decay: float = 0.0
    decay_biases: float = 0.0
    momentum: float = 0.0


_programs: dict[str, CompiledChain] = {}
_KEPT = 32  # programs, with their memory


def program(layers: Sequence[Layer], shape: Sequence[int], batch: int) -> CompiledChain:
    """Return the program of a chain on this machine; networks of the same chain share one.

    Raises:
        NotCovered: a layer that programs are not made for.
        RuntimeError: LLVM refuses the program.
    """
    kind = repr((layers, shape, batch))
    if kind not in _programs:
        _programs[kind] = CompiledChain(layers, shape, batch)
        if len(_programs) > _KEPT:
            del _programs[next(iter(_programs))]  # the oldest; networks that use it still have it
    return _programs[kind]


class CompiledChain:
    """Compiled local training of a chain.

    Raises:
        NotCovered: a layer that programs are not made for.
        RuntimeError: LLVM refuses the program.
    """

    def __init__(self, layers: Sequence[Layer], shape: Sequence[int], batch: int, target: Target | None = None) -> None:
        target = target or host()
        units = units_of(layers, shape)
        self.batch, self._block = batch, block_of(batch, target.vectors)
        self.layout = Layout(units, -(-batch // self._block) * self._block)
        if 4 * self.layout.total > _MEMORY:
            raise NotCovered(f"its batches of {batch} take more than {_MEMORY >> 20} MiB")
        self.code: Linked = linked(self.layout, self._block, target)
        self._image = (units[0].inside.height, units[0].inside.width) != (1, 1)
        parameters = [u.parameters for u in units if not isinstance(u, PoolUnit)]
        self._parameters = sum(b - a for p in parameters for a, b in (p.weight, p.bias or (0, 0)))
        self._free, self._lock = list[Tensor](), Lock()
        self._moving: dict[Spans, tuple[int, int] | None] = {}

    def __call__(
        self,
        start: Tensor,
        x: Tensor,
        y: Tensor,
        epochs: Iterable[tuple[Tensor, float]],
        batch: int,
        moving: tuple[int, int],
        terms: RequestTerms,
        offset: Tensor | None = None,
    ) -> Tensor:
        """Return the trained vector ``[P]``.

        Args:
            start: ``[P]``.
            x, y: samples ``[n, ...]`` and labels ``[n]`` of the client.
            epochs: samples in the order of training, and the step size of their batches.
            batch: size of a batch, at most that of the program unless there are fewer samples; the last of an epoch
                may be short.
            moving: first and last unit that move.
            offset: ``[n, C]``, added to the logits.

        Raises:
            IndexError: a label is not a class.
        """
        each = [(order, lr) for order, lr in epochs if order.numel()]
        if not each:
            return start.detach().clone()
        # what no unit has stays as it is
        out = torch.empty(start.numel()) if start.numel() == self._parameters else start.detach().clone()
        index = (each[0][0] if len(each) == 1 else torch.cat([order for order, _ in each])).contiguous()
        assert min(each[0][0].numel(), batch) <= self.batch
        rows, rates = _steps(tuple((order.numel(), lr) for order, lr in each), batch)
        x, channels_last = _readable(x, self._image)
        kept = [_plain(t) for t in (y, start, terms.center, terms.linear, terms.teacher, offset)]
        y_, start_, center, linear, teacher, offset_ = (None if t is None else t.data_ptr() for t in kept)
        has = (*(t is not None for t in (offset, terms.center, terms.linear, terms.teacher)), terms.momentum != 0)
        memory = self._take()
        wrong = self.code.train(
            x.data_ptr(), y_, offset_, index.data_ptr(), rows.data_ptr(), rates.data_ptr(), start_, out.data_ptr(),
            center, linear, teacher, memory.data_ptr(), rows.numel(), *moving, channels_last, *has,
            terms.pull, terms.inverse, terms.mu, terms.after, terms.decay, terms.decay_biases, terms.momentum,
        )  # fmt: skip
        self._give(memory)
        if wrong:
            raise IndexError(f"a label is not one of the classes 0 to {self.layout.units[-1].out.channels - 1}")
        return out

    def forward(self, w: Tensor, x: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the logits ``[n, C]`` of the model ``w [P]`` at samples ``x [n, ...]``.

        Those of a sample depend on no other sample, nor on the batch size that the program was made for.

        Args:
            features: return the inputs of the last layer as well, ``[n, d]``.
        """
        x, channels_last = _readable(x.detach(), self._image)
        start, head = w.detach().contiguous(), self.layout.units[-1]
        logits = torch.empty(len(x), head.out.channels)
        z = torch.empty(len(x), head.inside.numbers) if features else None
        memory = self._take()
        self.code.forward(
            x.data_ptr(), start.data_ptr(), logits.data_ptr(), None if z is None else z.data_ptr(), memory.data_ptr(),
            len(x), channels_last, features,
        )  # fmt: skip
        self._give(memory)
        return logits, z

    def moving(self, part: Spans) -> tuple[int, int] | None:
        """Return the first and the last unit that lie in a part of the flat vector; None if others lie between."""
        if part not in self._moving:
            self._moving[part] = self._first_and_last(part)
        return self._moving[part]

    def _first_and_last(self, part: Spans) -> tuple[int, int] | None:
        layers = [(i, u.parameters.moves(part)) for i, u in enumerate(self.layout.units) if not isinstance(u, PoolUnit)]
        inside = [i for i, moves in layers if moves]
        still = [i for i, moves in layers if moves is False]
        if len(inside) + len(still) < len(layers) or not inside or any(inside[0] < i < inside[-1] for i in still):
            return None
        return inside[0], inside[-1]

    def _take(self) -> Tensor:
        """Return memory that no other call uses, aligned to 64 bytes."""
        with self._lock:
            if self._free:
                return self._free.pop()
        made = torch.zeros(self.layout.total + 16)
        return made[-made.data_ptr() // 4 % 16 :]

    def _give(self, memory: Tensor) -> None:
        with self._lock:
            self._free.append(memory)


@lru_cache(maxsize=64)
def _steps(epochs: tuple[tuple[int, float], ...], batch: int) -> tuple[Tensor, Tensor]:
    """Return the number of samples and the step size of each step of epochs ``(samples, step size)``; only read."""
    rows, rates = list[int](), list[float]()
    for samples, lr in epochs:
        whole, rest = divmod(samples, batch)
        rows += [batch] * whole + [rest] * (rest > 0)
        rates += [lr] * (whole + (rest > 0))
    return torch.tensor(rows), torch.tensor(rates)


def _plain(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach().contiguous()


def _readable(x: Tensor, image: bool) -> tuple[Tensor, bool]:
    """Return samples that lie one after another, and whether each lies as ``[H, W, C]``."""
    if image and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return x, True
    return x.contiguous(), False
