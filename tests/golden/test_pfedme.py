"""pFedMe against numbers worked out by hand (Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1).

For each of R mini-batches D: K steps of ``theta <- theta - a (grad f(theta; D) + lam (theta - w))``, then ``w <- w -
eta lam (w - theta)``. The server: ``w <- (1 - beta) w + beta mean_S(w_i)``. theta is the personal model.

Losses are ``1/2 (v - a)^2``; with lam = 1 and steps of 1/4, ``theta <- theta/2 + (a + w)/4``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import plain
from fedkin.capabilities.presets import presets_of
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Samples, Train, Training
from fedkin.engines import drive
from fedkin.methods import PFedMe
from toys import ByHand, apart, close, copies, mlp_with_batchnorm, quadratic, vector_net

TOY: dict[str, Any] = {"lam": 1.0, "inner_steps": 2, "inner_lr": 0.25, "outer_lr": 0.5}


def two(method: PFedMe, **changes: Any) -> ByHand:
    """Clients with a = 0 (30 samples) and a = 8 (10 samples); R = 2. The run's step size is eta where none is given."""
    training = Training(steps=2, lr=0.5, batch_size=1000)
    return ByHand(
        method, vector_net(0.0), [copies(0.0, 30), copies(8.0, 10)], training=training, loss=quadratic, **changes
    )


def personal(hand: ByHand) -> list[float]:
    return [float(kept.model) for kept in hand.kept]


# ---- rounds --------------------------------------------------------------------------------------------------------
def test_two_rounds() -> None:
    """Client 2 from 0: theta = 2, 3, w = 3/2; on the next batch theta goes on from 3: 31/8, 69/16, w = 3/2 + 1/2 (69/16
    - 3/2) = 93/32. Client 1 stays at 0. The server has the plain mean, 93/64. Round 2 starts both at it."""
    hand = two(PFedMe(**TOY))
    assert hand.play().model[:, 0].tolist() == [0.0, 93 / 32]
    assert personal(hand) == [0.0, 69 / 16]
    assert float(hand.server.model) == 93 / 64
    w = theta = 93 / 64
    for _ in range(2):
        for _ in range(2):
            theta = theta / 2 + w / 4
        w = (w + theta) / 2
    close(hand.play().model[0], [w])
    close(personal(hand)[0], theta)


@pytest.mark.parametrize(("given", "lr"), [(0.5, 0.001), (None, 0.5)])
def test_the_step_size_of_the_run_is_eta(given: float | None, lr: float) -> None:
    """The numbers above with eta = 1/2 of the method and with that of the run, which the inner steps never take."""
    hand = two(PFedMe(**{**TOY, "outer_lr": given}))
    hand.training = hand.training.but(lr=lr)
    assert hand.play().model[:, 0].tolist() == [0.0, 93 / 32]
    assert personal(hand) == [0.0, 69 / 16]


def test_eta_follows_the_schedule_of_the_run() -> None:
    """In round 2 the step size is halved: client 2 goes on from 93/64 with eta = 1/4, the inner steps with theirs."""
    hand = two(PFedMe(**{**TOY, "outer_lr": None}))
    hand.play()
    hand.training = hand.training.but(schedule="step@factor=0.5").in_round(2, 10)
    w = theta = 93 / 64
    for _ in range(2):
        for _ in range(2):
            theta = theta / 2 + (8 + w) / 4
        w = w + (theta - w) / 4
    close(hand.play([1]).model[0], [w])


def test_server_step() -> None:
    """beta = 1/2 goes half of the way, 93/128; beta = 2 twice as far, 93/32."""
    for beta, wanted in ((0.5, 93 / 128), (2.0, 93 / 32)):
        hand = two(PFedMe(**TOY, beta=beta))
        hand.play()
        assert float(hand.server.model) == wanted


def test_limit_of_exact_solutions() -> None:
    """One inner step of 1/(1 + lam) solves for theta = (a + lam w)/(1 + lam), and eta lam = 1 takes w to it. w ends at
    the mean of a, 4, and the personal models between it and a: 2 and 6 for lam = 1; 3 and 5 for lam = 3."""
    for lam, wanted in ((1.0, [2.0, 6.0]), (3.0, [3.0, 5.0])):
        hand = two(PFedMe(lam=lam, inner_steps=1, inner_lr=1 / (1 + lam), outer_lr=1 / lam))
        hand.training = Training(steps=1, batch_size=1000)
        for _ in range(40):
            hand.play()
        close(hand.server.model, [4.0], 1e-4)
        close(personal(hand), wanted, 1e-4)


