"""FedBABU against numbers worked out by hand (Oh, Kim, Yun, ICLR 2022).

The network is h * b * x with one number for the body b and one for the head h, which stays at .5; L = 1/2 (h b x -
y)^2, one full-batch step of .1 a round. Clients (x, y): (1, 2), (2, 1), (1, 0) with 30, 10, 10 samples; b = 1.
"""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches, sgd
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedbabu import FedBABU
from fedkin.server import Plan, Server, Simulation, asked
from toys import (
    ByHand,
    apart,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    product_net,
    run,
    squares,
    vector_net,
)

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
STEP = Training(steps=1, lr=0.1, batch_size=1000)


def three_clients(method: FedBABU, training: Training = STEP) -> ByHand:
    return ByHand(
        method,
        product_net(head=0.5, body=1.0),
        [copies(1.0, 30, y=2), copies(2.0, 10, y=1), copies(1.0, 10, y=0)],
        training=training,
        loss=squares,
    )


def test_first_round() -> None:
    """Clients 0 and 1 take part: errors -1.5 and 0, so b = 1 + .1 * 1.5 * .5 = 1.075 and 1; (30 * 1.075 + 10)/40 =
    1.05625. The head stays at .5 and is not sent."""
    hand = three_clients(FedBABU())
    close(hand.play([0, 1]).body, [[1.075], [1.0]])
    close(hand.server.body, [1.05625])
    assert hand.server.keys() == {"body"}
    assert hand.kept == [Bundle()] * 3
    close(views_of(hand.method, hand.client(0, Bundle(hand.server)))["global"].model, [0.5, 1.05625])


@pytest.mark.parametrize(
    ("part", "heads", "bodies"),
    [
        ("full", [0.6554668, 0.48811719, 0.4442168], [1.12984375, 1.050625, 1.02984375]),
        ("head", [0.6554668, 0.48811719, 0.4442168], [1.05625] * 3),
        ("body", [0.5] * 3, [1.12984375, 1.050625, 1.02984375]),
    ],
)
def test_one_step_of_fine_tuning(part: str, heads: list[float], bodies: list[float]) -> None:
    """From (h, b) = (.5, 1.05625), whoever took part in round 1: predictions .528125, 1.05625, .528125, errors e =
    -1.471875, .05625, .528125; h - .1 e b x, b - .1 e h x, each only if it is the part that is tuned."""
    hand = three_clients(FedBABU(part=part, finetune_epochs=1, finetune_lr=0.1))
    hand.play([0, 1])
    close([hand.used(i).model.tolist() for i in range(3)], list(zip(heads, bodies, strict=True)))
    close(hand.server.body, [1.05625])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_head_stands_still_under_weight_decay(momentum: float) -> None:
    """Weight decay 5e-4 for one step of .1 would move a head whose gradient is merely set to zero to .5 (1 - .1 * 5e-4)
    = .499975. Ours stays at .5 exactly, step after step; the body decays."""
    hand = three_clients(FedBABU(), Training(steps=5, lr=0.1, batch_size=1000, momentum=momentum, weight_decay=5e-4))
    client = hand.client(0, hand.download([0]).row(0))
    request = next(hand.method.client_update(client))
    w = hand.train(request, client)
    assert float(w[0]) == 0.5
    zeroed = 0.5 * (1 - 0.1 * 5e-4)
    close(zeroed, 0.499975, 1e-9)
    apart(w[0], zeroed, 2e-5)
    still = sgd(request.but(loss=squares, weight_decay=0.0), client.data, hand.net, hand.training, generator(0))
    apart(w[1], still[1], 1e-5)


@NETS
def test_the_head_never_moves_or_travels(net: Callable[[], Net]) -> None:
    """In a run with momentum and weight decay, up and down go bodies only, and every client's request has the common
    head, bit for bit, also in the last round and for a client never seen."""
    net = net()
    hand = ByHand(FedBABU(), net, training=Training(batch_size=5, momentum=0.9, weight_decay=0.01))
    size = net.size - net.head.stop
    for ids in ([0, 1, 2], [1, 2], [0, 3]):
        assert {n: t.numel() for n, t in hand.download(ids).row(0).items()} == {"body": size}
        assert {n: tuple(t.shape) for n, t in hand.play(ids).items()} == {"body": (len(ids), size)}
    request = next(hand.method.client_update(hand.client(4, hand.download([4]).row(0))))
    assert torch.equal(request.start[net.head], net.w0[net.head])
    assert request.only == net.body
    apart(hand.server.body, net.w0[net.body], 1e-2)


@NETS
@pytest.mark.parametrize("part", ["full", "head", "body"])
def test_fine_tuning_does_not_leak_back(net: Callable[[], Net], part: str) -> None:
    """With and without fine-tuning bodies are bit for bit the same after every round and nothing is kept on a client;
    the view "global" is what is predicted without it."""
    shards, bodies = federation(), []
    look = lambda server, _: bodies.append(server.state.body)  # noqa: E731
    tuned = run(FedBABU(part=part, finetune_epochs=8), net(), shards, rounds_=3, each_round=look)
    mine, bodies = bodies, []
    plain = run(FedBABU(finetune_epochs=0), net(), shards, rounds_=3, each_round=look)
    assert all(torch.equal(a, b) for a, b in zip(mine, bodies, strict=True))
    assert all(b == Bundle() for b in tuned.clients.values())
    pairs = zip(tuned.reports, plain.reports, strict=True)
    found = [(x.evaluation[i], y.evaluation[i]) for x, y in pairs for i in x.evaluation]
    assert all(torch.equal(x["global.test"], y.test) for x, y in found)
    assert not all(torch.equal(x.test, y.test) for x, y in found)
    assert not any("global.test" in y for _, y in found)


