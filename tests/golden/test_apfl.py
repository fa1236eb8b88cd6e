"""APFL against numbers worked out by hand (Deng, Kamani, Mahdavi, arXiv 2003.13461, Algorithm 1).

Models are numbers, f(w) = 1/2 (w - a)^2; client 0: a = 4, 30 samples; client 1: a = -8, 10 samples; steps of .1 from w
= v = 0, alpha = .5. On each batch, with m = alpha v + (1 - alpha) w and its slope s = m - a:
w -= .1 (w - a), v -= .1 alpha s, alpha -= .1 (v - w) s, all from the values before the step.

Client 0: step 1: s = -4: w = .4, v = .2, alpha = .5. Step 2: m = .3, s = -3.7: w = .76, v = .385, alpha = .5 + .1 (.2 -
.4) 3.7 = .426. Client 1: w = -.8, v = -.4, alpha = .5; m = -.6, s = 7.4: w = -1.52, v = -.77, alpha = .5 - .1 (.4) 7.4
= .204.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches
from fedkin.methods import APFL
from fedkin.methods.apfl import joint, mixture
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, quadratic, run, vector_net


def by_hand(net: Net, z: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """The quadratic in place of the cross-entropy, in both kinds of request."""
    if len(z) == net.size:  # alpha alone
        return quadratic(net, mixture(net, aux.w, aux.v, z), batch, aux)
    return joint(quadratic, net, z, batch, aux)


def two_clients(method: APFL | None = None, steps: int = 2, lr: float = 0.1) -> ByHand:
    training = Training(steps=steps, lr=lr, batch_size=1000)
    data = [copies(4.0, 30), copies(-8.0, 10)]
    return ByHand(method or APFL(), vector_net(0.0), data, training=training, loss=by_hand)


def kept(hand: ByHand) -> list[list[float]]:
    """The clients' v and alpha."""
    return [[float(b.model), float(b.alpha)] for b in hand.kept]


def test_two_steps() -> None:
    """The numbers above; the server's model is (30 * .76 - 10 * 1.52) / 40 = .19."""
    hand = two_clients()
    close(hand.play().model, [[0.76], [-1.52]])
    close(kept(hand), [[0.385, 0.426], [-0.77, 0.204]])
    close(hand.server.model, [0.19])


def test_the_third_step_uses_the_new_alpha() -> None:
    """Client 0: m = .426 * .385 + .574 * .76 = .60025, s = -3.39975: w = 1.084, v = .385 + .1 * .426 * 3.39975 =
    .52982935, alpha = .426 - .1 * .375 * 3.39975 = .298509375."""
    hand = two_clients(steps=3)
    close(hand.play([0]).model, [[1.084]])
    close(hand.kept[0].model, [0.52982935])
    close(hand.kept[0].alpha, [0.298509375])


def test_predictions_mix_with_the_newest_global_model() -> None:
    """.426 * .385 + .574 * .19 = .27307 and .204 * -.77 + .796 * .19 = -.00584; right after training, with the client's
    w, .60025 and -1.367; the global model is a view."""
    hand = two_clients()
    hand.play()
    close([float(hand.used(i).model) for i in range(2)], [0.27307, -0.00584])
    views = [views_of(hand.method, hand.client(i, hand.download([i]).row(0))) for i in range(2)]
    close([float(v["trained"].model) for v in views], [0.60025, -1.367])
    close(views[0]["global"].model, [0.19])


def test_a_client_that_never_trained_predicts_with_its_first_mixture() -> None:
    """Half of the common start, 0, and half of the global model, which is client 0's .76."""
    hand = two_clients()
    hand.play([0])
    close(hand.used(1).model, [0.38])


def test_alpha_stays_between_0_and_1() -> None:
    """Client 1 with steps of .25: w = -2, v = -1; m = -1.5, s = 6.5: alpha = .5 - .25 * 6.5 = -1.125, so 0; w = -3.5,
    v = -1.8125. At alpha 0 v has no slope any more: s = 4.5, alpha = 0 - .25 * 1.6875 * 4.5, so 0 again."""
    hand = two_clients(steps=3, lr=0.25)
    hand.play([1])
    close(hand.kept[1].model, [-1.8125])
    assert float(hand.kept[1].alpha) == 0


