"""What clients start from that have not taken part yet, where the server holds a row for every client."""

from __future__ import annotations

from torch import Tensor

from fedkin.core import Round
from fedkin.functional.divisions import mean_of


def rows_or_mean(bank: Tensor, seen: Tensor, r: Round) -> Tensor:
    """Return the rows of ``r.ids``, ``[m, P]``; for clients that have not taken part yet the mean of all that have.

    The common start, or its head, would not fit models that others have trained for many rounds.

    Args:
        bank: a row for each client ``[K, P]``.
        seen: the clients that have taken part, bool ``[K]``; while there are none all rows are returned as they are.
        r: the round, whose rule and weights make the mean.
    """
    rows, new = bank[r.ids], ~seen[r.ids]
    if bool(new.any()) and bool(seen.any()):
        rows[new] = mean_of(bank, seen.nonzero()[:, 0], r)
    return rows
