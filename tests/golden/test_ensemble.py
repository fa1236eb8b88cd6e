"""FedAvg+ and FedProx+ against numbers worked out by hand (the ensembles that Ma et al., NeurIPS 2023, compare with).

Member k is a run of FedAvg (FedProx) of its own: own start, own cohorts, own batches; clients predict by their vote.
"""

from collections.abc import Callable

import pytest
import torch

import plain
from fedkin.core import Bundle, Method, Net, Training
from fedkin.engines import Job, Loop, Task
from fedkin.methods.ensemble import Ensemble
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from toys import (
    ByHand,
    Run,
    apart,
    close,
    copies,
    federation,
    logit_net,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    vector_net,
)

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])


def vote(logits: list[list[float]], how: str = "probabilities") -> torch.Tensor:
    """What members with these logits say of one sample."""
    method = Ensemble(members=len(logits), vote=how)
    return method.predict(logit_net(len(logits[0])), Bundle(models=torch.tensor(logits)), torch.ones(1, 1))[0]


# ---- the vote ------------------------------------------------------------------------------------------------------
SURE = [[6.0, 0.0, 5.0], [0.0, 1.0, 0.5], [0.0, 1.0, 0.5]]
LOUD = [[10.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 3.0, 0.0]]


@pytest.mark.parametrize(
    ("logits", "probability", "mean", "winners"),
    [
        (SURE, [0.367461, 0.338257, 0.294282], [2.0, 0.666667, 2.0], (0, 0)),
        (LOUD, [0.363489, 0.60631, 0.030201], [3.333333, 2.0, 0.0], (1, 0)),
    ],
)
def test_votes(
    logits: list[list[float]], probability: list[float], mean: list[float], winners: tuple[int, int]
) -> None:
    """Soft voting: the mean of softmax(10, 0, 0) = (.99991, ..) and twice softmax(0, 3, 0) = (.0453, .9094, .0453)
    gives class 1 with .60631; the mean of the logits lets the one loud member win with 10/3. Ties go to the first."""
    soft, plain = vote(logits), vote(logits, "logits")
    close(soft.softmax(0), probability)
    close(plain, mean)
    assert (int(soft.argmax()), int(plain.argmax())) == winners


def test_votes_of_extreme_members_are_finite() -> None:
    """Logits of 1e4: a probability of 0 in one member must not become log 0 of all."""
    soft = vote([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]])
    assert bool(soft.isfinite().all())
    close(soft.softmax(0), [0.5, 0.0, 0.5])


def test_one_member_says_what_it_says() -> None:
    """K = 1: the logits themselves, whatever the vote is taken over."""
    for how in ("probabilities", "logits"):
        assert torch.equal(vote([[2.5, -1.0, 0.25]], how), torch.tensor([2.5, -1.0, 0.25]))


# ---- identities ----------------------------------------------------------------------------------------------------
def models_of(method: Method, net: Net, name: str, **also: object) -> tuple[list[torch.Tensor], Run]:
    """The models after each round, and the run."""
    seen: list[torch.Tensor] = []
    result = run(method, net, federation(), each_round=lambda s, _: seen.append(s.state[name]), **also)
    return seen, result


@NETS
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("mu", "single"), [(0.0, FedAvg()), (0.95, FedProx(mu=0.95))], ids=["fedavg", "fedprox"])
def test_one_member_is_the_single_model(mu: float, single: Method, dropout: float, net: Callable[[], Net]) -> None:
    """K = 1: cohorts, model and predictions are FedAvg's (FedProx's) bit for bit after every round, three of five
    clients each, with drop-outs or without."""
    mine, a = models_of(Ensemble(members=1, mu=mu), net(), "models", dropout=dropout)
    theirs, b = models_of(single, net(), "model", dropout=dropout)
    assert all(torch.equal(x[0], y) for x, y in zip(mine, theirs, strict=True))
    for x, y in zip(a.reports, b.reports, strict=True):
        assert (x.cohort, x.answered) == (y.cohort, y.answered)
        assert all(torch.equal(x.evaluation[i].test, y.evaluation[i].test) for i in x.evaluation)


