"""People's own networks by import path, and what is said when that goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.core.errors import ModelError
from fedkin.models import get_model
from fedkin.models.start import factory
from refusals import refuses

SOURCE = """
import torch
from torch import nn

class Both(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))

class OnlyClasses(nn.Sequential):
    def __init__(self, n):
        super().__init__(nn.Flatten(), nn.Linear(4, n))

class Named(nn.Sequential):
    def __init__(self, width=8, num_classes=10):
        super().__init__(nn.Flatten(), nn.Linear(4, num_classes))

def nothing():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

def three(a, b, c): ...
def half(shape, depth): ...
def number(): return 5
def broken(shape, classes): raise ValueError("no idea")
def pair():
    class Pair(nn.Sequential):
        def forward(self, x):
            return super().forward(x), x
    return Pair(nn.Linear(4, 3))
def counting(classes):
    net = nothing()
    net.eval()
    return net

instance = nothing()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of own networks in the current folder, which is not on the import path."""
    (tmp_path / "own_networks.py").write_text(SOURCE)
    (tmp_path / "faulty_networks.py").write_text("import nowhere_to_be_found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    sys.modules.pop("own_networks", None)
    return "own_networks"


@pytest.mark.parametrize("attribute", ["Both", "OnlyClasses", "Named", "nothing"])
def test_signatures(own: str, attribute: str) -> None:
    """A maker is called with (shape, classes), (classes), its named arguments, or nothing, as it asks."""
    before = list(sys.path)
    model = get_model(f"{own}:{attribute}", (4,), 3)
    assert isinstance(model, nn.Module)
    assert model(torch.zeros(5, 4)).shape == (5, 3)
    assert sys.path == before


def test_mode_is_kept(own: str) -> None:
    """The check does not change whether a network is in training mode."""
    assert get_model(f"{own}:nothing", (4,), 3).training
    assert not get_model(f"{own}:counting", (4,), 3).training


@pytest.mark.parametrize(
    ("attribute", "facts"),
    [
        ("Bth", ("'own_networks'", "'Bth'", "'Both'")),
        ("three", ("a, b, c", "f(shape, classes)")),
        ("half", ("depth",)),
        ("number", ("nn.Module", "int")),
        ("broken", ("ValueError: no idea",)),
        ("instance", ("nn.Module class", "Sequential")),
    ],
)
def test_faults(own: str, attribute: str, facts: tuple[str, ...]) -> None:
    with refuses(ModelError, *facts):
        get_model(f"{own}:{attribute}", (4,), 3)


def test_wrong_shapes(own: str) -> None:
    """A network for other inputs or another number of classes is refused with the shapes."""
    rows = fedkin.Federation.from_arrays([(np.zeros((20, 5)), np.arange(20) % 3)])
    with refuses(ModelError, "own_networks:nothing", "[5]", "RuntimeError"):
        fedkin.run(fedkin.methods.FedAvg(), rows, f"{own}:nothing")
    with refuses(ModelError, "own_networks:pair", "tuple", "logits [B, 3]"):
        fedkin.run(
            fedkin.methods.FedAvg(),
            fedkin.Federation.from_arrays([(np.zeros((20, 4)), np.arange(20) % 3)]),
            f"{own}:pair",
        )


def test_imports(own: str) -> None:
    """A module that is not there, or fails at import, is named with the cause."""
    with refuses(ModelError, "'no_such_module'", "ModuleNotFoundError"):
        get_model("no_such_module:Net", (4,), 3)
    with refuses(ModelError, "'faulty_networks'", "nowhere_to_be_found"):
        get_model("faulty_networks:Net", (4,), 3)


def test_unknown_name() -> None:
    """A misspelt name is answered with the nearest and all known ones."""
    with refuses(ModelError, "'dapfl-cn'", "'dapfl-cnn'", "linear, mlp"):
        get_model("dapfl-cn", (1, 28, 28), 10)
    with refuses(ModelError, "'zzz'", "linear"):
        get_model("zzz", (1, 28, 28), 10)


class Own(nn.Module):
    """Parameters of its own, and no way to draw them anew."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(scale * torch.randn(3, 4)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x @ self.weight.T)


def test_an_object_that_cannot_be_drawn_anew_has_one_start() -> None:
    """Methods with one start run; a second start, which would be the first again, is an error that names the layer."""
    make = factory(nn.Sequential(Own(1.0), nn.Linear(3, 2)), (4,), 2)
    make()
    with refuses(ModelError, "'0.weight' of Own"):
        make()
    constant = factory(nn.Sequential(Own(0.0), nn.Linear(3, 2)), (4,), 2)
    assert not torch.equal(constant()[1].weight, constant()[1].weight)


def test_attention_layers_are_drawn_anew() -> None:
    """torch calls their method `_reset_parameters`."""
    make = factory(nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 2)), (3, 4), 2)
    first, second = (dict(make().named_parameters()) for _ in range(2))
    for name, p in first.items():
        assert bool((p == p.flatten()[0]).all()) or not torch.equal(p, second[name]), name
