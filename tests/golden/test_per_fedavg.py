"""Per-FedAvg against numbers worked out by hand (Fallah et al., NeurIPS 2020).

A meta-step from w: w~ = w - alpha grad f(w; D), g = grad f(w~; D'). First order: w - beta g. Hessian-free:
w - beta (g - alpha h) with h = [grad f(w + delta g; D'') - grad f(w - delta g; D'')] / (2 delta), near f''(w) g. Both
steps start at w. The losses are f = a/2 w^2 - b w and w^4/4; alpha = .1, beta = .05, w = 1.
"""

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Client, Net, Samples, Train, Training
from fedkin.core.samples import tally
from fedkin.core.seeds import generator
from fedkin.core.train import Loss
from fedkin.engines.loop import batches, sgd
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.per_fedavg import PerFedAvg, meta_gradient, meta_loss, split
from toys import (
    ByHand,
    ClientData,
    Solve,
    apart,
    blobs,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    vector_net,
)

STEP = Training(steps=1, batch_size=1000)


def parabola(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """a/2 w^2 - b w, where every sample is (a, b)."""
    return (batch.x.mean() / 2 * w.square() - batch.y.float().mean() * w).sum()


def quartic(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """w^4 / 4."""
    return w.pow(4).sum() / 4


def by(task: Loss) -> Solve:
    """The real local SGD with another task than cross-entropy, in the meta-loss and in the adaptation."""

    def meta(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
        parts = split(batch, 3 if "delta" in aux else 2)
        return meta_gradient(task, net, w, parts, aux.inner_lr, aux.get("delta")) @ w

    def solve(request: Train, c: Client) -> Tensor:
        asked = request.but(loss=meta if request.loss is meta_loss else task)
        return sgd(asked, c.data, c.net, c.training, generator(0, c.round, c.id))

    return solve


def one(method: PerFedAvg, task: Loss, *, start: float = 1.0, n: int = 8, training: Training = STEP) -> ByHand:
    """One client with n samples (a, b) = (2, 1), that is f = w^2 - w."""
    return ByHand(method, vector_net(start), [copies(2.0, n, y=1)], training=training, solve=by(task))


def both(order: str = "first", **changes: object) -> PerFedAvg:
    return PerFedAvg(**{"inner_lr": 0.1, "outer_lr": 0.05, "order": order, **changes})


# ---- one meta-step -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("task", "order", "wanted"),
    [
        (parabola, "first", 0.96),
        (parabola, "hessian-free", 0.968),
        (quartic, "first", 0.96355),
        (quartic, "hessian-free", 0.974485002),
    ],
)
def test_one_meta_step(task: Loss, order: str, wanted: float) -> None:
    """f = w^2 - w: w~ = .9, g = .8; first order 1 - .05 * .8 = .96; f'' = 2, so 1 - .05 * .8 (1 - .2) = .968, exact.
    f = w^4/4: w~ = .9, g = .9^3 = .729; .96355; f'' = 3: 1 - .05 * .729 (1 - .3) = .974485 (+ .05 * .1 * delta^2 g^3 =
    2e-9 from the difference)."""
    close(one(both(order), task).play().model, [[wanted]], 2e-7 if order == "first" else 1e-6)


def test_the_difference_of_gradients_in_float64() -> None:
    """h = [(1 + .000729)^3 - (1 - .000729)^3]/.002 = 3 * .729 + 1e-6 * .729^3, so that 1 - .05 (.729 - .1 h) is
    .974485002, and .974485 with the exact second derivative; for the quadratic both are .968."""
    alpha, delta = (torch.tensor(v, dtype=torch.float64) for v in (0.1, 1e-3))
    data = copies(2.0, 3, y=1)
    parts = split(Batch(data.x.double(), data.y), 3)
    w = torch.ones(1, dtype=torch.float64)
    close(w - 0.05 * meta_gradient(quartic, vector_net(1.0), w, parts, alpha, delta), [0.974485001937], 1e-12)
    close(w - 0.05 * meta_gradient(parabola, vector_net(1.0), w, parts, alpha, delta), [0.968], 1e-12)


@pytest.mark.parametrize("order", ["first", "hessian-free"])
@pytest.mark.parametrize("task", [quartic, parabola])
def test_no_inner_step_is_sgd(task: Loss, order: str) -> None:
    """alpha = 0: w~ = w and the gradient is 1 in both losses: 1 - .05 = .95."""
    close(one(both(order, inner_lr=0.0), task).play().model, [[0.95]])


@pytest.mark.parametrize(("task", "wrong"), [(parabola, 0.86), (quartic, 0.86355)])
@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_the_meta_step_starts_at_w(task: Loss, wrong: float, order: str) -> None:
    """A published program takes the outer step from w~: .9 - .05 * .8 = .86 and .9 - .05 * .729 = .86355."""
    apart(one(both(order), task).play().model, [[wrong]], 0.09)


def test_the_second_meta_step_goes_on_from_the_first() -> None:
    """From .96: w~ = .96 - .1 * .92 = .868, g = .736, .96 - .05 * .736 = .9232. A published program goes on from w~ and
    returns the last meta-step only: w~ = .9 - .08 = .82, g = .64, .9 - .032 = .868."""
    got = one(both(), parabola, training=Training(steps=2, batch_size=1000)).play().model
    close(got, [[0.9232]])
    apart(got, [[0.868]], 0.05)


# ---- two clients, adaptation --------------------------------------------------------------------------------------
def two(method: PerFedAvg, sizes: tuple[int, int] = (8, 8), *, uniform: bool = False) -> ByHand:
    """(a, b) = (2, 1) and (4, 3)."""
    data = [copies(2.0, sizes[0], y=1), copies(4.0, sizes[1], y=3)]
    return ByHand(method, vector_net(1.0), data, training=STEP, solve=by(parabola), uniform=uniform)


def test_two_clients() -> None:
    """Client 1: w~ = .9, g = .6, .97. Mean (.96 + .97)/2 = .965. Adapted: .965 - .1 (1.93 - 1) = .872 and .965 -
    .1 (3.86 - 3) = .879, each on its own training data."""
    hand = two(both())
    close(hand.play().model, [[0.96], [0.97]])
    close(hand.server.model, [0.965])
    close([float(hand.used(i).model) for i in (0, 1)], [0.872, 0.879])


@pytest.mark.parametrize("uniform", [False, True])
def test_mean_of_the_server(uniform: bool) -> None:
    """30 and 10 samples: the plain mean .965, not (30 * .96 + 10 * .97)/40 = .9625, whatever the run's weights are."""
    hand = two(both(), (30, 10), uniform=uniform)
    hand.play()
    close(hand.server.model, [0.965])


@pytest.mark.parametrize(("steps", "wanted"), [(0, 0.965), (1, 0.872), (2, 0.7976)])
def test_steps_of_adaptation(steps: int, wanted: float) -> None:
    """From .965 client 0 goes to .872 and then to .872 - .1 * .744 = .7976; the view is the model as it was sent."""
    hand = two(both(adapt_steps=steps))
    hand.play()
    close(hand.used(0).model, [wanted])
    view = views_of(hand.method, hand.client(0, hand.download([0]).row(0)))
    assert torch.equal(view["meta"].model, hand.server.model)


def test_adaptation_is_one_batch_and_not_an_epoch() -> None:
    """f = 1/2 (w - x)^2 on 40 equal samples in batches of 10 from 0: one step of .1, not four."""
    hand = ByHand(
        both(), vector_net(0.0), [copies(1.0, 40)], training=Training(batch_size=10, epochs=3), solve=by(quadratic)
    )
    close(hand.used(0).model, [0.1])


# ---- what is asked for ---------------------------------------------------------------------------------------------
def asked(method: PerFedAvg, n: int, training: Training) -> tuple[Train, Train]:
    """The requests of an update and of an adaptation, with the run's training settings."""
    hand = ByHand(method, mlp(), [blobs(n, [1.0, 1, 1], 0)], training=training)
    client = hand.client(0, hand.download([0]).row(0))
    return next(method.client_update(client)), next(method.personalize(client))


@pytest.mark.parametrize(
    ("order", "n", "training", "steps", "batch"),
    [
        ("first", 25, Training(epochs=2, batch_size=10), 6, 20),
        ("hessian-free", 25, Training(epochs=2, batch_size=10), 6, 30),
        ("first", 3, Training(epochs=2, batch_size=10), 2, 20),
        ("hessian-free", 25, Training(steps=7, batch_size=10), 7, 30),
    ],
)
def test_as_many_meta_steps_as_fedavg_takes(order: str, n: int, training: Training, steps: int, batch: int) -> None:
    """tau = E ceil(N/B), or the run's steps, with one mini-batch of B for each gradient of a meta-step."""
    update, _ = asked(PerFedAvg(order=order), n, training)
    assert (update.steps, update.batch_size) == (steps, batch)


def test_no_momentum_and_no_weight_decay() -> None:
    """The run's momentum and weight decay touch neither the meta-steps nor the adaptation."""
    training = Training(lr=0.5, momentum=0.9, weight_decay=0.1, batch_size=10, epochs=4)
    update, adaptation = (r.training(training) for r in asked(PerFedAvg(inner_lr=0.2, outer_lr=0.3), 25, training))
    assert (update.lr, update.momentum, update.weight_decay) == (0.3, 0.0, 0.0)
    assert (adaptation.lr, adaptation.momentum, adaptation.weight_decay) == (0.2, 0.0, 0.0)
    assert (adaptation.steps, adaptation.batch_size) == (1, 10)
    assert asked(PerFedAvg(outer_lr="run"), 25, training)[0].training(training).lr == 0.5


@pytest.mark.parametrize("order", ["first", "hessian-free"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 25])
def test_short_batches_are_trained_on(order: str, n: int) -> None:
    """Every sample takes part in every pass over the data, also with fewer samples than a batch."""
    seen: list[int] = []

    def spy(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
        seen.append(len(batch.y))
        return meta_loss(net, w, batch, aux)

    update, _ = asked(PerFedAvg(order=order), n, Training(batch_size=5, steps=12))
    w = sgd(update.but(loss=spy), blobs(n, [1.0, 1, 1], 0), mlp(), Training(batch_size=5), generator(0))
    whole = -(-n // update.batch_size)
    assert len(seen) == 12
    assert sum(seen[:whole]) == n
    assert bool(torch.isfinite(w).all())
    assert not torch.equal(w, mlp().w0)


def test_inner_and_outer_gradient_see_different_samples() -> None:
    """f = 1/2 (w - x)^2 from 0 on x = 1 and x = 3: D and D' have one each, so .05 (3 - .1) or .05 (1 - .3); with both
    in both it would be .05 * 2 * .9 = .09."""
    data = Samples(torch.tensor([[1.0], [3.0]]), torch.zeros(2, dtype=torch.int64))
    got = float(ByHand(both(), vector_net(0.0), [data], training=STEP, solve=by(quadratic)).play().model)
    assert min(abs(got - 0.145), abs(got - 0.035)) < 1e-6


# ---- batch normalisation -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["first", "hessian-free"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 11])
def test_few_samples_under_batch_normalisation(order: str, n: int) -> None:
    """No part of a batch is ever a single sample: finite and moved, and only a client of one sample stands still."""
    net, data = mlp_with_batchnorm(), blobs(n, [1.0, 1, 1], 0)
    hand = ByHand(PerFedAvg(order=order, outer_lr=0.1), net, [data], training=Training(batch_size=5, epochs=2))
    w = hand.play().model[0]
    assert bool(torch.isfinite(w).all())
    assert torch.equal(w, net.w0) == (n == 1)
    assert bool(torch.isfinite(hand.used(0).model).all())


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_running_statistics_are_those_of_the_outer_pass(order: str) -> None:
    """After one meta-step they are what a pass on D' at w~ leaves, started from those of w: the inner pass, whose
    statistics go back with w, and the passes of the difference leave no trace."""
    net, data = mlp_with_batchnorm(), blobs(20, [1.0, 1, 1], 0)
    parts: list[list[Batch]] = []

    def spy(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
        parts.append(split(batch, 3 if "delta" in aux else 2))
        return meta_loss(net, w, batch, aux)

    hand = ByHand(PerFedAvg(order=order, inner_lr=0.5, outer_lr=0.1), net, [data], training=STEP, loss=spy)
    w = hand.play().model[0]
    at = net.w0.requires_grad_()
    loss = torch.nn.functional.cross_entropy(net.training()(at, parts[0][0].x), parts[0][0].y)
    adapted = net.w0 - 0.5 * torch.autograd.grad(loss, at)[0]
    before = adapted[net.buffers] = net.w0[net.buffers]
    net.training()(adapted, parts[0][1].x)
    close(w[net.buffers], adapted[net.buffers])
    apart(adapted[net.buffers], before, 1e-3)
    apart(adapted[net.buffers], at.detach()[net.buffers], 1e-4)


# ---- identities ----------------------------------------------------------------------------------------------------
def test_no_inner_step_is_fedavg_with_the_outer_step() -> None:
    """alpha = 0 on clients with one sample each (D = D'): FedAvg with step beta, bit for bit, the view included."""
    shards = [ClientData(blobs(1, [1.0, 1, 1], i), *2 * [blobs(6, [1.0, 1, 1], 50 + i)]) for i in range(5)]
    a = run(PerFedAvg(inner_lr=0.0, outer_lr=0.1), mlp(), shards, training=Training(epochs=2, batch_size=5, lr=0.7))
    b = run(FedAvg(), mlp(), shards, training=Training(epochs=2, batch_size=5, lr=0.1))
    assert torch.equal(a.state.model, b.state.model)
    assert all(
        torch.equal(x.evaluation[i]["meta.test"], x.evaluation[i].test)
        and torch.equal(x.evaluation[i].test, y.evaluation[i].test)
        for x, y in zip(a.reports, b.reports, strict=True)
        for i in x.evaluation
    )


def test_inner_steps_matter() -> None:
    """alpha, the order and the adaptation each change what comes out; neither FedAvg nor Local comes out by chance."""
    models = [
        run(PerFedAvg(inner_lr=a, outer_lr=0.1, order=o), mlp(), federation()).state.model
        for a, o in ((0.0, "first"), (0.3, "first"), (0.3, "hessian-free"))
    ]
    models.append(run(FedAvg(), mlp(), federation()).state.model)
    for i, a in enumerate(models):
        for b in models[:i]:
            apart(a, b, 1e-3)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_an_independent_program_gives_the_same(order: str) -> None:
    """Meta-steps with plain gradients in float64, momentum and decay of the run left out, three of five unequal clients
    in each of five rounds; then all clients' adapted predictions."""
    method = PerFedAvg(inner_lr=0.4, outer_lr=0.15, order=order, delta=0.05, adapt_steps=2)
    training = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.5, weight_decay=0.1)
    found, shards, w = plain.played(method, rounds_=5, training=training)
    kinds = 2 if order == "first" else 3

    def slope(v: Tensor, data: Samples, index: Tensor) -> Tensor:
        return plain.gradient(lambda u: plain.loss(u, data.x[index].double(), data.y[index]), v)

    undivided = 0
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            data, v = shards[i].train, w
            asked = Training(steps=2 * -(-len(data) // 4), batch_size=4 * kinds)
            for index in plain.drawn(data, i, t, asked):
                parts = index.tensor_split(kinds) if len(index) >= kinds else [index] * kinds
                undivided += len(index) < kinds
                g = slope(v - 0.4 * slope(v, data, parts[0]), data, parts[1])
                if order == "hessian-free":
                    ahead, behind = (slope(v + s * 0.05 * g, data, parts[2]) for s in (1, -1))
                    g = g - 0.4 * (ahead - behind) / (2 * 0.05)
                v = v - 0.15 * g
            ends.append(v)
        w = torch.stack(ends).mean(0)
    assert plain.distance(found.state.model, w) < 2e-6
    assert undivided > 0
    changed = 0
    for i, said in found.reports[-1].evaluation.items():
        data, test, v = shards[i].train, shards[i].test, w
        rng = generator(0, "batches", "evaluate", len(found.reports), i, 0)
        for _, index in batches(len(data), Training(steps=2, batch_size=4), rng, skip_single=False):
            v = v - 0.4 * slope(v, data, index)
        guess, before = (plain.logits(u, test.x.double()).argmax(1) for u in (v, w))
        assert torch.equal(said.test, tally(test.y, guess, 3))
        changed += int((guess != before).sum())
    assert changed >= 5
