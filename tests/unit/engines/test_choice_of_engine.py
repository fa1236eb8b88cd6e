"""What `auto` takes on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedkin.core import Net, Training
from fedkin.engines import Job, Stacked, choose
from fedkin.methods import FedAvg
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
    engine, why = choose("auto", 0, Job(FedAvg(), net(), Training(), federation(), seed=1))
    assert (engine == Stacked(), why == "stacks of clients on a GPU") == (stacked, stacked)
