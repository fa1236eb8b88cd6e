"""SCAFFOLD against numbers worked out by hand (Karimireddy et al., ICML 2020).

A client takes K steps ``y <- y - eta (g_i(y) + c - c_i)`` from x (Eq. 3), then ``c_i+ = c_i - c + (x - y)/(K eta)``
(Eq. 4, Option II); the server ``x <- x + eta_g mean_S(y_i - x)``, ``c <- c + 1/N sum_S (c_i+ - c_i)`` (Eq. 5). The
drift cancels in c_i+, so it is the mean of the gradients at the points that the client visited.

Losses are ``b/2 (v - a)^2``: b is a sample's label, a its input. Two steps of 1/4 from 0, so that all numbers are
binary fractions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import plain
from fedkin.core import Batch, Bundle, Net, Train, Training
from fedkin.methods import SCAFFOLD, FedAvg
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, run, vector_net

BOWLS = ((1, 1.0), (3, -1.0))  # 1/2 (v - 1)^2 and 3/2 (v + 1)^2: the optimum of their mean is -1/2


def bowl(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """b/2 (w - a)^2."""
    return 0.5 * batch.y.float().mean() * (w - batch.x.mean(0)).square().sum()


def bowls(
    method: SCAFFOLD | FedAvg,
    sizes: Sequence[int] = (1, 1),
    training: Training | None = None,
    present: int | None = None,
    losses: Sequence[tuple[int, float]] = BOWLS,
) -> ByHand:
    data = [copies(a, n, y=b) for (b, a), n in zip(losses, sizes, strict=True)]
    training = training or Training(steps=2, lr=0.25, batch_size=1000)
    return ByHand(method, vector_net(0.0), data, training=training, loss=bowl, present=present)


def controls(hand: ByHand) -> list[float]:
    """c_i of every client."""
    return [float(kept.get("c", torch.zeros(1))) for kept in hand.kept]


# ---- rounds --------------------------------------------------------------------------------------------------------
def test_two_rounds_of_both() -> None:
    """Round 1, c = c_i = 0: client 1 goes 0, 1/4, 7/16, c_1 = -7/16 / (1/2) = -7/8, the mean of -1 and -3/4; client 2
    goes 0, -3/4, -15/16, c_2 = 15/8. x = (7/16 - 15/16)/2 = -1/4, c = (-7/8 + 15/8)/2 = 1/2. Round 2: client 1 steps
    along (v - 1) + 1/2 + 7/8: -1/4, -9/32, -39/128, c_1 = -7/8 - 1/2 + 7/128 * 2 = -81/64; client 2 along 3 (v + 1) +
    1/2 - 15/8: -1/4, -15/32, -67/128, c_2 = 15/8 - 1/2 + 35/64 = 123/64. x = -53/128, c = 21/64."""
    hand = bowls(SCAFFOLD())
    for models, c_i, x, c in (
        ((7 / 16, -15 / 16), (-7 / 8, 15 / 8), -1 / 4, 1 / 2),
        ((-39 / 128, -67 / 128), (-81 / 64, 123 / 64), -53 / 128, 21 / 64),
    ):
        before = controls(hand)
        up = hand.play()
        assert up.model[:, 0].tolist() == list(models)
        assert controls(hand) == list(c_i)
        assert up.change[:, 0].tolist() == [new - old for new, old in zip(c_i, before, strict=True)]
        assert (float(hand.server.model), float(hand.server.c)) == (x, c)


def test_participants_count_as_a_part_of_all() -> None:
    """{1}, then {2}: c = 1/2 * -7/8 = -7/16 (|S|/N = 1/2). Client 2 steps from 7/16 along 3 (v + 1) - 7/16: -17/32,
    -99/128; c_2 = 7/16 + 155/64 = 183/64, the mean of 69/16 and 45/32; c = -7/16 + 183/128 = 127/128. Client 1 keeps
    its c_1."""
    hand = bowls(SCAFFOLD())
    hand.play([0])
    assert (float(hand.server.model), float(hand.server.c)) == (7 / 16, -7 / 16)
    hand.play([1])
    assert (float(hand.server.model), float(hand.server.c)) == (-99 / 128, 127 / 128)
    assert controls(hand) == [-7 / 8, 183 / 64]


def test_step_of_the_server() -> None:
    """eta_g = 1/2: x = 0 + 1/2 * -1/4; c does not depend on it."""
    hand = bowls(SCAFFOLD(server_lr=0.5))
    hand.play()
    assert (float(hand.server.model), float(hand.server.c)) == (-1 / 8, 1 / 2)


def test_limit_is_the_optimum() -> None:
    """Mean gradient ((x - 1) + 3 (x + 1))/2 = 0 at -1/2, where c_i are the gradients -3/2 and 3/2. FedAvg ends where
    x = ((1 + 9/16 (x - 1)) + (-1 + (x + 1)/16))/2, at -4/11."""
    ours, average = bowls(SCAFFOLD()), bowls(FedAvg())
    for _ in range(60):
        ours.play()
        average.play()
    close(ours.server.model, [-0.5], 1e-5)
    close(controls(ours), [-1.5, 1.5], 1e-5)
    close(average.server.model, [-4 / 11], 1e-5)


def test_clients_weigh_the_same() -> None:
    """30 and 10 samples change nothing: plain means, as in the paper, also where the run weighs by samples."""
    hand = bowls(SCAFFOLD(), sizes=(30, 10))
    hand.play()
    assert (float(hand.server.model), float(hand.server.c)) == (-1 / 4, 1 / 2)


# ---- what published programs do otherwise --------------------------------------------------------------------------
def test_steps_of_all_epochs_count() -> None:
    """Four samples in batches of two, two epochs: K = 4. Client 1 goes to 1 - (3/4)^4 = 175/256, c_1 = -175/256. A
    program that counts the batches of one epoch has twice that, one that counts samples times epochs half of it. The
    other has one batch an epoch, K = 2."""
    hand = bowls(SCAFFOLD(), sizes=(4, 2), training=Training(epochs=2, batch_size=2, lr=0.25))
    hand.play()
    assert controls(hand) == [-175 / 256, 15 / 8]


def test_momentum_and_falling_steps_are_part_of_the_length() -> None:
    """A gradient that is always 1 (slope 1): c_i is 1 for any training, where K eta alone would give 1.9 for three
    steps of momentum 1/2 and .75 for steps that halve after an epoch."""

    def slope(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
        return w.sum()

    for training in (
        Training(steps=3, lr=0.25, momentum=0.5),
        Training(epochs=2, batch_size=1, lr=0.25, epoch_decay=0.5),
        Training(epochs=3, batch_size=2, lr=0.1, epoch_decay=0.7, momentum=0.9),
    ):
        hand = bowls(SCAFFOLD(), sizes=(3, 1), training=training)
        hand.loss = slope
        hand.play()
        close(controls(hand), [1.0, 1.0])


def test_the_change_is_sent_and_not_the_control() -> None:
    """In round 2 the change of c_1 is -81/64 + 7/8 = -25/64; a server that adds whole c_i counts the old one twice."""
    hand = bowls(SCAFFOLD())
    hand.play()
    assert hand.play().change[:, 0].tolist() == [-25 / 64, 3 / 64]


def test_controls_start_at_zero() -> None:
    """Random first controls would move clients; with zeros the first round is FedAvg with equal weights, bit for
    bit."""
    ours = run(SCAFFOLD(), mlp(), federation(), rounds_=1)
    average = run(FedAvg(), mlp(), federation(), rounds_=1, uniform=True)
    assert torch.equal(ours.state.model, average.state.model)


def test_running_statistics_have_no_control() -> None:
    """Controls are of the parameters alone, running statistics the plain mean of the uploads' whatever eta_g."""
    net = mlp_with_batchnorm()
    hand = ByHand(SCAFFOLD(server_lr=0.5), net, training=Training(epochs=2, batch_size=5, lr=0.1))
    for _ in range(2):
        up = hand.play([0, 3, 4])
    assert hand.server.c.shape == hand.kept[0].c.shape == (net.params.stop,)
    close(hand.server.model[net.buffers], up.model[:, net.buffers].mean(0))
    apart(hand.server.model[net.params], up.model[:, net.params].mean(0), 1e-3)


