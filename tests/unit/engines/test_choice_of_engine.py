"""What `auto` takes on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedkin.core import ClientData, Net, Samples, Training
from fedkin.engines import Job, Stacked, Workers, choose
from fedkin.engines.choice import small
from fedkin.methods import FedAvg
from fedkin.models.papers import dapfl_cnn100
from fedkin.testing.toys import CLASSES, WIDTH, federation, network


class Reads(nn.Module):
    """A network with a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.classifies = nn.GRU(2, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifies(self.reads(x.view(len(x), 3, 2))[0][:, -1])
        return out


def counting() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, CLASSES))


@pytest.mark.parametrize(
    ("net", "stacked"),
    [
        (lambda: network("mlp"), True),
        (lambda: network("norm"), True),
        (lambda: Net(Reads, (WIDTH,), CLASSES), False),
        (lambda: Net(counting, (WIDTH,), CLASSES), False),
    ],
    ids=["linear layers", "batch normalisation", "recurrent layer", "statistics that depend on a count"],
)
def test_on_a_gpu_what_can_be_stacked_is(
    net: Callable[[], Net], stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that torch cannot stack would be trained client by client, in one process: it is left to workers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("fedkin.engines.choice.cores", lambda: 2)
    engine, why = choose("auto", Job(FedAvg(), net(), Training(epochs=100), federation(), seed=1))
    assert (engine == Stacked(), why == "stacks of clients on a GPU") == (stacked, stacked)


def test_little_work_is_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients of a few samples, next to a GPU: as without one, and the reason says so."""
    job = Job(FedAvg(), network("mlp"), Training(), federation(), seed=1)
    monkeypatch.setattr("fedkin.engines.choice.cores", lambda: 2)
    without = choose("auto", job)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    engine, why = choose("auto", job)
    assert (engine, why) == (without[0], "2 worker processes (one per core; little work for a GPU)")
    assert without == (Workers(0), "2 worker processes (one per core)")
    assert choose("stacked", job)[0] == Stacked()
    one = replace(job, shards=job.shards[:1])
    assert choose("auto", one)[1] == "one client after another (there is one client; little work for a GPU)"


@pytest.mark.parametrize(("clients", "cores", "little"), [(9, 2, False), (8, 2, True), (9, 3, True), (13, 3, False)])
def test_many_steps_are_much_work(clients: int, cores: int, little: bool) -> None:
    """Forty steps of 0.3 ms for each client; the cores have 50 ms."""
    x = torch.zeros(400, WIDTH)
    samples = Samples(x, torch.zeros(400, dtype=torch.int64))
    job = Job(
        FedAvg(), network("mlp"), Training(batch_size=10), [ClientData(samples, samples, samples)] * clients, seed=1
    )
    assert small(job, cores) == little


@pytest.mark.parametrize(("samples", "little"), [(13, True), (14, False), (0, True)])
def test_large_steps_are_much_work(samples: int, little: bool) -> None:
    """50 million operations forward for an image: 3.8 ms on a core, forward and back."""
    net = Net(lambda: dapfl_cnn100((3, 32, 32), 20), (3, 32, 32), 20)
    data = Samples(torch.zeros(samples, 3, 32, 32), torch.zeros(samples, dtype=torch.int64))
    shards = [ClientData(data, data, data)]
    assert small(Job(FedAvg(), net, Training(batch_size=samples or 1), shards, seed=1), 1) == little
