"""Acceptance: the simulator killed at random moments ends as if nobody had killed it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from killed_runs import FAMILIES, kill_many

from fedkin.core.method import FAMILIES as ALL

pytestmark = pytest.mark.hosts


@pytest.mark.short
def test_five_kills(tmp_path: Path) -> None:
    """Five kills, and all runs that were killed end with the same files."""
    assert kill_many(tmp_path / "kills", 5, 0, lambda **_: None).total() >= 5


def test_a_hundred_kills(tmp_path: Path) -> None:
    """A hundred kills over all families, of runs, resumed runs and those that get more rounds: the same files."""
    assert set(FAMILIES) == set(ALL)
    done = kill_many(tmp_path / "kills", 100, 1, lambda **_: None)
    assert done.total() >= 100
    assert min(done["run"], done["resume"], done["longer"]) > 2
