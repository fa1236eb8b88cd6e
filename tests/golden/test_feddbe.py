"""FedDBE against numbers worked out by hand (Zhang et al., NeurIPS 2023).

``l = CE(W (z + u) + b, y) + kappa/2 mean_d((zbar - g)^2)``: u is the client's vector, zbar the mean feature of a batch,
g the common one, from the first round on.

The network has two features and two classes: flat vector ``[W | b | B]``, ``z = B x``."""

from __future__ import annotations

from math import exp

import pytest
import torch
import torch.nn.functional as F

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, ModelError, Net, Samples, Training
from fedkin.methods import FedAvg, FedDBE
from fedkin.methods.feddbe import debiased_loss, with_vector
from toys import ByHand, close, copies, draw, federation, mlp, mlp_with_batchnorm, plane_net, run


def plane() -> Net:
    return plane_net(bias=True)


def client_with(vector: list[float], mean: list[float]) -> ByHand:
    """A client with x = (1, 0), y = 0 that receives W = 0, b = 0, B = 1 and this common mean; one step of 1/4."""
    data = [copies([1.0, 0.0], 4)]
    hand = ByHand(FedDBE(kappa=4.0), plane(), data, training=Training(steps=1, lr=0.25, batch_size=1000))
    hand.server = Bundle(model=torch.tensor([0.0] * 6 + [1.0, 0.0, 0.0, 1.0]), mean=torch.tensor(mean))
    hand.kept = [Bundle(bias=torch.tensor(vector))]
    return hand


def test_a_step() -> None:
    """g = (0, 2): B's first column moves against 4/2 ((1, 0) - (0, 2)) by 1/4: (1, 0) - (1/2, -1) = (1/2, 1). p - y =
    (-1/2, 1/2): W moves by 1/8 (1, -1) times z + u = (1, 1), b by 1/8 (1, -1). W = 0 gives u no gradient."""
    hand = client_with([0.0, 1.0], [0.0, 2.0])
    up = hand.play()
    close(up.model[0], [1 / 8, 1 / 8, -1 / 8, -1 / 8, 1 / 8, -1 / 8, 1 / 2, 0, 1, 1])
    close(hand.kept[0].bias, [0.0, 1.0])
    assert set(up) == {"model"}


def test_loss_and_gradient() -> None:
    """z = (1, 0) and (3, 2), zbar = (2, 1), g = (0, 0), kappa = 2: pull 2/2 * (4 + 1)/2 = 5/2. With W = 1 and u = (0,
    2) the logits are (1, 2) and (3, 4), labels 1: CE = log(1 + 1/e); the slope in u is the mean of p - y, sigma(-1) (1,
    -1)."""
    v = torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 2], requires_grad=True)
    batch = Batch(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([1, 1]))
    found = debiased_loss(plane(), v, batch, Bundle(mean=torch.zeros(2), kappa=torch.tensor(2.0)))
    close(found.detach(), 5 / 2 + torch.tensor(1 + exp(-1)).log())
    (g,) = torch.autograd.grad(found, v)
    close(g[-2:], [1 / (1 + exp(1)), -1 / (1 + exp(1))])


def test_the_common_mean_is_found_in_the_first_round() -> None:
    """Each participant trains as in FedAvg and sends the mean feature of its samples after it; the server's is their
    mean by samples, once: later rounds send none and leave it alone."""
    shards, moments = federation(), []
    found = run(FedDBE(), mlp(), shards, each_round=lambda s, _: moments.append(s.state))
    average = run(FedAvg(), mlp(), shards, rounds_=1)
    assert torch.equal(moments[0].model, average.state.model)
    assert all(torch.equal(state.mean, moments[0].mean) for state in moments)
    hand = ByHand(FedDBE(), mlp(), [s.train for s in shards], training=Training(epochs=2, batch_size=5, lr=0.1))
    up = hand.play([0, 3])
    close(up.mean[1], plain.features(up.model[1], shards[3].train.x).mean(0))
    close(hand.server.mean, (9 * up.mean[0] + 30 * up.mean[1]) / 39)
    assert set(hand.play([0, 1])) == {"model"}
    assert found.state.mean.shape == (plain.HIDDEN,)


def test_the_first_round_is_the_first_with_an_answer() -> None:
    """Until an answer has come, no mean is sent, so that clients go on to send theirs."""
    hand = ByHand(FedDBE())
    assert set(hand.download([0]).row(0)) == {"model"}
    hand.play([2])
    assert set(hand.download([0]).row(0)) == {"model", "mean"}


