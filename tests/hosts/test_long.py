"""Many kills and many faults, with the scripts next to this file.

The environment variables FEDKIN_KILLS (30) and FEDKIN_SOAK (200 rounds) make them longer or shorter.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

pytestmark = pytest.mark.hosts
KILLS, SOAK = int(os.environ.get("FEDKIN_KILLS", "30")), int(os.environ.get("FEDKIN_SOAK", "200"))


def script(name: str) -> ModuleType:
    """A script of this folder as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kills", [KILLS])
def test_runs_whose_programs_are_killed_end_as_in_the_simulator(kills: int, tmp_path: Path) -> None:
    """Nodes, workers, the run's program and the link are killed at random moments: all runs end with the
    simulator's bits for the same participation."""
    assert script("kills").kill(tmp_path / "kills", kills, seed=kills)


@pytest.mark.parametrize("length", [SOAK])
def test_a_long_run_with_a_fault_every_fifth_round(length: int, tmp_path: Path) -> None:
    """It ends with the simulator's bits, and no program's memory grows."""
    assert script("soak").soak(tmp_path / "soak", length, every=5, seed=1)
