"""What methods keep with many clients, against what they do keep in a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedkin
import fedkin.experiment.run
from fedkin.core import ConfigError, Training
from fedkin.methods import METHODS, get_method
from fedkin.server import Footprint, needs
from fedkin.testing.toys import CLASSES, network
from fedkin.testing.trial import Setting, play
from refusals import refuses

P = network("mlp").size


@pytest.mark.parametrize("name", METHODS)
def test_needs_are_those_of_a_run(name: str) -> None:
    """Server and clients of a real run of six, after its first round, keep what was found on three made-up ones."""
    found, setting = needs(get_method(name), network("mlp"), Training()), Setting()
    trial = play(get_method(name), setting, stop=1)
    states = [b.nbytes for b in trial.moments[-1].states.values() if b]

    assert found is not None
    assert set(states) <= {found.state}
    assert bool(states) == bool(found.state)
    kept = trial.moments[-1].server.state
    banks = sum(t.nbytes for t in kept.values() if t.dim() == 2 and t.shape[0] == 6 and t.shape[1] != 6)
    if name not in ("fedfomo", "cfic", "pacfl"):  # of uploads alone; groups or clusters, as many as clients
        assert found.row >= banks // 6
    if name != "fesem-cam":  # a bank for its warm-up, which in a run of four rounds is over after the first
        assert found.server(6) <= kept.nbytes + 8 * P


def test_a_bank_states_and_pairs() -> None:
    """FedAvg keeps a model and nothing of anybody; Local a model on each client; FedAvg's three numbers are exact."""
    assert needs(get_method("fedavg"), network("mlp"), Training()) == Footprint(4 * P, 0, 0, 0)
    assert needs(get_method("local"), network("mlp"), Training()) == Footprint(0, 0, 0, 4 * P)
    some = needs(get_method("fedsoft"), network("mlp"), Training())
    assert some is not None
    assert (some.row, some.state) == (8 * get_method("fedsoft").clusters + 1, 4 * P)  # type: ignore[attr-defined]


def test_what_fits_and_what_does_not() -> None:
    """1,000 clients with 1 kB on the server and 2 kB of their own; 4 bytes for each pair."""
    some = Footprint(once=0, row=1000, pair=4, state=2000)
    assert some.memory(1000, in_files=False) == 2 * (4_000_000 + 1_000_000 + 2_000_000)
    assert some.memory(1000, in_files=True) == 4_000_000
    assert some.disk(1000) == 1_000_000 + 4_000_000
    assert some.shortage(1000, in_files=False, memory=14_000_000, disk=0) is None
    assert some.shortage(1000, in_files=True, memory=4_000_000, disk=5_000_000) is None
    short = some.shortage(1000, in_files=False, memory=13_999_999, disk=0)
    assert short is not None
    assert "14.00 MB of memory" in short
    assert 'set state = "file"' in short
    assert "4 bytes on the server for each pair" in short
    assert "fewer clients or another method" in str(some.shortage(1000, in_files=True, memory=3_999_999, disk=10**9))
    assert "5.00 MB on disk" in str(some.shortage(1000, in_files=True, memory=10**9, disk=4_999_999))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_run_that_cannot_fit_ends_before_it_starts(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Nothing is trained and no folder is made."""
    rng = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 6, generator=rng), torch.arange(9) % CLASSES) for _ in range(4)]
    federation = fedkin.Federation.from_arrays(data, classes=CLASSES)
    monkeypatch.setattr(fedkin.experiment.run, "IN_MEMORY", 100)
    if where == "memory":
        monkeypatch.setattr("os.sysconf", lambda name: 10)
    else:
        monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 100}))
    compute = fedkin.Compute(state="memory" if where == "memory" else "auto")
    with refuses(ConfigError, "DAPFL does not fit", where):
        fedkin.run(get_method("da-pfl"), federation, "linear", rounds=1, compute=compute, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
