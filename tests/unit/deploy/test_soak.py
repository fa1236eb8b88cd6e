"""The verdict of the soak on memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("growth", "flat"), [(0.0, True), (0.5, True), (8.0, False)], ids=["none", "within noise", "8 MB a look"]
)
def test_memory_that_grows_is_noticed(growth: float, flat: bool) -> None:
    """Thirty looks at a program of 300 MB: the medians of the first and the last ten decide; the database may grow."""
    path = Path(__file__).parents[2] / "hosts" / "soak.py"
    spec = importlib.util.spec_from_file_location("soak", path)
    assert spec is not None
    assert spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    seen = [{"server_mb": 300 + growth * i, "node0_mb": 200.0, "database_mb": 50.0 * i} for i in range(30)]
    assert soak.flat(seen) is flat
