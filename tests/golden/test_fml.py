"""FML against numbers worked out by hand (Shen et al., FITEE 2023).

A client's own model and its copy of the shared one (the meme) take steps along the gradients of ``alpha CE + (1 -
alpha) KL(p_meme || p_own)`` and ``beta CE + (1 - beta) KL(p_own || p_meme)``, both at the same point; what a model
learns from is a constant in its loss. In the logits these are ``alpha (p_own - y) + (1 - alpha) (p_own - p_meme)`` and
``beta (p_meme - y) + (1 - beta) (p_meme - p_own)``.

The client's own network is ``z = w x`` with two numbers, the shared one ``z = h b x`` with three: ``[h | b]``.
"""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedkin
import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, ConfigError, Net, Training
from fedkin.core.settings import Settings
from fedkin.data.synthetic import planted_groups
from fedkin.experiment.prepare import Experiment
from fedkin.exporting import export, load_export
from fedkin.methods import FML
from fedkin.methods.fml import mutual_loss
from toys import ByHand, close, copies, federation, mlp, mlp_with_batchnorm


def two_kinds() -> Net:
    """One layer, and two."""
    return Net(
        lambda: nn.Sequential(nn.Linear(1, 2, bias=False)),
        (1,),
        2,
        second=lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)),
    )


def one_client(method: FML, samples: int = 4) -> ByHand:
    """x = 1, y = 0; own logits (0, 0), p = (1/2, 1/2); h = (log 3, 0), b = 1, p = (3/4, 1/4); one step of 1."""
    hand = ByHand(method, two_kinds(), [copies(1.0, samples)], training=Training(steps=1, lr=1.0, batch_size=1000))
    hand.kept = [Bundle(model=torch.zeros(2))]
    hand.server = Bundle(meme=torch.tensor([log(3), 0.0, 1.0]))
    return hand


def test_a_step() -> None:
    """alpha = 1/2: 1/2 (-1/2) + 1/2 (1/2 - 3/4) = -3/8 moves w to (3/8, -3/8). beta = 3/4: 3/4 (-1/4) + 1/4 (3/4 - 1/2)
    = -1/8 moves h to (log 3 + 1/8, -1/8) and b, whose slope is -log(3)/8, to 1 + log(3)/8. Had the shared model learned
    from the moved one, or the divergence been a mean over classes as in PFLlib, it would be others."""
    hand = one_client(FML(own_ce=0.5, meme_ce=0.75))
    up = hand.play()
    close(hand.kept[0].model, [3 / 8, -3 / 8])
    close(up.meme[0], [log(3) + 1 / 8, -1 / 8, 1 + log(3) / 8])
    assert set(up) == {"meme"}


def test_each_network_predicts_with_its_own_model() -> None:
    """Own logits w x, shared logits h b x, at x = 2."""
    net, x = two_kinds(), torch.tensor([[2.0]])
    close(FML().predict(net, Bundle(model=torch.tensor([3.0, 5.0])), x), [[6, 10]])
    close(FML().predict(net, Bundle(meme=torch.tensor([3.0, 5.0, 7.0])), x), [[42, 70]])


@pytest.mark.parametrize(("own", "meme"), [(1.0, 1.0), (0.0, 0.0)])
def test_the_ends_of_the_weights(own: float, meme: float) -> None:
    """1: each learns from the labels alone, by 1/2 and 1/4. 0: from the other alone, by 1/4 towards each other."""
    hand = one_client(FML(own_ce=own, meme_ce=meme))
    up = hand.play()
    close(hand.kept[0].model[0], 1 / 2 if own else 1 / 4)
    close(up.meme[0, 0], log(3) + (1 / 4 if meme else -1 / 4))


def test_loss() -> None:
    """KL((3/4, 1/4) || (1/2, 1/2)) = log 2 - H, H = log 4 - 3/4 log 3; the other way round it is log 4 - log 2 -
    log(3)/2. CE is log 2 and log(4/3). Two equal samples have the mean, not the sum. PFLlib's loss lets each model's
    gradient through the other's."""
    z = torch.tensor([0.0, 0.0, log(3), 0.0, 1.0], requires_grad=True)
    batch = Batch(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64))
    aux = Bundle(own_ce=torch.tensor(0.25), meme_ce=torch.tensor(0.5))
    found = mutual_loss(two_kinds(), z, batch, aux)
    own = log(2) / 4 + 3 / 4 * (log(2) - log(4) + 3 / 4 * log(3))
    meme = log(4 / 3) / 2 + (log(4) - log(2) - log(3) / 2) / 2
    close(found.detach(), own + meme)
    (g,) = torch.autograd.grad(found, z)
    close(g[:2], [-1 / 8 - 3 / 16, 1 / 8 + 3 / 16])


