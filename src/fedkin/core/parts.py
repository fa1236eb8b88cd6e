"""Parts of a flat vector: a slice, or a mask of numbers that lie anywhere in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.core.errors import MethodError

Part = slice | Tensor
"""A slice of a flat vector, or a mask ``[P]`` that is true at its numbers."""


@dataclass(frozen=True)
class Spans:
    """Part of a flat vector as spans ``(start, stop)``: ascending, apart and not empty.

    Equal parts are equal and have equal hashes, whether they were a slice or a mask.
    """

    each: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, part: Part | None, length: int) -> Spans:
        """Return the spans of a part of a vector of this length; None: of all of it.

        Raises:
            MethodError: the part is not a slice without a step and not a mask of the whole vector.
        """
        check_part(part, length)
        if isinstance(part, Tensor):
            edges = torch.nn.functional.pad(part.cpu().to(torch.int8), (1, 1)).diff().nonzero().flatten().tolist()
            return cls(tuple(zip(edges[::2], edges[1::2], strict=True)))
        start, stop, _ = (part or slice(None)).indices(length)
        return cls(((start, stop),) if start < stop else ())

    @property
    def hull(self) -> slice:
        """Shortest slice that holds all spans."""
        return slice(self.each[0][0], self.each[-1][1]) if self.each else slice(0, 0)

    def gaps(self) -> Tensor | None:
        """Return a mask over `hull` that is true between the spans, bool ``[h]``; None if there is nothing between."""
        if len(self.each) < 2:
            return None
        first = self.each[0][0]
        gaps = torch.ones(self.each[-1][1] - first, dtype=torch.bool)
        for start, stop in self.each:
            gaps[start - first : stop - first] = False
        return gaps

    def holds(self, span: slice) -> bool:
        """Return whether a span lies inside, as a whole."""
        return any(start <= span.start and span.stop <= stop for start, stop in self.each)

    def meets(self, span: slice) -> bool:
        """Return whether a number of a span lies inside."""
        return any(start < span.stop and span.start < stop for start, stop in self.each)


def check_part(part: Part | None, length: int) -> None:
    """Raise `MethodError` unless this is a part of a vector of this length, or None."""
    if isinstance(part, Tensor):
        if part.dtype != torch.bool or tuple(part.shape) != (length,):
            raise MethodError(
                f"a part must be a slice or a mask of the whole vector, bool [{length}]; got a tensor of "
                f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
            )
    elif part is not None and not (isinstance(part, slice) and part.step in (None, 1)):
        raise MethodError(f"a part must be a slice without a step or a mask of the whole vector; got {part!r}")
