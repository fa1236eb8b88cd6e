"""What clients start from that have not taken part yet, where the server holds a row for every client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.core import Round
from fedkin.functional.divisions import mean_of


def rows_or_mean(bank: Tensor, record: Tensor, blank: Tensor | float, r: Round) -> Tensor:
    """Return the rows of ``r.ids``, ``[m, P]``; for clients that have not taken part yet the mean of all that have.

    The common start, or its head, would not fit models that others have trained for many rounds. While nobody has taken
    part all rows are returned as they are.

    Args:
        bank: a row for each client ``[K, P]``.
        record: a row for each client ``[K, Q]`` that is ``blank`` until the client has taken part.
        blank: ``[Q]``, or one number.
        r: the round, whose rule and weights make the mean.
    """
    rows, new = bank[r.ids], (record[r.ids] == blank).all(1)
    if bool(new.any()):  # only then are all rows read, one at a time, as there may be many
        seen = torch.tensor([bool((row != blank).any()) for row in record]).nonzero()[:, 0]
        if len(seen):
            rows[new] = mean_of(bank, seen, r)
    return rows
