"""Compiled training is local SGD: against autograd in float64 on random chains, for every term of a request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chains import CLASSES, TERMS, Make, asked, chains, data_for, made, parts, reference, sequence
from fedkin.core import Bundle, Net, Samples, Train, Training, head_loss
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.engines.native import Native, native
from fedkin.models.start import factory

pytest.importorskip("llvmlite")

TOLERANCE = 1e-5
"""Largest difference to float64 in the tests, as a fraction of the largest change of a parameter, or of 1."""


def compiled(net: Net, request: Train, data: Samples, training: Training) -> Tensor:
    """The vector that compiled training comes to; nothing else must have been taken."""
    assert isinstance(native(request, training, data, net), Native)
    return sgd(request, data, net, training, generator(0), gradient="compiled")


def agree(
    make: Make, net: Net, request: Train, data: Samples, training: Training, tolerance: float = TOLERANCE
) -> Tensor:
    """That compiled training agrees with float64, and went somewhere."""
    data = Samples(net.layout(data.x), data.y)
    found = compiled(net, request, data, training)
    expected = reference(make, net, request, data, training, generator(0))
    way = float((expected - request.start).abs().max())
    assert way > 1e-4
    assert float((found - expected).abs().max()) <= tolerance * max(1.0, way)
    return found


def check(chain: tuple[Make, tuple[int, ...]], drawn: dict[str, Any]) -> None:
    """One random chain with random terms."""
    make, shape = chain
    net, data = Net(make, shape, CLASSES), data_for(shape)
    request, training = asked(net, data, drawn)
    agree(make, net, request, data, training)


@given(chains(images=False), st.fixed_dictionaries(TERMS))
@settings(max_examples=8, deadline=None)
def test_random_linear_chains_and_terms(chain: tuple[Make, tuple[int, ...]], drawn: dict[str, Any]) -> None:
    check(chain, drawn)


@given(chains(images=True), st.fixed_dictionaries(TERMS))
@settings(max_examples=10, deadline=None)
def test_random_convolutions_and_terms(chain: tuple[Make, tuple[int, ...]], drawn: dict[str, Any]) -> None:
    check(chain, drawn)


@pytest.mark.thorough
@given(st.booleans().flatmap(lambda images: chains(images=images)), st.fixed_dictionaries(TERMS))
@settings(max_examples=100, deadline=None)
def test_many_random_chains_and_terms(chain: tuple[Make, tuple[int, ...]], drawn: dict[str, Any]) -> None:
    """A program of each chain is compiled, which takes half a second: before a release."""
    check(chain, drawn)


@pytest.mark.parametrize("name", ["linear", "mlp", "small-cnn", "cam-lenet", "pfedcs-cnn"])
def test_the_catalogues_networks_are_compiled(name: str) -> None:
    """Twelve steps of the papers' chains on images; the last batches of 20 samples have four."""
    shape = (1, 28, 28)
    make = factory(name, shape, CLASSES)
    net = Net(make, shape, CLASSES)
    agree(make, net, Train(net.w0), data_for(shape, 20), Training(steps=12, batch_size=8, lr=0.02, momentum=0.9))


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ((3, 14, 13), (made(nn.Conv2d, 3, 32, (5, 3), padding=2), made(nn.ReLU), made(nn.MaxPool2d, 2),
                       made(nn.Conv2d, 32, 48, (3, 3)), made(nn.ReLU))),
        ((40, 9, 9), (made(nn.Conv2d, 40, 6, 5, padding=1), made(nn.MaxPool2d, 2), made(nn.ReLU))),
        ((2, 6, 70), (made(nn.Conv2d, 2, 5, 3), made(nn.MaxPool2d, 2), made(nn.ReLU))),
    ],
    ids=["channels", "row of many taps", "wide rows"],
)  # fmt: skip
def test_more_than_the_registers_hold(shape: tuple[int, ...], body: tuple[Make, ...]) -> None:
    """Kernels of many vectors, which are taken in parts that divide them, and rows of more than 32 positions."""
    width = sequence(*body, made(nn.Flatten))()(torch.zeros(1, *shape)).shape[1]
    make = sequence(*body, made(nn.Flatten), made(nn.Linear, width, CLASSES))
    net = Net(make, shape, CLASSES)
    agree(make, net, Train(net.w0), data_for(shape), Training(steps=3, batch_size=5, lr=0.05))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("moving", ["head", "body", "top"])
