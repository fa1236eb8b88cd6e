"""FedPAC against numbers worked out by hand (Xu, Tong, Huang, ICLR 2023).

With h_j the C x d matrix of rows p_k mu_k (share and mean feature of class k at client j) and V_j the trace of the
samples' covariance of e_y z', client i's head is ``sum_j a_j phi_j``, a the minimum over the simplex of
``sum_j a_j^2 V_j / n_j + ||sum_j a_j (h_j - h_i)||^2``. The body's loss is ``CE + lam mean_d((z - c_y)^2)``.

The network has two features and two classes: flat vector ``[W | B]``, ``z = B x``. Features are the inputs: B = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import exp

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Client, Samples, Train, Training
from fedkin.core.rows import squared_distances
from fedkin.functional.simplex import shortest
from fedkin.methods import FedPAC
from fedkin.methods.fedpac import head_weights, label_moments
from toys import ByHand, close, copies, mlp_with_batchnorm, plane_net, unusable

ONE = torch.eye(2).flatten()


def at(*first: float, y: int = 0) -> Samples:
    """Samples of one class with these first inputs; the second one is 0."""
    return Samples(torch.tensor([[a, 0.0] for a in first]), torch.full((len(first),), y))


def clients(
    *data: Samples, heads: Sequence[float] = (0, 0, 0), body: float = 1.0, present: int | None = None
) -> ByHand:
    """Clients whose heads end with all numbers equal to these, and whose common body ends as a multiple of itself."""

    def solve(request: Train, client: Client) -> Tensor:
        if len(request.start) == 4:
            return torch.full((4,), float(heads[client.id]))
        return torch.cat([request.start[:4], body * request.start[4:]])

    hand = ByHand(FedPAC(), plane_net(), data, solve=solve, present=present)
    hand.server = hand.server.but(body=ONE)
    return hand


def test_two_clients() -> None:
    """Inputs 1, 3 and 2, 6 of class 0: h = 2 and 4, V/n = (5 - 4)/2 = 1/2 and (20 - 16)/2 = 2. Client 1 minimises a^2/2
    + (1 - a)^2 (2 + 4): a = 6/(13/2) = 12/13; client 2 keeps (1/2 + 4)/(13/2) = 9/13. Heads 13 and 26 become (12 * 13 +
    26)/13 = 14 and (4 * 13 + 9 * 26)/13 = 22."""
    hand = clients(at(1, 3), at(2, 6), heads=(13, 26))
    up = hand.play()
    close(up.moments, [[[2, 0], [0, 0]], [[4, 0], [0, 0]]])
    close(up.variance, [1 / 2, 2])
    close(hand.server.heads, [[14.0] * 4, [22.0] * 4], 1e-5)


def test_labels_set_clients_apart() -> None:
    """The same inputs, but client 2's are of class 1: h differ by 2^2 + 4^2 = 20. Client 1 keeps 22/(45/2) = 44/45 of
    its own head, client 2 (1/2 + 20)/(45/2) = 41/45."""
    hand = clients(at(1, 3), at(2, 6, y=1), heads=(0, 45))
    hand.play()
    close(hand.server.heads[:, 0], [1, 41], 1e-5)


def test_labels_vary() -> None:
    """One input of length 1 with labels 0 and 1: h = (1/2, 1/2), V = 1 - 1/4 - 1/4 = 1/2, of their mean 1/4, though the
    features are all equal: variances within classes would add up to 0."""
    h, variance = label_moments(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), 2)
    close(h, [[1 / 2, 0], [1 / 2, 0]])
    close(variance, 1 / 4)


def test_weights_are_not_negative() -> None:
    """h = 0, 1, 2 and V/n = 16/4, 0, 0. Client 1 minimises 4 a^2 + (b + 2 c)^2: (1/5, 4/5, 0), where one more of c
    would cost 2 * 2 * 4/5 and save 2 * 4/5. Without the bound it is b = 2, c = -1. The others have no variance: they
    keep their heads."""
    hand = clients(at(4, 4, -4, -4), at(1), at(2), heads=(0, 5, 50))
    hand.play()
    close(hand.server.heads[:, 0], [4, 5, 50], 1e-5)


def test_clients_of_one_distribution_are_weighted_by_samples() -> None:
    """Inputs -1 and 1, once and twice: V = 1, V/n = 1/2 and 1/4: heads 0 and 3 become 2 for both, their mean over
    samples."""
    hand = clients(at(-1, 1), at(-1, 1, -1, 1), heads=(0, 3))
    hand.play()
    close(hand.server.heads[:, 0], [2, 2], 1e-5)


def test_small_weights_count() -> None:
    """h = 2 and 32, V/n = 1/2 and 0: client 1 gives client 2's head (1/2)/(1/2 + 900) = 1/1801. The authors' program
    and PFLlib drop weights below 1/1000, and PFLlib leaves a sum below 1 then."""
    hand = clients(at(1, 3), at(32), heads=(1, 1802))
    hand.play()
    close(hand.server.heads[:, 0], [2, 1802], 1e-3)


def test_moments_are_of_the_received_body_and_centroids_of_the_trained() -> None:
    """The body is doubled in training: the centroid of 1 and 3 is 4, their moment 2, as for all clients."""
    up = clients(at(1, 3), at(5), body=2.0).play()
    close(up.moments[:, 0, 0], [2, 5])
    close(up.means[:, 0, 0], [4, 10])


def test_centroids_are_means_over_samples() -> None:
    """Class 0: 2 from two samples and 8 from one: 4; PFLlib's plain mean of clients is 5. A class without samples has
    none, and what a later round does not see stays."""
    hand = clients(at(1, 3), at(8), at(6, y=1))
    hand.play([0, 1])
    close(hand.server.prototypes[0], [4, 0])
    assert hand.server.known.tolist() == [True, False]
    hand.play([2])
    close(hand.server.prototypes, [[4, 0], [6, 0]])
    assert hand.server.known.tolist() == [True, True]


def test_the_others_keep_their_heads() -> None:
    """Heads are combined among participants; who is absent keeps its head, and the body is the mean over samples."""
    hand = clients(at(1, 3), at(2, 6), at(0), heads=(13, 26, 39))
    hand.play([0, 1])
    before = hand.server.heads[0]
    hand.play([2])
    assert torch.equal(hand.server.heads[0], before)
    close(hand.used(2).model, [39.0] * 4 + ONE.tolist())
    assert set(hand.download([0]).row(0)) == {"body", "head", "prototypes", "known"}
    assert set(hand.method.deliver(hand.server, hand.at("deliver", [0])).row(0)) == {"body", "head"}


def test_who_has_not_taken_part_starts_from_the_mean_head() -> None:
    """The heads of the first test: 14 and 22, with 2 and 2 samples: 18. Client 3, there from the start, and client 4,
    which joins, get it to train and to predict with; in round 1 nobody has a head, and they get the common start's."""
    hand = clients(at(1, 3), at(2, 6), at(5), at(7), heads=(13, 26, 90, 90), present=3)
    start = hand.net.w0[:4]
    assert torch.equal(hand.download([2]).row(0).head, start)
    hand.play([0, 1])
    hand.join(4)
    sent = hand.download([0, 2, 3])
    close([float(sent.row(i).head[0]) for i in range(3)], [14, 18, 18], 1e-5)
    close(hand.used(3).model, [18.0] * 4 + ONE.tolist(), 1e-5)
    hand.play([3])  # 90 with one sample: (2 * 14 + 2 * 22 + 90)/5
    close(hand.download([2]).row(0).head, [162 / 5] * 4, 1e-4)


