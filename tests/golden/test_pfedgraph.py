"""pFedGraph against numbers worked out by hand (Ye et al., ICML 2023).

The server's row for client i minimises ``-sum_j x_j cos(d_i, d_j) + alpha |x - p|^2`` over the simplex, d the changes
since the common start, p the shares of samples: the projection of ``p + cos_i / (2 alpha)``. The client's next model is
``sum_j x_j w_j``, and its loss then has the term ``-lam sum_j x_j cos(w, w_j)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Client, Train, Training, cross_entropy
from fedkin.methods import FedAvg, PFedGraph
from fedkin.methods.pfedgraph import aligned_loss, onto_simplex
from toys import ByHand, apart, close, copies, draw, federation, mlp, mlp_with_batchnorm, run, vector_net

ENDS = ((1.0, 0.0), (0.0, 2.0), (-1.0, 0.0))  # cosines 0 between the second and the others, -1 between these


def three(
    method: PFedGraph, sizes: Sequence[int] = (1, 1, 1), ends: Sequence[Sequence[float]] = ENDS, **changes: Any
) -> ByHand:
    """Clients whose training ends at given models, from the common start (0, 0)."""

    def solve(request: Train, client: Client) -> Tensor:
        return torch.tensor(ends[client.id])

    data = [copies([1.0, 1.0], n) for n in sizes]
    return ByHand(method, vector_net(0.0, 0.0), data, solve=solve, **changes)


def test_the_graph() -> None:
    """alpha = 1, p = 1/3: client 1 projects (5/6, 1/3, -1/6) to (3/4, 1/4, 0), client 2 (1/3, 5/6, 1/3) to (1/6, 2/3,
    1/6). Its models are 3/4 (1, 0) + 1/4 (0, 2) and so on; the directions mix unit vectors."""
    hand = three(PFedGraph(spread=1.0))
    hand.play()
    close(hand.server.bank, [[3 / 4, 1 / 2], [0, 4 / 3], [-3 / 4, 1 / 2]])
    close(hand.server.pulls, [[3 / 4, 1 / 4], [0, 2 / 3], [-3 / 4, 1 / 4]])


def test_shares_of_samples() -> None:
    """n = (2, 1, 1): client 2 projects (1/2, 3/4, 1/4) to (1/3, 7/12, 1/12): (1/4, 7/6)."""
    hand = three(PFedGraph(spread=1.0), sizes=(2, 1, 1))
    hand.play()
    close(hand.server.bank[1], [1 / 4, 7 / 6])


def test_shares_are_the_run_s_weights() -> None:
    """The same samples, but all weigh the same: p = 1/3, and client 2 has 1/6, 2/3, 1/6 as in the first test."""
    hand = three(PFedGraph(spread=1.0), sizes=(2, 1, 1), uniform=True)
    hand.play()
    close(hand.server.bank[1], [0, 4 / 3])


def test_a_part_of_the_clients() -> None:
    """Clients 1 and 3, p = 1/2: (1, 0) and (0, 1), they keep their models; client 2 has none of its own yet."""
    hand = three(PFedGraph(spread=1.0))
    hand.play([0, 2])
    close(hand.server.bank, [[1, 0], [0, 0], [-1, 0]])
    sent = hand.download([0, 1])
    assert set(sent.row(0)) == {"model", "pull"}
    assert set(sent.row(1)) == {"model"}


@pytest.mark.parametrize(("uniform", "wanted"), [(False, [-1 / 2, 0]), (True, [0, 0])])
def test_who_has_not_taken_part_starts_from_the_mean_of_the_others(uniform: bool, wanted: list[float]) -> None:
    """n = (1, 1, 3, 1): clients 1 and 3 keep (1, 0) and (-1, 0): (1 - 3)/4 = -1/2, or 0 if all weigh the same.

    Client 2, there from the start, and client 4, which joins, get that mean to train and to predict with, as it is in
    each round; neither counts in it. Client 1, who did take part, keeps its own."""
    hand = three(PFedGraph(spread=0.5), (1, 1, 3, 1), (*ENDS, (0.0, 2.0)), present=3, uniform=uniform)
    close(hand.download([1]).row(0).model, [0, 0])  # nobody has: the common start
    hand.play([0, 2])
    hand.join(4)
    sent = hand.download([0, 1, 3])
    close(torch.stack([sent.row(i).model for i in range(3)]), [[1, 0], wanted, wanted])
    close(hand.used(3).model, wanted)
    hand.play([3])  # (0, 2), 1 of 5 samples
    close(hand.download([1]).row(0).model, [-2 / 5, 2 / 5] if not uniform else [0, 2 / 3])
    close(hand.used(3).model, [0, 2])


def test_strength_of_the_shares() -> None:
    """alpha = 1/2: (4/3, 1/3, -2/3) goes to (1, 0, 0), each client alone; a large alpha is FedAvg."""
    alone, together = three(PFedGraph(spread=0.5)), three(PFedGraph(spread=1e9))
    alone.play()
    together.play()
    close(alone.server.bank[0], ENDS[0])
    close(together.server.bank, [[0, 2 / 3]] * 3)


def test_changes_are_counted_from_the_start() -> None:
    """In round 2 changes are w - w_0, not w minus what the client received: with the same ends the same graph."""
    hand = three(PFedGraph(spread=1.0))
    hand.play()
    first = hand.server.bank.clone()
    hand.play()
    assert torch.equal(hand.server.bank, first)


def test_a_client_that_did_not_move() -> None:
    """A change of zero has cosine 0 with all: it gets the shares, and nothing is divided by zero."""
    hand = three(PFedGraph(spread=1.0), ends=((1.0, 0.0), (0.0, 0.0), (1.0, 0.0)))
    hand.play()
    close(hand.server.bank[1], [2 / 3, 0])
    assert bool(hand.server.pulls.isfinite().all())


def test_the_pull() -> None:
    """A network with one class has no cross-entropy. w = (3, 4), u = (1, 0): the cosine is 3/5, its slope (u - 3/5
    w/5)/5 = (.128, -.096). lam = 1/2 and a step of 1: (3.064, 3.952), nearer to u. The authors' program adds the cosine
    to the loss, which drives models away from those they are mixed from: (2.936, 4.048)."""
    hand = ByHand(PFedGraph(lam=0.5), vector_net(0.0, 0.0), [copies([1.0, 1.0], 2)], training=Training(steps=1, lr=1.0))
    hand.server = Bundle(bank=torch.tensor([[3.0, 4.0]]), pulls=torch.tensor([[1.0, 0.0]]))
    close(hand.play().model, [[3.064, 3.952]], 1e-6)


def test_no_pull_at_first_or_without_weight() -> None:
    """In a client's first round, and with lam = 0 in all, it trains as in FedAvg, and no direction is sent."""
    for method in (PFedGraph(), PFedGraph(lam=0.0)):
        hand = three(method)
        if method.lam == 0:
            hand.play()
        sent = hand.download([0]).row(0)
        request = next(hand.method.client_update(hand.client(0, sent)))
        assert isinstance(request, Train)
        assert request.loss is cross_entropy
        assert set(sent) == {"model"}