def test_a_client_that_takes_no_step_keeps_its_control() -> None:
    """One sample under batch normalisation: nothing is trained, and nothing divided by zero."""
    net, one = mlp_with_batchnorm(), federation(sizes=(1, 9))
    hand = ByHand(SCAFFOLD(), net, [s.train for s in one], training=Training(epochs=2, batch_size=5, lr=0.1))
    for _ in range(2):
        up = hand.play()
    assert not bool(up.change[0].any())
    assert bool(up.change[1].any())


# ---- invariants ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
def test_c_is_the_mean_of_all_controls(net) -> None:
    """Partial participation, drop-outs, two clients that join in round 3: after every round c is the mean of c_i over
    all who have joined."""
    seen = []

    def check(server, simulation) -> None:
        states = list(simulation.states(server.acks).values())[: len(server.roster)]
        rows = torch.stack([b.get("c", torch.zeros(net().params.stop)) for b in states])
        close(server.state.c, rows.double().mean(0), 1e-6)
        seen.append((len(rows), float(server.state.c.norm())))

    run(SCAFFOLD(), net(), federation(), rounds_=6, dropout=0.3, joins=[1, 1, 1, 3, 3], each_round=check)
    assert {k for k, _ in seen} == {3, 5}
    assert seen[-1][1] > 1e-2


def test_joining_rescales_c() -> None:
    """c = -7/16 of two clients becomes -7/32 of four."""
    hand = bowls(SCAFFOLD(), sizes=(1, 1, 1, 1), present=2, losses=(*BOWLS, *BOWLS))
    hand.play([0])
    hand.join(4)
    assert float(hand.server.c) == -7 / 32


def test_the_correction_is_a_linear_term() -> None:
    """So written-out and compiled gradients apply. To predict, c is not needed and not sent."""
    hand = bowls(SCAFFOLD())
    hand.play()
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert isinstance(request, Train)
    assert request.linear is not None
    assert request.linear.tolist() == [11 / 8]
    assert set(hand.download([0]).row(0)) == {"model", "c"}
    assert set(hand.method.deliver(hand.server, hand.at("deliver", [0])).row(0)) == {"model"}


# ---- written down again --------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Eqs. 3-5 in float64 on five clients of unequal size, three in each of four rounds, eta_g = 1.5: model and
    controls agree to rounding."""
    found, shards, x = plain.played(SCAFFOLD(server_lr=1.5))
    c, controls = torch.zeros_like(x), [torch.zeros_like(x) for _ in shards]
    for t, cohort in plain.cohorts(found):
        models, changes = [], []
        for i in cohort:
            y, steps = plain.descend(x, shards[i].train, i, t, along=lambda _, push=c - controls[i]: push)
            new = controls[i] - c + (x - y) / (steps * 0.1)
            models.append(y)
            changes.append(new - controls[i])
            controls[i] = new
        x = x + 1.5 * (torch.stack(models).mean(0) - x)
        c = c + torch.stack(changes).sum(0) / len(shards)
    assert plain.distance(found.state.model, x) < 2e-6
    assert plain.distance(found.state.c, c) < 5e-6
