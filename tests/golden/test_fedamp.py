"""FedAMP and HeurFedAMP against numbers worked out by hand (Huang et al., AAAI 2021).

A(x) = 1 - exp(-x/sigma), so A'(x) = exp(-x/sigma)/sigma. Client i's mixture is ``u_i = sum_j xi_ij w_j``, with ``alpha
A'(|w_i - w_j|^2)`` for the others and what is left for itself; it minimises ``F_i(w) + lam/(2 alpha) |w - u_i|^2`` from
its own last model. HeurFedAMP: ``xi_ij`` proportional to ``exp(sigma cos(w_i, w_j))`` beside a fixed own weight.
"""

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch

import plain
from fedkin.capabilities.logs import numbers_of
from fedkin.core import Bundle, Method, Net, Training
from fedkin.data import Dirichlet, federate, load
from fedkin.methods import DAPFL, Local
from fedkin.methods.fedamp import FedAMP, attention, largest_step
from fedkin.models.start import factory
from toys import (
    ByHand,
    apart,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    squares_apart,
    vector_net,
)

LINE = [[0.0], [1.0], [3.0]]  # squared distances 1, 9, 4


def uploaded(method: FedAMP, models: list[list[float]], targets: list[float] | None = None) -> ByHand:
    """A federation after one round in which these models were uploaded; client i's minimum is at ``targets[i]``."""
    start = [0.0] * len(models[0])
    where = targets or [0.0] * len(models)
    data = [copies([a] * len(start), 4) for a in where]
    hand = ByHand(method, vector_net(*start), data, training=Training(steps=1, lr=0.1, batch_size=1000), loss=quadratic)
    send(hand, models)
    return hand


def send(hand: ByHand, models: list[list[float]], ids: list[int] | None = None) -> None:
    """One more round in which these models are uploaded, and kept."""
    ids = list(range(len(models))) if ids is None else ids
    zero = torch.zeros(len(ids))
    hand.t += 1
    up = Bundle(model=torch.tensor(models), pull=zero, clamped=zero)
    hand.server = hand.method.aggregate(hand.server, hand.at("aggregate", ids), up)
    for i, w in zip(ids, models, strict=True):
        hand.kept[i] = Bundle(model=torch.tensor(w))


def weights(hand: ByHand, ids: list[int] | None = None) -> torch.Tensor:
    """xi for the next round."""
    found = hand.download(list(range(len(hand.data))) if ids is None else ids).weights
    assert found is not None
    return found


def mixtures(hand: ByHand) -> torch.Tensor:
    return hand.download(range(len(hand.data))).rows.model[:, 0]


def unguarded_weights(models: list[float], sigma: float, step: float) -> torch.Tensor:
    """xi of models that are numbers, without the guard."""
    w = torch.tensor(models, dtype=torch.float64)
    d = (w[:, None] - w[None]).square()
    return attention(d, ~torch.eye(len(w), dtype=torch.bool), torch.arange(len(w)), sigma, step)