def test_the_personal_model_goes_on_from_itself() -> None:
    """One step a round: round 1 gives w = .4, v = .2, global .1. Round 2: m = .15, s = -3.85: v = .2 + .05 * 3.85 =
    .3925, alpha = .5 + .1 * .1 * 3.85 = .5385, w = .49. PFLlib puts the mixture .3 in v's place, which gives .49."""
    hand = two_clients(steps=1)
    hand.play()
    close(hand.server.model, [0.1])
    close(hand.play([0]).model, [[0.49]])
    close(hand.kept[0].model, [0.3925])
    close(hand.kept[0].alpha, [0.5385])
    apart(hand.kept[0].model, [0.49], 0.09)


def test_the_personal_model_follows_the_mixtures_gradient() -> None:
    """A program that trains v on its own gradient, as if alone (PFLlib), has .76 after two steps, not .385; one that
    leaves out the factor alpha has .77."""
    hand = two_clients()
    hand.play()
    apart(hand.kept[0].model, [0.76], 0.3)
    apart(hand.kept[0].model, [0.77], 0.3)


@pytest.mark.parametrize(("adapt", "alpha"), [("never", 0.5), ("round", 0.57239375)])
def test_alpha_once_per_round_or_never(adapt: str, alpha: float) -> None:
    """At alpha = .5 both rounds' first steps are as above, without the fall of alpha: v = .385. Round 2 once per round:
    v - w = .385 - .19 = .195, m = .2875, s = -3.7125: alpha = .5 + .1 * .195 * 3.7125 = .57239375 before the models."""
    hand = two_clients(APFL(adapt=adapt))  # type: ignore[arg-type]
    hand.play()
    close(kept(hand), [[0.385, 0.5], [-0.77, 0.5]])
    hand.play([0])
    close(hand.kept[0].alpha, [alpha])
    m = alpha * 0.385 + (1 - alpha) * 0.19
    v = 0.385 - 0.1 * alpha * (m - 4)
    m = alpha * v + (1 - alpha) * 0.571  # w = .19 + .1 * 3.81
    close(hand.kept[0].model, [v - 0.1 * alpha * (m - 4)])


def test_the_step_of_alpha_once_per_round_is_plain() -> None:
    """One step of SGD with the run's step size, without its momentum, Adam and weight decay; the models train as the
    run does."""
    asked: list[Train] = []

    def note(request: Train, client: object) -> Tensor:
        asked.append(request)
        return request.start

    training = Training(epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.1)
    adam = training.but(optimizer="adam", momentum=0.0)
    hand = ByHand(APFL(adapt="round"), mlp(), [federation()[1].train], training=training, solve=note)
    hand.play()
    alpha, models = (request.training(training) for request in asked)
    assert (alpha.steps, alpha.lr, alpha.momentum, alpha.weight_decay) == (1, 0.1, 0.0, 0.0)
    assert models == training
    assert [request.training(adam).optimizer for request in asked] == ["sgd", "adam"]


def test_parameters_are_mixed_not_logits() -> None:
    """The authors' program mixes the logits of two networks, which is another function; the paper mixes the models."""
    net, data = mlp(), federation()[0].train
    w, v, alpha = net.fresh(1), net.fresh(2), torch.tensor([0.3])
    mixed = net(mixture(net, w, v, alpha), data.x)
    torch.testing.assert_close(mixed, net(0.3 * v + 0.7 * w, data.x))
    apart(mixed, 0.3 * net(v, data.x) + 0.7 * net(w, data.x), 0.01)


def test_running_statistics_of_the_mixture_are_kept_with_the_personal_model() -> None:
    """One step from w = v = w0: both passes see the same batch, so w's and v's statistics are equal; no weight
    decay acts on either."""
    net, data = mlp_with_batchnorm(), federation()[1].train
    training = Training(steps=1, batch_size=1000, lr=0.1, weight_decay=0.5)
    hand = ByHand(APFL(), net, [data], training=training)
    up = hand.play()
    close(hand.kept[0].model[net.buffers], up.model[0][net.buffers])
    apart(hand.kept[0].model[net.buffers], net.w0[net.buffers], 0.01)
    used = hand.used(0).model
    assert torch.equal(used[net.buffers], hand.kept[0].model[net.buffers])


