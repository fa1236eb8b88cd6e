"""FedMGDA+ against numbers worked out by hand (Hu et al., IEEE TNSE 2022).

``g_i = w - w_i``, normalised; lambda* = argmin |sum lambda_i g_i/|g_i||^2 over weights that sum to 1, each within eps
of lambda0; ``w' = w - eta sum lambda*_i g_i/|g_i|``. Written with unit vectors u_i and the direction d.
"""

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch

import plain
from fedkin.capabilities.logs import numbers_of
from fedkin.core import Training
from fedkin.core.rows import gram
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedmgda import FedMGDA
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, run, vector_net

START = (2.0, -1.0)


def federation_of(method: FedMGDA | FedAvg, g: Sequence[Sequence[float]], sizes: Sequence[int] | None = None) -> ByHand:
    """Clients whose training moves the model by -g_i, whatever it was sent."""
    moves = torch.tensor(g, dtype=torch.float32)
    data = [copies(START, n) for n in sizes or [5] * len(g)]
    return ByHand(method, vector_net(*START), data, solve=lambda request, client: request.start - moves[client.id])


def direction(hand: ByHand) -> torch.Tensor:
    """What one round takes off the server's model, with eta = 1."""
    before = hand.server.model
    hand.play()
    return before - hand.server.model


def weights(method: FedMGDA, g: Sequence[Sequence[float]], prior: Sequence[float] | None = None) -> torch.Tensor:
    """lambda* as the server's step computes it."""
    rows = torch.tensor(g, dtype=torch.float64)
    length = rows.norm(dim=1, keepdim=True)
    rows = rows / torch.where(length > 0, length, 1.0) if method.normalise else rows
    return method.weights(gram(rows), torch.tensor(prior or [1.0] * len(g), dtype=torch.float64))


# ---- directions ----------------------------------------------------------------------------------------------------
SAME = [[1, 0], [1, 0], [0, 1]]
THIRDS = [1 / 3] * 3
CASES = {
    # two unit vectors: |a u + (1 - a) v|^2 is least in the middle, whatever the lengths were
    "two clients of any length": (FedMGDA(), [[3, 0], [0, 4]], None, [0.5, 0.5], [0.5, 0.5], 1.5),
    # (a + b)^2 + c^2 is least at a + b = c = 1/2, and of these a = b has the least norm
    "two the same, no box": (FedMGDA(eps=1.0), SAME, None, [0.25, 0.25, 0.5], [0.5, 0.5], 0.5),
    # c may be 1/3 + .1 at most; the others share the rest
    "two the same": (FedMGDA(eps=0.1), SAME, None, [17 / 60, 17 / 60, 13 / 30], [0.56667, 0.43333], 0.43333),
    "no room is normalised FedAvg": (FedMGDA(eps=0.0), SAME, None, THIRDS, [0.66667, 0.33333], 0.33333),
    # u and -u: d = 0, no direction is good for both
    "opposed": (FedMGDA(), [[1, 0], [-2, 0]], None, [0.5, 0.5], [0.0, 0.0], 0.0),
    # the box ends at 13/30 for the one against two: d = 2 * 17/60 - 13/30, and -2 * .13333 is against it
    "opposed in the box": (
        FedMGDA(),
        [[1, 0], [-2, 0], [1, 0]],
        None,
        [0.28333, 0.43333, 0.28333],
        [0.13333, 0],
        -0.26667,
    ),
    # u and -u cancel, the third wants no weight: it keeps 1/3 - .1 = 7/30, the others have 23/60 each
    "lower end of the box": (FedMGDA(), [[1, 0], [-1, 0], [0, 1]], None, [23 / 60, 23 / 60, 7 / 30], [0, 7 / 30], 0.0),
    "opposed without a box": (FedMGDA(eps=1.0), [[1, 0], [-2, 0], [1, 0]], None, [0.25, 0.5, 0.25], [0, 0], 0.0),
    "one did not move": (FedMGDA(), [[0, 0], [0, 2], [1, 0]], None, [0.0, 0.5, 0.5], [0.5, 0.5], 0.0),
    "nobody moved": (FedMGDA(), [[0, 0], [0, 0]], None, [0.0, 0.0], [0.0, 0.0], 0.0),
    # 9 a^2 + (1 - a)^2 is least at a = .1: the short update gets the weight
    "not normalised": (FedMGDA(eps=1.0, normalise=False), [[3, 0], [0, 1]], None, [0.1, 0.9], [0.3, 0.9], 0.9),
    # a = 1/2 is just within .1 of .6
    "by samples": (FedMGDA(lambda0="samples"), [[1, 0], [0, 1], [0, 1]], [6, 2, 2], [0.5, 0.25, 0.25], [0.5, 0.5], 0.5),
}