# ---- weights by distance -------------------------------------------------------------------------------------------
def test_weights_and_mixtures() -> None:
    """w = 0, 1, 3, sigma 1, alpha .5: xi_01 = .5 e^-1 = .18394, xi_02 = .5 e^-9, xi_12 = .5 e^-4 = .00916; the own
    weight is the rest; u_0 = .18394 * 1 + .0000617 * 3 = .18412."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=0.5), LINE)
    xi = [[0.81599857, 0.18393972, 6.17e-05], [0.18393972, 0.80690246, 0.00915782], [6.17e-05, 0.00915782, 0.99078048]]
    close(weights(hand), xi, 1e-8)
    close(mixtures(hand), [0.18412484, 0.83437592, 2.98149925])


def test_weights_at_a_larger_scale() -> None:
    """sigma 10, alpha 1: xi_01 = .1 e^-.1 = .090484, xi_02 = .1 e^-.9 = .040657, xi_12 = .1 e^-.4 = .067032."""
    hand = uploaded(FedAMP(sigma=10.0, server_step=1.0), LINE)
    xi = [[0.868859, 0.090484, 0.040657], [0.090484, 0.842484, 0.067032], [0.040657, 0.067032, 0.892311]]
    close(weights(hand), xi)
    close(mixtures(hand), [0.212455, 1.04358, 2.743965])


def test_the_own_weight_is_never_negative() -> None:
    """alpha = 10 at sigma 1 would give client 0 an own weight of 1 - 10 (e^-1 + e^-9) = -2.68. The step is cut down to
    1/max_i sum_j A' = 1/(e^-1 + e^-4) = 2.589: client 1 keeps nothing of itself and is given 3 e^-4/(e^-1 + e^-4)."""
    unguarded = [[-2.680029, 3.678794, 0.001234], [3.678794, -2.861951, 0.183156], [0.001234, 0.183156, 0.81561]]
    bad = unguarded_weights([0.0, 1.0, 3.0], 1.0, 10.0)
    close(bad, unguarded)
    close(bad @ torch.tensor([0.0, 1, 3], dtype=torch.float64), [3.682497, -2.312482, 2.629985])
    hand = uploaded(FedAMP(sigma=1.0, server_step=10.0), LINE)
    xi = weights(hand)
    assert float(xi.min()) >= 0
    close(xi.sum(1), torch.ones(3), 1e-12)
    both = math.exp(-1) + math.exp(-4)
    close(xi[1], [math.exp(-1) / both, 0, math.exp(-4) / both], 1e-12)
    close(mixtures(hand)[1], 3 * math.exp(-4) / both)


def test_rounding_leaves_no_weight_below_zero() -> None:
    """1.75, 1.75, 1.25, 1 at the longest step: the own weight that should be 0 comes out as -2e-16, it is 0."""
    models = [1.75, 1.75, 1.25, 1.0]
    hand = uploaded(FedAMP(sigma=1.0, server_step=9.0), [[w] for w in models])
    d = hand.server.near
    others = ~torch.eye(4, dtype=torch.bool)
    assert float(attention(d, others, torch.arange(4), 1.0, largest_step(d, others, 1.0)).min()) < 0
    assert float(weights(hand).min()) == 0.0


def test_identical_models() -> None:
    """All distances 0, A' = 1: alpha = .5 gives the two others .5 each and nothing to itself; alpha = 1 gives an own
    weight of -1 without the guard, which takes alpha = 1/2. Whatever the weights, the mixture is the model."""
    half = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    close(unguarded_weights([2.0] * 3, 1.0, 0.5), half, 1e-12)
    close(unguarded_weights([2.0] * 3, 1.0, 1.0), [[-1, 1, 1], [1, -1, 1], [1, 1, -1]], 1e-12)
    others = ~torch.eye(3, dtype=torch.bool)
    assert largest_step(torch.zeros(3, 3), others, 1.0) == 0.5
    for step in (0.5, 1.0):
        hand = uploaded(FedAMP(sigma=1.0, server_step=step), [[2.0]] * 3)
        close(weights(hand), half, 1e-12)
        close(mixtures(hand), [2.0, 2.0, 2.0])


def test_many_equal_models_under_a_published_setting() -> None:
    """40 equal models, alpha = 10^4, sigma = 100: the own weight would be 1 - 39 * 100 = -3899; guarded it is 0."""
    close(unguarded_weights([1.0] * 40, 100.0, 1e4).diagonal(), torch.full((40,), -3899.0), 1e-9)
    xi = weights(uploaded(FedAMP(sigma=100.0, server_step=1e4), [[1.0]] * 40))
    close(xi, (torch.ones(40, 40) - torch.eye(40)).double() / 39, 1e-12)


def test_one_client_is_its_own_mixture() -> None:
    """m = 1: xi = [1], u = w."""
    for method in (FedAMP(sigma=1.0, server_step=0.5), FedAMP(), FedAMP(variant="heur"), FedAMP(over="participants")):
        hand = uploaded(method, [[2.0]])
        close(weights(hand), [[1.0]])
        close(mixtures(hand), [2.0])