def test_projection() -> None:
    """Rows of the simplex stay; others go to the point from which no better one is: the slack is the same for all
    positive weights and no smaller for the others."""
    rows = 2 * draw(40, 6).double()
    found = onto_simplex(rows)
    close(found.sum(1), torch.ones(40))
    assert bool((found >= 0).all())
    slack = rows - found
    level = slack.max(1, keepdim=True).values
    close(slack[found > 0], level.expand_as(slack)[found > 0])
    close(onto_simplex(found), found)
    assert onto_simplex(torch.tensor([[7.0]])).tolist() == [[1.0]]


def test_clients_predict_with_their_mixed_models() -> None:
    """And "trained" is the model after a client's last training."""
    hand = three(PFedGraph(spread=1.0))
    hand.play()
    close(hand.used(0).model, [3 / 4, 1 / 2])
    views = views_of(hand.method, hand.client(0, Bundle(model=hand.server.bank[0])))
    assert views["trained"].model.tolist() == list(ENDS[0])


def test_running_statistics() -> None:
    """They are mixed with the weights of the models and take no part in changes, directions and pull."""
    net = mlp_with_batchnorm()
    hand = ByHand(PFedGraph(), net, training=Training(epochs=1, batch_size=5, lr=0.1))
    up = hand.play()
    weights = PFedGraph().graph((up.model - net.w0)[:, net.params], torch.tensor([9.0, 23, 14, 30, 11]))
    close(hand.server.bank[:, net.buffers], weights @ up.model[:, net.buffers].double(), 1e-5)
    assert hand.server.pulls.shape == (5, net.params.stop)
    w = net.w0.requires_grad_(True)
    aux = Bundle(pull=torch.ones(net.params.stop), lam=torch.tensor(1.0))
    (g,) = torch.autograd.grad(aligned_loss(net, w, Batch(draw(5, 4), torch.zeros(5, dtype=torch.int64)), aux), w)
    assert not bool(g[net.buffers].any())


