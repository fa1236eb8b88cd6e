"""FedBN against numbers worked out by hand (Li et al., ICLR 2021, Algorithm 1).

The network is h (g u + c) with u = (b x - mean) / sd, with an epsilon of 1e-12; start h = .5, b = 1, g =
1, c = 0; L = 1/2 (net - y)^2, one full-batch step of .1 a round. Two inputs as often as each other give u = -1 and 1
whatever b is, so b has no gradient.

Client 0: x = 1, 3 with y = 0, 2, three times each: outputs -.5, .5, errors -.5, -1.5. Slopes: h: mean(.5, -1.5) = -.5;
g: h times that, -.25; c: h times -1 = -.5. So h = .55, g = 1.025, c = .05. Mean 2 and variance 6/5 move the running
statistics by a tenth: .2 and 1.02.

Client 1: x = 2, 6 with y = 1, 1, once each: errors -1.5, -.5. Slopes: h: mean(1.5, -.5) = .5; g: .25; c: -.5. So h =
.45, g = .975, c = .05; mean 4 and variance 8: .4 and 1.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fedkin
import plain
from fedkin.capabilities.logs import caveat_of
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Method, Net, Samples, Training
from fedkin.core.seeds import generator
from fedkin.data import planted_groups
from fedkin.engines.loop import batches
from fedkin.experiment.settings import Compute
from fedkin.methods import FedAvg, FedBN, Safe
from toys import ByHand, apart, close, federation, mlp, mlp_with_batchnorm, run, squares

KEPT = [[1.025, 0.05, 0.2, 1.02], [0.975, 0.05, 0.4, 1.7]]  # scale, shift, running mean, running variance


def normed(head: float = 0.5) -> Net:
    """``h (g u + c)``: the flat vector is ``[h, b, g, c, mean, variance]``."""

    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            module[0].weight.fill_(1.0)
            module[2].weight.fill_(head)
        return module

    return Net(build, (1,), 1)


def two_clients(method: FedBN | FedAvg | None = None, *, uniform: bool = False) -> ByHand:
    first = Samples(torch.tensor([[1.0], [3.0]] * 3), torch.tensor([0, 2] * 3))
    second = Samples(torch.tensor([[2.0], [6.0]]), torch.tensor([1, 1]))
    training = Training(steps=1, lr=0.1, batch_size=1000)
    return ByHand(method or FedBN(), normed(), [first, second], training=training, loss=squares, uniform=uniform)


@pytest.mark.parametrize(("uniform", "head"), [(False, 0.525), (True, 0.5)])
def test_first_round(uniform: bool, head: float) -> None:
    """The head is (6 * .55 + 2 * .45) / 8 = .525, or .5 with equal weights; each client keeps its four numbers."""
    hand = two_clients(uniform=uniform)
    close(hand.play().shared, [[0.55, 1.0], [0.45, 1.0]])
    close(hand.server.shared, [head, 1.0])
    close(torch.stack([b.norms for b in hand.kept]), KEPT)


def test_predictions_use_the_clients_own_norms() -> None:
    """At x = 1: .525 (1.025 (1 - .2) / sqrt(1.02) + .05) and .525 (.975 (1 - .4) / sqrt(1.7) + .05). With averaged
    norms (FedAvg) both clients would give the same."""
    hand = two_clients()
    hand.play()
    x = torch.ones(1, 1)
    found = [float(hand.net(hand.used(i).model, x)) for i in range(2)]
    expected = [0.525 * (g * (1 - m) / math.sqrt(v) + c) for g, c, m, v in KEPT]
    close(found, expected)
    close(expected, [0.45250852, 0.26180412], 1e-8)
    plain = two_clients(FedAvg())
    plain.play()
    close(hand.net(plain.used(0).model, x), hand.net(plain.used(1).model, x))
    close(plain.server.model[2:], [(6 * a + 2 * b) / 8 for a, b in zip(*KEPT, strict=True)])


def test_statistics_alone_may_stay() -> None:
    """SiloBN: scales and shifts are averaged, (6 * 1.025 + 2 * .975) / 8 = 1.0125 and .05; each client keeps mean and
    variance, and predicts with them."""
    hand = two_clients(FedBN(keep="statistics"))
    hand.play()
    assert hand.method.title == "SiloBN"
    close(hand.server.shared, [0.525, 1.0, 1.0125, 0.05])
    close(torch.stack([b.norms for b in hand.kept]), [row[2:] for row in KEPT])
    found = [float(hand.net(hand.used(i).model, torch.ones(1, 1))) for i in range(2)]
    close(found, [0.525 * (1.0125 * (1 - m) / math.sqrt(v) + 0.05) for _, _, m, v in KEPT])


def test_a_client_goes_on_from_its_own_norms() -> None:
    """Client 0 stays away for a round and keeps its numbers; client 1 meets scale .975 and shift .05 with h = .525:
    outputs .525 (.05 -+ .975) = -.485625, .538125, errors -1.485625, -.461875; the slope of h is the mean of error
    times (.05 -+ .975): (1.485625 * .925 - .461875 * 1.025) / 2 = .450390625, so h = .4799609375."""
    hand = two_clients()
    hand.play()
    close(hand.play([1]).shared, [[0.4799609375, 1.0]])
    close(hand.kept[0].norms, KEPT[0])
    close(hand.kept[1].norms[2:], [0.9 * 0.4 + 0.1 * 4, 0.9 * 1.7 + 0.1 * 8])


def test_a_client_that_never_trained_has_the_norms_of_the_start() -> None:
    """Scale 1, shift 0, mean 0, variance 1 on the common layers: at x = 1 the head's .55, of client 0 alone."""
    hand = two_clients()
    hand.play([0])
    close(hand.net(hand.used(1).model, torch.ones(1, 1)), [[0.55]])