def test_a_round_of_training() -> None:
    """x = (1, 0), y = 0, c = (0, 2), W = 0. A step of 1/4 on the head: W's first column is (1/8, -1/8). Then one of 1/2
    on the body, where CE's slope in z is W'(p - y) = (-s/4, 0), s = 1/(1 + e^(1/4)), and that of the pull, lam = 1/2,
    is 1/2 (2/2) ((1, 0) - (0, 2)) = (1/2, -1): the first column of B is (1 + s/8 - 1/4, 1/2). The head stays then."""
    hand = ByHand(
        FedPAC(lam=0.5, head_lr=0.25),
        plane_net(),
        [copies([1.0, 0.0], 4)],
        training=Training(steps=1, lr=0.5, batch_size=1000),
    )
    hand.server = Bundle(
        body=ONE,
        heads=torch.zeros(1, 4),
        prototypes=torch.tensor([[0.0, 2.0], [7.0, 7.0]]),
        known=torch.tensor([True, False]),
    )
    up = hand.play()
    s = 1 / (1 + exp(1 / 4))
    close(up.head[0], [1 / 8, 0, -1 / 8, 0])
    close(up.body[0], [1 + s / 8 - 1 / 4, 0, 1 / 2, 1])


def test_a_class_without_centroid_is_not_pulled() -> None:
    """As in the first round: the same body with and without the weight of the pull."""
    ends = []
    for lam in (0.0, 9.0):
        hand = ByHand(FedPAC(lam=lam), training=Training(batch_size=5, lr=0.1))
        ends.append(hand.play().body)
    assert torch.equal(*ends)