def test_a_direction_is_a_unit_vector_of_the_parameters() -> None:
    """A client that takes part alone is mixed from itself: the direction is its own, of length 1. Normalised together
    with running statistics, variances near 1 among them, its length would fall below 1."""
    net = mlp_with_batchnorm()
    hand = ByHand(PFedGraph(), net, training=Training(epochs=1, batch_size=5, lr=0.1))
    own = hand.play([1]).model[0, net.params].double()
    close(hand.server.pulls[1], own / own.square().sum().sqrt())
    close(hand.server.pulls[1].double().square().sum(), 1)


def test_alone_it_is_fedavg() -> None:
    """One client: its model comes back to it. Without a pull that is FedAvg's run, bit for bit; with it, it is not."""
    shards = federation()[:1]
    average = run(FedAvg(), mlp(), shards).state.model
    assert torch.equal(run(PFedGraph(lam=0.0), mlp(), shards).state.bank[0], average)
    apart(run(PFedGraph(lam=5.0), mlp(), shards).state.bank[0], average, 1e-6)


# ---- written down again --------------------------------------------------------------------------------------------
def nearest(point: Tensor) -> Tensor:
    """The projection to the simplex by bisection of the amount that all coordinates are lowered by."""
    low, high = float(point.min()) - 1, float(point.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((point - middle).clamp(min=0).sum()) > 1 else (low, middle)
    return (point - high).clamp(min=0)


def test_an_independent_program_gives_the_same() -> None:
    """The algorithm in float64 on five clients of unequal size, three in each of five rounds; the pull is written as a
    sum of cosines with single models. A client's first model is the mean of those of all that took part before."""
    alpha, lam = 0.8, 0.5
    found, shards, w0 = plain.played(PFedGraph(spread=alpha, lam=lam), rounds_=5)
    models: dict[int, Tensor] = {}
    friends: dict[int, list[tuple[float, Tensor]]] = {}
    cosine = torch.nn.functional.cosine_similarity
    for t, cohort in plain.cohorts(found):
        ends = []
        size = torch.tensor([len(s.train) for s in shards], dtype=torch.float64)
        first = sum(size[i] * w for i, w in models.items()) / sum(size[i] for i in models) if models else w0
        for i in cohort:
            known = friends.get(i, [])

            def pull(v, _x, _i, known=known):
                return -lam * sum(weight * cosine(v, other, dim=0) for weight, other in known)

            ends.append(plain.descend(models.get(i, first), shards[i].train, i, t, extra=pull if known else None)[0])
        p = size[list(cohort)] / size[list(cohort)].sum()
        for i, mine in zip(cohort, ends, strict=True):
            alike = torch.stack([cosine(mine - w0, other - w0, dim=0) for other in ends])
            x = nearest(p + alike / (2 * alpha))
            models[i] = x @ torch.stack(ends)
            friends[i] = list(zip(x.tolist(), ends, strict=True))
    assert max(plain.distance(found.state.bank[i], w) for i, w in models.items()) < 5e-6