@NETS
def test_the_part_that_is_not_tuned_stands_still(net: Callable[[], Net]) -> None:
    """Tuning the head leaves the body and its running statistics bit for bit, tuning the body leaves the head."""
    hand = ByHand(FedBABU(), net(), training=Training(batch_size=5, lr=0.1, weight_decay=0.01))
    hand.play()
    rest = {"head": hand.net.body, "body": hand.net.head}
    start = views_of(hand.method, hand.client(0, Bundle(hand.server)))["global"].model
    for part, still in rest.items():
        hand.method = FedBABU(part=part)
        w = hand.used(1).model
        assert torch.equal(w[still], start[still])
        apart(w, start, 1e-3)


def test_step_size_and_epochs_of_fine_tuning() -> None:
    """By default five epochs at a tenth of the run's step size, also in a run that counts steps; otherwise as told."""
    hand = ByHand(FedBABU(), training=Training(steps=2, batch_size=5, lr=0.3))
    asked = next(hand.method.personalize(hand.client(1, hand.download([1]).row(0)))).training(hand.training)
    assert (asked.epochs, asked.steps) == (5, None)
    close(asked.lr, 0.03)
    hand.method = FedBABU(finetune_lr=0.01, finetune_epochs=2)
    asked = next(hand.method.personalize(hand.client(1, hand.download([1]).row(0)))).training(hand.training)
    assert (asked.epochs, asked.lr) == (2, 0.01)


@NETS
def test_with_a_head_that_moves_it_would_be_fedavg(net: Callable[[], Net]) -> None:
    """The one difference in training is what moves: with ``only`` left out of the request, bodies averaged and the head
    averaged beside them, one round is FedAvg's, bit for bit; with it the body is another."""
    shards, training = federation(), Training(epochs=2, batch_size=5, lr=0.1)
    babu, avg = (ByHand(m, net(), [s.train for s in shards], training=training) for m in (FedBABU(), FedAvg()))
    babu.solve = lambda asked, c: sgd(asked.but(only=None), c.data, c.net, c.training, generator(0, 1, c.id))
    babu.play()
    avg.play()
    assert torch.equal(babu.server.body, avg.server.model[avg.net.body])
    babu = ByHand(FedBABU(), net(), babu.data, training=training)
    babu.play()
    apart(babu.server.body, avg.server.model[avg.net.body], 1e-4)


def test_alone_it_is_training_behind_a_fixed_head() -> None:
    """K = 1: the global body is the client's own, round after round."""
    shards = federation()[:1]
    training = Training(epochs=2, batch_size=5, lr=0.1)
    hand = ByHand(FedBABU(), mlp(), [shards[0].train], training=training)
    w = hand.net.w0
    for _ in range(3):
        hand.play()
        w = sgd(Train(w, only=hand.net.body), shards[0].train, hand.net, training, generator(0, hand.t, 0))
    assert torch.equal(hand.server.body, w[hand.net.body])


def test_a_network_that_is_all_head_stays_as_it_is() -> None:
    """No body: nothing is trained together, and nothing breaks; fine-tuning is local training from the common start."""
    hand = ByHand(FedBABU(finetune_epochs=0), vector_net(2.0, 3.0), [copies([1.0, 1.0], 4)] * 2)
    hand.play()
    assert hand.server.body.numel() == 0
    close(hand.used(0).model, [2.0, 3.0])


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("part", ["full", "head", "body"])
def test_an_independent_program_gives_the_same(part: str) -> None:
    """Head and body as two tensors in float64, momentum and weight decay, three of five unequal clients in four rounds;
    then all fine-tune."""
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5, weight_decay=0.05)
    method, net, shards = FedBABU(part=part, finetune_epochs=3), mlp(), federation()
    tuned: dict[int, Tensor] = {}

    def look(server: Server, clients: Simulation) -> None:
        answers, _ = asked(method, net, clients, Plan(4, 0.6), server, "keep")
        tuned.update({i: b.model for i, b in answers.items()})

    found = run(method, net, shards, training=training, each_round=look)
    head, body = net.w0.double().split([plain.HEAD, net.size - plain.HEAD])
    for t, cohort in plain.cohorts(found):
        ends = {}
        for i in cohort:
            ends[i] = _trained(head, body, "body", 0.2, shards[i].train, plain.drawn(shards[i].train, i, t))[1]
        n = {i: len(shards[i].train) for i in cohort}
        body = sum(n[i] * ends[i] for i in n) / sum(n.values())
    assert plain.distance(found.state.body, body) < 2e-6
    for i, shard in enumerate(shards):
        rng = generator(0, "batches", "evaluate", 4, i, 0)
        order = (k for _, k in batches(len(shard.train), training.but(epochs=3), rng, skip_single=False))
        mine = _trained(head, body, part, 0.02, shard.train, order)
        assert plain.distance(tuned[i], torch.cat(mine)) < 2e-6


def _trained(
    head: Tensor, body: Tensor, part: str, lr: float, data: Samples, order: Iterable[Tensor]
) -> tuple[Tensor, Tensor]:
    leaves = {"head": head.clone().requires_grad_(part != "body"), "body": body.clone().requires_grad_(part != "head")}
    moves = [p for p in leaves.values() if p.requires_grad]
    sgd = torch.optim.SGD(moves, lr, momentum=0.5, weight_decay=0.05)
    for index in order:
        sgd.zero_grad()
        plain.loss(torch.cat(list(leaves.values())), data.x[index].double(), data.y[index]).backward()
        sgd.step()
    return leaves["head"].detach(), leaves["body"].detach()