def test_views() -> None:
    """ "trained" is the client's own model after its last training."""
    hand = clients(at(1, 3), at(2, 6), heads=(13, 26), body=2.0)
    hand.play()
    views = views_of(hand.method, hand.client(0, Bundle(head=hand.server.heads[0], body=hand.server.body)))
    close(views["trained"].model, [13.0] * 4 + [2.0, 0, 0, 2])


def test_running_statistics_are_averaged() -> None:
    """They are the tail of the body, and move while it is trained."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedPAC(), net, training=Training(epochs=1, batch_size=5, lr=0.05))
    before = hand.server.body[net.buffers.start - net.head.stop :]
    up = hand.play([0, 3])
    assert not torch.equal(up.body[0, -len(before) :], before)
    close(hand.server.body, (9 * up.body[0] + 30 * up.body[1]) / 39, 1e-5)


def test_what_is_refused() -> None:
    """A negative count or variance would leave the weights without a minimum or a mean."""
    hand = clients(at(1, 3))
    up = Bundle({name: rows[0] for name, rows in hand.play().items()})
    r = hand.at("aggregate", [0])
    assert unusable(hand.method, r, up) is None
    assert "count" in str(unusable(hand.method, r, up.but(counts=-up.counts)))
    assert "variance" in str(unusable(hand.method, r, up.but(variance=-up.variance)))


def least(q: Tensor) -> Tensor:
    """The minimum of a'q a over the simplex, by trying every set of weights that may be positive."""
    m, best, found = len(q), float("inf"), torch.zeros(len(q), dtype=q.dtype)
    for size in range(1, m + 1):
        for chosen in combinations(range(m), size):
            some = torch.tensor(chosen)
            x = torch.linalg.solve(q[some][:, some], torch.ones(size, dtype=q.dtype))
            x = x / x.sum()
            if bool((x >= 0).all()) and float(x @ q[some][:, some] @ x) < best:
                best, found = float(x @ q[some][:, some] @ x), torch.zeros(m, dtype=q.dtype).index_copy_(0, some, x)
    return found


def aligned(w: Tensor, x: Tensor, y: Tensor, goal: Tensor, known: Tensor) -> Tensor:
    """Cross-entropy and 3 times the mean square of what features are away from their goals."""
    away = (plain.features(w, x) - goal) * known
    return plain.loss(w, x, y) + 3.0 * (away**2).sum() / away.numel()