def test_models_far_apart_do_not_meet() -> None:
    """0 and 40 at sigma 1: e^-1600 = 0, so u = w: with sigma = 1 the models of networks are this far apart, and FedAMP
    is nothing but local training. Heur gives the other its share at any distance."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=0.5), [[0.0], [40.0]])
    assert torch.equal(weights(hand), torch.eye(2, dtype=torch.float64))
    close(mixtures(hand), [0.0, 40.0])
    close(weights(uploaded(FedAMP(variant="heur"), [[1.0], [40.0]])), [[0.5, 0.5], [0.5, 0.5]])


# ---- the automatic scale -------------------------------------------------------------------------------------------
def test_scale_and_step_by_themselves() -> None:
    """Squared distances 1, 4, 9: sigma = 4, the step sigma/2 over two others = 1, so xi_01 = e^(-1/4)/4 = .19470,
    xi_02 = e^(-9/4)/4, xi_12 = e^-1/4; nobody's own weight is below one half. The pull is lam."""
    hand = uploaded(FedAMP(lam=0.3), LINE)
    assert float(hand.server.sigma) == 4.0
    a, b, c = math.exp(-1 / 4) / 4, math.exp(-9 / 4) / 4, math.exp(-1) / 4
    close(weights(hand), [[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]], 1e-12)
    assert float(weights(hand).diagonal().min()) >= 0.5
    close(hand.download([0]).shared.pull, 0.3, 1e-12)


def test_scale_follows_the_models_or_stays() -> None:
    """Models three times as far apart: the median is 9 * 4 in the second round; "first" stays at 4, where xi_01 =
    e^(-9/4)/4 for models 0 and 3."""
    tripled = [[3 * x for x in w] for w in LINE]
    follows, stays = uploaded(FedAMP(), LINE), uploaded(FedAMP(sigma="first"), LINE)
    before = weights(follows)
    for hand in (follows, stays):
        send(hand, tripled)
    assert (float(follows.server.sigma), float(stays.server.sigma)) == (36.0, 4.0)
    close(weights(follows), before, 1e-12)
    close(weights(stays)[0, 1], math.exp(-9 / 4) / 4, 1e-12)


def test_a_scale_of_the_first_round_ends_in_local_training() -> None:
    """Why sigma="first" is not the default: in a run the models move apart, their squared distances leave that scale
    behind, and within twelve rounds the others weigh less than a tenth of what the current median gives them."""
    shards = federation((30,) * 5)
    training = Training(epochs=4, batch_size=5, lr=0.3)
    others = {}
    for sigma in ("median", "first"):
        result = run(FedAMP(sigma=sigma), mlp(), shards, rounds_=12, participation=1.0, training=training)
        others[sigma] = 1 - float(result.reports[-1].weights.diagonal().mean())
    assert others["median"] > 0.1
    assert others["first"] < 0.1 * others["median"]


def test_no_scale_while_all_models_are_equal() -> None:
    """No distance above 0: there is no median, everybody is its own mixture, and nothing is NaN."""
    hand = uploaded(FedAMP(), [[2.0]] * 3)
    assert float(hand.server.sigma) == 0.0
    assert torch.equal(weights(hand), torch.eye(3, dtype=torch.float64))
    send(hand, LINE)
    assert float(hand.server.sigma) == 4.0


# ---- weights by cosine ---------------------------------------------------------------------------------------------
def test_weights_by_cosine() -> None:
    """V = (1,0), (1,1), (0,1), factor 2, own weight .1: cos = .7071, 0, so xi_01 = .9 e^1.4142/(e^1.4142 + 1) = .72399.
    Client 1 is as near to both: .45 each."""
    hand = uploaded(FedAMP(variant="heur", scale=2.0, self_weight=0.1), [[1.0, 0], [1.0, 1.0], [0.0, 1.0]])
    xi = [[0.1, 0.72398671, 0.17601329], [0.45, 0.1, 0.45], [0.17601329, 0.72398671, 0.1]]
    close(weights(hand), xi, 1e-7)


