"""Ditto against numbers worked out by hand (Li et al., ICML 2021, Algorithm 1).

Two clients, L_i = 1/2 (w - a_i)^2 with a = (0, 8) and n = (30, 10) samples, from 0 by two steps of .5 a round; lam = 1.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Client, ConfigError, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.methods.dapfl import DAPFL
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from toys import ByHand, apart, close, federation, mlp, mlp_with_batchnorm, quadratic, run, two_quadratics

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
WHOLE = Training(epochs=3, batch_size=1000, lr=0.1, momentum=0.5)  # no batches to differ in


def figures(hand: ByHand) -> list[float]:
    """The global model and the two personal ones."""
    return [float(hand.server.model), *(float(b.model) for b in hand.kept)]


def test_two_rounds() -> None:
    """Round 1, anchor 0: own models 0 and 4, (4 - 8) + (4 - 0) = 0 so 4; copies of the global one 0 and 4, 6: (30 * 0 +
    10 * 6)/40 = 1.5. Round 2, anchor 1.5: 0 - .5 (-1.5) = .75, where .75 + (.75 - 1.5) = 0; 4 - .5 (-4 + 2.5) = 4.75,
    where -3.25 + 3.25 = 0; copies .375 and 6.375: 75/40 = 1.875."""
    hand = two_quadratics(Ditto())
    for wanted in ([1.5, 0.0, 4.0], [1.875, 0.75, 4.75]):
        hand.play()
        close(figures(hand), wanted)


def test_two_rounds_of_shorter_steps() -> None:
    """At .5 one step ends in the minimum wherever it starts, at .25 not. Round 1: own models 0 and 2, 3; copies 0 and
    2, 3.5, mean .875. Round 2: 0, .21875, .328125; 3, 3.71875, 4.078125 (from the anchor instead of the kept 3 it would
    be 3.546875); copies .4921875 and 3.9921875, mean 1.3671875."""
    hand = two_quadratics(Ditto())
    hand.training = Training(steps=2, lr=0.25, batch_size=1000)
    for wanted in ([0.875, 0.0, 3.0], [1.3671875, 0.328125, 4.078125]):
        hand.play()
        close(figures(hand), wanted)


def test_epochs_of_the_own_model() -> None:
    """One step of .25 per epoch: the copy of the global model takes one, 2, mean (10 * 2)/40 = .5; the own model two, 2
    and 2 - .25 (-6 + 2) = 3, also in a run that counts one step."""
    for training in (Training(epochs=1, lr=0.25, batch_size=1000), Training(steps=1, lr=0.25, batch_size=1000)):
        hand = two_quadratics(Ditto(personal_epochs=2))
        hand.training = training
        hand.play()
        close(figures(hand), [0.5, 0.0, 3.0])


def test_the_anchor_is_not_the_freshly_trained_copy() -> None:
    """Pulled to its own copy of the global model after that copy was trained: (1.5, 0, 7), then (1.875, .1875, 7.1875),
    the mistake that comes with doing the global branch first and in place. Ours is the model as received."""

    def wrong(request: Train, client: Client) -> Tensor:
        loop = lambda asked: sgd(asked.but(loss=quadratic), client.data, client.net, client.training, generator(0))  # noqa: E731
        copy = loop(Train(client.received.model))
        return loop(request.but(center=copy)) if request.center is not None else copy

    hand, ours = two_quadratics(Ditto(), solve=wrong), two_quadratics(Ditto())
    for wanted in ([1.5, 0.0, 7.0], [1.875, 0.1875, 7.1875]):
        hand.play()
        ours.play()
        close(figures(hand), wanted)
        apart(figures(ours), wanted, 0.5)


def test_the_pull_is_the_squared_distance_with_a_gradient() -> None:
    """To the end: argmin 1/2 (v - 8)^2 + lam/2 v^2 = 8/(1 + lam) after one round from the anchor 0. A norm that is not
    squared would give 8 - lam, a detached one 8."""
    for lam, wanted in ((1.0, 4.0), (0.25, 6.4), (3.0, 2.0)):
        hand = two_quadratics(Ditto(lam=lam))
        hand.training = Training(steps=200, lr=0.2, batch_size=1000)
        hand.play()
        close(hand.kept[1].model, [wanted], 1e-5)


def test_strong_pull_keeps_near_the_global_model() -> None:
    """The default is not 0, and a stronger pull leaves the own models nearer to the model they were sent."""
    assert Ditto().lam == 1.0
    shards, far = federation(), []
    for lam in (0.0, 1.0, 5.0):
        hand = ByHand(
            Ditto(lam=lam), mlp(), [s.train for s in shards], training=Training(epochs=5, batch_size=5, lr=0.1)
        )
        hand.play()
        far.append(sum(float((b.model - hand.net.w0).norm()) for b in hand.kept))
    assert far[0] > 1.2 * far[1] > 1.2 * 1.2 * far[2]


def test_the_own_model_is_not_overwritten_by_the_download() -> None:
    """A client left out keeps its model bit for bit and goes on from it; a published program loads the new global model
    over every personal one after each round, which leaves one round of training with a pull."""
    net = mlp()
    hand = ByHand(Ditto(), net)
    hand.play()
    before = [b.model.clone() for b in hand.kept]
    hand.play([0, 3])
    for i in (1, 2, 4):
        assert torch.equal(hand.kept[i].model, before[i])
    client = hand.client(1, hand.download([1]).row(0))
    own, shared = next(hand.method.client_update(client))
    assert torch.equal(own.start, before[1])
    assert torch.equal(own.center, hand.server.model)
    assert torch.equal(shared.start, hand.server.model)
    assert shared.center is None


def test_what_is_evaluated() -> None:
    """The client's own model; the global one is a view of its own name, so that their curves do not mix. A client never
    sampled has the common start, in round 1 as in round 100."""
    hand = ByHand(Ditto(), training=Training(epochs=3, batch_size=5, lr=0.1))
    up = hand.play([0, 2])
    assert torch.equal(hand.used(2).model, hand.kept[2].model)
    assert torch.equal(hand.used(4).model, hand.net.w0)
    sent = hand.method.deliver(hand.server, hand.at("evaluate", [2])).row(0)
    assert torch.equal(views_of(hand.method, hand.client(2, sent))["global"].model, hand.server.model)
    apart(hand.kept[2].model, up.model[1], 1e-4)
    result = run(Ditto(), mlp(), federation(), joins=[1, 1, 1, 1, 3])
    assert all(any(n.startswith("global.") for n in e) for r in result.reports for e in r.evaluation.values())


def test_the_own_model_never_leaves() -> None:
    """Up goes the copy of the global model, and nothing else."""
    hand = ByHand(Ditto(), training=Training(epochs=3, batch_size=5, lr=0.1))
    up = hand.play()
    assert {n: tuple(t.shape) for n, t in up.items()} == {"model": (5, hand.net.size)}
    assert not any(torch.equal(up.model[i], hand.kept[i].model) for i in range(5))


@NETS
@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_the_global_model_is_fedavgs(net: Callable[[], Net], lam: float) -> None:
    """The global branch knows nothing of the own models. On whole epochs as one batch it is FedAvg's up to the order of
    summation; and own models trained first or second, as in DA-PFL's variant V1, are the same."""
    shards = federation()
    ours, avg = (run(m, net(), shards, training=WHOLE) for m in (Ditto(lam=lam), FedAvg()))
    close(ours.state.model, avg.state.model)
    v1 = run(DAPFL(variant="v1", lam=lam), net(), shards, training=WHOLE)
    for i, b in ours.clients.items():
        assert b.keys() == v1.clients[i].keys()
        close(b.get("model", 0.0), v1.clients[i].get("model", 0.0))