def test_what_stands_still_keeps_its_bits(moving: str, momentum: float) -> None:
    """Neither gradients nor terms reach it. The last two layers are two spans of the vector, and one of the program."""
    make, shape = factory("small-cnn", (1, 8, 8), CLASSES), (1, 8, 8)
    net = Net(make, shape, CLASSES)
    part = parts(net)[moving]
    still = torch.ones(net.size, dtype=torch.bool)
    still[part] = False
    request = Train(net.w0, only=part, mu=1.0, center=torch.zeros(net.size), linear=torch.ones(net.size))
    training = Training(batch_size=4, lr=0.05, weight_decay=0.1, momentum=momentum)
    found = agree(make, net, request, data_for(shape), training)
    assert torch.equal(found[still], net.w0[still])
    assert not bool((found[part] == net.w0[part]).any())


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_the_loss_depends_on_differences_of_logits_alone(logit: float) -> None:
    """Far from 0 exponentials of logits would be 0 or infinite; the logits themselves are rounded to 1.5e-5."""
    make = sequence(made(nn.Linear, 5, 20), made(nn.ReLU), made(nn.Linear, 20, CLASSES))
    net = Net(make, (5,), CLASSES)
    start = net.w0
    start[net.places()["2.bias"][0]] = logit
    agree(make, net, Train(start), data_for((5,)), Training(batch_size=4, lr=0.05), tolerance=1e-4)


def test_a_classifier_on_stored_features() -> None:
    """The head alone, on rows of features, in a network that is no chain."""
    make = sequence(made(nn.Linear, 6, 5), made(nn.Tanh), made(nn.Linear, 5, CLASSES))
    net = Net(make, (6,), CLASSES)
    z = torch.randn(12, 5, generator=generator(9))
    request = Train(net.w0[net.head], loss=head_loss, per_sample=Bundle(z=z))
    agree(make, net, request, data_for((6,)), Training(steps=9, batch_size=5, lr=0.3))


POOLINGS = pytest.mark.parametrize("pool", [made(nn.MaxPool2d, 2), made(nn.MaxPool2d, 3), made(nn.MaxPool2d, 3, 2)])
"""As a part of a convolution, and alone."""


@pytest.mark.parametrize("channels", [6, 16])
@POOLINGS
def test_ties_in_a_pooling_go_to_the_first(pool: Make, channels: int) -> None:
    """With weights of zero all positions of a window are equal, on inputs that differ."""
    make = sequence(
        made(nn.Conv2d, 2, channels, 3), pool, made(nn.ReLU), made(nn.Flatten), made(nn.LazyLinear, CLASSES)
    )

    def settled() -> nn.Module:
        module = make()
        module(torch.zeros(1, 2, 11, 11))
        return module

    net = Net(settled, (2, 11, 11), CLASSES)
    start = net.w0
    start[net.places()["0.weight"][0]] = 0.0
    start[net.places()["0.bias"][0]] = 0.5
    agree(make, net, Train(start), data_for((2, 11, 11)), Training(steps=1, batch_size=12, lr=0.1))


@pytest.mark.parametrize("channels", [6, 16])
@POOLINGS
def test_nan_wins_a_pooling_wherever_it_is(pool: Make, channels: int) -> None:
    """One sample has a NaN in one position of the first window; a step of its batch makes the head NaN."""
    net, training = Net(pooled(2, channels, 1, pool), (2, 11, 11), CLASSES), Training(steps=1, batch_size=12, lr=0.1)
    for h, w in ((0, 0), (0, 1), (1, 0), (1, 1)):
        data = data_for((2, 11, 11))
        data.x[3, 0, h, w] = float("nan")
        found = compiled(net, Train(net.w0), Samples(net.layout(data.x), data.y), training)
        assert bool(found[net.head].isnan().all())


def pooled(inputs: int, channels: int, kernel: int, pool: Make) -> Make:
    """A convolution, a pooling, ReLU, and a linear layer, for images of 11 x 11."""
    body = (made(nn.Conv2d, inputs, channels, kernel), pool, made(nn.ReLU), made(nn.Flatten))
    width = sequence(*body)()(torch.zeros(1, inputs, 11, 11)).shape[1]
    return sequence(*body, made(nn.Linear, width, CLASSES))