@NETS
@pytest.mark.parametrize(("mu", "single"), [(0.0, FedAvg()), (0.95, FedProx(mu=0.95))], ids=["fedavg", "fedprox"])
def test_the_first_member_is_the_single_model(mu: float, single: Method, net: Callable[[], Net]) -> None:
    """K = 4: the first member is the run of FedAvg (FedProx) of the same seed bit for bit, beside three others."""
    mine, _ = models_of(Ensemble(members=4, mu=mu), net(), "models")
    theirs, _ = models_of(single, net(), "model")
    assert all(torch.equal(x[0], y) for x, y in zip(mine, theirs, strict=True))


def test_more_members_leave_the_others_as_they_are() -> None:
    """The first two of four members are the two of an ensemble of two, bit for bit."""
    four, two = (models_of(Ensemble(members=k), mlp(), "models")[0] for k in (4, 2))
    assert all(torch.equal(x[:2], y) for x, y in zip(four, two, strict=True))


def test_no_proximal_weight_is_fedavg_plus() -> None:
    """mu = 0 is FedAvg+ and mu = .95 is something else, in every parameter tensor of every member: the term has a
    gradient."""
    net = mlp()
    (*_, plain), (*_, pulled) = (models_of(Ensemble(members=2, mu=mu), net, "models")[0] for mu in (0.0, 0.95))
    for span in net.layers():
        assert bool(((plain - pulled)[:, span].abs().amax(1) > 1e-4).all())


def test_proximal_term_is_squared() -> None:
    """1/2 (w - 1)^2 from 0 with steps of .1: w = .1, then .1 + .1 (.9 - mu * .1) = .1805 at mu = .95. An unsquared norm
    would give .095, a detached one .19."""
    training = Training(steps=2, lr=0.1, batch_size=10)
    hand = ByHand(Ensemble(members=1, mu=0.95), vector_net(0.0), [copies(1.0, 5)], training=training, loss=quadratic)
    hand.play(drawn=Bundle(member=torch.ones(1, 1, dtype=torch.bool)))
    close(hand.server.models, [[0.1805]])


# ---- members that go their own ways --------------------------------------------------------------------------------
def test_starts_differ_and_the_first_is_the_common_one() -> None:
    """Five independent starts; member 0 has the run's."""
    net = mlp()
    starts = ByHand(Ensemble(), net).server.models
    assert torch.equal(starts[0], net.w0)
    assert len({tuple(w.tolist()) for w in starts}) == 5


def test_every_member_has_cohorts_of_its_own() -> None:
    """Twenty clients, cohorts of four: each of three members draws four, not always the same; the first draws what
    FedAvg draws; those drawn are the union."""
    hand = ByHand(Ensemble(members=3), vector_net(0.0), [copies(0.0, 5)] * 20, cohort=4)
    differ = 0
    for t in range(1, 11):
        r = hand.at("sample", range(20), t)
        drawn = hand.method.sample(hand.server, r)
        assert drawn.member.shape == (len(drawn.ids), 3)
        assert drawn.member.sum(0).tolist() == [4, 4, 4]
        assert bool(drawn.member.any(1).all())
        assert torch.equal(drawn.ids[drawn.member[:, 0]], FedAvg().sample(Bundle(), r))
        differ += int(not torch.equal(drawn.member[:, 1], drawn.member[:, 2]))
    assert differ == 10


def test_members_have_batches_of_their_own() -> None:
    """Through the engine: two members with the same start end apart on one client, by their batches alone; the first
    ends where FedAvg does."""
    shards, net = federation(), mlp()

    def upload(method: Method, received: Bundle) -> Bundle:
        session = Loop().start(Job(method, net, Training(epochs=2, batch_size=5, lr=0.1), shards, 0))
        (answer,) = session.map([Task("update", 1, 3, received, Bundle())])
        return answer.reply

    a, b = upload(Ensemble(members=2), Bundle(model0=net.w0, model1=net.w0)).models
    apart(a, b, 1e-3)
    assert torch.equal(a, upload(FedAvg(), Bundle(model=net.w0)).model)


