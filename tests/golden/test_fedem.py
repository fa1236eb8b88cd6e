"""FedEM against numbers worked out by hand (Marfoq et al., NeurIPS 2021, Eqs. 7-9).

A model is its two logits at x = 1. Model 0 is (log 3, 0), so p = (3/4, 1/4), model 1 is (0, log 3), p = (1/4, 3/4).
The client has three samples of class 0 and one of class 1, and equal shares at first.

E-step: a sample of class 0: q = (1/2 * 3/4, 1/2 * 1/4) normalised: (3/4, 1/4); of class 1: (1/4, 3/4). Shares: (3 * 3/4
+ 1/4) / 4 = 5/8, and 3/8. M-step, one step of 1 on all: slope of the first logit of model 0: 1/4 (3 * 3/4 (3/4 - 1) +
1/4 * 3/4) = -3/32, of the second 3/32; of model 1: 1/4 (3 * 1/4 (1/4 - 1) + 3/4 * 1/4) = -3/32 and 3/32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

import plain
from fedkin.core import Bundle, Samples, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches
from fedkin.methods import FedEM
from toys import ByHand, apart, close, federation, logit_net, mlp, run

LOG3 = math.log(3)
MODELS = [[LOG3, 0.0], [0.0, LOG3]]
STEP = 3 / 32


def clients(*counts: tuple[int, int], lr: float = 1.0) -> ByHand:
    """Clients with so many samples of class 0 and of class 1, and a server with the two models."""
    data = [Samples(torch.ones(a + b, 1), torch.tensor([0] * a + [1] * b)) for a, b in counts]
    training = Training(steps=1, lr=lr, batch_size=1000)
    hand = ByHand(FedEM(components=2), logit_net(2), data, training=training)
    hand.server = Bundle(models=torch.tensor(MODELS))
    return hand


def test_one_round() -> None:
    """The numbers above. Divided by the sum of the weights, 5/2 for model 0, its step would be .15."""
    hand = clients((3, 1))
    up = hand.play()
    close(up.models, [[[LOG3 + STEP, -STEP], [STEP, LOG3 - STEP]]])
    close(hand.kept[0].share, [5 / 8, 3 / 8])
    apart(up.models[0, 0], [LOG3 + 0.15, -0.15], 0.05)


def test_the_next_weights_start_from_the_shares() -> None:
    """With the same models again: class 0: (5/8 * 3/4, 3/8 * 1/4) normalised: (5/6, 1/6); class 1: (5/8 * 1/4, 3/8 *
    3/4): (5/14, 9/14). Shares: (3 * 5/6 + 5/14) / 4 = 5/7."""
    hand = clients((3, 1))
    hand.play()
    hand.server = Bundle(models=torch.tensor(MODELS))
    hand.play()
    close(hand.kept[0].share, [5 / 7, 2 / 7])


def test_means_are_weighted_by_all_samples_of_a_client() -> None:
    """A second client with one sample of class 1: q = (1/4, 3/4); slope of model 0: 1/4 * 3/4 = 3/16 and -3/16, of
    model 1: 3/4 * 1/4 = 3/16 and -3/16. Server: (4 * 3/32 - 3/16) / 5 = 3/80 for both, whatever the shares are."""
    hand = clients((3, 1), (0, 1))
    hand.play()
    close(hand.kept[1].share, [1 / 4, 3 / 4])
    close(hand.server.models, [[LOG3 + 3 / 80, -3 / 80], [3 / 80, LOG3 - 3 / 80]])


def test_predictions_mix_probabilities_by_the_shares() -> None:
    """5/8 * 3/4 + 3/8 * 1/4 = 9/16 with the same models. Mixed logits, (5/8 log 3, 3/8 log 3), would give .5682. A
    client that never trained, with one sample of class 1, takes one E-step: 1/4 * 3/4 + 3/4 * 1/4 = 3/8."""
    hand = clients((3, 1), (0, 1))
    hand.play([0])
    hand.server = Bundle(models=torch.tensor(MODELS))
    found = [hand.method.predict(hand.net, hand.used(i), torch.ones(1, 1)).exp() for i in range(2)]
    close(torch.cat(found), [[9 / 16, 7 / 16], [3 / 8, 5 / 8]])
    apart(found[0][0, 0], 1 / (1 + 3 ** (-0.25)), 0.005)
    assert not hand.kept[1]


def test_starts_differ_and_so_do_models_after_training() -> None:
    """Models that start equal get equal weights and steps for ever; the first start is the common one."""
    server = ByHand(FedEM()).server
    assert len(server.models.unique(dim=0)) == 3
    assert torch.equal(server.models[0], mlp().w0)
    final = run(FedEM(), mlp(), federation()).state.models
    assert len(final.unique(dim=0)) == 3


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Named tensors with autograd in float64, five rounds of three out of five unequal clients."""
    net, shards = mlp(), federation()
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5)
    found = run(FedEM(), net, shards, rounds_=5, training=training)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    servers = [{n: t.double() for n, t in net.unflatten(net.fresh(k)).items()} for k in range(3)]
    shares = {i: torch.full((3,), 1 / 3).double() for i in range(5)}
    for t, report in enumerate(found.reports, 1):
        trained: dict[int, list[Named]] = {}
        for i in report.cohort:
            data = shards[i].train
            losses = torch.stack([_losses(module, s, data, torch.arange(len(data))) for s in servers], 1)
            odds = shares[i] * (-losses).exp()
            q = (odds / odds.sum(1, keepdim=True)).detach()
            shares[i] = q.mean(0)
            trained[i] = [_train(module, s, data, q[:, m], training, t, i, m) for m, s in enumerate(servers)]
        n = {i: len(shards[i].train) for i in report.cohort}
        servers = [
            {name: sum(n[i] * trained[i][m][name] for i in n) / sum(n.values()) for name in servers[0]}
            for m in range(3)
        ]
    models = torch.stack([torch.cat([s[n].flatten() for n in net.names]) for s in servers])
    assert plain.distance(found.state.models, models) < 2e-6
    seen = {i for r in found.reports for i in r.cohort}
    assert len(seen) > 3
    for i in seen:
        assert plain.distance(found.clients[i].share, shares[i]) < 2e-6


Named = dict[str, Tensor]


def _losses(module: nn.Module, parts: Named, data: Samples, index: Tensor) -> Tensor:
    logits = functional_call(module, parts, (data.x[index].double(),))
    return nn.functional.cross_entropy(logits, data.y[index], reduction="none")


def _train(
    module: nn.Module, start: Named, data: Samples, q: Tensor, training: Training, t: int, i: int, number: int
) -> Named:
    leaves = {n: p.detach().clone().requires_grad_(True) for n, p in start.items()}
    sgd = torch.optim.SGD(leaves.values(), training.lr, momentum=training.momentum)
    for _, index in batches(len(data), training, generator(0, "batches", "update", t, i, number), skip_single=False):
        sgd.zero_grad()
        (q[index] * _losses(module, leaves, data, index)).mean().backward()
        sgd.step()
    return {n: p.detach() for n, p in leaves.items()}
