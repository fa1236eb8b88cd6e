"""The apps of real hosts through Flower's own simulator, with Ray: `fedkin submit FILE.toml --ray`."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedkin.experiment.run_folder import RunFolder
from fedkin.exporting import load_export
from fedkin.record.files import read_commit
from programs import descendants

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray comes with fedkin[ray], some 200 MB"),
]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "scale-out.toml"
LINES = ("rounds", "clients", "relations")


def fedkin(*words: str, seconds: float = 300.0) -> str:
    """What the command says; it has to end well. Ray finds no cluster that this machine may have."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "fedkin", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def same(one: Path, other: Path) -> None:
    """Two runs have the same lines and the same models, bit for bit."""
    for name in LINES:
        assert (one / f"{name}.jsonl").read_bytes() == (other / f"{name}.jsonl").read_bytes(), name
    assert read_commit(one).last.server == read_commit(other).last.server


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of the documentation in our simulator."""
    folder = tmp_path_factory.mktemp("ours") / "run"
    fedkin("run", str(EXAMPLE), "--out", str(folder), "--quiet")
    return folder


def test_the_example_ends_as_in_our_simulator(simulated: Path, tmp_path: Path) -> None:
    """Ray's processes compute the same rounds, figures and models, and every client keeps its own head and model."""
    fedkin("submit", str(EXAMPLE), "--ray", "--out", str(tmp_path / "run"), "--quiet")
    same(simulated, tmp_path / "run")
    states = RunFolder(simulated).load({})[1]  # type: ignore[index]
    clients = sorted((tmp_path / "run" / "clients").iterdir())
    assert [c.name for c in clients] == [f"c{i}" for i in range(6)]
    for i, client in enumerate(clients):
        (place,) = client.iterdir()
        assert load_export(place / "model").card.test.as_evaluated is True
        if i in states:
            own = load_file(place / "memory.safetensors")
            last = own.get("pending.head", own.get("committed.head"))
            assert torch.equal(last, states[i].head)
    assert states


def test_a_run_that_was_killed_goes_on(simulated: Path, tmp_path: Path) -> None:
    """Killed with all its processes after the first round and submitted again, it ends as if nothing had happened."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedkin", "submit", str(EXAMPLE), "--ray", "--out", str(folder), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 200
        while not (folder / "commit.json").exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        for pid in (process.pid, *descendants(process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended with its parent
                continue
    assert not (folder / "summary.json").exists()
    fedkin("submit", str(folder), "--ray", "--quiet")
    same(simulated, folder)
