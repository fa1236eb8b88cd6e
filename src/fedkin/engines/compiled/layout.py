"""Where everything lies in the memory of a program: packed parameters, activations, gradients, winners.

One piece of memory, of zeros when it is made. What is padding stays zero for as long as the memory is used, except in
packed vectors of a diverged model, which packing clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedkin.engines.compiled.units import LANES, ConvUnit, LinearUnit, PoolUnit, Unit, up

TRAIN = {
    "x": "f", "y": "l", "offset": "f", "index": "l", "rows": "l", "lr": "f",
    "start": "f", "out": "f", "center": "f", "linear": "f", "teacher": "f", "memory": "f",
    "steps": "i", "first": "i", "last": "i", "channels_last": "i",
    "has_offset": "i", "has_center": "i", "has_linear": "i", "has_teacher": "i", "has_momentum": "i",
    "pull": "x", "inverse": "x", "mu": "x", "after": "x", "decay": "x", "decay_biases": "x", "momentum": "x",
}  # fmt: skip
"""Arguments of local training and their letters in `Module.function`.

``index`` names the samples of all batches, ``rows`` and ``lr`` have a number for each step; ``first`` and ``last`` are
the units that move. ``teacher [H]`` is a last layer whose probabilities at temperature 1 / ``inverse`` pull the model's
by ``pull``. An array that its ``has_`` denies may be null. The result is 1 if a label is not a class.
"""

FORWARD = {
    "x": "f", "start": "f", "logits": "f", "features": "f", "memory": "f",
    "samples": "i", "channels_last": "i", "has_features": "i",
}  # fmt: skip
"""Arguments of forward passes: ``logits [samples, C]`` and, if asked for, ``features [samples, d]`` are written."""


# ---- memory -----------------------------------------------------------------------------------------------------
_SLACK = 4 * LANES  # floats behind each buffer: a vector that begins in it may end there


def block_of(batch: int, vectors: int) -> int:
    """Return how many samples linear layers take at a time: as many as make the fewest instructions in all.

    A block of R samples and two neurons has 2 R sums in registers, and 3 R + 2 instructions for each vector of inputs;
    samples that only fill the last block count.

    Args:
        batch: samples.
        vectors: number of vectors that the processor's registers hold.
    """
    most = max(1, min(batch, (vectors - 4) // 2))
    return min(range(most, 0, -1), key=lambda r: -(-batch // r) * (3 * r + 2))


@dataclass(frozen=True)
class Layout:
    """Offsets, in floats, of the buffers of a chain at a batch size.

    Attributes:
        units: of the chain.
        batch: samples in a batch, filled up to whole blocks of the linear layers.
    """

    units: tuple[Unit, ...]
    batch: int

    @cached_property
    def weighted(self) -> list[int]:
        """Numbers of the units that have parameters, in the order of the chain."""
        return [i for i, u in enumerate(self.units) if not isinstance(u, PoolUnit)]

    @cached_property
    def parameters(self) -> dict[int, tuple[int, int, int]]:
        """Of each unit with parameters: where in a packed vector weight and bias begin, and where the bias ends."""
        places, at = dict[int, tuple[int, int, int]](), 0
        for i in self.weighted:
            u = self.units[i]
            assert isinstance(u, ConvUnit | LinearUnit)
            places[i] = (at, at + u.weights, at + u.weights + u.biases)
            at += u.weights + u.biases
        return places

    @property
    def packed(self) -> int:
        """Length of a packed vector."""
        return max(stop for _, _, stop in self.parameters.values())

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        places, at = dict[str, tuple[int, int]](), 0
        for name, size in self._sizes():
            places[name] = (at, size)
            at += up(size + _SLACK)
        places["end"] = (at, 0)
        return places

    def _sizes(self) -> Sequence[tuple[str, int]]:
        vectors = [(name, self.packed) for name in ("w", "v", "center", "linear")]
        for i, u in enumerate(self.units):
            vectors.append((f"in{i}", self.batch * u.inside.size))
            vectors.append((f"gradient{i}", self.batch * u.inside.size if i else 0))
            if not isinstance(u, LinearUnit):
                vectors.append((f"winners{i}", self.batch * u.winners))
            if isinstance(u, ConvUnit):
                vectors.append((f"turned{i}", u.kernel[0] * u.taps * u.out.stored if u.along == "channels" else 0))
                vectors.append((f"dw{i}", u.weights + u.biases))
        head = self.units[-1]
        vectors.append((f"in{len(self.units)}", self.batch * head.out.size))
        vectors.append(("taught", self.batch * head.out.size))
        assert isinstance(head, LinearUnit)
        vectors.append(("teacher", head.weights + head.biases))
        positions = [u.out.height * u.out.width for u in self.units if isinstance(u, ConvUnit)]
        vectors.append(("lists", 2 * LANES * max(positions, default=0)))  # a place and a gradient, of 16 channels
        height, width = self.units[0].inside.plane
        vectors.append(("planes", self.units[0].inside.stored * height * width))
        return vectors

    def __getitem__(self, name: str) -> int:
        """Return the offset of a buffer."""
        return self._places[name][0]

    def length(self, name: str) -> int:
        """Return the length of a buffer."""
        return self._places[name][1]

    @property
    def total(self) -> int:
        """Length of the whole memory."""
        return self._places["end"][0]