def test_own_models_stay_and_the_shared_one_is_averaged() -> None:
    """By samples, 9 and 30; a client that is absent keeps its model, one that never took part has the common start."""
    data = [s.train for s in federation()]
    hand = ByHand(FML(), mlp(), data, training=Training(batch_size=5, lr=0.1))
    up = hand.play([0, 3])
    close(hand.server.meme, (9 * up.meme[0] + 30 * up.meme[1]) / 39)
    before = hand.kept[0].model
    hand.play([1, 3])
    assert torch.equal(hand.used(0).model, before)
    assert torch.equal(hand.used(2).model, hand.net.w0)
    x, b = data[0].x, views_of(hand.method, hand.client(0, Bundle(meme=hand.server.meme)))["meme"]
    close(hand.method.predict(hand.net, b, x), plain.logits(hand.server.meme, x), 1e-5)
    assert not torch.equal(hand.net.second.w0, hand.net.w0)


def test_running_statistics_of_both() -> None:
    """Each network's move, by its own features and never by weight decay."""
    ends = []
    for decay in (0.0, 0.5):
        hand = ByHand(
            FML(),
            mlp_with_batchnorm(),
            training=Training(steps=1, batch_size=5, lr=0.1, weight_decay=decay, decay_biases=False),
        )
        up, tail, start = hand.play([0]), hand.net.buffers, hand.net.w0
        ends.append(torch.stack([hand.kept[0].model[tail], up.meme[0, tail]]))
        assert not torch.equal(ends[-1][0], start[tail])
        assert not torch.equal(ends[-1][0], ends[-1][1])
        small = 1 - hand.net.matrices(hand.net.size).bool().float()  # biases and norms
        small[tail] = 0
        if decay == 0:
            kept = up.meme[0][small.bool()]
        else:
            assert torch.equal(up.meme[0][small.bool()], kept)
    assert torch.equal(*ends)


def test_networks_of_different_kinds() -> None:
    """The shared network may be another and smaller one, of the catalogue: a method's setting does not name code to be
    run."""
    data = planted_groups(clients=3, groups=1, samples=9)
    net = Experiment.of(FML(meme="linear"), data, "mlp", Settings()).net
    assert net.second.size == data.shape[0] * data.classes + data.classes < net.size
    with pytest.raises(ConfigError, match=r"\./code\.py:build"):
        Experiment.of(FML(meme="./code.py:build"), data, "mlp", Settings())


@pytest.mark.thorough
def test_a_client_s_own_network_is_exported_by_itself(tmp_path: Path) -> None:
    """A whole run with two kinds of networks; the folder predicts what the evaluation said."""
    data = planted_groups(clients=3, groups=1)
    found = fedkin.run(FML(meme="linear"), data, model="mlp", rounds=1, participation=0.5)
    assert found.server.state.meme.shape == (data.shape[0] * data.classes + data.classes,)
    assert load_export(export(found, 0, tmp_path / "own")).card.test.as_evaluated is True


def learned(v: Tensor, x: Tensor, y: Tensor, other: Tensor, share: float) -> Tensor:
    """The loss of one model ``v`` that learns from labels and from the other one's probabilities."""
    mine = plain.logits(v, x).log_softmax(1)
    return share * F.nll_loss(mine, y) + (1 - share) * (other * (other.log() - mine)).sum(1).mean()


def test_an_independent_program_gives_the_same() -> None:
    """Both models as variables of their own in float64, on five clients of unequal size, three in each of five
    rounds."""
    found, shards, w = plain.played(FML(own_ce=0.3, meme_ce=0.6), rounds_=5)
    own, meme = [w for _ in shards], mlp().second.w0.double()
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            data, a, b = shards[i].train, own[i], meme
            for index in plain.drawn(data, i, t):
                x, y = data.x[index].double(), data.y[index]
                p, q = plain.logits(a, x).softmax(1), plain.logits(b, x).softmax(1)
                g = plain.gradient(lambda v, x=x, y=y, q=q: learned(v, x, y, q, 0.3), a)
                h = plain.gradient(lambda v, x=x, y=y, p=p: learned(v, x, y, p, 0.6), b)
                a, b = a - 0.1 * g, b - 0.1 * h
            own[i] = a
            ends.append(b)
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        meme = (size / size.sum()) @ torch.stack(ends)
    assert plain.distance(found.state.meme, meme) < 5e-6
    assert max(plain.distance(kept.model, own[i]) for i, kept in found.clients.items() if kept) < 5e-6
