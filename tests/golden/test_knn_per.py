"""kNN-Per against numbers worked out by hand (Marfoq et al., ICML 2022).

The body is the identity, so features are inputs, and the head gives logits 0, so the model says 1/2 for both classes.
The memory holds (0, 0) of class 0, and (1, 0) and (0, 3) of class 1. At x = (1/4, 0) distances are 1/4, 3/4 and
sqrt(1/16 + 9) = 3.01039864.

Two neighbours: p_0 = e^(-1/4) / (e^(-1/4) + e^(-3/4)) = 1 / (1 + e^(-1/2)) = .62245933. Three: 1 / (1 + e^(-1/2) +
e^(-2.76039864)) = .59887512. With weight .4 and two: .4 * .62245933 + .6 / 2 = .54898373.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.uploads import also_sent
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Samples, Training
from fedkin.methods import FedAvg, KNNPer
from fedkin.methods.knn_per import memory
from toys import ByHand, apart, close, federation, mlp, plane_net, run

STORED = Samples(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1, 1]))
X = torch.tensor([[0.25, 0.0]])


def one_client(method: KNNPer, head: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> ByHand:
    hand = ByHand(method, plane_net(), [STORED])
    hand.server = Bundle(model=torch.tensor([*head, 1.0, 0.0, 0.0, 1.0]))
    return hand


def probabilities(hand: ByHand, x: Tensor = X) -> Tensor:
    return hand.method.predict(hand.net, hand.used(0), x).exp()


@pytest.mark.parametrize(
    ("neighbours", "weight", "expected"),
    [
        (2, 1.0, 0.62245933),
        (3, 1.0, 0.59887512),
        (99, 1.0, 0.59887512),
        (2, 0.4, 0.54898373),
        (1, 1.0, 1.0),
        (2, 0.0, 0.5),
    ],
)
def test_the_mixture(neighbours: int, weight: float, expected: float) -> None:
    """The numbers above; more neighbours than samples are all samples, one is its label, weight 0 is the model."""
    hand = one_client(KNNPer(neighbours=neighbours, weight=weight))
    close(probabilities(hand), [[expected, 1 - expected]])


def test_the_scale_of_distances() -> None:
    """At scale 1/2 the distances count twice: p_0 = 1 / (1 + e^-1) = .73105858."""
    close(probabilities(one_client(KNNPer(neighbours=2, weight=1.0, scale=0.5)))[0, 0], 0.73105858)


def test_probabilities_are_mixed_not_logits() -> None:
    """Logits 1/4 and 0 at x: the model says e^.25 / (e^.25 + 1) = .56217650; with weight .4 it is .6 * .56217650 + .4 *
    .62245933 = .58628963. The softmax of logits mixed with the memory's shares would be another."""
    hand = one_client(KNNPer(neighbours=2, weight=0.4), head=(1.0, 0.0, 0.0, 0.0))
    close(probabilities(hand)[0, 0], 0.58628963)
    wrong = (0.6 * torch.tensor([0.25, 0.0]) + 0.4 * torch.tensor([0.62245933, 0.37754067])).softmax(0)
    apart(probabilities(hand)[0, 0], wrong[0], 0.01)


def test_a_memory_far_away_counts_as_much() -> None:
    """At (100, 0) all exp(-d) are nearly 0, and beyond it they are no numbers; shares of the nearest still sum to 1."""
    hand = one_client(KNNPer(neighbours=2, weight=1.0))
    for far in (100.0, 1000.0):
        close(probabilities(hand, torch.tensor([[far, 0.0]])), [[0.26894142, 0.73105858]], 1e-4)


def test_features_are_those_of_the_global_model() -> None:
    """With a body that doubles all features distances are 1/2 and 3/2: p_0 = 1 / (1 + e^-1), whatever the client
    trained last."""
    hand = one_client(KNNPer(neighbours=2, weight=1.0))
    hand.server = Bundle(model=torch.tensor([0.0, 0, 0, 0, 2, 0, 0, 2]))
    close(probabilities(hand)[0, 0], 0.73105858)
    assert not hand.kept[0]


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        ([[0.25, 0.0]], [0], 0.0),  # the model's tie goes to class 0, which is right
        ([[0.75, 0.0]], [1], 0.1),  # the memory says class 1; any weight above 0 will do
        ([[0.75, 0.0]], [0], 0.0),
        ([], [], 0.5),
    ],
)
def test_the_weight_is_the_smallest_of_the_best_on_validation_samples(
    x: list[list[float]], y: list[int], weight: float
) -> None:
    """A grid of tenths, by accuracy; .5 without validation samples."""
    hand = one_client(KNNPer(neighbours=2))
    client = hand.client(0, hand.download([0]).row(0))
    validation = Samples(torch.tensor(x).view(-1, 2), torch.tensor(y, dtype=torch.int64))
    close(KNNPer(neighbours=2).personalize(replace(client, validation=validation)).weight, weight)


def test_the_weight_needs_the_memory_to_outweigh_the_model() -> None:
    """Logits (.75, 0) at (3/4, 0): the model gives class 0 .67917870; the memory 1 - .62245933. With weight w class 1
    wins from .32082130 + w (.62245933 - .32082130) > 1/2, that is w > .594: .6."""
    hand = one_client(KNNPer(neighbours=2), head=(1.0, 0.0, 0.0, 0.0))
    client = hand.client(0, hand.download([0]).row(0))
    validation = Samples(torch.tensor([[0.75, 0.0]]), torch.tensor([1]))
    close(KNNPer(neighbours=2).personalize(replace(client, validation=validation)).weight, 0.6)


def test_the_global_model_is_fedavgs_and_a_view() -> None:
    """Bit for bit over three rounds; a client keeps nothing."""
    ours, plain = (run(m, mlp(), federation(), rounds_=3) for m in (KNNPer(), FedAvg()))
    assert torch.equal(ours.state.model, plain.state.model)
    assert not any(ours.clients.values())
    hand = one_client(KNNPer(), head=(1.0, 0.0, 0.0, 0.0))
    view = views_of(hand.method, hand.client(0, hand.download([0]).row(0)))["global"]
    close(hand.method.predict(hand.net, view, X), [[0.25, 0.0]])


def test_what_it_says_about_itself() -> None:
    """Validation samples are read only where they choose the weight; training is not private, as the store is not."""
    assert needs_of(KNNPer()).validation
    assert not needs_of(KNNPer(weight=0.3)).validation
    assert also_sent(KNNPer())


def test_an_independent_program_gives_the_same() -> None:
    """Loops over samples and neighbours in float64, on the trained model of an unequal federation."""
    net, shards = mlp(), federation()
    model = run(FedAvg(), net, shards, rounds_=4, training=Training(batch_size=5, lr=0.2)).state.model
    for shard in shards:
        keys = net.features_and_logits(model, shard.train.x)[0].double()
        z = net.features_and_logits(model, shard.test.x)[0]
        expected = torch.zeros(len(z), 3, dtype=torch.float64)
        for row, query in zip(expected, z.double(), strict=True):
            distances = [float((query - key).square().sum().sqrt()) for key in keys]
            nearest = sorted(range(len(keys)), key=lambda i: distances[i])[:7]
            for i in nearest:
                row[int(shard.train.y[i])] += torch.tensor(-distances[i], dtype=torch.float64).exp()
            row /= row.sum()
        assert plain.distance(memory(z, keys.float(), shard.train.y, 7, 1.0, 3), expected) < 1e-6
