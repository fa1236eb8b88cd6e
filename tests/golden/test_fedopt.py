"""FedAdam, FedYogi, FedAdagrad (Reddi et al., ICLR 2021, Algorithm 2) and FedAvgM (Hsu et al. 2019) by hand.

The mean change D of the clients' models is a gradient for the server: ``m = b1 m + (1 - b1) D``, v from D^2 by the
rule, ``x = x + eta m / (sqrt(v) + tau)``, v starting at tau^2. FedAvgM: ``m = b m + D``, ``x = x + eta m``.

Two clients with 1/2 (w - a)^2, a = (0, 8), n = (30, 10), two steps of 1/2: they end at w/4 and 6 + w/4, their mean by
samples is 3/2 + w/4, so D = 3/2 - 3 w/4.
"""

from __future__ import annotations

from math import sqrt

import pytest
import torch

import plain
from fedkin.core import Training
from fedkin.methods import FedOpt
from toys import ByHand, apart, close, mlp_with_batchnorm, two_quadratics


def played(method: FedOpt, rounds: int = 2, **changes: bool) -> list[float]:
    """The server's model after each round."""
    hand = two_quadratics(method, **changes)
    found = []
    for _ in range(rounds):
        hand.play()
        found.append(float(hand.server.model))
    return found


def test_adam() -> None:
    """b1 = 1/2, b2 = 5/8, tau = 1/2: D = 3/2, m = 3/4, v = 5/8 * 1/4 + 3/8 * 9/4 = 1, x = 3/4 / (1 + 1/2) = 1/2. Then
    D = 9/8, m = 3/8 + 9/16 = 15/16, v = 5/8 + 3/8 * 81/64 = 563/512."""
    found = played(FedOpt(rule="adam", server_lr=1.0, beta1=0.5, beta2=5 / 8, tau=0.5))
    close(found, [1 / 2, 1 / 2 + 15 / 16 / (sqrt(563 / 512) + 1 / 2)])


def test_yogi() -> None:
    """b1 = 1/2, b2 = 2/3, tau = 1/2: D^2 = 9/4 is above v = 1/4, so v = 1/4 + 1/3 * 9/4 = 1, x = 1/2; D = 9/8, v = 1 +
    1/3 * 81/64 = 91/64. With tau = 2 it is below v = 4: v = 4 - 3/4 = 13/4."""
    method = FedOpt(rule="yogi", server_lr=1.0, beta1=0.5, beta2=2 / 3, tau=0.5)
    close(played(method), [1 / 2, 1 / 2 + 15 / 16 / (sqrt(91 / 64) + 1 / 2)])
    close(played(FedOpt(rule="yogi", server_lr=1.0, beta1=0.5, beta2=2 / 3, tau=2.0), 1), [3 / 4 / (sqrt(13 / 4) + 2)])


def test_adagrad() -> None:
    """tau = 2, b1 = 0: v = 4 + 9/4 = 25/4, x = 3/2 / (5/2 + 2) = 1/3. Then D = 5/4, v = 25/4 + 25/16 = 125/16. A step
    of 1/2 moves half as far."""
    close(
        played(FedOpt(rule="adagrad", server_lr=1.0, beta1=0.0, tau=2.0)), [1 / 3, 1 / 3 + 5 / 4 / (sqrt(125 / 16) + 2)]
    )
    close(played(FedOpt(rule="adagrad", server_lr=0.5, beta1=0.0, tau=2.0), 1), [1 / 6])


def test_momentum() -> None:
    """b = 1/2, eta = 1: m = 3/2 = x; D = 3/8, m = 3/4 + 3/8 = 9/8, x = 21/8. With a factor 1 - b on D, as in published
    programs, x would be 3/4. eta = 1/2: x = 3/4."""
    assert played(FedOpt(rule="momentum", server_lr=1.0, beta1=0.5)) == [3 / 2, 21 / 8]
    assert played(FedOpt(rule="momentum", server_lr=0.5, beta1=0.5), 1) == [3 / 4]


