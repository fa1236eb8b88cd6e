"""Local training against numbers worked out by hand: no federation, nothing is sent."""

import torch

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
    hand = ByHand(Local(), mlp(), [s.train for s in federation()])
    hand.play([0])
    assert torch.equal(hand.used(1).model, hand.net.w0)
    assert not torch.equal(hand.used(0).model, hand.net.w0)
    assert hand.server == Bundle()