def test_an_independent_program_gives_the_same() -> None:
    """Heads, bodies and statistics in float64 on five clients of unequal size, three in each of five rounds. A client's
    first head is the mean of those of all that took part before."""
    found, shards, w = plain.played(FedPAC(lam=3.0, head_lr=0.2), rounds_=5)
    cut, body = plain.HEAD, w[plain.HEAD :]
    heads: dict[int, Tensor] = {}
    n = [len(s.train) for s in shards]
    centroids = torch.zeros(plain.CLASSES, plain.HIDDEN, dtype=torch.float64)
    known = torch.zeros(plain.CLASSES, 1, dtype=torch.float64)
    for t, cohort in plain.cohorts(found):
        moments, spreads, ends, sums, counts = [], [], [], [], []
        first = sum(n[i] * head for i, head in heads.items()) / sum(n[i] for i in heads) if heads else w[:cut]
        start = {i: heads.get(i, first) for i in cohort}
        for i in cohort:
            data = shards[i].train
            x, y = data.x.double(), data.y
            pairs = F.one_hot(y, 3).double()[:, :, None] * plain.features(torch.cat([start[i], body]), x)[:, None]
            moments.append(pairs.mean(0))
            spreads.append((pairs - pairs.mean(0)).square().sum((1, 2)).mean() / len(y))
            v = torch.cat([start[i], body])
            of_head = Training(epochs=1, batch_size=5, lr=0.2)
            for index in plain.drawn(data, i, t, of_head):
                g = plain.gradient(lambda u, a=x[index], b=y[index]: plain.loss(u, a, b), v)
                v = torch.cat([v[:cut] - 0.2 * g[:cut], v[cut:]])
            for index in plain.drawn(data, i, t, number=1):
                batch, goal = (x[index], y[index]), (centroids[y[index]], known[y[index]])
                g = plain.gradient(lambda u, batch=batch, goal=goal: aligned(u, *batch, *goal), v)
                v = torch.cat([v[:cut], v[cut:] - 0.1 * g[cut:]])
            ends.append(v)
            sums.append(F.one_hot(y, 3).double().T @ plain.features(v, x))
            counts.append(F.one_hot(y, 3).sum(0, keepdim=True).double().T)
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        body = (size / size.sum()) @ torch.stack([v[cut:] for v in ends])
        for row, i in enumerate(cohort):
            apart = torch.stack([h - moments[row] for h in moments]).flatten(1)
            heads[i] = least(torch.diag(torch.stack(spreads)) + apart @ apart.T) @ torch.stack([v[:cut] for v in ends])
        has = sum(counts) > 0
        centroids = torch.where(has, sum(sums) / sum(counts).clamp(min=1), centroids)
        known = torch.where(has, 1.0, known)
    assert plain.distance(found.state.body, body) < 5e-6
    assert max(plain.distance(found.state.heads[i], head) for i, head in heads.items()) < 5e-6
    assert plain.distance(found.state.prototypes, centroids) < 5e-6


@pytest.mark.parametrize("kind", ["alike", "skewed", "more than dimensions"])
def test_weights_of_many_are_those_of_the_exact_method(kind: str) -> None:
    """60 clients: moments and variances of one size, of very different ones, and in two dimensions with variance 0 for
    some. Rows are equal to those of the active-set method for the whole problem, and add up to 1. In the last case only
    the ridge of 1e-9 makes them unique, so that rounding shows."""
    rng = torch.Generator().manual_seed(3)
    h, v = torch.randn(60, 3, 2, generator=rng), torch.rand(60, generator=rng)
    if kind != "alike":
        h, v = h * torch.rand(60, 1, 1, generator=rng).pow(4), v.pow(8)
    if kind == "more than dimensions":
        h[:, 1:], v[::3] = 0, 0
    found, apart = head_weights(h, v), squared_distances(h.flatten(1))
    none, all_ = torch.zeros(60, dtype=torch.float64), torch.ones(60, dtype=torch.float64)
    for i in (0, 1, 30, 59):
        q = (apart[i, :, None] + apart[i] - apart) / 2 + torch.diag(v.double())
        close(found[i], shortest(q, none, all_), 1e-6 if kind == "more than dimensions" else 1e-9)
    close(found.sum(1), all_, 1e-12)
    assert bool((found >= 0).all())


def test_only_single_exchanges_may_be_left() -> None:
    """Without patience every step changes one weight: slower, to the same end."""
    rng = torch.Generator().manual_seed(4)
    h, v = torch.randn(40, 2, 3, generator=rng), torch.rand(40, generator=rng)
    wanted = head_weights(h, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkin.methods.fedpac._PATIENCE", -1)
        close(head_weights(h, v), wanted, 1e-12)