def test_clients_weigh_as_in_the_run() -> None:
    """By samples D = 3/2, with equal weights 3."""
    method = FedOpt(rule="momentum", server_lr=1.0)
    assert played(method, 1) == [3 / 2]
    assert played(method, 1, uniform=True) == [3.0]


# ---- what published programs do otherwise --------------------------------------------------------------------------
def test_no_bias_is_corrected() -> None:
    """The paper's Algorithm 2 divides neither m by 1 - b1^t nor v by 1 - b2^t. Adam's own correction would make m =
    3/2, v = 8/3 in round 1."""
    method = FedOpt(rule="adam", server_lr=1.0, beta1=0.5, beta2=5 / 8, tau=0.5)
    apart(played(method, 1), [3 / 2 / (sqrt(8 / 3) + 1 / 2)], 0.2)


def test_squares_are_of_the_change_and_start_at_tau_squared() -> None:
    """v from m^2 would be 5/8 * 1/4 + 3/8 * 9/16 = 47/128, from v = 0 27/32; it is 1."""
    hand = two_quadratics(FedOpt(rule="adam", server_lr=1.0, beta1=0.5, beta2=5 / 8, tau=0.5))
    assert hand.server.v.tolist() == [1 / 4]
    hand.play()
    close(hand.server.v, [1.0])
    close(hand.server.m, [3 / 4])


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "momentum"])
def test_running_statistics_are_the_mean(rule) -> None:
    """The optimiser moves parameters alone: a step of its own could make a running variance negative."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedOpt(rule=rule), net, training=Training(epochs=2, batch_size=5, lr=0.1))
    for _ in range(2):
        up = hand.play([0, 3, 4])
    weight = torch.tensor([9.0, 30.0, 11.0]) / 50
    close(hand.server.model[net.buffers], weight @ up.model[:, net.buffers])
    assert hand.server.m.shape == (net.params.stop,)
    assert ("v" in hand.server) == (rule != "momentum")


def test_a_step_is_as_long_for_small_changes() -> None:
    """Far above tau the size of D hardly matters: from v = tau^2 with b1 = b2 = 0 every step is eta, so is that of
    clients whose steps are a hundredth."""
    for lr in (0.5, 0.005):
        hand = two_quadratics(FedOpt(rule="adam", server_lr=0.25, beta1=0.0, beta2=0.0, tau=1e-9))
        hand.training = Training(steps=2, lr=lr, batch_size=1000)
        hand.play()
        close(hand.server.model, [0.25])


def test_names() -> None:
    """Each rule has the name of its paper and a sentence of its own."""
    rules = ("adam", "yogi", "adagrad", "momentum")
    assert [FedOpt(rule=rule).title for rule in rules] == ["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"]
    assert "moved by Yogi on the server" in FedOpt(rule="yogi").summary


# ---- written down again --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "momentum"])
def test_an_independent_program_gives_the_same(rule) -> None:
    """Algorithm 2 in float64 on five clients of unequal size, three in each of four rounds, clients with momentum."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    method = FedOpt(rule=rule, server_lr=0.5, beta1=0.7, beta2=0.8, tau=0.1)
    found, shards, x = plain.played(method, training=training)
    m, v = torch.zeros_like(x), torch.full_like(x, 0.01)
    for t, cohort in plain.cohorts(found):
        ends = [plain.descend(x, shards[i].train, i, t, training=training)[0] for i in cohort]
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        delta = (size / size.sum()) @ torch.stack(ends) - x
        if rule == "momentum":
            m = 0.7 * m + delta
            x = x + 0.5 * m
            continue
        m = 0.7 * m + 0.3 * delta
        if rule == "adam":
            v = 0.8 * v + 0.2 * delta**2
        elif rule == "adagrad":
            v = v + delta**2
        else:
            v = torch.where(v > delta**2, v - 0.2 * delta**2, v + 0.2 * delta**2)
        x = x + 0.5 * m / (v**0.5 + 0.1)
    assert plain.distance(found.state.model, x) < 2e-6
