"""FedFa against numbers worked out by hand (Huang et al., arXiv 2012.10069, as it has been implemented).

Among the participants: ``a = acc/sum acc``, ``phi = f/sum f`` (f: rounds taken part in, this one included), ``I =
-log2(a + 1e-6)``, ``J = -log2(1 - phi + 1e-5)``, each divided by its sum; ``p = alpha I + (1 - alpha) J``. The server:
``avg = sum p w_k``, ``m <- gamma m + (1 - gamma)(avg - w)``, ``w <- avg - eta m``.
"""

import math

import pytest
import torch

import plain
from fedkin.core import Bundle, Samples, Training
from fedkin.methods.fedfa import FedFa, information_weights
from toys import (
    ByHand,
    apart,
    close,
    copies,
    federation,
    logit_net,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    unusable,
    vector_net,
)

PLAIN = [0.213392, 0.313392, 0.473215]


def weights(acc: list[float], count: list[int], share: float = 0.5) -> torch.Tensor:
    return information_weights(torch.tensor(acc), torch.tensor(count), share)


# ---- weights -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("acc", "count", "wanted"),
    [
        # I = (1, 2, 2)/5; J = -log2(3/4, 3/4, 1/2) = (.41504, .41504, 1)/1.83007 = (.226787, .226787, .546426)
        ([0.5, 0.25, 0.25], [1, 1, 2], PLAIN),
        ([0.7, 0.7, 0.7, 0.7], [3, 3, 3, 3], [0.25, 0.25, 0.25, 0.25]),
        # I = (-log2 1e-6, 1, 1)/21.93 = (.908804, ...); J = 1/3 each
        ([0.0, 0.5, 0.5], [1, 1, 1], [0.62107, 0.189465, 0.189465]),
        # no accuracy at all: I = 1/3 each; J = -log2(5/6, 2/3, 1/2)/1.848 = (.142330, .316532, .541138)
        ([0.0, 0.0, 0.0], [1, 2, 3], [0.237832, 0.324936, 0.437232]),
        # alone: a = phi = 1; I = -log2(1.000001) counts as 0, all zero as uniform
        ([0.4], [3], [1.0]),
        # I = 1/2 each; J = -log2(.9, .1) = (.152, 3.3218)/3.4738 = (.043752, .956248)
        ([0.5, 0.5], [1, 9], [0.271876, 0.728124]),
    ],
    ids=["plain", "equal", "one is always wrong", "all are always wrong", "alone", "newcomer and veteran"],
)
def test_weights(acc: list[float], count: list[int], wanted: list[float]) -> None:
    """Derivations beside the cases; the two small numbers inside the logarithms show in the sixth digit."""
    got = weights(acc, count)
    close(got, wanted, 2e-6)
    close(got.sum(), 1.0, 1e-12)


def test_small_numbers_in_the_logarithms_are_small() -> None:
    """Without them the first case is (.213394, .313394, .473213)."""
    close(weights([0.5, 0.25, 0.25], [1, 1, 2]), [0.213394, 0.313394, 0.473213], 3e-6)
    apart(weights([0.5, 0.25, 0.25], [1, 1, 2]), [0.213394, 0.313394, 0.473213], 1e-6)


def test_shares_of_accuracy_and_participation() -> None:
    """alpha = 1: I alone, 1/5, 2/5, 2/5; alpha = 0: J alone."""
    close(weights([0.5, 0.25, 0.25], [1, 1, 2], 1.0), [0.2, 0.4, 0.4], 1e-5)
    close(weights([0.5, 0.25, 0.25], [1, 1, 2], 0.0), [0.226787, 0.226787, 0.546426], 1e-5)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_weights_are_never_nan(share: float) -> None:
    """Perfect, hopeless, alone, many: weights are at least 0 and sum to 1; a perfect one among hopeless ones has none
    by accuracy."""
    for acc in ([1.0], [0.0], [1.0, 0.0], [0.0, 0.0], [1.0] * 50, [1.0] + [0.0] * 49):
        p = weights(acc, [1] * len(acc), share)
        assert bool((p >= 0).all())
        close(p.sum(), 1.0, 1e-12)
    close(weights([1.0, 0.0], [1, 1], 1.0), [0.0, 1.0])


# ---- rounds --------------------------------------------------------------------------------------------------------
MODELS = torch.tensor([[2.0, 1.0], [1.0, 3.0], [3.0, 1.0]])