def test_the_vector_stays_and_goes_into_the_bias() -> None:
    """Clients keep their own while others take part; a model with the vector in its bias gives what the paper's sum
    gives."""
    data = [s.train for s in federation()]
    hand = ByHand(FedDBE(), mlp(), data, training=Training(epochs=2, batch_size=5, lr=0.1))
    hand.play([0, 1])
    hand.play([0, 1])
    before = hand.kept[0].bias
    assert float(before.abs().max()) > 1e-3
    hand.play([1, 2])
    assert torch.equal(hand.kept[0].bias, before)
    assert not torch.equal(hand.kept[0].bias, hand.kept[1].bias)
    used, x = hand.used(0).model, data[0].x
    z = plain.features(hand.server.model, x) + before
    w = hand.server.model
    close(hand.net(used, x), z @ w[:18].view(3, 6).T + w[18:21], 1e-5)
    assert torch.equal(hand.used(4).model, w)  # never there: no vector
    sent = hand.method.deliver(hand.server, hand.at("deliver", [0])).row(0)
    assert set(sent) == {"model"}


def test_views() -> None:
    """ "generic" is the global model, "trained" the client's own after its last training, both scored as they are."""
    data = [s.train for s in federation()]
    hand = ByHand(FedDBE(), mlp(), data, training=Training(batch_size=5, lr=0.1))
    up = hand.play([0, 3])
    first = views_of(hand.method, hand.client(0, Bundle(model=hand.server.model)))
    assert torch.equal(first["trained"].model, up.model[0])  # after the first round, which has no vector
    up = hand.play([0, 1])
    views = views_of(hand.method, hand.client(0, Bundle(model=hand.server.model)))
    assert torch.equal(views["generic"].model, hand.server.model)
    assert torch.equal(views["trained"].model, with_vector(hand.net, up.model[0], hand.kept[0].bias))


def test_without_the_pull_and_without_a_vector_it_is_cross_entropy() -> None:
    """kappa = 0 and u = 0: the loss and its gradient in the model are those of FedAvg."""
    net, w = mlp(), mlp().w0.requires_grad_(True)
    batch = Batch(draw(7, 4), torch.arange(7) % 3)
    aux = Bundle(mean=torch.ones(6), kappa=torch.tensor(0.0))
    v = torch.cat([net.w0, torch.zeros(6)]).requires_grad_(True)
    (ours,) = torch.autograd.grad(debiased_loss(net, v, batch, aux), v)
    (plainly,) = torch.autograd.grad(F.cross_entropy(net(w, batch.x), batch.y), w)
    close(ours[:51], plainly)


def test_running_statistics_are_averaged() -> None:
    """They are the tail of the model, before the client's vector."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedDBE(), net, training=Training(epochs=1, batch_size=5, lr=0.05))
    hand.play([0, 3])
    up = hand.play([0, 3])
    assert up.model.shape == (2, net.size)
    assert not torch.equal(up.model[0, net.buffers], hand.server.model[net.buffers])
    close(hand.server.model, (9 * up.model[0] + 30 * up.model[1]) / 39, 1e-5)


def test_what_is_refused() -> None:
    """A head without bias has no room for a vector."""
    with pytest.raises(ModelError):
        ByHand(FedDBE(), plane_net(), [Samples(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))])


def test_an_independent_program_gives_the_same() -> None:
    """Model and vector as two variables in float64, on five clients of unequal size, three in each of five rounds."""
    kappa = 3.0
    found, shards, w = plain.played(FedDBE(kappa=kappa), rounds_=5)
    vectors = [torch.zeros(plain.HIDDEN, dtype=torch.float64) for _ in shards]
    mean = torch.zeros(plain.HIDDEN, dtype=torch.float64)
    for t, cohort in plain.cohorts(found):
        ends, means = [], []
        for i in cohort:
            data, v, u = shards[i].train, w, vectors[i]
            for index in plain.drawn(data, i, t):
                x, y = data.x[index].double(), data.y[index]
                v, u = v.clone().requires_grad_(True), u.clone().requires_grad_(t > 1)
                z = plain.features(v, x)
                weight, bias = v[:18].view(3, 6), v[18:21]
                value = F.cross_entropy((z + u) @ weight.T + bias, y)
                if t > 1:
                    value = value + kappa * torch.mean(0.5 * (z.mean(0) - mean) ** 2)
                value.backward()
                v, u = (v - 0.1 * v.grad).detach(), (u - 0.1 * u.grad).detach() if t > 1 else u
            vectors[i] = u
            ends.append(v)
            means.append(plain.features(v, data.x.double()).mean(0))
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        w = (size / size.sum()) @ torch.stack(ends)
        if t == 1:
            mean = (size / size.sum()) @ torch.stack(means)
    assert plain.distance(found.state.model, w) < 5e-6
    assert max(plain.distance(kept.bias, vectors[i]) for i, kept in found.clients.items() if kept) < 5e-6
