"""FedDyn against numbers worked out by hand (Acar et al., ICLR 2021).

A client minimises ``L_k(v) - <g_k, v> + alpha/2 |v - w|^2`` to v_k, then ``g_k <- g_k - alpha (v_k - w)``. The server:
``h <- h - alpha/K sum_S (v_k - w)`` and ``w <- mean_S v_k - h/alpha``. With exact solutions g_k is the gradient of L_k
at v_k, and always ``h = 1/K sum_k g_k``. Losses are ``c_k/2 (v - a_k)^2``: c is a sample's label, a its input.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.presets import preset
from fedkin.core import Batch, Bundle, Client, Net, Train, Training
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.feddyn import FedDyn
from fedkin.methods.fedprox import FedProx
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, run, vector_net

TWO = ((1, 1.0), (3, -1.0))  # 1/2 (v - 1)^2 and 3/2 (v + 1)^2: optimum of the mean at -1/2
THREE = ((1, 1.0), (2, 4.0), (3, -1.0))  # (1 + 8 - 3)/6 = 1


def numbers(client: Client) -> tuple[float, float]:
    """c and a of a client's loss."""
    return float(client.data.y[0]), float(client.data.x[0, 0])


def exact(request: Train, client: Client) -> Tensor:
    """argmin c/2 (v - a)^2 + linear v + mu/2 (v - center)^2 = (c a - linear + mu center)/(c + mu)."""
    c, a = numbers(client)
    return (c * a - request.linear + request.mu * request.center) / (c + request.mu)