@NETS
def test_the_pull_changes_nothing_of_the_global_model(net: Callable[[], Net]) -> None:
    """Bit for bit the same global model with any lam and any number of personal epochs."""
    shards = federation()
    several = [run(m, net(), shards).state.model for m in (Ditto(), Ditto(lam=0.0), Ditto(personal_epochs=3))]
    assert torch.equal(several[0], several[1])
    assert torch.equal(several[0], several[2])


# ---- coupled steps -------------------------------------------------------------------------------------------------
@NETS
@pytest.mark.parametrize("decay_biases", [True, False])
def test_coupled_steps_are_both_branches(net: Callable[[], Net], decay_biases: bool) -> None:
    """With whole epochs as one batch coupled and separate training are the same to rounding: pull, momentum, decay of
    weights with and without biases, and the running statistics of both models, on which no term acts."""
    training = Training(epochs=3, batch_size=1000, lr=0.1, momentum=0.5, weight_decay=0.1, decay_biases=decay_biases)
    shards = federation()
    a, b = (run(Ditto(lam=0.5, coupled_steps=on), net(), shards, training=training) for on in (True, False))
    close(a.state.model, b.state.model, 1e-5)
    for i in b.clients:
        assert a.clients[i].keys() == b.clients[i].keys()
        close(a.clients[i].get("model", 0.0), b.clients[i].get("model", 0.0), 1e-5)