def answers(up: Bundle) -> Bundle:
    return up.but(model=MODELS.clone(), accuracy=torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))


def three(method: FedFa) -> ByHand:
    """Three clients around w = (1, 1), of which the third has been there once without moving it: f = (0, 0, 1)."""
    hand = ByHand(method, vector_net(1.0, 1.0), [copies([0.0, 0.0], n) for n in (9, 1, 5)], solve=lambda q, _: q.start)
    hand.play([2])
    assert hand.server.model.tolist() == [1.0, 1.0]
    return hand


@pytest.mark.parametrize(("sign", "wanted"), [("minus", [2.158661, 1.626162]), ("plus", [2.160981, 1.627416])])
def test_server_step(sign: str, wanted: list[float]) -> None:
    """avg = .2134 (2, 1) + .3134 (1, 3) + .4732 (3, 1) = (2.159821, 1.626789); m = .1 (avg - (1, 1)); w = avg -+ .01 m.
    The numbers of samples, 9, 1 and 5, have no say."""
    hand = three(FedFa(sign=sign))
    hand.play(change=answers)
    close(hand.server.m, [0.115982, 0.062679], 1e-5)
    close(hand.server.model, wanted, 1e-5)
    assert hand.server.count.tolist() == [1, 1, 2]


def test_momentum_lasts() -> None:
    """A second round that ends where it began: avg = w, so m = .9 m and w = avg - .01 * .9 m. (A tuple written for a
    sum has lost this term in several programs.)"""
    hand = three(FedFa())
    hand.play(change=answers)
    before = hand.server
    hand.play()  # everybody gives back what it got
    close(hand.server.m, 0.9 * before.m)
    close(hand.server.model, before.model - 0.01 * 0.9 * before.m)


def test_momentum_every_third_round() -> None:
    """b = 3: rounds 1, 2 leave the mean as it is, round 3 adds the momentum, which is kept up in every round."""
    hand = three(FedFa(every=3, eta=1.0))
    hand.play(change=answers)
    mean, m = hand.server.model, hand.server.m
    close(mean, [2.159821, 1.626789], 1e-5)
    close(m, [0.115982, 0.062679], 1e-5)
    hand.play()
    close(hand.server.model, mean - 0.9 * m)


def test_accuracy_is_that_of_the_received_model_before_training() -> None:
    """w = (1, 0) says class 0: right for 1 of 2 and 1 of 4. Training makes it (0, 1): right for 1 of 2 and 3 of 4."""
    data = [Samples(torch.ones(n, 1), torch.tensor([0] + [1] * (n - 1))) for n in (2, 4)]
    hand = ByHand(FedFa(), logit_net(2), data, solve=lambda q, _: torch.tensor([0.0, 1.0]))
    hand.server = hand.server.but(model=torch.tensor([1.0, 0.0]))
    assert hand.play().accuracy.tolist() == [0.5, 0.25]


def test_golden_weights_from_real_clients() -> None:
    """Clients right for 1/2, 1/4, 1/4 of their samples, the third for the second time: the mean is made with the golden
    weights. One model is (1, 0), the others (0, 1) and (0, 0), so that the mean shows two of them."""
    data = [Samples(torch.ones(n, 1), torch.tensor([0] + [1] * (n - 1))) for n in (2, 4, 4)]
    hand = ByHand(FedFa(eta=0.0), logit_net(2), data)
    hand.server = hand.server.but(model=torch.tensor([1.0, 0.0]), count=torch.tensor([0, 0, 1]))
    hand.solve = lambda q, c: torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])[c.id]
    hand.play()
    close(hand.server.model, PLAIN[:2], 2e-6)


@pytest.mark.parametrize(("method", "wanted"), [(FedFa(), 9.6), (FedFa(client_momentum=0.0), 6.0)])
def test_clients_train_with_momentum(method: FedFa, wanted: float) -> None:
    """L = 1/2 (w - 8)^2, two steps of .5 from 0: v = -8, then -8 * .9 - 4 = -11.2: 4, 9.6; without momentum 4, 6; the
    run's own momentum does not count."""
    training = Training(steps=2, lr=0.5, momentum=0.3, batch_size=100)
    hand = ByHand(method, vector_net(0.0), [copies(8.0, 5)], training=training, loss=quadratic)
    close(hand.play().model, [[wanted]])


