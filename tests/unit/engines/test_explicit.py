"""Passes written out agree with autograd: on random chains, for every term of a request; what is no chain is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chains import CLASSES, TERMS, Make, asked, chains, data_for, made, sequence
from fedkin.core import Bundle, Net, Samples, Train, Training, cross_entropy
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.engines.steps import layers_of, written_out
from fedkin.models.start import factory


def both(net: Net, request: Train, data: Samples, training: Training) -> tuple[Tensor, Tensor]:
    """The vectors that passes written out and autograd come to."""
    data = Samples(net.layout(data.x), data.y)
    assert not isinstance(written_out(request, net), str)
    explicit = sgd(request, data, net, training, generator(0), gradient="explicit")
    return explicit, sgd(request, data, net, training, generator(0), gradient="autograd")


def agree(net: Net, request: Train, data: Samples, training: Training, tolerance: float = 2e-5) -> Tensor:
    """That they agree: the difference is a small part of the way they went, far above rounding for a wrong term."""
    explicit, reference = both(net, request, data, training)
    way = float((reference - request.start).abs().max())
    assert way > 1e-4
    assert float((explicit - reference).abs().max()) <= tolerance * max(1.0, way)
    return explicit


@given(
    st.booleans().flatmap(lambda images: chains(images=images)),
    st.fixed_dictionaries(
        {**TERMS, "part": st.sampled_from(["all", "head", "body", "top", "ends"]), "clip": st.sampled_from([None, 0.5])}
    ),
)
@settings(max_examples=80, deadline=None)
def test_random_chains_and_terms(chain: tuple[Make, tuple[int, ...]], drawn: dict[str, Any]) -> None:
    """The same vector to rounding."""
    make, shape = chain
    net, data = Net(make, shape, CLASSES), data_for(shape)
    request, training = asked(net, data, drawn)
    explicit, reference = both(net, request, data, training)
    torch.testing.assert_close(explicit, reference, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_layer_between_two_that_move_stands_still(momentum: float) -> None:
    """Neither gradients nor terms reach it; the others move as by autograd."""
    layers = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
    )
    net = Net(layers, (6,), CLASSES)
    part, rng = net.part("0", "3"), generator(5)
    center, linear = (torch.randn(net.size, generator=rng) for _ in range(2))
    training = Training(batch_size=4, lr=0.05, weight_decay=0.1, momentum=momentum)
    for terms in ({"center": center, "mu": 1.0}, {"linear": linear}, {"center": center, "mu": 1.0, "linear": linear}):
        explicit, reference = both(net, Train(net.w0, only=part, **terms), data_for((6,)), training)
        torch.testing.assert_close(explicit, reference, rtol=1e-4, atol=3e-5)
        assert torch.equal(explicit[~part], net.w0[~part])


GROUPED = sequence(
    made(nn.Conv2d, 2, 6, 3, groups=2), made(nn.ReLU), made(nn.MaxPool2d, 2, ceil_mode=True),
    made(nn.Conv2d, 6, 6, 3, groups=6), made(nn.AvgPool2d, 2, 1), made(nn.Flatten), made(nn.LazyLinear, CLASSES),
)  # fmt: skip


def settled() -> nn.Module:
    module = GROUPED()
    module(torch.zeros(1, 2, 15, 13))
    return module


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "small-cnn", "cam-lenet", "pfedcs-cnn", "cfic-cnn-emnist", "grouped"]
)
def test_the_catalogues_networks_are_written_out(name: str) -> None:
    """Twelve steps of the papers' chains on images, and of groups of channels, end within 2e-5 of autograd's."""
    shape = (2, 15, 13) if name == "grouped" else (1, 28, 28)
    net = Net(settled if name == "grouped" else factory(name, shape, CLASSES), shape, CLASSES)
    agree(net, Train(net.w0), data_for(shape, 20), Training(steps=12, batch_size=8, lr=0.02, momentum=0.9))


class Forward(nn.Module):
    """A network with a forward pass of its own."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc, self.how = nn.Conv2d(1, 3, 3), nn.Linear(12, CLASSES), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.reshape(-1, 12),
        lambda x: x.reshape((-1, 12)),
    ],
)
def test_forward_passes_that_are_chains(flatten: Callable[[Tensor], Tensor]) -> None:
    net = Net(lambda: Forward(lambda m, x: m.fc(flatten(torch.relu(m.conv(x)).relu()))), (1, 4, 4), CLASSES)
    assert not isinstance(layers_of(net), str)
    agree(net, Train(net.w0), data_for((1, 4, 4)), Training(steps=5, batch_size=4, lr=0.2))


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda m, x: m.fc(torch.tanh(m.conv(x)).flatten(1)), "tanh"),
        (lambda m, x: m.fc(m.conv(x).flatten(1)) + m.fc(m.conv(x).flatten(1)), "branches"),
        (lambda m, x: m.fc(m.conv(x).flatten(1)) if x.sum() > -9e9 else x, "cannot be read"),
        (lambda m, x: m.fc(m.conv(x.flip(2)).flatten(1)), "flip"),
    ],
)
def test_forward_passes_that_are_none(forward: Callable[[Any, Tensor], Tensor], why: str) -> None:
    net = Net(lambda: Forward(forward), (1, 4, 4), CLASSES)
    assert why in str(layers_of(net))
    w = sgd(Train(net.w0), data_for((1, 4, 4)), net, Training(steps=2, batch_size=4, lr=0.1), generator(0))
    assert not torch.equal(w, net.w0)


class Doubled(nn.Linear):
    """A subclass of a layer is not taken for it."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Linear:
    """A hook that changes what a layer gives would be lost in passes written out."""
    layer = nn.Linear(6, 3)
    layer.register_forward_hook(lambda m, args, out: out * 2)
    return layer


def shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, CLASSES))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES)), "running statistics"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.Linear(3, CLASSES)), "Dropout"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, CLASSES)), "GELU"),
        (lambda: nn.Sequential(Doubled(6, 3), nn.Linear(3, CLASSES)), ""),
        (lambda: nn.Sequential(hooked(), nn.Linear(3, CLASSES)), "Linear"),
        (shared, "used twice"),
    ],
)
def test_layers_that_are_not_written_out(make: Callable[[], nn.Module], why: str) -> None:
    found = layers_of(Net(make, (6,), CLASSES))
    assert isinstance(found, str)
    assert why in found


def test_other_losses_take_autograd() -> None:
    def mine(net: Net, w: Tensor, batch: Any, aux: Bundle) -> Tensor:
        return cross_entropy(net, w, batch, aux)

    net = Net(factory("mlp", (6,), CLASSES), (6,), CLASSES)
    for request in (
        Train(net.w0, loss=mine),
        Train(net.w0, only=slice(1, net.size)),
        Train(net.w0, aux=Bundle(z=net.w0)),
    ):
        assert isinstance(written_out(request, net), str)