@NETS
def test_coupled_steps_see_the_same_batches(net: Callable[[], Net]) -> None:
    """On small batches: without pull the own models are local training's and the global model is FedAvg's, both at
    once, which needs the same batches for both; in separate epochs the global model is another."""
    shards = federation()
    ours, local, avg = (run(m, net(), shards) for m in (Ditto(lam=0.0, coupled_steps=True), Local(), FedAvg()))
    assert torch.equal(ours.state.model, avg.state.model)
    for i, kept in local.clients.items():
        assert not kept or torch.equal(ours.clients[i].model, kept.model)
    apart(run(Ditto(lam=0.0), net(), shards).state.model, avg.state.model, 1e-4)


def test_coupled_steps_pull_towards_the_model_as_received() -> None:
    """One batch, two steps, against the two branches written out: the pull is lam (v - g) with g as received."""
    net, data, g = mlp(), federation()[1].train, mlp(5).w0
    hand = ByHand(Ditto(lam=2.0, coupled_steps=True), net, [data], training=Training(steps=2, batch_size=1000, lr=0.3))
    hand.server = hand.server.but(model=g)
    up = hand.play()
    wanted = sgd(Train(net.w0, center=g, mu=2.0), data, net, hand.training, generator(0))
    close(hand.kept[0].model, wanted)
    close(up.model[0], sgd(Train(g), data, net, hand.training, generator(0)))


def test_coupled_steps_and_personal_epochs_exclude_each_other() -> None:
    """Same batches, so as many: said at once."""
    with pytest.raises(ConfigError):
        Ditto(coupled_steps=True, personal_epochs=2)


@pytest.mark.parametrize("coupled", [False, True])
def test_one_participant(coupled: bool) -> None:
    """m = 1: the global model is that client's copy."""
    hand = ByHand(Ditto(coupled_steps=coupled))
    up = hand.play([3])
    assert torch.equal(hand.server.model, up.model[0])


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("coupled", [False, True])
def test_an_independent_program_gives_the_same(coupled: bool) -> None:
    """Algorithm 1 in float64 on five clients of unequal size, three in each of five rounds; coupled, both models step
    on a batch before the next one."""
    lam, training = 2.0, Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    method = Ditto(lam=lam, coupled_steps=True) if coupled else Ditto(lam=lam, personal_epochs=3)
    found, shards, w = plain.played(method, rounds_=5, training=training)
    own = [w for _ in shards]
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            data, v, copy = shards[i].train, _Stepped(own[i]), _Stepped(w)
            if coupled:
                for index in plain.drawn(data, i, t, training):
                    copy.step(data, index)
                    v.step(data, index, lam, w)
            else:
                for index in plain.drawn(data, i, t, training, number=1):
                    copy.step(data, index)
                for index in plain.drawn(data, i, t, Training(epochs=3, batch_size=5), number=0):
                    v.step(data, index, lam, w)
            own[i] = v.at
            ends.append(copy.at)
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        w = (size / size.sum()) @ torch.stack(ends)
    assert plain.distance(found.state.model, w) < 2e-6
    seen = {i for _, cohort in plain.cohorts(found) for i in cohort}
    assert len(seen) > 3
    for i in seen:
        assert plain.distance(found.clients[i].model, own[i]) < 2e-6


class _Stepped:
    """A model under SGD with a step of .1 and momentum .5."""

    def __init__(self, start: Tensor) -> None:
        self.at, self.velocity = start, torch.zeros_like(start)

    def step(self, data: Samples, index: Tensor, lam: float = 0.0, anchor: Tensor | None = None) -> None:
        x, y = data.x[index].double(), data.y[index]
        near = (lambda v: lam / 2 * (v - anchor).square().sum()) if lam else (lambda v: 0.0)
        self.velocity = 0.5 * self.velocity + plain.gradient(lambda v: plain.loss(v, x, y) + near(v), self.at)
        self.at = self.at - 0.1 * self.velocity