def test_a_client_that_never_trained_has_the_global_models_statistics() -> None:
    """Those of the common start, 0 and 1, were measured on no data."""
    net, data = mlp_with_batchnorm(), federation()
    hand = ByHand(APFL(), net, [s.train for s in data[:2]], training=Training(steps=2, batch_size=5, lr=0.1))
    hand.play([0])
    apart(hand.server.model[net.buffers], net.w0[net.buffers], 0.01)
    used = hand.used(1).model
    assert torch.equal(used[net.buffers], hand.server.model[net.buffers])
    close(used[net.params], (0.5 * net.w0 + 0.5 * hand.server.model)[net.params])


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_an_independent_program_gives_the_same(momentum: float) -> None:
    """Two modules and a number with autograd in float64, five rounds of three out of five unequal clients."""
    net, shards = mlp(), federation()
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=momentum)
    found = run(APFL(), net, shards, rounds_=5, training=training)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    start = {n: t.double() for n, t in net.unflatten(net.w0).items()}
    server, own, alphas = start, dict.fromkeys(range(5), start), dict.fromkeys(range(5), torch.tensor(0.5).double())
    for t, report in enumerate(found.reports, 1):
        ws = {}
        for i in report.cohort:
            ws[i], own[i], alphas[i] = _train(module, server, own[i], alphas[i], shards[i].train, training, t, i)
        n = {i: len(shards[i].train) for i in report.cohort}
        server = {name: sum(n[i] * ws[i][name] for i in ws) / sum(n.values()) for name in start}
    assert plain.distance(found.state.model, torch.cat([server[name].flatten() for name in net.names])) < 2e-6
    seen = {i for r in found.reports for i in r.cohort}
    assert len(seen) > 3
    for i in seen:
        assert plain.distance(found.clients[i].alpha, torch.tensor([float(alphas[i])])) < 2e-6
        assert plain.distance(found.clients[i].model, torch.cat([own[i][n].flatten() for n in net.names])) < 2e-6
    assert len({round(float(alphas[i]), 2) for i in seen}) > 2


Named = dict[str, Tensor]


def _train(
    module: nn.Module, w: Named, v: Named, alpha: Tensor, data: Samples, training: Training, t: int, client: int
) -> tuple[Named, Named, Tensor]:
    rng, names = generator(0, "batches", "update", t, client, 0), list(w)
    values = [*w.values(), *v.values(), alpha]
    velocity = [torch.zeros_like(p) for p in values]
    for _, index in batches(len(data), training, rng, skip_single=False):
        x, y = data.x[index].double(), data.y[index]
        leaves = [p.detach().requires_grad_(True) for p in values]
        ws, vs, a = leaves[: len(names)], leaves[len(names) : -1], leaves[-1]
        mixed = [a.detach() * p + (1 - a.detach()) * q.detach() for p, q in zip(vs, ws, strict=True)]
        at = [m.detach().requires_grad_(True) for m in mixed]
        slopes = torch.autograd.grad(_loss(module, names, at, x, y), at)
        of_v = [a.detach() * s for s in slopes]
        of_alpha = sum(((p - q).detach() * s).sum() for p, q, s in zip(vs, ws, slopes, strict=True))
        gradients = [*torch.autograd.grad(_loss(module, names, ws, x, y), ws), *of_v, of_alpha]
        velocity = [training.momentum * u + g for u, g in zip(velocity, gradients, strict=True)]
        values = [p.detach() - training.lr * u for p, u in zip(leaves, velocity, strict=True)]
        values[-1] = values[-1].clamp(0, 1)
    k = len(names)
    return dict(zip(names, values[:k], strict=True)), dict(zip(names, values[k : 2 * k], strict=True)), values[-1]


def _loss(module: nn.Module, names: list[str], parts: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(functional_call(module, dict(zip(names, parts, strict=True)), (x,)), y)
