"""FedPer against numbers worked out by hand (Arivazhagan et al., arXiv 1912.00818).

The network is h * b * x with one number for the body b and one for each client's head h; L = 1/2 (h b x - y)^2, one
full-batch step of .1 a round. Clients (x, y, h): (1, 2, .5), (2, 1, -.5), (1, 0, 1) with 30, 10, 10 samples; b = 1.
"""

import pytest
import torch

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Training
from fedkin.methods import FedPer
from toys import ByHand, apart, close, copies, federation, mlp, product_net, squares

HEADS = (0.5, -0.5, 1.0)


def three_clients(*, uniform: bool = False) -> ByHand:
    hand = ByHand(
        FedPer(),
        product_net(head=0.5, body=1.0),
        [copies(1.0, 30, y=2), copies(2.0, 10, y=1), copies(1.0, 10, y=0)],
        training=Training(steps=1, lr=0.1, batch_size=1000),
        loss=squares,
        uniform=uniform,
    )
    hand.kept = [Bundle(head=torch.tensor([h])) for h in HEADS]
    return hand


def heads(hand: ByHand) -> list[float]:
    return [float(b.head) for b in hand.kept]


@pytest.mark.parametrize(("uniform", "body"), [(False, 1.00625), (True, 0.9375)])
def test_first_round(uniform: bool, body: float) -> None:
    """Clients 0 and 1 take part. Client 0: error -1.5, (b, h) = (1.075, .65). Client 1: error -2, times x = 2: (.8,
    -.1). Body by samples (30 * 1.075 + 10 * .8)/40 = 1.00625, uniform .9375; the head of client 2 stays at 1."""
    hand = three_clients(uniform=uniform)
    close(hand.play([0, 1]).body, [[1.075], [0.8]])
    close(hand.server.body, [body])
    close(heads(hand), [0.65, -0.1, 1.0])


def test_predictions_after_the_download() -> None:
    """Every client predicts with its own head on the new body: .6540625, -.20125 and, never sampled, 1.00625."""
    hand = three_clients()
    hand.play([0, 1])
    found = [float(hand.net(hand.used(i).model, hand.data[i].x[:1])) for i in range(3)]
    close(found, [0.6540625, -0.20125, 1.00625])


def test_second_round_goes_on_from_the_kept_heads() -> None:
    """All three: heads .78543496, .14175156, .89874609; body (30 * 1.09373594 + 10 * .982225 + 10 * .905625)/50 =
    1.03381156. With heads thrown away after round 1 it would be .99090625."""
    hand = three_clients()
    hand.play([0, 1])
    hand.play()
    close(heads(hand), [0.78543496, 0.14175156, 0.89874609])
    close(hand.server.body, [1.03381156])
    apart(hand.server.body, [0.99090625], 0.04)


def test_throwing_heads_away_gives_the_wrong_body() -> None:
    """The fault of a published FedPer, reproduced: put the heads back after round 1 and the body is .99090625."""
    hand = three_clients()
    hand.play([0, 1])
    hand.kept = [Bundle(head=torch.tensor([h])) for h in HEADS]
    hand.play()
    close(hand.server.body, [0.99090625])


def test_first_contact_uses_the_common_head() -> None:
    """A client never seen starts with the common head; ``independent_heads`` gives each its own, always the same."""
    net = mlp()
    data = [s.train for s in federation()]
    hand = ByHand(FedPer(), net, data)
    assert torch.equal(hand.used(3).model, net.w0)
    own = ByHand(FedPer(independent_heads=True), net, data)
    starts = torch.stack([own.used(i).model[net.head] for i in range(5)])
    assert len(starts.unique(dim=0)) == 5
    assert torch.equal(starts[2], own.used(2).model[net.head])
    assert torch.equal(own.used(2).model[net.body], net.w0[net.body])


def test_the_head_never_leaves_its_client() -> None:
    """Up and down go bodies only."""
    net = mlp()
    hand = ByHand(FedPer(), net)
    sent, up = hand.download([0]).row(0), hand.play()
    assert {n: t.numel() for n, t in sent.items()} == {"body": net.size - net.head.stop}
    assert {n: tuple(t.shape) for n, t in up.items()} == {"body": (5, net.size - net.head.stop)}


def test_view_after_training() -> None:
    """ "trained" is the client's head with the body it trained itself."""
    net = mlp()
    hand = ByHand(FedPer(), net)
    up = hand.play()
    client = hand.client(1, hand.download([1]).row(0))
    assert torch.equal(views_of(hand.method, client)["trained"].model, torch.cat([hand.kept[1].head, up.body[1]]))


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("independent", [False, True])
def test_an_independent_program_gives_the_same(independent: bool) -> None:
    """Body and heads in two places in float64, on five clients of unequal size, three in each of five rounds, with
    momentum."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    found, shards, w0 = plain.played(FedPer(independent_heads=independent), rounds_=5, training=training)
    starts = [mlp().fresh("head", i).double() if independent else w0 for i in range(5)]
    heads, body, trained = [w[: plain.HEAD] for w in starts], w0[plain.HEAD :], {}
    for t, cohort in plain.cohorts(found):
        for i in cohort:
            w, _ = plain.descend(torch.cat([heads[i], body]), shards[i].train, i, t, training=training)
            heads[i], trained[i] = w[: plain.HEAD], w[plain.HEAD :]
        n = {i: len(shards[i].train) for i in cohort}
        body = sum(n[i] * trained[i] for i in n) / sum(n.values())
    assert plain.distance(found.state.body, body) < 2e-6
    assert len(trained) > 3
    for i, kept in found.clients.items():
        assert bool(kept) == (i in trained)
        if kept:
            assert plain.distance(kept.head, heads[i]) < 2e-6
            assert plain.distance(kept.trained, trained[i]) < 2e-6
