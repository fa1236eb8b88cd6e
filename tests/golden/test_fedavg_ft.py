"""FedAvg + FT against numbers worked out by hand: FedAvg, and each client fine-tunes a copy before it predicts.

L_i = 1/2 (w - a_i)^2 with a = (0, 8), n = (30, 10), two steps of .5 a round from 0: the global model is 1.5.
"""

from collections.abc import Callable

import pytest
import torch

import plain
from fedkin.core import Bundle, Net, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedavg_ft import FedAvgFT
from fedkin.server import Plan, Server, Simulation, asked
from toys import (
    ByHand,
    Run,
    apart,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    product_net,
    run,
    squares,
    two_quadratics,
)

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])


def test_one_round() -> None:
    """Locals 0 and 6, global 60/40 = 1.5; two epochs of one step from there: a + (1.5 - a)/4 = .375 and 6.375. The next
    round starts from 1.5 again: locals .375 and 6.375, global (30 * .375 + 10 * 6.375)/40 = 1.875."""
    hand = two_quadratics(FedAvgFT(tune_epochs=2))
    close(hand.play().model, [[0.0], [6.0]])
    close([float(hand.used(i).model) for i in range(2)], [0.375, 6.375])
    close(hand.server.model, [1.5])
    close(hand.play().model, [[0.375], [6.375]])
    close(hand.server.model, [1.875])


def test_step_size_of_the_tuning() -> None:
    """One epoch of .25: 1.5 - .25 * 1.5 = 1.125 and 1.5 + .25 * 6.5 = 3.125; the run's .5 would give .75 and 4.75."""
    for lr, wanted in ((0.25, [1.125, 3.125]), (None, [0.75, 4.75])):
        hand = two_quadratics(FedAvgFT(tune_epochs=1, tune_lr=lr))
        hand.play()
        close([float(hand.used(i).model) for i in range(2)], wanted)


def test_default_is_five_epochs_of_the_whole_model() -> None:
    """Also in a run that counts steps: a + (1.5 - a)/32 = .046875 and 7.796875 after five steps."""
    hand = two_quadratics(FedAvgFT())
    hand.play()
    close([float(hand.used(i).model) for i in range(2)], [0.046875, 7.796875])


def test_tuning_the_head_alone() -> None:
    """h * b * x with (h, b) = (.5, 1), L = 1/2 (h b x - y)^2 at (x, y) = (1, 2), one step of .1: error -1.5, so h = .65
    and, with the whole model, b = 1.075; with the head alone b stays at 1."""
    for part, wanted in (("full", [0.65, 1.075]), ("head", [0.65, 1.0])):
        hand = ByHand(
            FedAvgFT(part=part, tune_epochs=1),
            product_net(head=0.5, body=1.0),
            [copies(1.0, 4, y=2)],
            training=Training(steps=1, lr=0.1, batch_size=1000),
            loss=squares,
        )
        close(hand.used(0).model, wanted)


def models(method: FedAvg | FedAvgFT, net: Callable[[], Net]) -> tuple[Run, list[torch.Tensor]]:
    seen: list[torch.Tensor] = []
    return run(method, net(), federation(), dropout=0.2, each_round=lambda s, _: seen.append(s.state.model)), seen


@NETS
@pytest.mark.parametrize("part", ["full", "head"])
def test_training_is_fedavgs_and_nothing_leaks_back(net: Callable[[], Net], part: str) -> None:
    """Under partial participation and drop-outs the global model is FedAvg's bit for bit after every round, however
    clients tune; no client keeps anything; and the view "global" is FedAvg's evaluation, which the tuned one is not."""
    ours, mine = models(FedAvgFT(tune_epochs=8, part=part), net)
    avg, theirs = models(FedAvg(), net)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert all(b == Bundle() for b in ours.clients.values())
    found = [
        (x.evaluation[i], y.evaluation[i]) for x, y in zip(ours.reports, avg.reports, strict=True) for i in y.evaluation
    ]
    for name in ("test", "validation"):
        assert all(torch.equal(x[f"global.{name}"], y[name]) for x, y in found)
        assert not all(torch.equal(x[name], y[name]) for x, y in found)


@NETS
def test_the_body_stands_still_while_the_head_is_tuned(net: Callable[[], Net]) -> None:
    """Running statistics included, under momentum and weight decay."""
    training = Training(batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.01)
    hand = ByHand(FedAvgFT(part="head"), net(), training=training)
    hand.play()
    w = hand.used(2).model
    assert torch.equal(w[hand.net.body], hand.server.model[hand.net.body])
    apart(w[hand.net.head], hand.server.model[hand.net.head], 1e-3)


def test_everybody_tunes_participants_or_not() -> None:
    """A client never sampled tunes the global model, too; each on its own data."""
    hand = ByHand(FedAvgFT(), training=Training(batch_size=5, lr=0.1))
    hand.play([0])
    tuned = torch.stack([hand.used(i).model for i in range(5)])
    assert len(tuned.unique(dim=0)) == 5
    assert not any(torch.equal(w, hand.server.model) for w in tuned)
    losses = [(hand.client(i).loss(tuned[i]), hand.client(i).loss(hand.server.model)) for i in range(5)]
    assert all(after < before for after, before in losses)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("part", "tune_lr"), [("full", None), ("head", 0.2)])
def test_an_independent_program_gives_the_same(part: str, tune_lr: float | None) -> None:
    """FedAvg in float64 with a falling step size, three of five clients in each of four rounds, and fine-tuning of all
    five after each."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5, schedule="step@factor=0.8")
    method, net, shards = FedAvgFT(part=part, tune_epochs=3, tune_lr=tune_lr), mlp(), federation()
    tuned: list[dict[int, torch.Tensor]] = []

    def look(server: Server, clients: Simulation) -> None:
        answers, _ = asked(method, net, clients, Plan(4, 0.6), server, "keep")
        tuned.append({i: b.model for i, b in answers.items()})

    found = run(method, net, shards, training=training, each_round=look)
    w, moves = net.w0.double(), plain.HEAD if part == "head" else net.size
    for t, cohort in plain.cohorts(found):
        now = training.but(lr=0.1 * 0.8 ** (t - 1))
        ends = [plain.descend(w, shards[i].train, i, t, training=now)[0] for i in cohort]
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        w = (size / size.sum()) @ torch.stack(ends)
        for i, shard in enumerate(shards):
            v, velocity = w.clone(), torch.zeros(moves, dtype=torch.float64)
            rng = generator(0, "batches", "evaluate", t, i, 0)
            for _, index in batches(len(shard.train), training.but(epochs=3), rng, skip_single=False):
                x, y = shard.train.x[index].double(), shard.train.y[index]
                g = plain.gradient(lambda v, x=x, y=y: plain.loss(v, x, y), v)[:moves]
                velocity = 0.5 * velocity + g
                v[:moves] -= (tune_lr or now.lr) * velocity
            assert plain.distance(tuned[t - 1][i], v) < 2e-6
    assert plain.distance(found.state.model, w) < 2e-6
