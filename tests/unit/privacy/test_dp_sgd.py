"""Private training: clipped sample by sample, on batches by chance, with the right noise, never used twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.core import (
    Batch,
    Bundle,
    Client,
    ConfigError,
    ModelError,
    Net,
    Samples,
    Train,
    Training,
    cross_entropy,
    head_loss,
)
from fedkin.core.method import Method, Work
from fedkin.core.seeds import generator
from fedkin.engines import Job, Loop, Task, Workers
from fedkin.engines.loop import sgd
from fedkin.methods import FedAvg
from fedkin.models import get_model
from fedkin.privacy.dp_sgd import Private, PrivateSteps, each, require_single_gradients
from fedkin.privacy.noise import Keyed
from refusals import refuses
from toys import blobs, close, federation, mlp, mlp_with_batchnorm, vector_net

QUIET = Private(noise=0.0, clip=1e9)


def steps(private: Private = QUIET, seed: int = 0) -> PrivateSteps:
    return private.steps(seed, "test")


def squares(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 (net(x) - 1)^2, the mean over the batch."""
    return 0.5 * (net(w, batch.x)[:, 0] - 1).square().mean()


# ---- the gradient --------------------------------------------------------------------------------------------------
def test_without_noise_and_clipping_it_is_sgd() -> None:
    """On whole batches (rate 1) with momentum, decay, both proximal terms, a linear term and a head loss; by Adam."""
    net, data = mlp(), blobs(12, [1.0, 1.0, 1.0], 0)
    training = Training(steps=5, batch_size=12, lr=0.1, momentum=0.5, weight_decay=0.01, decay_biases=False)
    center, linear = net.fresh("c"), 0.01 * net.fresh("l")
    z = net.features_and_logits(net.w0, data.x)[0].detach()
    requests = [
        Train(net.w0),
        Train(net.w0, center=center, mu=0.3),
        Train(net.w0, center=center, mu=0.3, prox_after=True, only=net.body),
        Train(net.w0, linear=linear, clip=0.5, only=net.head),
        Train(net.w0).add_logits(torch.randn(12, 3, generator=generator(1))),
        Train(net.w0[net.head], loss=head_loss, per_sample=Bundle(z=z)),
        Train(net.w0, optimizer="adam"),
    ]
    for request in requests:
        plain = sgd(request, data, net, training, generator(0))
        private = sgd(request, data, net, training, generator(0), steps())
        close(private, plain, 1e-6)
        assert not torch.equal(private, request.start)


@pytest.mark.parametrize("name", ["small-cnn", "cam-lenet"])
def test_networks_of_the_catalogue(name: str) -> None:
    """Convolutions and pooling, in the memory layout that they are fastest in: rows are the gradients one by one."""
    net = Net(lambda: get_model(name, (1, 16, 16), 3), (1, 16, 16), 3)
    x = net.layout(torch.randn(4, 1, 16, 16, generator=generator(0)))
    data = Samples(x, torch.tensor([0, 1, 2, 0]))
    rows = each(Train(net.w0), net.training(), net.w0, data, torch.arange(4))
    for i in range(4):
        w = net.w0.requires_grad_(True)
        loss = cross_entropy(net.training(), w, Batch(x[i : i + 1], data.y[i : i + 1]), Bundle())
        close(rows[i], torch.autograd.grad(loss, w)[0], 1e-6)


def test_samples_are_clipped_one_by_one() -> None:
    """Linear model at w = 0, loss 1/2 (<w, x> - 1)^2: gradients -x. x = (3, 4), (0, .5), clip 1: -(.6, .8) - (0, .5).

    Divided by the expected batch of 2; clipping their mean (-1.5, -2.25) instead would give (-.55, -.83).
    """
    net, data = vector_net(0.0, 0.0), Samples(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), torch.zeros(2).long())
    w = sgd(Train(net.w0, loss=squares), data, net, Training(steps=1, batch_size=2, lr=1.0), generator(0),
            steps(Private(0.0, clip=1.0)))  # fmt: skip
    close(w, [0.3, 0.65], 1e-6)


def test_what_lies_between_the_spans_of_a_part_does_not_count_for_the_clip() -> None:
    """Slopes -3 -12 -4 and -.3 -9 -.4, the second number still: norms 5 and .5, so .6 + .3 and .8 + .4, halved."""
    net, data = vector_net(0.0, 0.0, 0.0), Samples(torch.tensor([[3.0, 12, 4], [0.3, 9, 0.4]]), torch.ones(2).long())
    request = Train(net.w0, loss=squares, only=torch.tensor([True, False, True]))
    w = sgd(request, data, net, Training(steps=1, batch_size=2, lr=1.0), generator(0), steps(Private(0.0, clip=1.0)))
    close(w, [0.45, 0.0, 0.6], 1e-6)