def test_norms_are_found_by_their_kind_not_their_name() -> None:
    """A program that keeps what has "bn" in its name averages the norm of a shortcut; here norms of all kinds stay."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn1, self.downsample = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            self.scale, self.fc = nn.LayerNorm(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fc(self.scale(self.bn1(x) + self.downsample(x)))
            return out

    net = Net(Block, (4,), 3)
    hand = ByHand(FedBN(), net)
    numbers = {name for name, (span, _) in net.places().items() if bool(net.norms[span].all())}
    assert {n.rpartition(".")[0] for n in numbers} == {"bn1", "downsample.1", "scale"}
    assert hand.play().shared.shape == (5, net.size - 4 * 10)


@pytest.mark.parametrize(
    ("method", "net", "lacking"),
    [
        (FedBN(), mlp, "FedBN keeps normalisation layers"),
        (FedBN(keep="statistics"), mlp, "SiloBN keeps running statistics"),
        (Safe(FedBN()), mlp, "FedBN keeps normalisation layers"),
        (FedBN(keep="statistics"), mlp_with_batchnorm, ""),
        (FedBN(), mlp_with_batchnorm, ""),
        (FedAvg(), mlp, ""),
    ],
)
def test_a_network_without_norms_is_a_caveat(method: Method, net: Callable[[], Net], lacking: str) -> None:
    """For its rows of a table would be FedAvg's under another name; a wrapped method has its say as well."""
    found = caveat_of(method, net(), Bundle())
    assert found.startswith(lacking)
    assert ("the network has none, so it is FedAvg here" in found) == bool(lacking) == bool(found)


def test_the_caveat_is_a_note_of_the_run() -> None:
    """It is in the summary, from which the screen and the report take their caveats."""
    data, how = planted_groups(clients=2, groups=1, samples=12), Compute(engine="loop")
    runs = [fedkin.run(method, data, "linear", rounds=1, compute=how) for method in (FedBN(), FedAvg())]
    notes = [one.run.notes for one in runs]
    assert notes == [(caveat_of(FedBN(), mlp(), Bundle()),), ()]


def test_view_after_training() -> None:
    """ "trained" is all that the client trained."""
    hand = two_clients()
    up = hand.play()
    model = views_of(hand.method, hand.client(1, hand.download([1]).row(0)))["trained"].model
    close(model, [*up.shared[1].tolist(), *hand.kept[1].norms.tolist()])


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Modules, `state_dict` and torch's SGD in float64, over five rounds of three out of five unequal clients."""
    training, shards = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5, weight_decay=0.01), federation()
    net = mlp_with_batchnorm()
    found = run(FedBN(), net, shards, rounds_=5, training=training)
    make = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()  # noqa: E731
    server, start = make(), net.unflatten(net.w0)
    server.load_state_dict(start, strict=False)
    modules = {i: make() for i in range(len(shards))}
    for module in modules.values():
        module.load_state_dict(start, strict=False)
    for t, report in enumerate(found.reports, 1):
        cohort = report.cohort
        for i in cohort:
            for name, value in server.state_dict().items():
                if not name.startswith("1."):
                    modules[i].state_dict()[name].copy_(value)
            _train(modules[i], shards[i].train, training, t, i)
        weights = torch.tensor([len(shards[i].train) for i in cohort]).double()
        for name, value in server.state_dict().items():
            if not name.startswith("1."):
                rows = torch.stack([modules[i].state_dict()[name] for i in cohort])
                value.copy_(torch.einsum("k,k...->...", weights / weights.sum(), rows))
    assert plain.distance(found.state.shared, _flat(server, net)[~net.norms]) < 2e-6
    seen = sorted({i for r in found.reports for i in r.cohort})
    assert len(seen) > 3
    for i in seen:
        assert plain.distance(found.clients[i].norms, _flat(modules[i], net)[net.norms]) < 5e-6
    apart(found.clients[seen[0]].norms, found.clients[seen[1]].norms, 0.05)


def _train(module: nn.Module, data: Samples, training: Training, t: int, client: int) -> None:
    module.train()
    sgd = torch.optim.SGD(
        module.parameters(), training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    rng = generator(0, "batches", "update", t, client, 0)
    for _, index in batches(len(data), training, rng, skip_single=True):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(data.x[index].double()), data.y[index]).backward()
        sgd.step()


def _flat(module: nn.Module, net: Net) -> Tensor:
    named = module.state_dict()
    return torch.cat([named[name].flatten() for name in net.names])
