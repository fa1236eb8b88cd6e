"""MOON against numbers worked out by hand (Li, He, Song, CVPR 2021).

``l = CE + mu l_con``, ``l_con = -log(e^(s_g/tau) / (e^(s_g/tau) + e^(s_p/tau))) = log(1 + e^((s_p - s_g)/tau))`` with
the cosines s_g, s_p of the features z with those of the received model and of the client's last one. In the features,
``d cos(z, a) = (a/|a| - cos z/|z|) / |z|``.

The network has two features and two classes: flat vector ``[H | B]``, ``z = B x``, logits ``H z``.
"""

from __future__ import annotations

from math import exp, log

import torch
import torch.nn.functional as F

import plain
from fedkin.core import Batch, Bundle, Train, Training, cross_entropy
from fedkin.methods import MOON, FedAvg
from fedkin.methods.moon import contrastive_loss
from toys import ByHand, apart, close, copies, federation, mlp, plane_net, run

NO_HEAD = [0.0] * 4


def sigmoid(v: float) -> float:
    return 1 / (1 + exp(-v))


def one_client(method: MOON, last: list[float] | None) -> ByHand:
    """A client with x = (1, 0), y = 0 that receives H = 0, B = 1 and has this last body; one step of 1/4."""
    data = [copies([1.0, 0.0], 4)]
    hand = ByHand(method, plane_net(), data, training=Training(steps=1, lr=0.25, batch_size=1000))
    hand.server = Bundle(model=torch.tensor([*NO_HEAD, 1.0, 0.0, 0.0, 1.0]))
    if last is not None:
        hand.kept = [Bundle(model=torch.tensor([*NO_HEAD, *last]))]
    return hand


def test_a_step() -> None:
    """z = (1, 0) is the global model's own, the last model's is (0, 1): s_g = 1 without slope, s_p = 0 with slope (0,
    1). tau = 1/2, mu = 2: l_con has the slope sigma(-2)/tau = 2 sigma(-2) in s_p, so z goes by -1/4 * 2 * 2 sigma(-2)
    along (0, 1). Of H = 0 no gradient comes back; H moves by -1/4 (p - y) z = (1/8, -1/8) in its first column."""
    hand = one_client(MOON(mu=2.0, temperature=0.5), [0.0, 0.0, 1.0, 0.0])
    up = hand.play()
    close(up.model[0], [1 / 8, 0, -1 / 8, 0, 1, 0, -sigmoid(-2), 1])
    close(hand.server.model, up.model[0])


def test_loss_and_gradient() -> None:
    """z = (3, 4), z_glob = (2, 0), z_prev = (0, 1): cosines 3/5 and 4/5, l_con = log(1 + e^(1/5 / (1/2))). Slopes in z:
    s_p (-.48, .36)/5, s_g (.64, -.48)/5; their difference (-.224, .168) times sigma(2/5)/tau. Logits (3, 4), y = 1: CE
    = log(1 + e^-1), its slope in z is H^T (p - y) = sigma(-1) (1, -1)."""
    net, w = plane_net(), torch.tensor([1.0, 0, 0, 1, 3, 0, 4, 0], requires_grad=True)
    aux = Bundle(mu=torch.tensor(10.0), temperature=torch.tensor(0.5))
    rows = Bundle(z_global=torch.tensor([[2.0, 0.0]]), z_last=torch.tensor([[0.0, 1.0]]))
    found = contrastive_loss(net, w, Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([1])), aux.but(**rows))
    close(found.detach(), log(1 + exp(-1)) + 10 * log(1 + exp(2 / 5)))
    (g,) = torch.autograd.grad(found, w)
    pull = 10 * sigmoid(2 / 5) / 0.5
    close(g[4::2], [sigmoid(-1) - 0.224 * pull, -sigmoid(-1) + 0.168 * pull], 1e-5)


# ---- what published programs do otherwise --------------------------------------------------------------------------
def test_without_a_last_model_there_is_no_contrast() -> None:
    """A client's first round is FedAvg's, whenever it is. Programs take an initial model of the client's own as its
    last one (MOON's own from round 2 on, PFLlib from round 1 on), from which the features are then driven away."""
    hand = one_client(MOON(mu=2.0), None)
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert isinstance(request, Train)
    assert request.loss is cross_entropy
    ours, average = (run(m, mlp(), federation(), rounds_=1) for m in (MOON(mu=5.0), FedAvg()))
    assert torch.equal(ours.state.model, average.state.model)


def test_an_equal_last_model_has_no_gradient() -> None:
    """That is what the formula says of it: both cosines are one function, and l_con is log 2 everywhere."""
    kept = one_client(MOON(mu=2.0), [1.0, 0.0, 0.0, 1.0]).play().model
    assert torch.equal(kept, one_client(MOON(mu=2.0), None).play().model)


def test_the_last_model_is_the_trained_one() -> None:
    """Not the received one, which a client that keeps a reference would find overwritten; and it stays while others
    take part."""
    data = [s.train for s in federation()]
    hand = ByHand(MOON(), mlp(), data, training=Training(epochs=2, batch_size=5, lr=0.1))
    first = hand.play([0, 1]).model
    hand.play([1, 2])
    assert torch.equal(hand.kept[0].model, first[0])
    sent = hand.download([0]).row(0)
    request = next(hand.method.client_update(hand.client(0, sent)))
    close(request.per_sample.z_last, plain.features(first[0], data[0].x), 1e-6)
    close(request.per_sample.z_global, plain.features(sent.model, data[0].x), 1e-6)
    apart(request.per_sample.z_last, request.per_sample.z_global, 1e-3)


def test_the_last_model_repels() -> None:
    """One step from the received model: the cosine with the last model's features falls. With the two models exchanged,
    a fault that still trains, it would rise."""
    after = one_client(MOON(mu=2.0), [0.6, 0.0, 0.8, 0.0]).play().model[0, 4::2]
    assert float(F.cosine_similarity(after[None], torch.tensor([[0.6, 0.8]]))) < 0.6


# ---- written down again --------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """The paper's loss in float64, with the quotient of exponentials as it is printed, on five clients of unequal size,
    three in each of five rounds; features of all three models are computed anew for every batch."""
    found, shards, x = plain.played(MOON(mu=5.0, temperature=0.5), rounds_=5)
    last: dict[int, torch.Tensor] = {}
    again = 0
    for t, cohort in plain.cohorts(found):
        ends = []
        for i in cohort:
            before = last.get(i)

            def contrast(v, inputs, _, start=x, before=before):
                z, a, b = (plain.features(m, inputs.double()) for m in (v, start, before))
                near, far = (torch.exp(F.cosine_similarity(z, o) / 0.5) for o in (a, b))
                return -5.0 * torch.log(near / (near + far)).mean()

            again += i in last
            ends.append(plain.descend(x, shards[i].train, i, t, extra=contrast if i in last else None)[0])
            last[i] = ends[-1]
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        x = (size / size.sum()) @ torch.stack(ends)
    assert again >= 5
    assert plain.distance(found.state.model, x) < 5e-6