TWO_MEMBERS = Bundle(member=torch.tensor([[True, False], [True, True], [False, True]]))


def test_each_member_is_the_mean_of_those_drawn_for_it() -> None:
    """n = (10, 30, 60), locals 4, 8, 2 by client: member 0 of clients 0, 1: (40 + 240)/40 = 7; member 1 of clients 1,
    2: (240 + 120)/90 = 4. Uniform weights: 6 and 5."""
    ends = torch.tensor([[4.0], [8.0], [2.0]])
    for uniform, wanted in ((False, [7.0, 4.0]), (True, [6.0, 5.0])):
        data = [copies(0.0, n) for n in (10, 30, 60)]
        hand = ByHand(Ensemble(members=2), vector_net(0.0), data, uniform=uniform)
        hand.solve = lambda request, client: ends[client.id]
        hand.play(drawn=TWO_MEMBERS)
        close(hand.server.models.flatten(), wanted)


def test_a_client_is_sent_and_trains_what_it_was_drawn_for() -> None:
    """Client 0 gets model 0, client 1 both, client 2 model 1; each makes one request per model, from that model and
    towards it, and uploads them in their rows, with zeros where it was not drawn."""
    hand = ByHand(Ensemble(members=2, mu=0.5), vector_net(0.0), [copies(0.0, 5)] * 3)
    hand.server = Bundle(models=torch.tensor([[1.0], [2.0]]))
    r = hand.at("distribute", range(3)).but(drawn=TWO_MEMBERS)
    sent = hand.method.distribute(hand.server, r)
    wanted = [{"model0": 1.0}, {"model0": 1.0, "model1": 2.0}, {"model1": 2.0}]
    for i, models in enumerate(wanted):
        row = sent.row(i)
        assert {n: float(t) for n, t in row.items()} == models
        requests = next(hand.method.client_update(hand.client(i, row)))
        assert [float(q.start) for q in requests] == [float(q.center) for q in requests] == list(models.values())
        assert all(q.mu == 0.5 for q in requests)
    hand.solve = lambda request, client: request.start + 10
    close(hand.play(drawn=TWO_MEMBERS).models[:, :, 0], [[11, 0], [11, 12], [0, 12]])
    close(hand.server.models, [[11.0], [12.0]])


def test_a_member_that_nobody_answered_for_stays() -> None:
    """Only client 0 answers, which trained member 0: member 1 keeps its model."""
    hand = ByHand(Ensemble(members=2), vector_net(0.0), [copies(0.0, 5)] * 3)
    hand.server = Bundle(models=torch.tensor([[1.0], [2.0]]))
    r = hand.at("aggregate", range(3)).but(drawn=TWO_MEMBERS).among(torch.tensor([0]))
    close(hand.method.aggregate(hand.server, r, Bundle(models=torch.tensor([[[7.0], [0.0]]]))).models, [[7.0], [2.0]])


@NETS
def test_running_statistics_are_averaged_with_their_member(net: Callable[[], Net]) -> None:
    """Full participation: each member's new vector, buffers and all, is the mean by samples of its uploads."""
    here, data = net(), [s.train for s in federation()]
    hand = ByHand(Ensemble(members=2), here, data, training=Training(batch_size=5, lr=0.1))
    up = hand.play(drawn=Bundle(member=torch.ones(5, 2, dtype=torch.bool))).models
    n = torch.tensor([len(d) for d in data]).double()
    close(hand.server.models, torch.einsum("i,ikp->kp", n / n.sum(), up.double()), 1e-5)


