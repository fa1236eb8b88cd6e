"""Banks that change in place, as those in files do, to test whether a method depends on old rows."""

from __future__ import annotations

import torch
from torch import Tensor


class InPlace:
    """A `fedkin.core.rows.Keeper` in memory.

    Attributes:
        banks: banks made so far, by their memory address.
    """

    def __init__(self) -> None:
        self.banks: dict[int, Tensor] = {}

    def grow(self, bank: Tensor | None, total: int, fill: Tensor) -> Tensor | None:
        """Return a bank with room for ``total`` clients, the same object where it fits."""
        if not fill.dim() or not fill.numel() or not total:
            return None
        known = 0 if bank is None else len(bank)
        if bank is not None and self._is_own(bank) and total == known:
            return bank
        out = torch.empty(total, *fill.shape, dtype=fill.dtype if bank is None else bank.dtype)
        if bank is not None:
            out[:known] = bank
        out[known:] = fill
        self.banks[out.data_ptr()] = out
        return out

    def put(self, bank: Tensor, ids: Tensor, rows: Tensor) -> Tensor | None:
        """Write rows into a bank in place; None for a tensor that is not one of these banks."""
        if not self._is_own(bank):
            return None
        bank[ids] = rows.to(bank.dtype)
        return bank

    def _is_own(self, bank: Tensor) -> bool:
        own = self.banks.get(bank.data_ptr())
        return own is not None and own.shape == bank.shape