@pytest.mark.parametrize(("method", "g", "sizes", "lam", "d", "least"), CASES.values(), ids=CASES.keys())
def test_direction(
    method: FedMGDA, g: list[list[float]], sizes: list[int] | None, lam: list[float], d: list[float], least: float
) -> None:
    """One round through the real steps: the direction, lambda*, and min_i <g_i, d>; derivations beside the cases."""
    got = direction(federation_of(method, g, sizes))
    close(got, d, 1e-5)
    close(weights(method, g, sizes), lam, 1e-5)
    close((torch.tensor(g, dtype=torch.float32) @ got).min(), least, 1e-5)


def test_lengths_do_not_matter() -> None:
    """(3, 0), (0, 4) and (.001, 0), (0, 50) go the same way; without normalisation they do not."""
    far = [[0.001, 0], [0, 50]]
    close(direction(federation_of(FedMGDA(), far)), [0.5, 0.5])
    apart(direction(federation_of(FedMGDA(normalise=False, eps=1.0), far)), [0.5, 0.5], 0.4)


# ---- the server's step ---------------------------------------------------------------------------------------------
def test_steps_of_the_authors_program() -> None:
    """eta = 1, decay = .89 per 100 rounds: 1 in the first 100, .89 from the 101st on, .89^2 = .7921 in the 251st; the
    direction of a single client has length 1."""
    hand = federation_of(FedMGDA(eta=1.0, decay=0.89), [[0, 4]])
    for before, wanted in ((0, 1.0), (99, 1.0), (100, 0.89), (250, 0.7921)):
        hand.t = before
        close(direction(hand), [0.0, wanted])


def test_step_does_not_depend_on_the_clients_step_size() -> None:
    """Ten times the clients' update: the same server step."""
    g, long = [[0.3, 0.1], [0.1, 0.4]], [[3, 1], [1, 4]]
    close(direction(federation_of(FedMGDA(), g)), direction(federation_of(FedMGDA(), long)))


def test_no_participant_is_hurt_without_a_box() -> None:
    """The shortest point d of the hull of the u_i has <u_i, d> >= |d|^2 for every i. With a box of .1 the one against
    eight has at most 1/9 + .1 and is worked against. The notes of a run say the length of d and the least <u_i, d>."""
    g = torch.tensor([1.0, 0, 0, 0, 0, 0]) + 0.3 * torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    g[0] *= -2
    u = (g / g.norm(dim=1, keepdim=True)).double()
    net = vector_net(*[0.0] * 6)
    leasts = {}
    for eps in (1.0, 0.1):
        hand = ByHand(FedMGDA(eps=eps), net, [copies([0.0] * 6, 3)] * 9, solve=lambda q, c: q.start - g[c.id])
        d = direction(hand).double()
        notes = numbers_of(hand.method, hand.server)
        close([notes["common_length"], notes["least_along"]], [float(d.norm()), float((u @ d).min())])
        leasts[eps] = float((u @ d).min())
        if eps == 1.0:
            assert leasts[eps] >= float(d.norm()) ** 2 - 1e-6 > 1e-3
    assert leasts[0.1] < -0.3


# ---- special cases -------------------------------------------------------------------------------------------------
def test_duplicates_never_throw() -> None:
    """Forty equal updates, and more clients than dimensions: the Gram matrix is singular, where a solver for strictly
    convex problems gives up; the weights are spread evenly over the equal ones."""
    close(direction(federation_of(FedMGDA(eps=1.0), [[1, 2]] * 40)), torch.tensor([1.0, 2.0]) / 5**0.5)
    lam = weights(FedMGDA(eps=1.0), [[1, 0]] * 20 + [[0, 1]] * 20)
    close(lam, [0.025] * 40, 1e-5)


def test_a_client_that_did_not_move_attracts_no_weight() -> None:
    """As a unit vector plus 1e-8 it would be the shortest of all and take what the box allows: d would be (.3, .3) for
    weights (.4, .3, .3) instead of (.5, .5). It leaves the others' weights to the others, here by samples: 2/4, 2/4."""
    for method in (FedMGDA(), FedMGDA(lambda0="samples")):
        close(direction(federation_of(method, [[0, 0], [0, 2], [1, 0]], [20, 2, 2])), [0.5, 0.5])


def test_nobody_moved_leaves_the_model() -> None:
    """All updates zero: the model stays, bit for bit, and nothing is NaN."""
    for method in (FedMGDA(), FedMGDA(normalise=False)):
        hand = federation_of(method, [[0, 0]] * 3)
        hand.play()
        assert hand.server.model.tolist() == list(START)
        assert numbers_of(hand.method, hand.server) == {"common_length": 0.0, "least_along": 0.0}


def test_tiny_updates_keep_their_direction() -> None:
    """Updates of length 1e-20, whose squares are below float32's range."""
    hand = federation_of(FedMGDA(), [[1e-20, 0], [0, 1e-20]])
    hand.server = hand.server.but(model=torch.zeros(2))
    close(direction(hand), [0.5, 0.5])