def test_bytes() -> None:
    """Three members, everybody in every round: three models down and up for each client. Two of twenty clients per
    member: a model down and up for each member and client drawn for it, as three runs would send: the rows of zeros of
    members that a client was not drawn for need not travel."""
    p, said = mlp().size * 4, 8  # each client says its number of samples once
    full = run(Ensemble(members=3), mlp(), federation(), rounds_=1, participation=1.0).reports[0]
    assert (full.bytes_down, full.bytes_up) == (5 * 3 * p, 5 * 3 * p + 5 * said)
    few = run(Ensemble(members=3), mlp(), federation((9,) * 20), rounds_=5, participation=0.1).reports
    for t, report in enumerate(few, 1):
        assert report.bytes_down == 3 * 2 * p
        assert report.bytes_up == 3 * 2 * p + (20 * said if t == 1 else 0)
    assert len({len(report.cohort) for report in few}) > 1


def test_the_server_needs_sums_only() -> None:
    """Clients 0 and 1 trade some of what they trained for member 0 such that its mean stays: the server cannot tell."""
    hand = ByHand(Ensemble(members=2), vector_net(0.0), [copies(0.0, n) for n in (10, 30, 60)])
    r = hand.at("aggregate", range(3), 1).but(drawn=TWO_MEMBERS)
    got = []
    for first, second in ((4.0, 8.0), (4.0 + 6.0, 8.0 - 2.0)):
        up = Bundle(models=torch.tensor([[[first], [0.0]], [[second], [8.0]], [[0.0], [2.0]]]))
        got.append(hand.method.aggregate(hand.server, r, up).models.flatten().tolist())
    assert got == [[7.0, 4.0], [7.0, 4.0]]


def test_everybody_predicts_with_all_members() -> None:
    """Drawn or not, with drop-outs or a late joiner: the newest models of all members."""
    result = run(Ensemble(members=3), mlp(), federation(), dropout=0.4, joins=[1, 1, 1, 1, 3])
    assert all(len(r.evaluation) == (5 if r.round >= 3 else 4) for r in result.reports)
    hand = ByHand(Ensemble(members=3))
    hand.play([0])
    assert torch.equal(hand.used(4).models, hand.server.models)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mu", [0.0, 0.95], ids=["fedavg", "fedprox"])
def test_an_independent_program_gives_the_same(mu: float) -> None:
    """Three separate runs in float64 and their vote, on five clients of unequal size, each run with three of its own in
    each of four rounds."""
    method, net = Ensemble(members=3, mu=mu), mlp()
    found, shards, _ = plain.played(method)
    hand = ByHand(method, net, [s.train for s in shards], cohort=3)
    models = [net.fresh(k).double() for k in range(3)]
    for t, cohort in plain.cohorts(found):
        # only the draw is the library's: who takes part in which run
        drawn = method.sample(hand.server, hand.at("sample", range(5), t))
        assert drawn.ids.tolist() == cohort
        runs = {i: [k for k in range(3) if drawn.member[row, k]] for row, i in enumerate(cohort)}
        for k, w in enumerate(models):
            ends, sizes = [], []
            for i in (i for i in cohort if k in runs[i]):
                v, data = w, shards[i].train
                for index in plain.drawn(data, i, t, number=runs[i].index(k)):
                    x, y = data.x[index].double(), data.y[index]
                    slope = plain.gradient(lambda v, x=x, y=y: plain.loss(v, x, y), v)
                    v = v - 0.1 * (slope + mu * (v - w))
                ends.append(v)
                sizes.append(len(data))
            assert len(ends) == 3
            models[k] = sum(n * v for n, v in zip(sizes, ends, strict=True)) / sum(sizes)
    assert plain.distance(found.state.models, torch.stack(models)) < 2e-6
    x = shards[4].test.x
    logits = torch.stack([plain.logits(w, x.double()) for w in models])
    for how, wanted in (("probabilities", logits.softmax(2).mean(0)), ("logits", logits.mean(0).softmax(1))):
        said = Ensemble(members=3, vote=how).predict(net, Bundle(models=found.state.models), x)
        assert plain.distance(said.softmax(1), wanted) < 2e-6
