"""Local training against numbers worked out by hand: no federation, nothing is sent."""

import torch

import plain
from fedkin.core import Bundle, Training
from fedkin.methods import Local
from toys import ByHand, close, copies, federation, mlp, quadratic, run, vector_net


def test_two_rounds() -> None:
    """L_i = 1/2 (w - a_i)^2, a = (0, 8), two steps of .5 a round from 0: 6 after one round, 6 + 2 * .75 = 7.5 after
    two."""
    hand = ByHand(
        Local(),
        vector_net(0.0),
        [copies(0.0, 30), copies(8.0, 10)],
        training=Training(steps=2, lr=0.5, batch_size=1000),
        loss=quadratic,
    )
    for wanted in (6.0, 7.5):
        hand.play()
        close([float(b.model) for b in hand.kept], [0.0, wanted])


def test_nothing_travels() -> None:
    """No bytes down; up only what every client says of its size on joining."""
    result = run(Local(), mlp(), federation(), participation=1.0)
    assert all(r.bytes_down == 0 for r in result.reports)
    assert [r.bytes_up for r in result.reports] == [5 * 8, 0, 0, 0]


def test_clients_never_sampled_predict_with_the_common_start() -> None:
    """Before its first round a client holds the common start, and a round of others does not change that."""
    hand = ByHand(Local())
    hand.play([0])
    assert torch.equal(hand.used(1).model, hand.net.w0)
    assert not torch.equal(hand.used(0).model, hand.net.w0)
    assert hand.server == Bundle()


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """SGD with momentum in float64 from a client's last model, on five clients of unequal size, three in each of five
    rounds."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    found, shards, w0 = plain.played(Local(), rounds_=5, training=training)
    own = dict.fromkeys(range(5), w0)
    rounds = dict.fromkeys(range(5), 0)
    for t, cohort in plain.cohorts(found):
        for i in cohort:
            own[i], _ = plain.descend(own[i], shards[i].train, i, t, training=training)
            rounds[i] += 1
    assert len(set(rounds.values())) > 1
    assert max(rounds.values()) > 2
    for i, kept in found.clients.items():
        assert bool(kept) == (rounds[i] > 0)
        assert plain.distance(kept.get("model", mlp().w0), own[i]) < 2e-6
