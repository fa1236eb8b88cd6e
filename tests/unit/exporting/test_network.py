"""A network as a list of torch layers gives the network's own logits."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fedkin.core import Net
from fedkin.exporting.loader import ExportError, Network
from fedkin.exporting.network import described
from fedkin.models import MODELS
from fedkin.models.start import factory


class Recurrent(nn.Module):
    """An LSTM's last step, then a linear head; with an addition and a slice on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        steps, _ = self.lstm(x)
        return self.head(self.norm(steps[:, -1]) + steps.mean(1))


def same(net: Net) -> None:
    plan = described(net)
    assert plan is not None
    made = Network(json.loads(json.dumps(plan))).eval()
    w = net.fresh(3)
    made.load_state_dict(net.unflatten(w), strict=False)
    x = torch.randn(4, *net.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(made(net.layout(x)), net(w, net.layout(x)))


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_catalogue_can_be_described(name: str) -> None:
    """At other values than those that the description was tried with."""
    shape = (3, 64, 64) if name == "resnet18" else (3, 32, 32)
    if name == "cfic-cnn-emnist":
        shape = (1, 28, 28)
    same(Net(factory(name, shape, 7), shape, 7))


def test_recurrent_layers_and_slices() -> None:
    """Results that are tuples, slices of them, and a residual sum."""
    same(Net(Recurrent, (5, 4), 3))


def test_a_layer_of_ones_own_has_no_description() -> None:
    """A module that only looks like torch's is not taken for it."""

    class Linear(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert described(Net(lambda: nn.Sequential(Linear(4, 3)), (4,), 3)) is None


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ({"layers": {"a": ["Module", {}]}, "steps": []}, "unknown kind 'Module'"),
        ({"layers": {}, "steps": [{"to": "x", "do": "function", "target": "os.system", "args": [], "options": {}}]},
         "unknown step"),
        ({"layers": {}, "steps": [{"to": "x", "do": "method", "target": "__class__", "args": [1], "options": {}}]},
         "unknown step"),
    ],
)  # fmt: skip
def test_a_description_can_run_nothing_else(plan: dict, what: str) -> None:
    """Only known layers, functions and methods are called: a folder from elsewhere cannot run code."""
    with pytest.raises(ExportError, match=what):
        Network(plan)(torch.zeros(1))
