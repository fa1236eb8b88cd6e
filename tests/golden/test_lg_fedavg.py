"""LG-FedAvg against numbers worked out by hand (Liang et al. 2020).

The network is h * b * x with one number for the common head h and one for each client's body b; L = 1/2 (h b x - y)^2,
one full-batch step of .1 a round. Clients (x, y, b): (1, 2, 1), (2, 1, -.5), (1, 0, 1) with 30, 10, 10 samples; h = .5.
"""

from __future__ import annotations

import pytest
import torch

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Training
from fedkin.methods import LGFedAvg
from toys import ByHand, close, copies, mlp, mlp_with_batchnorm, product_net, squares

BODIES = (1.0, -0.5, 1.0)


def three_clients(*, uniform: bool = False) -> ByHand:
    hand = ByHand(
        LGFedAvg(),
        product_net(head=0.5, body=1.0),
        [copies(1.0, 30, y=2), copies(2.0, 10, y=1), copies(1.0, 10, y=0)],
        training=Training(steps=1, lr=0.1, batch_size=1000),
        loss=squares,
        uniform=uniform,
    )
    hand.kept = [Bundle(body=torch.tensor([b])) for b in BODIES]
    return hand


def bodies(hand: ByHand) -> list[float]:
    return [float(kept.body) for kept in hand.kept]


@pytest.mark.parametrize(("uniform", "head"), [(False, 0.575), (True, 0.5)])
def test_first_round(uniform: bool, head: float) -> None:
    """Clients 0 and 1 take part. Client 0: error -1.5, (h, b) = (.65, 1.075). Client 1: error -1.5, x = 2: (.35, -.35).
    Head by samples (30 * .65 + 10 * .35)/40 = .575, uniform .5; the body of client 2 stays at 1."""
    hand = three_clients(uniform=uniform)
    close(hand.play([0, 1]).head, [[0.65], [0.35]])
    close(hand.server.head, [head])
    close(bodies(hand), [1.075, -0.35, 1.0])


def test_predictions_after_the_download() -> None:
    """Every client predicts with the new head on its own body, those as well that did not take part: .618125, -.4025,
    .575."""
    hand = three_clients()
    hand.play([0, 1])
    found = [float(hand.net(hand.used(i).model, hand.data[i].x[:1])) for i in range(3)]
    close(found, [0.618125, -0.4025, 0.575])


def test_second_round_goes_on_from_the_kept_bodies() -> None:
    """All three from h = .575: heads .72355156, .476825, .5175, bodies 1.15445781, -.1887125, .9669375; head (30 *
    .72355156 + 10 * .476825 + 10 * .5175)/50 = .63299594."""
    hand = three_clients()
    hand.play([0, 1])
    close(hand.play().head[:, 0], [0.72355156, 0.476825, 0.5175])
    close(bodies(hand), [1.15445781, -0.1887125, 0.9669375])
    close(hand.server.head, [0.63299594])


def test_the_body_never_leaves_its_client() -> None:
    """Up and down go heads only; running statistics stay with the body."""
    net = mlp_with_batchnorm()
    hand = ByHand(LGFedAvg(), net, training=Training(batch_size=5))
    sent, up = hand.download([0]).row(0), hand.play()
    assert {n: t.numel() for n, t in sent.items()} == {"head": net.head.stop}
    assert {n: tuple(t.shape) for n, t in up.items()} == {"head": (5, net.head.stop)}
    assert hand.kept[0].body.numel() == net.size - net.head.stop
    assert not torch.equal(hand.kept[0].body, hand.kept[1].body)


def test_view_after_training() -> None:
    """ "trained" is the head and the body of the client's last training; before it the same as the model."""
    hand = ByHand(LGFedAvg())
    first = hand.client(1, hand.download([1]).row(0))
    assert torch.equal(views_of(hand.method, first)["trained"].model, mlp().w0)
    up = hand.play()
    client = hand.client(1, hand.download([1]).row(0))
    assert torch.equal(views_of(hand.method, client)["trained"].model, torch.cat([up.head[1], hand.kept[1].body]))


def test_an_independent_program_gives_the_same() -> None:
    """The algorithm in float64 on five clients of unequal size, three in each of four rounds."""
    found, shards, w0 = plain.played(LGFedAvg())
    head, own = w0[: plain.HEAD], [w0[plain.HEAD :] for _ in shards]
    for t, cohort in plain.cohorts(found):
        heads = []
        for i in cohort:
            w, _ = plain.descend(torch.cat([head, own[i]]), shards[i].train, i, t)
            own[i] = w[plain.HEAD :]
            heads.append(w[: plain.HEAD])
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        head = (size / size.sum()) @ torch.stack(heads)
    assert plain.distance(found.state.head, head) < 2e-6
    assert max(plain.distance(kept.body, own[i]) for i, kept in found.clients.items() if kept) < 2e-6