@pytest.mark.parametrize("own", [None, 1 / 3])
def test_weights_by_cosine_of_opposite_models(own: float | None) -> None:
    """V = (1,0), (1,1), (-1,0), factor 2, own weight 1/3, which is the default for three models: cos_02 = -1, so
    xi_01/xi_02 = e^(2 * 1.7071) = 30.4."""
    hand = uploaded(FedAMP(variant="heur", scale=2.0, self_weight=own), [[1.0, 0], [1.0, 1.0], [-1.0, 0]])
    xi = [[0.333333, 0.645431, 0.021236], [0.629462, 0.333333, 0.037205], [0.238401, 0.428265, 0.333333]]
    close(weights(hand), xi)


def test_a_model_of_zeros_has_no_direction() -> None:
    """cos with a zero vector is taken as 0, not 0/0."""
    xi = weights(uploaded(FedAMP(variant="heur", scale=2.0), [[0.0, 0], [1.0, 1.0], [-1.0, 0]]))
    close(xi[0], [1 / 3, 1 / 3, 1 / 3], 1e-7)
    assert bool(torch.isfinite(xi).all())


# ---- the client ----------------------------------------------------------------------------------------------------
def test_local_training_ends_at_the_proximal_point() -> None:
    """F_i = 1/2 (w - a_i)^2 with a = 0, 2, 4, lam 1, alpha .5: argmin = (a_i + 2 u_i)/3 = .12275, 1.22292, 3.32100."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=0.5), LINE, [0.0, 2.0, 4.0])
    hand.training = Training(steps=100, lr=0.1, batch_size=1000)
    close(hand.play().model[:, 0], [0.12274989, 1.22291728, 3.3209995])


def test_the_pull_has_a_gradient() -> None:
    """At w = 1, u = .25, lam 1, alpha .5 the term is 1 * .75^2 = .5625 with gradient lam/alpha (w - u) = 1.5: one step
    of .1 where F has no gradient (a = 1) ends at .85. The norm without its square would have gradient 1 (.9), a term
    built from detached parameters none (1): a published FedAMP is local training for that reason."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=0.5), [[1.0]], [1.0])
    client = hand.client(0, Bundle(model=torch.tensor([0.25]), pull=hand.download([0]).shared.pull))
    request = next(hand.method.client_update(client))
    close(request.mu / 2 * (1.0 - 0.25) ** 2, 0.5625, 1e-12)
    w = hand.train(request, client)
    close(w, [0.85])
    apart(w, [0.9], 0.04)
    apart(w, [1.0], 0.1)


def test_training_starts_from_the_own_model() -> None:
    """A client goes on from its last model; the mixture is the centre, not the start."""
    hand = uploaded(FedAMP(), LINE)
    received = Bundle(model=torch.tensor([7.0]), pull=torch.tensor(1.0))
    request = next(hand.method.client_update(hand.client(2, received)))
    close(request.start, [3.0])
    close(request.center, [7.0])