def bowl(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """c/2 (w - a)^2."""
    return 0.5 * batch.y.float().mean() * (w - batch.x.mean(0)).square().sum()


def bowls(
    method: FedDyn | FedAvg,
    losses: Sequence[tuple[int, float]] = TWO,
    sizes: Sequence[int] = (1, 1, 1),
    solve: Callable[[Train, Client], Tensor] | None = exact,
    present: int | None = None,
    start: float = 0.0,
) -> ByHand:
    data = [copies(a, n, y=c) for (c, a), n in zip(losses, sizes, strict=False)]
    training = Training(steps=200, lr=0.1, batch_size=1000)
    return ByHand(method, vector_net(start), data, training=training, loss=bowl, solve=solve, present=present)


def play(hand: ByHand, reg: float) -> None:
    """As many rounds as alpha needs: the error falls by a factor of about 1 - alpha/c in each."""
    for _ in range(round(30 / min(reg, 0.5))):
        hand.play()


def gradients(hand: ByHand) -> list[float]:
    """g of every client."""
    return [float(b.get("g", torch.zeros(1))) for b in hand.kept]


# ---- rounds --------------------------------------------------------------------------------------------------------
FULL = [
    ((0.5, -0.75), (-0.5, 0.75), 0.125, -0.125, -0.25),
    ((0.125, -0.625), (-0.875, 1.125), 0.125, -0.25, -0.375),
    ((-0.125, -0.5625), (-1.125, 1.3125), 0.09375, -0.34375, -0.4375),
]
PARTIAL = [
    ([0], (0.5,), (-0.5, 0.0), -0.25, 0.5, 0.75),
    ([1], (-0.5625,), (-0.5, 1.3125), 0.40625, -0.5625, -0.96875),
    ([0, 1], (-0.234375, -0.6640625), (-1.234375, 1.0078125), -0.11328125, -0.44921875, -0.3359375),
]


def test_three_rounds_of_both() -> None:
    """alpha = 1 from 0: v = ((1 + 0)/2, (-3 + 0)/4); g = -v; h = (-.5 + .75)/2; w = mean - h. Then v_1 = (1 - .5 -
    .25)/2 = .125 and so on: every number is a binary fraction, so it is met exactly."""
    hand = bowls(FedDyn(reg=1.0, eval_model="active-mean"))
    for models, g, h, mean, w in FULL:
        assert hand.play().model[:, 0].tolist() == list(models)
        assert gradients(hand) == list(g)
        assert float(hand.server.h) == h
        assert float(hand.used(0).model) == mean
        assert float(hand.server.model) == w


def test_three_rounds_of_some() -> None:
    """{1}, {2}, {1, 2}: who is absent keeps g, and K = 2 in h: h = -1/2 * .5 = -.25, w = .5 + .25 = .75; v_2 = (-3 +
    .75)/4, h = -.25 + 1.3125/2, w = -.5625 - .40625."""
    hand = bowls(FedDyn(reg=1.0, eval_model="active-mean"))
    for ids, models, g, h, mean, w in PARTIAL:
        assert hand.play(ids).model[:, 0].tolist() == list(models)
        assert gradients(hand) == list(g)
        assert float(hand.server.h) == h
        assert float(hand.used(0).model) == mean
        assert float(hand.server.model) == w


def test_a_round_by_gradient_descent() -> None:
    """The first two rounds by the library's own SGD (200 steps of .1): the signs of the linear and of the proximal term
    in the request are those of the formula."""
    hand = bowls(FedDyn(reg=1.0), solve=None)
    for models, g, h, _, w in FULL[:2]:
        close(hand.play().model[:, 0], models)
        close(gradients(hand), g)
        close([float(hand.server.h), float(hand.server.model)], [h, w])


@pytest.mark.parametrize("reg", [0.1, 1.0, 10.0])
def test_limit_is_the_optimum(reg: float) -> None:
    """Mean loss: gradient ((w - 1) + 3 (w + 1))/2 = 0 at -1/2, for every alpha."""
    hand = bowls(FedDyn(reg=reg))
    play(hand, reg)
    close(hand.server.model, [-0.5], 1e-5)


def test_limit_of_fedavg_is_not() -> None:
    """FedAvg with exact local solutions: the mean of the minima, (1 - 1)/2 = 0, in every round."""
    hand = bowls(FedAvg(), solve=lambda _, client: torch.tensor([numbers(client)[1]]))
    hand.play()
    close(hand.server.model, [0.0])


# ---- what published programs do otherwise --------------------------------------------------------------------------
def unsquared(request: Train, client: Client) -> Tensor:
    """argmin with alpha/2 |v - w| instead of its square: v = a - (linear +- alpha/2)/c on either side of w, or w."""
    c, a = numbers(client)
    w, half = request.center, request.mu / 2
    above, below = a - (request.linear + half) / c, a - (request.linear - half) / c
    return torch.where(above > w, above, torch.where(below < w, below, w))


def linear_only(request: Train, client: Client) -> Tensor:
    """argmin with -alpha <w, v> but without alpha/2 |v|^2."""
    c, a = numbers(client)
    return a - (request.linear - request.mu * request.center) / c


def flipped(request: Train, client: Client) -> Tensor:
    """argmin with the linear term's sign turned."""
    return exact(request.but(linear=-request.linear), client)


@pytest.mark.parametrize("reg", [0.01, 0.1, 1.0])
def test_three_quadratics(reg: float) -> None:
    """L = 1/2 (v - 1)^2, (v - 4)^2, 3/2 (v + 1)^2: the mean's gradient 2 (w - 1) is 0 at 1; the server's model and the
    participants' mean both end there."""
    hand = bowls(FedDyn(reg=reg, eval_model="active-mean"), THREE)
    play(hand, reg)
    close([float(hand.server.model), float(hand.used(0).model)], [1.0, 1.0], 1e-4)
    close(2 * (hand.server.model - 1), [0.0], 1e-4)


@pytest.mark.parametrize(
    ("solve", "reg", "limit", "gradient"),
    [
        (unsquared, 0.01, 0.9992, -0.0017),
        (unsquared, 0.1, 0.9917, -0.0167),
        (unsquared, 1.0, 0.9648, -0.0704),
        (linear_only, 0.01, 1.005, 0.0101),
        (linear_only, 0.1, 1.0526, 0.1053),
        (linear_only, 1.0, 2.0, 2.0),
    ],
)
def test_faults_that_end_elsewhere(
    solve: Callable[[Train, Client], Tensor], reg: float, limit: float, gradient: float
) -> None:
    """The same steps around two faulty local solutions found in published programs end beside the optimum 1: without
    the square clients stop pulling within alpha/2 of w; with the linear part alone sum_k c_k (w - a_k) = alpha K w, so
    w = 2/(2 - alpha). Ours (above) ends at 1, so these tests can tell."""
    hand = bowls(FedDyn(reg=reg), THREE, solve=solve)
    play(hand, reg)
    close(hand.server.model, [limit], 1e-4)
    close(2 * (hand.server.model - 1), [gradient], 2e-4)


@pytest.mark.parametrize("reg", [0.01, 0.1, 1.0])
def test_a_turned_sign_diverges(reg: float) -> None:
    """With the linear term's sign turned every round adds to the drift instead of taking it away."""
    hand = bowls(FedDyn(reg=reg), THREE, solve=flipped)
    play(hand, reg)
    assert not abs(float(hand.server.model) - 1) < 100


# ---- invariants ----------------------------------------------------------------------------------------------------
def test_g_is_the_gradient_at_the_last_solution() -> None:
    """Exact solutions: c (v - a) - g + alpha (v - w) = 0, so the new g is c (v - a); absent clients keep theirs."""
    hand = bowls(FedDyn(reg=0.5), THREE)
    last: dict[int, float] = {}
    for ids in ([0, 2], [1], [0, 1, 2], [2], [0, 1]):
        up = hand.play(ids)
        last |= dict(zip(ids, up.model[:, 0].tolist(), strict=True))
        for k, v in last.items():
            c, a = THREE[k]
            close(gradients(hand)[k], c * (v - a), 1e-5)
        close(hand.server.h, [sum(gradients(hand)) / 3], 1e-6)


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_h_is_the_mean_of_g_in_a_real_run(net: Callable[[], Net], adaptive: bool) -> None:
    """Partial participation, drop-outs, clients that join in round 3 (which rescales h by K_old/K_new): after every
    round h is the mean of g over all clients that have joined; weighted by samples if alpha is adaptive."""
    shards = federation()
    seen = []

    def check(server, simulation) -> None:
        joined = len(server.roster)
        g = [b.get("g", torch.zeros(net().size)) for b in simulation.states(server.acks).values()][:joined]
        size = server.sizes.double() if adaptive else torch.ones(joined, dtype=torch.float64)
        rows = torch.stack(g).double()
        close(server.state.h, (size / size.sum()) @ rows[:, net().params])
        assert not bool(rows[:, net().buffers].any())
        seen.append((joined, float(server.state.h.norm())))

    method = FedDyn(adaptive=adaptive)
    run(method, net(), shards, rounds_=6, dropout=0.3, joins=[1, 1, 1, 3, 3], each_round=check)
    assert {k for k, _ in seen} == {3, 5}
    assert seen[-1][1] > 1e-2


def test_joining_rescales_h() -> None:
    """h = -.25 with K = 2 after a round of the first client; two newcomers with g = 0 make it -.25 * 2/4 = -.125; by
    samples (1 of 2, then 1 of 2 + 6): the round gives -.25, too, and 2/8 of that is -.0625."""
    for method, wanted in ((FedDyn(reg=1.0), -0.125), (FedDyn(reg=1.0, adaptive=True), -0.0625)):
        hand = bowls(method, (*TWO, *TWO), sizes=(1, 1, 3, 3), present=2)
        hand.play([0])
        assert float(hand.server.h) == -0.25
        hand.join(4)
        assert float(hand.server.h) == wanted


# ---- adaptive alpha, weights ---------------------------------------------------------------------------------------
def test_adaptive_alpha() -> None:
    """n = (10, 30, 20), alpha = .01: alpha mean(n)/n_k = .01 * 20/(10, 30, 20)."""
    hand = bowls(FedDyn(reg=0.01, adaptive=True), THREE, sizes=(10, 30, 20))
    asked: list[float] = []

    def note(request: Train, client: Client) -> Tensor:
        asked.append(request.mu)
        return exact(request, client)

    hand.solve = note
    hand.play()
    close(asked, [0.02, 0.006667, 0.01])


def test_adaptive_alpha_ends_at_the_weighted_optimum() -> None:
    """n = (30, 10): 30 (w - 1) + 10 * 3 (w + 1) = 0 at 0; with one alpha for all the unweighted optimum -1/2."""
    for adaptive, wanted in ((True, 0.0), (False, -0.5)):
        hand = bowls(FedDyn(reg=1.0, adaptive=adaptive), sizes=(30, 10))
        for _ in range(80):
            hand.play()
        close(hand.server.model, [wanted], 1e-5)


def test_clients_weigh_the_same() -> None:
    """n = (30, 10) changes nothing: plain means, as in the paper, also where the run weighs by samples."""
    hand = bowls(FedDyn(reg=1.0), sizes=(30, 10))
    hand.play()
    close(hand.server.model, [-0.25])


# ---- what is evaluated ---------------------------------------------------------------------------------------------
def test_mean_of_all_last_models() -> None:
    """From 0, {1}, {2}, {1, 2}: (.5 + 0)/2, (.5 - .5625)/2, (-.234375 - .6640625)/2; an absent client counts with its
    last model, one that was never there with the model at its joining."""
    hand = bowls(FedDyn(reg=1.0, eval_model="all-mean"))
    for (ids, *_), wanted in zip(PARTIAL, (0.25, -0.03125, -0.44921875), strict=True):
        hand.play(ids)
        assert float(hand.used(1).model) == wanted


def test_clients_start_from_the_server_model_whatever_is_evaluated() -> None:
    """The three kinds of evaluation differ in what is delivered, not in what is trained from."""
    kinds = [bowls(FedDyn(reg=1.0, eval_model=e)) for e in ("server", "active-mean", "all-mean")]
    for hand in kinds:
        hand.play([0])
        assert float(hand.server.model) == 0.75
        assert float(hand.download([1]).row(0).model) == 0.75
    assert [float(hand.used(1).model) for hand in kinds] == [0.75, 0.5, 0.25]
    assert "bank" not in kinds[0].server
    assert "bank" not in kinds[1].server


def test_no_answer_yet() -> None:
    """Before the first round every kind of evaluation uses the common start."""
    for e in ("server", "active-mean", "all-mean"):
        assert float(bowls(FedDyn(eval_model=e), start=2.0).used(0).model) == 2.0


# ---- traps ---------------------------------------------------------------------------------------------------------
def test_clip_bounds_the_loss_and_its_linear_term_only() -> None:
    """One step of .1 from 0, L = 3/2 (v + 1)^2: gradient 3, clipped to 2: v = -.2; with no bound -.3. In round 2 the
    gradient with the linear term, 3 (1 + w) - g, is bounded, and alpha (v - w) = 0 at the start comes beside it."""
    for clip, wanted in ((2.0, -0.2), (0.0, -0.3), (10.0, -0.3)):
        hand = bowls(FedDyn(reg=1.0, clip=clip), ((3, -1.0),), solve=None)
        hand.training = Training(steps=1, lr=0.1, batch_size=1000)
        close(hand.play().model, [[wanted]])
        w, g = float(hand.server.model), gradients(hand)[0]
        close([w, g], [2 * wanted, -wanted])  # h = g = -wanted, w = wanted - h
        step = 3 * (w + 1) - g
        close(hand.play().model, [[w - 0.1 * (min(step, clip) if clip else step)]])


def test_nothing_is_clipped_unless_asked() -> None:
    """One step of .1 from 0 with a gradient of 30, L = 30/2 (v + 1)^2: -3, as in the paper; the authors' program clips
    the gradient at 10: -1. CFIC's comparison does not clip."""
    for method, wanted in (
        (FedDyn(reg=1.0), -3.0),
        (preset(FedDyn, "code", adaptive=False), -1.0),
        (preset(FedDyn, "cfic-table"), -3.0),
    ):
        hand = bowls(method, ((30, -1.0),), solve=None)
        hand.training = Training(steps=1, lr=0.1, batch_size=1000)
        close(hand.play().model, [[wanted]])


def test_running_statistics_have_no_dual() -> None:
    """g is 0 on running statistics, h has no entries for them, and the server's are the plain mean of the uploads',
    while its weights are not."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedDyn(), net, training=Training(epochs=2, batch_size=5, lr=0.1))
    for _ in range(3):
        up = hand.play([0, 3, 4])
    assert not any(bool(hand.kept[i].g[net.buffers].any()) for i in (0, 3, 4))
    assert len(hand.server.h) == net.params.stop
    close(hand.server.model[net.buffers], up.model[:, net.buffers].mean(0))
    apart(hand.server.model[net.params], up.model[:, net.params].mean(0), 1e-3)


def test_first_round_is_fedprox() -> None:
    """g = 0 in round 1, so a client's loss is FedProx's with mu = alpha: the participants' mean is FedProx's model, bit
    for bit, and the server goes |S|/K of the way once more: w = mean + 3/5 (mean - w0)."""
    net, shards = mlp(), federation()
    ours = run(FedDyn(reg=0.3, clip=0.0, eval_model="active-mean"), net, shards, rounds_=1)
    prox = run(FedProx(mu=0.3), net, shards, rounds_=1, uniform=True)
    assert torch.equal(ours.state.shown, prox.state.model)
    mean = prox.state.model
    close(ours.state.model, mean + 3 / 5 * (mean - net.w0))


def test_it_is_not_fedprox_afterwards() -> None:
    """From round 2 on the linear term is there: a client that starts from the same model ends elsewhere."""
    hand = ByHand(FedDyn(reg=0.3), training=Training(epochs=2, batch_size=5, lr=0.1))
    hand.play()
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert torch.equal(request.linear, -hand.kept[0].g)
    apart(request.linear, torch.zeros(51), 1e-3)
    apart(hand.train(request, hand.client(0)), hand.train(request.but(linear=None), hand.client(0)), 1e-3)


def test_alone() -> None:
    """K = 1 with exact solutions: v = (c a + g + alpha w)/(c + alpha), h = g; the limit is the client's optimum."""
    hand = bowls(FedDyn(reg=1.0), ((3, -1.0),))
    for _ in range(40):
        hand.play()
        close(hand.server.h, gradients(hand))
    close(hand.server.model, [-1.0], 1e-5)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("adaptive", "clip"), [(False, 0.0), (True, 0.4)])