def test_equal_norms_and_no_room_go_fedavgs_way() -> None:
    """eps = 0, all updates of length 2: d is half of FedAvg's plain-mean step."""
    g = [[2, 0], [0, 2], [1.2, 1.6]]
    close(2 * direction(federation_of(FedMGDA(eps=0.0), g)), direction(federation_of(FedAvg(), g)))


def test_running_statistics_are_averaged_and_take_no_part() -> None:
    """Uploads whose running statistics are far away: the weights go as without them, the statistics to their mean by
    samples."""
    net = mlp_with_batchnorm()
    shards = federation()
    steps = {}
    for shift in (0.0, 1000.0):
        hand = ByHand(FedMGDA(), net, [s.train for s in shards], training=Training(epochs=1, batch_size=5, lr=0.1))

        def moved(up, shift=shift):
            model = up.model.clone()
            model[0, net.buffers] += shift
            return up.but(model=model)

        up = hand.play(change=moved)
        steps[shift] = hand.server.model
        sizes = torch.tensor([9.0, 23, 14, 30, 11])
        close(hand.server.model[net.buffers], sizes @ up.model[:, net.buffers] / sizes.sum(), 1e-3)
    assert torch.equal(steps[0.0][net.params], steps[1000.0][net.params])
    apart(steps[0.0][net.buffers], steps[1000.0][net.buffers], 10.0)


def test_order_of_clients_does_not_matter() -> None:
    """The same updates in another order: the same model, and each its own weight."""
    g = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    order = [3, 1, 6, 0, 5, 2, 4]
    lam = weights(FedMGDA(eps=1.0), g.tolist())
    close(weights(FedMGDA(eps=1.0), g[order].tolist()), lam[order])


def test_one_client() -> None:
    """Its own direction at length eta."""
    close(direction(federation_of(FedMGDA(eta=0.5), [[3, 4]])), [0.3, 0.4])


# ---- another program ------------------------------------------------------------------------------------------------
def _least(rows: torch.Tensor, low: Sequence[float], high: Sequence[float]) -> torch.Tensor:
    """The shortest mix of rows: every way to put weights at an end of their range, the others where the slope is 0."""
    k, best, shortest = len(rows), torch.zeros(0), math.inf
    for at in product("<>-", repeat=k):
        free = [i for i in range(k) if at[i] == "-"]
        ends = [{"<": a, ">": b, "-": 0.0}[s] for s, a, b in zip(at, low, high, strict=True)]
        mix = torch.tensor(ends, dtype=torch.float64)
        if free:
            f = rows[free]
            ones = torch.ones(len(free), 1).double()
            left = torch.cat([torch.cat([f @ f.T, ones], 1), torch.cat([ones.T, torch.zeros(1, 1).double()], 1)])
            right = torch.cat([-f @ (mix @ rows), 1 - mix.sum().view(1)])
            mix[free] = torch.linalg.solve(left, right)[:-1]
        fits = all(a - 1e-12 <= v <= b + 1e-12 for v, a, b in zip(mix.tolist(), low, high, strict=True))
        if fits and abs(float(mix.sum()) - 1) < 1e-12 and float((mix @ rows).norm()) < shortest:
            best, shortest = mix, float((mix @ rows).norm())
    return best


@pytest.mark.parametrize(("lambda0", "eps", "normalise"), [("samples", 0.1, True), ("uniform", 1.0, False)])
def test_an_independent_program_gives_the_same(lambda0: str, eps: float, normalise: bool) -> None:
    """Weights by trying all sets of weights at their bounds, in float64, on five unequal clients, four in each of four
    rounds."""
    shards, w = federation(), mlp().w0.double()
    method = FedMGDA(lambda0=lambda0, eps=eps, normalise=normalise, eta=0.8)
    found = run(method, mlp(), shards, participation=0.8, training=plain.TRAINING)
    bounds = set()
    for t, cohort in plain.cohorts(found):
        rows = torch.stack([w - plain.descend(w, shards[i].train, i, t)[0] for i in cohort])
        if normalise:
            rows = torch.stack([g / g.norm() for g in rows])
        size = [len(shards[i].train) if lambda0 == "samples" else 1 for i in cohort]
        near = [n / sum(size) for n in size]
        low, high = [max(0.0, p - eps) for p in near], [min(1.0, p + eps) for p in near]
        mix = _least(rows, low, high)
        for v, a, b in zip(mix.tolist(), low, high, strict=True):
            bounds.add("low" if v < a + 1e-9 else "high" if v > b - 1e-9 else "between")
        w = w - 0.8 * mix @ rows
    assert bounds == ({"low", "high", "between"} if eps < 1 else {"low", "between"})
    assert plain.distance(found.state.model, w) < 2e-6