def test_an_infinite_gradient_does_not_drown_the_sum() -> None:
    """A sample whose gradient is not finite takes no part: else the sum would show that it is there."""
    net, data = vector_net(0.0), Samples(torch.tensor([[math.inf], [0.5]]), torch.zeros(2).long())
    g = PrivateSteps(Private(0.0, clip=1.0), Keyed(generator(0)))
    list(g.batches(2, Training(steps=1, batch_size=2)))
    close(g.gradient(Train(net.w0, loss=squares), net, net.w0, data, torch.arange(2)), [-0.25], 1e-6)


def test_many_samples_are_taken_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum does not depend on how many gradients fit into memory at a time."""
    net, data = mlp(), blobs(30, [1.0, 1.0, 1.0], 0)
    training = Training(steps=3, batch_size=30, lr=0.1)
    whole = sgd(Train(net.w0), data, net, training, generator(0), steps(Private(0.0, 0.1)))
    monkeypatch.setattr("fedkin.privacy.dp_sgd._NUMBERS", 7 * net.size)
    close(sgd(Train(net.w0), data, net, training, generator(0), steps(Private(0.0, 0.1))), whole, 1e-6)


# ---- batches and noise ---------------------------------------------------------------------------------------------
def test_batches_by_chance() -> None:
    """n = 50, batches of 10: each sample is in a batch with chance 1/5, whatever else is in it; 5 steps an epoch."""
    g = steps()
    drawn = list(g.batches(50, Training(epochs=200, batch_size=10)))
    assert (len(drawn), g.taken, g.rate) == (1000, 1000, 0.2)
    assert [end for end, _ in drawn[:10]] == [False, False, False, False, True] * 2
    sizes = torch.tensor([len(index) for _, index in drawn], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 10) < 4 * math.sqrt(8 / 1000)
    assert abs(float(sizes.var()) - 8) < 1.6  # binomial: 50 * .2 * .8
    often = torch.bincount(torch.cat([index for _, index in drawn]), minlength=50)
    assert float((often - 200).abs().max()) < 4.5 * math.sqrt(160)


def test_small_clients_are_whole_batches() -> None:
    """Fewer samples than a batch: all of them in every step, and the sum is divided by their number."""
    g = steps()
    assert [i.tolist() for _, i in g.batches(3, Training(steps=2, batch_size=10))] == [[0, 1, 2]] * 2
    assert g.rate == 1.0
    assert list(steps().batches(0, Training())) == []


def test_the_noise_has_the_size_that_was_asked_for() -> None:
    """noise 2, clip .5, batches of 4: standard deviation 2 * .5 / 4 = .25 in every step, also on an empty batch."""
    net = vector_net(*[0.0] * 4000)
    data = Samples(torch.zeros(8, 4000), torch.zeros(8).long())
    g = PrivateSteps(Private(2.0, 0.5), Keyed(generator(0)))
    list(g.batches(8, Training(steps=1, batch_size=4)))
    for index in (torch.arange(8), torch.arange(0)):
        found = g.gradient(Train(net.w0, loss=squares), net, net.w0, data, index)
        assert abs(float(found.std()) - 0.25) < 4 * 0.25 / math.sqrt(2 * 4000)
        assert abs(float(found.mean())) < 4 * 0.25 / math.sqrt(4000)


# ---- through an engine ---------------------------------------------------------------------------------------------
def answers(method: Method, private: Private, engine: Any = None, received: Bundle | None = None) -> list[Any]:
    net = mlp()
    job = Job(method, net, Training(epochs=2, batch_size=4, lr=0.1), federation(), 3, private=private)
    session = (engine or Loop()).start(job)
    try:
        tasks = [Task("update", i, 1, received or Bundle(model=net.w0), Bundle()) for i in range(3)]
        return sorted(session.map(tasks), key=lambda a: a.client)
    finally:
        session.close()


def test_every_engine_counts_the_steps() -> None:
    """Clients of 9, 23 and 14 samples in batches of 4, two epochs: 2 * 3, 2 * 6 and 2 * 4 steps; and equal vectors."""
    loop, workers = answers(FedAvg(), Private(1.0)), answers(FedAvg(), Private(1.0), Workers(2))
    assert [a.spent for a in loop] == [{4 / 9: 6}, {4 / 23: 12}, {4 / 14: 8}]
    for a, b in zip(loop, workers, strict=True):
        assert a.spent == b.spent
        assert torch.equal(a.reply.model, b.reply.model)


def test_runs_repeat_by_seed_and_secrets_do_not() -> None:
    """In a simulation noise comes from the seed; on a host the seed is known to others, so it comes from elsewhere."""
    first, again = answers(FedAvg(), Private(1.0)), answers(FedAvg(), Private(1.0))
    assert torch.equal(first[0].reply.model, again[0].reply.model)
    first, again = (answers(FedAvg(), Private(1.0, secret=True)) for _ in range(2))
    assert not torch.equal(first[0].reply.model, again[0].reply.model)
    assert not torch.equal(first[0].reply.model, answers(FedAvg(), Private(1.0))[0].reply.model)


@dataclass(frozen=True)
class Twice(Method):
    """Trains from one start twice, on batches of its own or on the same."""

    same: bool = False

    def init(self, r: Any) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Any) -> Any:
        raise NotImplementedError

    def aggregate(self, s: Bundle, r: Any, up: Bundle) -> Bundle:
        return s

    def client_update(self, c: Client) -> Work:
        a, b = yield (Train(c.received.model), Train(c.received.model, batches=0 if self.same else None))
        return Bundle(a=a, b=b)


@pytest.mark.parametrize("same", [False, True])
def test_no_noise_is_used_twice(same: bool) -> None:
    """Two equal requests have noise of their own: from their difference nobody could take it off."""
    for a in answers(Twice(same=same), Private(1.0)):
        assert not torch.allclose(a.reply.a, a.reply.b, atol=1e-2)


def test_the_batches_of_another_request_are_drawn_anew() -> None:
    """Two noisy gradients of one batch tell more about it than they are accounted for: without noise, requests for the
    same batches have the results of those for batches of their own, and differ from each other."""
    for same, own in zip(*(answers(Twice(same=same), Private(0.0)) for same in (True, False)), strict=True):
        assert all(torch.equal(t, own.reply[name]) for name, t in same.reply.items())
        assert not torch.allclose(same.reply.a, same.reply.b)
        assert same.spent == own.spent


# ---- what is refused -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("values", [(-1.0,), (math.inf,), (math.nan,), (0.009,), (2e6,), (1.0, 0.0), (1.0, math.nan)])
def test_numbers_out_of_range(values: tuple[float, ...]) -> None:
    with refuses(ConfigError, ("noise_multiplier", "max_grad_norm")[len(values) - 1]):
        Private(*values)


class Recurrent(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


def rows_of(norm: nn.Module) -> Net:
    return Net(lambda: nn.Sequential(nn.Conv1d(1, 2, 1), norm, nn.Flatten(), nn.Linear(8, 3)), (1, 4), 3)


@pytest.mark.parametrize(
    ("net", "fact"),
    [
        (mlp_with_batchnorm(), "GroupNorm"),
        (rows_of(nn.InstanceNorm1d(2, track_running_stats=True)), "1.running_mean, 1.running_var"),
        (Net(lambda: Recurrent(nn.GRU), (5, 3), 2), "torch.func.vmap"),
    ],
)
def test_networks_that_mix_samples_are_refused(net: Net, fact: str) -> None:
    """Batch normalisation, other running statistics, and a GRU, which torch.func cannot take; an LSTM it can."""
    require_single_gradients(rows_of(nn.Sequential(nn.GroupNorm(1, 2), nn.Dropout(0.5))))
    require_single_gradients(Net(lambda: Recurrent(nn.LSTM), (5, 3), 2))
    with refuses(ModelError, fact):
        require_single_gradients(net)


def test_dropout_differs_from_sample_to_sample() -> None:
    """Two equal samples have two masks, as in a batch; equal runs have equal ones."""
    net = Net(lambda: nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Linear(20, 3)), (4,), 3)
    data = Samples(torch.ones(2, 4), torch.zeros(2).long())
    torch.default_generator.manual_seed(0)
    rows = each(Train(net.w0), net.training(), net.w0, data, torch.arange(2))
    assert not torch.equal(rows[0], rows[1])
    job = Job(FedAvg(), net, Training(batch_size=2), [replace(federation()[0], train=data)], 0, private=Private(1.0))
    a, b = (list(Loop().start(job).map([Task("update", 0, 1, Bundle(model=net.w0), Bundle())])) for _ in range(2))
    assert torch.equal(a[0].reply.model, b[0].reply.model)