# ---- traps and special cases ---------------------------------------------------------------------------------------
def test_counts_are_of_answers_on_the_server() -> None:
    """Drop-outs and clients that join in round 3: every count is the number of rounds in which the client's answer was
    aggregated, and nothing of it is kept on a client, where a restart would lose it."""
    result = run(FedFa(), mlp(), federation(), rounds_=7, dropout=0.3, joins=[1, 1, 1, 3, 3])
    answered = [sum(i in r.answered for r in result.reports) for i in range(5)]
    assert result.state.count.tolist() == answered
    assert len(set(answered)) > 1
    assert any(r.refused for r in result.reports)
    assert all(not kept for kept in result.clients.values())


def test_veterans_weigh_more() -> None:
    """Same accuracy, 1 and 9 rounds: .27 against .73, the opposite of what the paper's title suggests."""
    newcomer, veteran = weights([0.5, 0.5], [1, 9]).tolist()
    assert veteran > 2.5 * newcomer


def test_worse_models_weigh_more() -> None:
    """The client that the model serves worst gets the largest weight."""
    p = weights([0.9, 0.5, 0.1], [4, 4, 4]).tolist()
    assert p[0] < p[1] < p[2]


def test_momentum_and_weights_change_a_run() -> None:
    """Each of the three parts moves the model: client momentum, server momentum, weights."""
    base = run(FedFa(), mlp(), federation()).state.model
    for other in (FedFa(client_momentum=0.0), FedFa(eta=0.0), FedFa(accuracy_share=1.0), FedFa(accuracy_share=0.0)):
        apart(run(other, mlp(), federation()).state.model, base, 1e-4)


def test_running_statistics_have_no_momentum() -> None:
    """They are averaged with the weights of the parameters; m has no entries for them."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedFa(eta=5.0), net, training=Training(epochs=1, batch_size=5, lr=0.05))
    hand.play()
    up = hand.play()
    p = information_weights(up.accuracy, torch.full((5,), 2), 0.5)
    mean = (p @ up.model.double()).float()
    close(hand.server.model[net.buffers], mean[net.buffers])
    apart(hand.server.model[net.params], mean[net.params], 1e-3)
    assert len(hand.server.m) == net.params.stop


def test_an_impossible_accuracy_is_refused() -> None:
    """Below 0 the logarithm is not a number, above 1 the weight is another's loss: the upload is not used."""
    hand = three(FedFa())
    for value, fine in ((-0.1, False), (0.0, True), (1.0, True), (1e6, False)):
        upload = Bundle(accuracy=torch.tensor(value), model=torch.zeros(2))
        said = unusable(hand.method, hand.at("aggregate", [0]), upload)
        assert (said is None) == fine


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sign", "every"), [("minus", 1), ("plus", 2)])
def test_an_independent_program_gives_the_same(sign: str, every: int) -> None:
    """Weights by accuracy and participation, both momenta, in float64, on five unequal clients, three in each of five
    rounds."""
    method = FedFa(accuracy_share=0.3, memory=0.6, eta=0.5, sign=sign, every=every, client_momentum=0.7)
    found, shards, w = plain.played(method, rounds_=5)
    clients = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.7)
    count, m = dict.fromkeys(range(5), 0), torch.zeros_like(w)
    for t, cohort in plain.cohorts(found):
        ends, right = {}, {}
        for i in cohort:
            data = shards[i].train
            count[i] += 1
            right[i] = float((plain.logits(w, data.x.double()).argmax(1) == data.y).sum()) / len(data)
            ends[i] = plain.descend(w, data, i, t, training=clients)[0]
        low = {i: -math.log2(right[i] / sum(right.values()) + 1e-6) for i in cohort}
        often = {i: -math.log2(1 - count[i] / sum(count[k] for k in cohort) + 1e-5) for i in cohort}
        p = {i: 0.3 * low[i] / sum(low.values()) + 0.7 * often[i] / sum(often.values()) for i in cohort}
        mean = sum(p[i] * ends[i] for i in cohort)
        m = 0.6 * m + 0.4 * (mean - w)
        w = mean if t % every else mean + {"plus": 0.5, "minus": -0.5}[sign] * m
        assert len(set(right.values())) == 3
    assert len(set(count.values())) > 2
    assert plain.distance(found.state.model, w) < 2e-6
    assert plain.distance(found.state.m, m) < 2e-6