def test_too_strong_a_pull_is_held_back_and_logged() -> None:
    """lam/alpha = 100 at steps of .1 would overshoot ten times; .5/lr = 5 goes half the way: 1 - .1 * 5 * (1 - .25) =
    .625. The log says so; at lam/alpha = 2 it does not."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=0.01), [[1.0], [0.0]], [1.0, 0.0])
    client = hand.client(0, Bundle(model=torch.tensor([0.25]), pull=hand.download([0, 1]).shared.pull))
    close(hand.train(next(hand.method.client_update(client)), client), [0.625])
    hand.play()
    seen = numbers_of(hand.method, hand.server)
    assert seen == {"sigma": 1.0, "step": 0.01, "guarded": 0.0, "pull": 5.0, "clamped": 1.0}
    gentle = uploaded(FedAMP(sigma=1.0, server_step=0.5), LINE)
    gentle.play()
    assert numbers_of(gentle.method, gentle.server)["clamped"] == 0.0


def test_a_shortened_step_is_logged_and_the_pull_keeps_the_given_one() -> None:
    """alpha = 1 for three equal models: weights use 1/2, which the log tells, the pull is still lam/1."""
    hand = uploaded(FedAMP(sigma=1.0, server_step=1.0), [[2.0]] * 3, [2.0] * 3)
    hand.play()
    seen = numbers_of(hand.method, hand.server)
    assert seen == {"sigma": 1.0, "step": 0.5, "guarded": 1.0, "pull": 1.0, "clamped": 0.0}


def test_the_step_decays() -> None:
    """alpha = 8, halved every two rounds, lam 1: pulls 1/8, 1/8, 1/4, 1/4, 1/2."""
    hand = ByHand(FedAMP(server_step=8.0, step_decay=0.5, decay_every=2), vector_net(0.0), [copies(0.0, 2)] * 2)
    pulls = []
    for t in range(5):
        hand.t = t
        pulls.append(float(hand.download([0]).shared.pull))
    close(pulls, [0.125, 0.125, 0.25, 0.25, 0.5], 1e-12)
    hand.t = 5000  # 8 / 2^2500 is 0 in floating point, which nothing is divided by
    assert math.isfinite(float(hand.download([0]).shared.pull))


# ---- who is mixed --------------------------------------------------------------------------------------------------
def test_offline_clients_count_with_their_last_model() -> None:
    """Clients 1 and 2 take part; the bank still holds client 0's model, so it is mixed in; with over="participants" it
    is not, and the rest is as if there were two clients."""
    bank = weights(uploaded(FedAMP(sigma=10.0, server_step=1.0), LINE), [1, 2])
    close(bank, [[0.090484, 0.842484, 0.067032], [0.040657, 0.067032, 0.892311]])
    sent = uploaded(FedAMP(sigma=10.0, server_step=1.0), [[1.0], [2.0], [4.0]]).download([1, 2])
    close(sent.rows.model[:, 0], [2.04358, 3.743965])
    some = weights(uploaded(FedAMP(sigma=10.0, server_step=1.0, over="participants"), LINE), [1, 2])
    x = 0.1 * math.exp(-0.4)
    close(some, [[0, 1 - x, x], [0, x, 1 - x]], 1e-12)


@pytest.mark.parametrize("method", [FedAMP(sigma=1.0, server_step=0.1), FedAMP(variant="heur"), FedAMP()])
def test_a_newcomer_learns_before_others_learn_from_it(method: FedAMP) -> None:
    """A client that has not sent a model yet has the start model, which is nobody's; it is given a mixture of those
    that have, but weighs nothing in theirs, whether or not it takes part."""
    hand = ByHand(method, vector_net(0.5), [copies(0.0, 4)] * 4, present=3)
    send(hand, LINE)
    before = weights(hand, [0, 1, 2])
    hand.join(4)
    xi = weights(hand)
    close(weights(hand, [0, 1, 2])[:, :3], before, 1e-12)
    assert torch.equal(xi[:3, 3], torch.zeros(3, dtype=torch.float64))
    assert float(xi[3, :3].sum()) > 0.1
    close(xi.sum(1), torch.ones(4), 1e-12)


@pytest.mark.parametrize("start", [0.5, 4096.0], ids=["near 0", "far from 0"])
def test_distances_of_some_rounds_are_those_of_all_models(start: float) -> None:
    """Rounds of some clients, 2^-10 apart, and two lots of newcomers: what the server keeps of all pairs is what all
    models give, to 1e-9 of the largest; in single precision around 4096 nothing would be left of it."""
    hand = ByHand(FedAMP(), vector_net(*[start] * 6), [copies([0.0] * 6, 4)] * 7, present=3)
    rng = torch.Generator().manual_seed(1)
    for ids, known in (([0, 2], 5), ([1, 3, 4], 7), ([0, 4, 6], 7), ([2], 7)):
        send(hand, (start + 2**-10 * torch.randn(len(ids), 6, generator=rng)).tolist(), ids)
        if known > len(hand.roster):
            hand.join(known)
        exact = squares_apart(hand.server.bank)
        close(hand.server.near / exact.max(), exact / exact.max(), 1e-9)
        among = exact[hand.server.seen][:, hand.server.seen]
        close(float(hand.server.sigma) / float(among[among > 0].median()), 1.0, 1e-6)


def test_clients_left_out_keep_their_model() -> None:
    """Who does not take part is evaluated with what it holds; nothing is sent for evaluation."""
    hand = uploaded(FedAMP(), LINE)
    send(hand, [[5.0]], ids=[1])
    close([float(hand.used(i).model) for i in range(3)], [0.0, 5.0, 3.0])
    assert hand.method.deliver(hand.server, hand.at("evaluate", [0, 1])).row(0) == Bundle()


def test_distances_leave_running_statistics_out() -> None:
    """Models that differ in running statistics only are at distance 0; the mixture averages the statistics with the
    weights of the parameters, here 1/2 each."""
    for variant in ("distance", "heur"):
        net = mlp_with_batchnorm()
        hand = ByHand(FedAMP(variant=variant, sigma=1.0, server_step=0.5), net, [s.train for s in federation()[:2]])
        other = net.w0
        other[net.buffers] += 4.0
        send(hand, [net.w0.tolist(), other.tolist()])
        if variant == "distance":
            close(hand.server.near, torch.zeros(2, 2), 1e-6)
        close(hand.download([0, 1]).rows.model[0], (net.w0 + other) / 2, 1e-5)


def test_nobody_to_send_to() -> None:
    """A round in which no client is there asks for no mixture at all."""
    for over in ("bank", "participants"):
        hand = uploaded(FedAMP(over=over), LINE)
        assert hand.download([]).rows.model.shape == (0, 1)


# ---- runs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("variant", ["distance", "heur"])
def test_it_is_not_local_training_on_digits(variant: str) -> None:
    """Real data: with its pull every client ends elsewhere than alone, by more than rounding; without it (lam = 0) bit
    for bit where it ends alone. A published FedAMP gives local training's curve, as its users found."""
    data = federate(load("digits"), Dirichlet(alpha=0.5), clients=6, seed=0)
    net = Net(factory("mlp", data.shape, data.classes), data.shape, data.classes)
    how = {"rounds_": 3, "participation": 1.0, "training": Training(lr=0.05)}
    alone = run(Local(), net, data.clients, **how)
    ours = run(FedAMP(variant=variant), net, data.clients, **how)
    without = run(FedAMP(variant=variant, lam=0.0), net, data.clients, **how)
    for i, kept in alone.clients.items():
        apart(ours.clients[i].model, kept.model, 0.01)
        assert torch.equal(without.clients[i].model, kept.model)
    off = ours.reports[-1].weights - torch.diag(ours.reports[-1].weights.diagonal())
    assert float(off.sum(1).min()) > 0.05


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
def test_without_others_both_pull_a_client_to_its_own_last_model(net: Callable[[], Net]) -> None:
    """sigma -> 0 and an own weight of 1 leave u = w, bit for bit the same run; not local training, as the pull holds a
    client back."""
    far: Method = FedAMP(sigma=1e-12, server_step=1.0)
    alone: Method = FedAMP(variant="heur", self_weight=1.0)
    a, b, c = (run(m, net(), federation()) for m in (far, alone, Local()))
    assert all(torch.equal(a.clients[i].model, b.clients[i].model) for i in a.clients if a.clients[i])
    assert any(not torch.equal(a.clients[i].model, c.clients[i].model) for i in a.clients if a.clients[i])


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
def test_without_attention_it_is_a_pull_to_the_mean_of_the_others(net: Callable[[], Net]) -> None:
    """Factor 0 and own weight 0: every other model weighs the same, which is DA-PFL without affinity and distances."""
    a = run(FedAMP(variant="heur", scale=0.0, self_weight=0.0), net(), federation(), participation=1.0)
    b = run(DAPFL(variant="v1-uniform"), net(), federation(), participation=1.0)
    close(a.state.bank, b.state.bank, 1e-5)
    apart(a.state.bank, run(Local(), net(), federation(), participation=1.0).clients[0].model, 1e-3)


