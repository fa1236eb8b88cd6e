"""The size of a round's cohort."""

from __future__ import annotations

import math


def cohort_size(participation: float, clients: int) -> int:
    """Return the number of clients that a round should have: ``participation``, in (0, 1], of all, at least 1."""
    return max(1, math.floor(participation * clients + 1e-9))
