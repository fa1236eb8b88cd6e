"""Whether a recording of steps computes what the steps compute, as far as rounding lets one tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_rows import StackRows

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
