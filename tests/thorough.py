"""Cases that `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

OF_EVERY_KIND = (
    "cfic", "cfl", "clustered-sampling", "creff", "da-pfl", "ditto", "fedavg", "fedavg-ft", "feddyn", "fedfomo",
    "fedgh", "fedproto", "fedrod", "ifca-cam", "local", "per-fedavg", "pfa", "pfedcs",
)  # fmt: skip
"""One method of each kind of message, state, request and prediction, for `make test`; `make test-all` plays all."""


def thorough_except(cases: Iterable[str], kept: Collection[str]) -> list[Any]:
    """Return the cases as parameters of which all but the kept ones have the marker ``thorough``.

    Raises:
        ValueError: a kept one is not among the cases.
    """
    names = list(cases)
    if missing := set(kept) - set(names):
        raise ValueError(f"{sorted(missing)} are not among the cases")
    return [name if name in kept else pytest.param(name, marks=pytest.mark.thorough) for name in names]
