"""Starts from trained values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedkin import Dirichlet, Training, federate, load, methods, run
from fedkin.core import ConfigError, Net
from fedkin.core.errors import ModelError
from fedkin.experiment.settings import Compute, ModelSettings
from fedkin.models.start import factory
from fedkin_hosts.submitted import Submitted
from grouped import described
from refusals import refuses


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Values of such a network."""
    torch.manual_seed(3)
    module = network()
    module[1].running_mean += 5
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_the_start_has_the_values_of_the_file(file: Path) -> None:
    net = Net(factory(network, (4,), 2, file), (4,), 2)
    start = net.unflatten(net.w0)
    assert torch.equal(start["1.running_mean"], torch.full((3,), 5.0))
    again = Net(factory(network, (4,), 2, file), (4,), 2, seed=9)
    assert torch.equal(again.w0, net.w0)
    assert not torch.equal(net.fresh(1), net.w0)


def test_a_run_starts_there(tmp_path: Path) -> None:
    """After one small step from a trained model, accuracy is the trained one's; from random values it is not."""
    federation = federate(load("digits"), Dirichlet(alpha=1.0), clients=4)
    first = run(
        methods.FedAvg(), federation, "linear", Training(lr=0.1, epochs=5), rounds=5, compute=Compute(engine="loop")
    )
    net = Net(factory("linear", federation.shape, federation.classes), federation.shape, federation.classes)
    save_file(net.unflatten(first.server.state.model), tmp_path / "trained.safetensors")
    short = {"training": Training(lr=1e-6, steps=1), "rounds": 1, "compute": Compute(engine="loop")}
    warm = run(methods.FedAvg(), federation, "linear", init_weights=tmp_path / "trained.safetensors", **short)
    cold = run(methods.FedAvg(), federation, "linear", **short)
    assert warm.final.accuracy == pytest.approx(first.rounds[-1].accuracy, abs=0.01)
    assert cold.final.accuracy < 0.5 < warm.final.accuracy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.weight": None}, "0.weight"),
        ({"9.weight": torch.zeros(1)}, "9.weight"),
        ({"3.weight": torch.zeros(5, 3)}, "3.weight is [5, 3]"),
        ({"1.num_batches_tracked": None}, None),
    ],
)
def test_names_and_shapes(change: dict[str, torch.Tensor | None], message: str | None, file: Path) -> None:
    """All that does not fit is named; the counter of batch normalisation may be missing."""
    told = {**network().state_dict(), **change}
    save_file({n: t for n, t in told.items() if t is not None}, file)
    make = factory(network, (4,), 2, file)
    if message is None:
        assert make() is not None
        return
    with refuses(ModelError, message):
        make()


def test_files(tmp_path: Path) -> None:
    """No pickle is read; what is missing or damaged is said."""
    (tmp_path / "w.pt").write_bytes(b"anything")
    with refuses(ModelError, "'w.safetensors'"):
        factory(network, (4,), 2, tmp_path / "w.pt")()
    with refuses(ModelError, "no.safetensors"):
        factory(network, (4,), 2, tmp_path / "no.safetensors")()
    (tmp_path / "half.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with refuses(ModelError, "half.safetensors"):
        factory(network, (4,), 2, tmp_path / "half.safetensors")()


def test_not_on_hosts(tmp_path: Path, file: Path) -> None:
    """Nodes have no such file."""
    settings = described("fedavg", model=ModelSettings(init_weights=str(file)))
    with pytest.raises(ConfigError):
        Submitted.of(settings, tmp_path / "run")