def test_an_independent_program_gives_the_same(adaptive: bool, clip: float) -> None:
    """Gradients of clients and their mean in float64, on five unequal clients, three in each of five rounds; once with
    the authors' alpha_k and clipping."""
    found, shards, w = plain.played(FedDyn(reg=0.3, adaptive=adaptive, clip=clip), rounds_=5)
    mean = sum(len(shard.train) for shard in shards) / 5
    alpha = [0.3 * mean / len(shard.train) if adaptive else 0.3 for shard in shards]
    g, h, clipped, again = [torch.zeros_like(w) for _ in shards], torch.zeros_like(w), set(), 0
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            v, data = w, shards[i].train
            for index in plain.drawn(data, i, t):
                x, y = data.x[index].double(), data.y[index]
                slope = plain.gradient(lambda v, x=x, y=y: plain.loss(v, x, y), v) - g[i]
                clipped.add(bool(clip) and float(slope.norm()) > clip)
                if clip:
                    slope = slope * min(1.0, clip / float(slope.norm()))
                v = v - 0.1 * (slope + alpha[i] * (v - w))
            again += bool(g[i].any())
            g[i] = g[i] - alpha[i] * (v - w)
            ends.append(v)
        h = h - 0.3 / 5 * sum(v - w for v in ends)
        w = sum(ends) / len(ends) - h / 0.3
    assert again >= 5
    assert clipped == ({True, False} if clip else {False})
    assert plain.distance(found.state.model, w) < 2e-6
    assert plain.distance(found.state.h, h) < 2e-6
    assert max(plain.distance(found.clients[i].g, g[i]) for i in found.clients if bool(g[i].any())) < 2e-6