# ---- another program ------------------------------------------------------------------------------------------------
GIVEN = {"sigma": 1.5, "step_decay": 0.5, "decay_every": 2}


@pytest.mark.parametrize(
    "method",
    [
        FedAMP(server_step=1.2, lam=0.9, **GIVEN),
        FedAMP(server_step=5.0, lam=3.0, over="participants", **GIVEN),
        FedAMP(lam=0.8),
        FedAMP(variant="heur", lam=0.8),
        FedAMP(variant="heur", lam=0.8, scale=9.0, self_weight=0.1, over="participants"),
    ],
    ids=["given", "given-participants", "automatic", "heur", "heur-participants"],
)
def test_an_independent_program_gives_the_same(method: FedAMP) -> None:
    """Weights with loops over pairs in float64, on five clients of unequal size, three in each of six rounds."""
    found, shards, w0 = plain.played(method, rounds_=6)
    own, sent, shortened = [w0] * 5, set[int](), set[bool]()
    for t, cohort in plain.cohorts(found):
        teachers = sent if method.over == "bank" else sent & set(cohort)
        step = (method.server_step or 1.0) * method.step_decay ** ((t - 1) // 2)
        pull = method.lam / step
        if method.variant == "heur":
            weights = {i: _by_cosine(own, i, teachers - {i}, method) for i in cohort}
        else:
            d = {(i, j): float((own[i] - own[j]).square().sum()) for i in range(5) for j in range(5)}
            sigma = method.sigma
            if sigma == "median":  # of an even number of distances the lower of the two in the middle
                sigma = statistics.median_low([d[p] for p in itertools.combinations(sent, 2)]) if sent else 1.0
                step = sigma / 2 / (max(len(sent - {i}) for i in cohort) or 1)
            slopes = {i: {j: math.exp(-d[i, j] / sigma) / sigma for j in teachers - {i}} for i in range(5)}
            guarded = range(5) if method.over == "bank" else cohort
            most = max(sum(slopes[i].values()) for i in guarded)
            shortened.add(step * most > 1)
            step = min(step, 1 / most) if most else step
            weights = {i: {j: step * a for j, a in slopes[i].items()} for i in cohort}
        ends = {}
        for i, xi in weights.items():
            u = (1 - sum(xi.values())) * own[i] + sum(x * own[j] for j, x in xi.items())
            ends[i], _ = plain.descend(own[i], shards[i].train, i, t, along=lambda w, u=u, p=pull: p * (w - u))
        for i in cohort:
            own[i] = ends[i]
            sent.add(i)
    assert shortened == {"given": {True, False}, "automatic": {False}, "heur": set()}[_kind(method)]
    assert len(sent) > 4
    for i in range(5):
        assert plain.distance(found.state.bank[i], own[i]) < 2e-6
        assert plain.distance(found.clients[i].model, own[i]) < 2e-6


def _kind(method: FedAMP) -> str:
    return "heur" if method.variant == "heur" else "automatic" if method.server_step is None else "given"


def _by_cosine(own: list[torch.Tensor], i: int, others: set[int], method: FedAMP) -> dict[int, float]:
    kept = 1 / (len(others) + 1) if method.self_weight is None else method.self_weight
    e = {j: math.exp(method.scale * float(own[i] @ own[j] / (own[i].norm() * own[j].norm()))) for j in others}
    return {j: (1 - kept) * v / sum(e.values()) for j, v in e.items()}
