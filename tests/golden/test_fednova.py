"""FedNova against numbers worked out by hand (Wang et al., NeurIPS 2020, Algorithm 1).

``x <- x + tau_eff sum_i p_i (x_i - x)/||a_i||_1`` with ``tau_eff = sum_i p_i ||a_i||_1``; a_i counts how often each
local gradient is in x_i - x: ones for plain SGD, ``[1 + rho + ... + rho^(K-1), ..., 1]`` with momentum rho.

Losses are ``b/2 (v - a)^2``: b is a sample's label, a its input. One epoch in batches of two, steps of 1/4: four
samples take two steps, two samples one; p = (2/3, 1/3).
"""

from __future__ import annotations

import pytest
import torch

import plain
from fedkin.core import Batch, Bundle, Method, Net, Training
from fedkin.methods import FedAvg, FedNova
from toys import ByHand, close, copies, federation, mlp_with_batchnorm, vector_net


def bowl(net: Net, w: torch.Tensor, batch: Batch, aux: Bundle) -> torch.Tensor:
    """b/2 (w - a)^2."""
    return 0.5 * batch.y.float().mean() * (w - batch.x.mean(0)).square().sum()


def bowls(method: Method, *, uniform: bool = False, momentum: float = 0.0, epoch_decay: float = 1.0) -> ByHand:
    """1/2 (v - 1)^2 with four samples and 3/2 (v + 1)^2 with two."""
    data = [copies(1.0, 4, y=1), copies(-1.0, 2, y=3)]
    training = Training(batch_size=2, lr=0.25, momentum=momentum, epoch_decay=epoch_decay)
    return ByHand(method, vector_net(0.0), data, training=training, loss=bowl, uniform=uniform)


# ---- rounds --------------------------------------------------------------------------------------------------------
def test_a_round() -> None:
    """Client 1 goes 0, 1/4, 7/16: 7/16 / (2/4) = 7/8. Client 2 goes to -3/4: -3/4 / (1/4) = -3. Length 2/3 * 1/2 + 1/3
    * 1/4 = 5/12, direction 2/3 * 7/8 - 1/3 * 3 = -5/12, x = -25/144. FedAvg has 2/3 * 7/16 - 1/3 * 3/4 = 1/24."""
    hand, average = bowls(FedNova()), bowls(FedAvg())
    up = hand.play()
    average.play()
    assert up.change[:, 0].tolist() == [7 / 8, -3.0]
    assert up.length.tolist() == [1 / 2, 1 / 4]
    close(hand.server.model, [-25 / 144])
    close(average.server.model, [1 / 24])


def test_equal_weights() -> None:
    """p = (1/2, 1/2): length 3/8, direction (7/8 - 3)/2 = -17/16, x = -51/128."""
    hand = bowls(FedNova(), uniform=True)
    hand.play()
    assert float(hand.server.model) == -51 / 128


def test_a_part_of_the_clients() -> None:
    """Client 2 alone: its own step, -3/4."""
    hand = bowls(FedNova())
    hand.play([1])
    assert float(hand.server.model) == -3 / 4


def test_limit() -> None:
    """In the limit 2/3 * 7/8 (1 - x) = 1 + x, x = -5/19, near the optimum of the weighted mean loss, -1/5; FedAvg,
    where client 1 counts twice, ends at 2/3 * 7/16 (1 - x) = 1/3 * 3/4 (1 + x), x = 1/13."""
    hand, average = bowls(FedNova()), bowls(FedAvg())
    for _ in range(60):
        hand.play()
        average.play()
    close(hand.server.model, [-5 / 19], 1e-5)
    close(average.server.model, [1 / 13], 1e-5)


def test_local_momentum() -> None:
    """rho = 1/2, ||a_1|| = 3/2 + 1 = 5/2: client 1 goes 0, 1/4, 9/16, 9/16 / (5/8) = 9/10; client 2 as before. Length
    2/3 * 5/8 + 1/12 = 1/2, direction 3/5 - 1 = -2/5, x = -1/5. With the number of steps in place of ||a|| it would be
    -5/48."""
    hand = bowls(FedNova(), momentum=0.5)
    up = hand.play()
    close(up.length, [5 / 8, 1 / 4])
    close(hand.server.model, [-1 / 5])


def test_server_momentum() -> None:
    """1/2: v = D_1 = -25/144. From there the directions are 7/8 (1 - x) and -3 (1 + x), D_2 = 5/12 (2/3 * 7/8 * 169/144
    - 119/144) = -1225/20736, v = 1/2 D_1 + D_2 = -3025/20736, x = -25/144 - 3025/20736 = -6625/20736."""
    hand = bowls(FedNova(server_momentum=0.5))
    hand.play()
    hand.play()
    close(hand.server.velocity, [-3025 / 20736])
    close(hand.server.model, [-6625 / 20736])


# ---- identities, traps ---------------------------------------------------------------------------------------------


def test_running_statistics_are_averaged_as_they_are() -> None:
    """They are no sum of gradients: the server's are the mean of the clients', weighted by samples."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedNova(), net, training=Training(epochs=2, batch_size=5, lr=0.1))
    before = hand.server.model
    up = hand.play([0, 3, 4])
    weight = torch.tensor([9.0, 30.0, 11.0]) / 50
    close(hand.server.model[net.buffers] - before[net.buffers], weight @ up.change[:, net.buffers])
    assert float(up.length.max() / up.length.min()) > 2


def test_a_client_that_takes_no_step() -> None:
    """One sample under batch normalisation: length 0, and nothing is divided by it."""
    net, shards = mlp_with_batchnorm(), federation(sizes=(1, 9))
    hand = ByHand(FedNova(), net, [s.train for s in shards], training=Training(batch_size=5, lr=0.1))
    up = hand.play()
    assert up.length.tolist() == pytest.approx([0.0, 0.2])
    assert not bool(up.change[0].any())
    assert bool(hand.server.model.isfinite().all())


# ---- written down again --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_an_independent_program_gives_the_same(rho: float) -> None:
    """Algorithm 1 in float64 on five clients that take 4 to 12 steps, three in each of four rounds; a_i as a list."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=rho)
    found, shards, x = plain.played(FedNova(server_momentum=0.3), training=training)
    v = torch.zeros_like(x)
    for t, cohort in plain.cohorts(found):
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        rows, lengths = [], []
        for i in cohort:
            y, steps = plain.descend(x, shards[i].train, i, t, training=training)
            lengths.append(sum(sum(rho**j for j in range(steps - k)) for k in range(steps)))
            rows.append((x - y) / lengths[-1])
        p = size / size.sum()
        v = 0.3 * v - (p @ torch.tensor(lengths, dtype=torch.float64)) * (p @ torch.stack(rows))
        x = x + v
    assert plain.distance(found.state.model, x) < 2e-6