def test_what_clients_predict_with() -> None:
    """The personal model, kept while others take part; the global one before a client's first round and as a view."""
    hand = two(PFedMe(**TOY))
    hand.play([1])
    assert float(hand.used(1).model) == 69 / 16
    assert float(hand.used(0).model) == 93 / 32
    hand.play([0])
    assert float(hand.used(1).model) == 69 / 16
    client = hand.client(1, hand.download([1]).row(0))
    assert torch.equal(views_of(hand.method, client)["global"].model, hand.server.model)


# ---- what published programs do otherwise --------------------------------------------------------------------------
def test_no_hidden_weight_decay() -> None:
    """The authors' optimiser, PFLlib's and fluke's add 0.001 theta to every gradient; that is weight decay of the run
    here, as in the preset of their program, and none by default: at its own optimum client 2 stays where it is."""
    hand = two(PFedMe(**{**TOY, "inner_steps": 1}))
    hand.training = hand.training.but(steps=1)
    hand.server = Bundle(model=torch.tensor([8.0]))
    assert float(hand.play([1]).model) == 8.0
    assert presets_of(PFedMe())["code"]["training"]["weight_decay"] == 1e-3


def test_a_batch_serves_all_inner_steps() -> None:
    """K = 3 steps of each of R = 2 batches see the same samples, other ones than the next batch."""
    data = Samples(torch.arange(40.0)[:, None], torch.zeros(40, dtype=torch.int64))
    asked: list[Train] = []

    def note(request: Train, client: object) -> torch.Tensor:
        asked.append(request)
        return request.start

    hand = ByHand(PFedMe(inner_steps=3), vector_net(0.0), [data], training=Training(steps=2, batch_size=5), solve=note)
    hand.play()
    assert [request.batches for request in asked] == [None, 0, 0, None, 3, 3]
    assert {(request.steps, request.mu) for request in asked} == {(1, 15.0)}


def test_as_many_batches_as_fedavg() -> None:
    """Two epochs of 9 samples in batches of 5 are 4 mini-batches, of K requests each."""
    hand = ByHand(PFedMe(), vector_net(0.0), [copies(1.0, 9)], training=Training(epochs=2, batch_size=5))
    asked: list[Train] = []
    client = hand.client(0, hand.download([0]).row(0))
    drive(hand.method.client_update(client), lambda request: (asked.append(request), request.start)[1])
    assert len(asked) == 4 * 5


def test_clients_weigh_the_same() -> None:
    """The plain mean of Algorithm 1: by samples, as in the authors' program, the server would have 93/128."""
    hand = two(PFedMe(**TOY))
    hand.play()
    apart(hand.server.model, [93 / 128], 0.7)


def test_running_statistics() -> None:
    """They are those of the personal model; neither the pull nor beta touches them."""
    net = mlp_with_batchnorm()
    hand = ByHand(PFedMe(beta=0.5), net, training=Training(epochs=1, batch_size=5, lr=0.05))
    up = hand.play([0, 3])
    for row, i in enumerate((0, 3)):
        assert torch.equal(up.model[row, net.buffers], hand.kept[i].model[net.buffers])
    close(hand.server.model[net.buffers], up.model[:, net.buffers].mean(0))


# ---- written down again --------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Algorithm 1 in float64 on five clients of unequal size, three in each of three rounds: global and personal
    models."""
    method = PFedMe(lam=2.0, inner_steps=3, inner_lr=0.07, beta=1.5)
    found, shards, w = plain.played(method, rounds_=3)
    kept: dict[int, torch.Tensor] = {}
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            data, mine, theta = shards[i].train, w, w
            for r in range(2 * -(-len(data) // 5)):
                (index,) = plain.drawn(data, i, t, Training(steps=1, batch_size=5), number=3 * r)
                x, y = data.x[index].double(), data.y[index]
                for _ in range(3):
                    g = plain.gradient(lambda v, x=x, y=y: plain.loss(v, x, y), theta)
                    theta = theta - 0.07 * (g + 2.0 * (theta - mine))
                mine = mine - 0.1 * 2.0 * (mine - theta)  # 0.1: the run's step size
            kept[i] = theta
            ends.append(mine)
        w = -0.5 * w + 1.5 * torch.stack(ends).mean(0)
    assert plain.distance(found.state.model, w) < 5e-6
    assert max(plain.distance(found.clients[i].model, theta) for i, theta in kept.items()) < 5e-6
