"""Two models whose logits add up: what is trained beside what, in each order."""

import pytest
import torch
from torch import Tensor

from fedkin.core import Bundle, MethodError, Train, Training, Work, head_loss
from fedkin.methods import Local
from fedkin.methods.cam import Both, for_rounds, train_both
from refusals import refuses
from toys import ByHand, copies, federation, mlp, mlp_with_batchnorm, vector_net


def program(start: Tensor, loss: object = None) -> Work:
    """A cluster program: one training, and what came of it under a name."""
    w = yield Train(start) if loss is None else Train(start, loss=loss)
    return Bundle(model=w, twice=2 * w)


def play(work: Both) -> tuple[list[tuple[Train, ...]], tuple[Tensor, Bundle]]:
    """Every group of requests, each answered by its start plus 1, and what is returned."""
    seen: list[tuple[Train, ...]] = []
    asked = next(work)
    while True:
        group = asked if isinstance(asked, tuple) else (asked,)
        seen.append(group)
        trained = tuple(r.start + 1 for r in group)
        try:
            asked = work.send(trained if isinstance(asked, tuple) else trained[0])
        except StopIteration as end:
            return seen, end.value


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("simultaneous", [[(2.0, 5.0), (5.0, 2.0)]]),
        ("cluster-first", [[(5.0, 2.0)], [(2.0, 6.0)]]),
        ("global-first", [[(2.0, 5.0)], [(5.0, 3.0)]]),
    ],
)
def test_who_is_trained_beside_whom(order: str, wanted: list[list[tuple[float, float]]]) -> None:
    """h = 2, f = 5, training adds 1; (start, partner's logit) of every request in turn. The second model sees the
    trained first, at the same time both see what was received."""
    client = ByHand(Local(), vector_net(0.0), [copies(1.0, 3)]).client(0)
    seen, (g, up) = play(train_both(client, torch.tensor([2.0]), program(torch.tensor([5.0])), order))
    assert [[(float(r.start), float(r.per_sample.offset[0])) for r in group] for group in seen] == wanted
    assert all(r.per_sample.offset.shape == (3, 1) for group in seen for r in group)
    assert (float(g), float(up.model), float(up.twice)) == (3.0, 6.0, 12.0)


def test_training_alone() -> None:
    """``alone`` is carried out without a partner, in place of the program's, and h is then trained beside it."""
    client = ByHand(Local(), vector_net(0.0), [copies(1.0, 3)]).client(0)
    h, work = torch.tensor([2.0]), program(torch.tensor([5.0]))
    seen, (g, up) = play(train_both(client, h, work, "global-first", alone=Train(torch.tensor([7.0]))))
    assert [[float(r.start) for r in group] for group in seen] == [[7.0], [2.0]]
    assert "offset" not in seen[0][0].per_sample
    assert float(seen[1][0].per_sample.offset[0]) == 8.0
    assert (float(g), float(up.model)) == (3.0, 8.0)


def test_a_partner_is_measured_in_eval_mode() -> None:
    """Its statistics stay; a loss that knows no partner is refused."""
    net, data = mlp_with_batchnorm(), federation()[1].train
    client, h = ByHand(Local(), net, [data]).client(0), net.w0
    before = h.clone()
    request = next(train_both(client, h, program(net.fresh(1)), "cluster-first"))
    assert isinstance(request, Train)
    assert torch.equal(request.per_sample.offset, net(h, data.x))
    assert torch.equal(h, before)
    client = ByHand(Local(), mlp(), [federation()[0].train]).client(0)
    with refuses(MethodError, "trains by head_loss cannot be wrapped"):
        next(train_both(client, client.w0, program(client.w0, head_loss), "simultaneous"))


@pytest.mark.parametrize(
    ("training", "samples", "steps"),
    [(Training(steps=4), 9, 12), (Training(epochs=2, batch_size=5), 9, 12), (Training(), 30, 9)],
)
def test_training_of_several_rounds_at_once(training: Training, samples: int, steps: int) -> None:
    """Three rounds of 4 steps are 12; of 2 epochs in 2 batches each are 12; of one epoch in 3 batches are 9."""
    request = for_rounds(torch.zeros(1), 3, training)
    assert request.training(training).steps_for(samples) == steps
    one = for_rounds(torch.zeros(1), 1, training)
    assert one.training(training).steps_for(samples) == training.steps_for(samples)
