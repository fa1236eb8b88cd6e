"""The safe form of a method against numbers worked out by hand: the rule on four clients, then the wrapper around it.

Four clients, two classes, the true one always the second, so that a hit is a probability above 1/2 (the first class
wins a tie); eps = .01. Client 1 at lambda = 1/2: mixtures .925, .6, .5, .75, so three hits, one more than alone, and
l = log(.92075/.896) + log(.599/.302) + log(.5/.203) + log(.7475/.599) = 1.834958. The shared prior, the posteriors and
T follow by fifty steps of the iteration in plain Python, and agree with a second program to 1e-16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from fedkin.capabilities import Asks, Needs, Views
from fedkin.capabilities.asks import asks
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.presets import preset, presets_of
from fedkin.capabilities.views import views_of
from fedkin.core import (
    Bundle,
    Client,
    ClientData,
    ConfigError,
    Method,
    Roster,
    Round,
    Samples,
    Train,
    Training,
    Work,
    to_all,
)
from fedkin.core.refusals import Reason, outside
from fedkin.engines.drive import drive
from fedkin.functional.safe_share import (
    BOUNDS,
    choose,
    choose_alone,
    choose_few,
    counted,
    gains,
    left_out,
    mixtures,
    numbers,
    passes,
    posterior,
    posteriors,
    prior_of,
    too_far,
)
from fedkin.methods import (
    CAM,
    DAPFL,
    IFCA,
    Ensemble,
    FedAvg,
    FedAvgFT,
    FedFomo,
    FedProto,
    FedProx,
    FedRoD,
    Local,
    Safe,
    get_method,
)
from fedkin.server import Plan
from fedkin.testing.trial import Setting, play
from toys import Averaging, close, federation, logit_net, mlp, run

ALONE = ((0.9, 0.3, 0.2, 0.6), (0.95, 0.9, 0.9, 0.85, 0.9), (0.8, 0.4, 0.7), (0.6, 0.45))
METHOD = ((0.95, 0.9, 0.8, 0.9), (0.6, 0.2, 0.1, 0.7, 0.3), (0.6, 0.7, 0.9), (0.7, 0.6))
LIKELIHOOD = [
    [1.079507, 1.834958, 2.424537, 2.911614],
    [-0.786743, -1.769150, -3.105235, -5.375141],
    [0.174274, 0.315047, 0.428487, 0.518386],
    [0.119677, 0.231964, 0.337776, 0.437861],
]
HITS = [[0, 1, 2, 2], [0, -1, -3, -3], [0, 1, 1, 1], [0, 1, 1, 1]]
FLAT = torch.full((5,), 0.2, dtype=torch.float64)


def two(values: tuple[float, ...]) -> Tensor:
    """Probabilities of two classes, that of the second given."""
    p = torch.tensor(values, dtype=torch.float64)
    return torch.stack([1 - p, p], 1)


def of_client(k: int) -> tuple[Tensor, Tensor]:
    return numbers(two(METHOD[k]), two(ALONE[k]), torch.ones(len(ALONE[k]), dtype=torch.int64))


def all_four() -> tuple[Tensor, Tensor, Tensor]:
    found = [of_client(k) for k in range(4)]
    likelihood, hits = (torch.stack([f[i] for f in found]).double() for i in (0, 1))
    return likelihood, hits, torch.tensor([4.0, 5.0, 3.0, 2.0], dtype=torch.float64)


# ---- the four clients ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("k", range(4))
def test_what_a_client_sends(k: int) -> None:
    """l and h at lambda = 1/4, 1/2, 3/4, 1. Client 1 at 1/2: .5 * .8 + .5 * .2 = .5 is a tie, which the first class
    wins, so sample 3 is not a hit there."""
    likelihood, hits = of_client(k)
    close(likelihood, LIKELIHOOD[k])
    assert hits.tolist() == HITS[k]


def test_what_the_server_makes_of_it() -> None:
    """The shared prior w, the posteriors r, and the column of T at lambda = 1."""
    likelihood, hits, n = all_four()
    prior, r = posteriors(likelihood)
    close(prior, [0.291204, 0.116942, 0.106075, 0.137751, 0.348027])
    close(
        r,
        [
            [0.031464, 0.037189, 0.071803, 0.168143, 0.691401],
            [0.786360, 0.143786, 0.048832, 0.016670, 0.004352],
            [0.212301, 0.101488, 0.105972, 0.154149, 0.426090],
            [0.225895, 0.102248, 0.103768, 0.149796, 0.418295],
        ],
    )
    close(gains(r, hits, n)[:, 3], [-0.122667, -0.013470, 0.018708, 0.051243, 0.148577])
    assert torch.equal(posterior(likelihood[2], prior), r[2])  # what client 3 computes of w is what the server has


def test_what_each_client_chooses() -> None:
    """Predicted gains A (those at 1/4 are 0: there no hit differs), chances H of going too far, and the choices.

    best: 3/4, 0, 1/2, 1/2. likely: clients 3 and 4 have H = .263 and .277 at 1/2, above 1/5, and stay at 0."""
    likelihood, hits, n = all_four()
    _, r = posteriors(likelihood)
    table = gains(r, hits, n)
    close(
        r @ table,
        [
            [0, 0.078871, 0.108325, 0.108325],
            [0, -0.013081, -0.095983, -0.095983],
            [0, 0.048540, 0.045779, 0.045779],
            [0, 0.047243, 0.042679, 0.042679],
        ],
    )
    close(
        too_far(r)[:, 1:],
        [
            [0.031464, 0.050059, 0.068653, 0.104555],
            [0.786360, 0.858253, 0.930146, 0.954562],
            [0.212301, 0.263045, 0.313789, 0.366775],
            [0.225895, 0.277018, 0.328142, 0.380026],
        ],
    )
    assert [choose(row, table, BOUNDS["best"]) for row in r] == [3, 0, 2, 2]
    assert [choose(row, table, BOUNDS["likely"]) for row in r] == [3, 0, 0, 0]


def test_a_tie_goes_to_the_smallest_share() -> None:
    """Client 1 is as well off at 3/4 as at 1 (A = .108325), and takes 3/4; without any gain it takes 0."""
    r, table = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]).double(), torch.zeros(5, 4).double()
    assert choose(r, table, 0.5) == 0
    table[4] = torch.tensor([0.1, 0.3, 0.3 + 1e-12, 0.3], dtype=torch.float64)
    assert choose(r, table, 0.5) == 2


def test_the_chance_of_going_too_far() -> None:
    """H(G_j) = P(lambda* < G_j / 2): below 1/8 lies r0's interval, below 1/4 half of r1's too, and so on."""
    close(too_far(torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0])), [0, 0.4, 0.55, 0.7, 0.8])


def test_sure_asks_the_others() -> None:
    """Without client k, in plain Python, argmax of sum_c w_c T_cj over lambda = 1/4 .. 1:

    k = 1: (0, .011398, -.037433, -.037433): 1/2. k = 2: (0, .078155, .106882, .106882): 3/4, the smaller of two.
    k = 3: (0, .018460, -.001449, ..): 1/2. k = 4: (0, .018216, -.000881, ..): 1/2."""
    likelihood, hits, n = all_four()
    assert left_out(likelihood, hits, n, torch.arange(4)).tolist() == [2, 3, 2, 2]


def test_sure_leaves_itself_out() -> None:
    """What a client sends does not change what it is answered: client 2 may claim anything. A client that sent
    nothing is answered what the three others recommend."""
    likelihood, hits, n = all_four()
    before = left_out(likelihood, hits, n, torch.tensor([1]))
    likelihood[1], hits[1] = torch.tensor([50.0, 60.0, 70.0, 80.0]), torch.tensor([5.0, 5.0, -5.0, -5.0])
    assert torch.equal(left_out(likelihood, hits, n, torch.tensor([1])), before)
    three = [0, 2, 3]
    assert torch.equal(left_out(likelihood[three], hits[three], n[three], torch.tensor([-1])), before)


@pytest.mark.parametrize(
    ("b", "c", "probability"),
    [(5, 0, 0.03125), (8, 1, 0.01953125), (9, 2, 0.03271484375), (10, 2, 0.019287109375), (4, 0, 0.0625), (0, 0, 1.0)],
)
def test_the_sign_test(b: int, c: int, probability: float) -> None:
    """P(Bin(b + c, 1/2) >= b): 1/32; (9 + 1)/512; (55 + 11 + 1)/2048; (66 + 12 + 1)/4096; fewer than five differing
    samples never pass 5 %."""
    assert passes(b, c, probability)
    assert not passes(b, c, probability * (1 - 1e-9))
    assert passes(b, c, 0.05) == (probability <= 0.05)


def test_the_choice_by_itself() -> None:
    """Flat prior, no T: the largest G_j <= mean + 1/8 with H_j within the bound.

    Without samples r = 1/5 each: mean 1/2, H = .2, .3, .4, .5: best takes 1/2 (the mean's), likely 1/4, where H = 1/5
    just fits. r = (0, 0, 0, .4, .6) has mean .9: 1 is within 1/8. (0, 0, 0, .6, .4): mean .85, so 3/4."""
    assert (choose_alone(FLAT, BOUNDS["best"]), choose_alone(FLAT, BOUNDS["likely"])) == (2, 1)
    assert choose_alone(torch.tensor([0, 0, 0, 0.4, 0.6]).double(), 0.2) == 4
    assert choose_alone(torch.tensor([0, 0, 0, 0.6, 0.4]).double(), 0.2) == 3
    assert choose_alone(torch.tensor([0.6, 0, 0, 0, 0.4]).double(), 0.5) == 0


@pytest.mark.parametrize(
    ("gained", "lost", "same", "expected"),
    [(2, 0, 6, 3), (1, 0, 7, 0), (5, 2, 1, 3), (4, 2, 2, 0), (0, 3, 5, 0), (7, 0, 0, 0), (8, 0, 0, 3), (0, 0, 8, 0)],
)
def test_the_choice_of_few_clients(gained: int, lost: int, same: int, expected: int) -> None:
    """Held-out accuracy better by more than one standard error, on eight samples or more: b - c > sqrt(b + c).

    Gained: p = .9, q = .1, right from lambda = 3/4 on (.7; at 1/2 the first class wins the tie). Lost: the reverse,
    right up to 1/4. 2 > 1.41, 1 = 1, 3 > 2.65, 2 < 2.45; 7 of 7 samples are too few."""
    p = torch.tensor([0.9] * gained + [0.1] * lost + [0.8] * same).double()
    q = torch.tensor([0.1] * gained + [0.9] * lost + [0.8] * same).double()
    y = torch.ones(len(p), dtype=torch.int64)
    assert choose_few(torch.stack([1 - p, p], 1), torch.stack([1 - q, q], 1), y) == expected


def test_repeated_held_out_samples_count_once() -> None:
    """The first of equal ones stays; an equal input with another label is another sample."""
    x, y = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1, 0, 1])
    found = Samples(x, y).distinct()
    assert (found.x.tolist(), found.y.tolist()) == ([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]], [0, 1, 1])


def test_no_client_counts_more_than_twice_the_median() -> None:
    """n = 5, 10, 10, 100: the median is 10, so the last counts as 20, its l and h divided by 5. Even numbers of
    clients: (10 + 14)/2 = 12, at most 24."""
    ones, tens = torch.ones(4, 4).double(), torch.full((4, 4), 10)
    likelihood, hits, n = counted(ones, tens, torch.tensor([5, 10, 10, 100]))
    assert n.tolist() == [5, 10, 10, 20]
    close(likelihood[3], [0.2] * 4)
    close(hits[3], [2.0] * 4)
    close(likelihood[:3], ones[:3])
    assert counted(ones, tens, torch.tensor([5, 10, 14, 100]))[2].tolist() == [5, 10, 14, 24]


def test_mixtures() -> None:
    """lambda p + (1 - lambda) q."""
    found = mixtures(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.2, 0.8]]).double())
    close(found[:, 0, 0], [0.2, 0.4, 0.6, 0.8, 1.0])


# ---- the wrapper ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fixed(Averaging, Method):
    """Predicts class 1 with logit ``level``, whatever the input, on a network whose flat vector is its logits."""

    level: float = 2.0
    """Logit of class 1."""

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=torch.tensor([0.0, self.level]))

    def _views(self, c: Client) -> dict[str, Bundle]:
        return {"trained": Bundle(model=torch.tensor([0.0, -9.0])), "start": Bundle(model=c.w0)}

    can = (Views(_views),)


@dataclass(frozen=True)
class Majority(Averaging, Method):
    """Predicts the class that is most frequent among the held-out samples that it sees, which it thus reads."""

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=4.0 * c.validation.counts(2) / len(c.validation))

    can = (Needs(validation=True),)


def client(validation: list[int], received: Bundle | None = None, own: list[float] | None = None) -> Client:
    """A client of a network whose vector is its logits at inputs of 1, with held-out samples of these classes, all
    different in their last bits."""
    inputs = 1 + (torch.arange(len(validation)) - len(validation) // 2)[:, None] * 2.0**-23
    held = Samples(inputs.float(), torch.tensor(validation, dtype=torch.int64))
    state = Bundle() if own is None else Bundle(alone=torch.tensor(own))
    return Client(0, held, held, logit_net(2), Training(), received or Bundle(), state)


def predicted_with(method: Safe, c: Client) -> Bundle:
    return drive(method.personalize(c), lambda request: request.start)


def told(method: Safe, c: Client) -> Bundle:
    return drive(asks(method, "evaluation").answer(method, c), lambda request: request.start)


def test_a_client_sends_nine_numbers() -> None:
    """Six samples of class 1, of which the own model gives it 1/2 (a tie: class 0) and the method's
    e^2/(1+e^2) = .880797.

    l_4 = 6 log((.99 * .880797 + .005)/(.99 * .5 + .005)) = 6 log 1.753978 = 3.371227; every sample is a hit from
    lambda = 1/4 on."""
    sent = told(Safe(inner=Fixed()), client([1] * 6, Bundle(), own=[0.0, 0.0]))
    assert {n: tuple(t.shape) for n, t in sent.items()} == {"likelihood": (4,), "hits": (4,), "held": ()}
    close(sent.likelihood[3], 6 * math.log((0.99 / (1 + math.exp(-2)) + 0.005) / 0.5))
    assert sent.hits.tolist() == [6] * 4
    assert int(sent.held) == 6


@pytest.mark.parametrize("mode", ["best", "likely", "sure"])
def test_a_method_that_reads_held_out_samples_is_judged_on_others(mode: Literal["best", "likely", "sure"]) -> None:
    """Samples 0, 2, ... of class 1 fit the method, samples 1, 3, ... of class 0 decide: it is wrong on all six of them,
    and the model alone right (a tie: class 0). Judged on what it has seen it would win."""
    method, classes = Safe(inner=Majority(), mode=mode), [1, 0] * 6
    sent = told(method, client(classes, Bundle(), own=[0.0, 0.0]))
    assert (int(sent.held), sent.hits.tolist()) == (6, [-6] * 4)
    chosen = predicted_with(method, client(classes, own=[0.0, 0.0]))
    assert chosen["inner.model"].tolist() == [0.0, 4.0]
    assert float(chosen.share) == 0
    turned = predicted_with(method, client([1, 1] * 8, own=[0.0, 0.0]))
    assert float(turned.share) > 0


@pytest.mark.parametrize(
    ("samples", "own"), [(4, [0.0, 0.0]), (0, [0.0, 0.0]), (6, None)], ids=["four samples", "none", "never trained"]
)
def test_a_client_with_nothing_to_say_sends_zeros(samples: int, own: list[float] | None) -> None:
    """With fewer than five held-out samples, of one of which the two models' ratio would follow; and before it has
    trained a model alone, with which nothing can be compared."""
    sent = told(Safe(inner=Fixed()), client([1] * samples, Bundle(), own))
    assert not any(bool(t.any()) for t in sent.values())


def test_a_client_without_samples_takes_the_shared_prior() -> None:
    """n = 0: r = w. All others gain at 1, and so does it. Without a prior it stays alone; where nothing is sent it
    takes 1/4 ("likely")."""
    table = torch.tensor([[0.0, 0.0, 0.1, 0.3]] * 5).double()
    shared = Bundle(prior=torch.tensor([0.0, 0.0, 0.0, 0.1, 0.9]).double(), gains=table)
    assert float(predicted_with(Safe(inner=Fixed()), client([], shared, [0.0, 0.0])).share) == 1.0
    for mode, silent in (("likely", 0.25), ("best", 0.5)):
        assert float(predicted_with(Safe(inner=Fixed(), mode=mode), client([], None, [0.0, 0.0])).share) == 0.0
        alone = Safe(inner=Fixed(), mode=mode, send_numbers=False)
        assert float(predicted_with(alone, client([], None, [0.0, 0.0])).share) == silent


def test_a_client_that_has_not_trained_predicts_by_the_method() -> None:
    """It has nothing to fall back on."""
    for mode in ("best", "likely", "sure"):
        assert float(predicted_with(Safe(inner=Fixed(), mode=mode), client([0] * 9)).share) == 1.0


@pytest.mark.parametrize(
    ("classes", "share"), [([1] * 5, 0.5), ([1] * 4, 0.0), ([1] * 9 + [0] * 2, 0.5), ([1] * 9 + [0] * 3, 0.0)]
)
def test_sure_leaves_alone_only_for_what_passes_the_test(classes: list[int], share: float) -> None:
    """At lambda = 1/2 class 1 wins everywhere, alone class 0 does: b are the samples of class 1, c those of class 0.
    5/0 and 9/2 pass 5 %; 4/0 (.0625) and 9/3 (.073) do not. No lambda of the others was sent: 1/2."""
    method = Safe(inner=Fixed(), mode="sure")
    assert float(predicted_with(method, client(classes, own=[0.5, 0.0])).share) == share
    others = Bundle(others=torch.tensor(4))
    wanted = 1.0 if share else 0.0  # the others' lambda is 1
    assert float(predicted_with(method, client(classes, others, own=[0.5, 0.0])).share) == wanted


def test_the_prediction_is_the_mixture() -> None:
    """lambda = 1/4: .25 * .880797 + .75 * .5 = .595199; at 0 and 1 the logits of the one model, as they are."""
    method, net, x = Safe(inner=Fixed()), logit_net(2), torch.ones(1, 1)
    b = Bundle(**Bundle(model=torch.tensor([0.0, 2.0])).under("inner"), alone=torch.zeros(2))
    found = {g: method.predict(net, b.but(share=torch.tensor(g)), x)[0] for g in (0.0, 0.25, 1.0)}
    close(found[0.25].exp(), [1 - 0.5951992, 0.5951992])
    assert found[0.0].tolist() == [0.0, 0.0]
    assert found[1.0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("level", [float("nan"), 1e38])
def test_a_model_that_has_diverged_harms_no_client(level: float) -> None:
    """Its probabilities are no numbers, or all on a wrong class: the client stays alone, and a mixture that was chosen
    without samples predicts what the own model does."""
    method = Safe(inner=Fixed(level=level))
    assert float(predicted_with(method, client([0] * 6, own=[1.0, 0.0])).share) == 0.0
    if math.isnan(level):
        b = Bundle(**Bundle(model=torch.tensor([0.0, level])).under("inner"), alone=torch.tensor([1.0, 0.0]))
        logits = method.predict(logit_net(2), b.but(share=torch.tensor(0.75)), torch.ones(1, 1))
        assert logits.argmax(1).tolist() == [0]
        close(logits.softmax(1)[0], torch.tensor([1.0, 0.0]).softmax(0))


# ---- the server ----------------------------------------------------------------------------------------------------
def a_round(clients: int, **changes: Any) -> Round:
    net = logit_net(2)
    return Round(1, 9, net, Roster(torch.full((clients,), 10)), torch.arange(clients), cohort=clients, **changes)


def after_consulting(method: Safe, likelihood: Tensor, hits: Tensor, held: Tensor) -> tuple[Bundle, Round]:
    """The server's state once these clients have sent these numbers."""
    r = a_round(len(held))
    s = method.admit(method.init(r.but(roster=Roster(torch.zeros(0).long()), ids=r.ids[:0])), r)
    return asks(method, "evaluation").collect(method, s, r, Bundle(likelihood=likelihood, hits=hits, held=held)), r


def five() -> tuple[Tensor, Tensor, Tensor]:
    likelihood, hits, _ = all_four()
    return (
        torch.cat([likelihood, torch.zeros(1, 4)]).double(),
        torch.cat([hits, torch.zeros(1, 4)]).long(),
        torch.tensor([4, 5, 3, 2, 5]),
    )


def test_the_server_answers_all_alike() -> None:
    """w and T of all who have sent numbers, the same for all clients."""
    likelihood, hits, n = five()
    s, r = after_consulting(Safe(inner=FedAvg()), likelihood, hits, n)
    given = Safe(inner=FedAvg()).deliver(s, r)
    prior, posts = posteriors(likelihood)
    close(given.shared.prior, prior)
    close(given.shared.gains, gains(posts, hits.double(), n.double()))
    assert set(given.rows) == set()


def test_below_five_tellers_each_client_is_by_itself() -> None:
    """Four of five have sent numbers: neither w nor T nor another lambda is answered."""
    likelihood, hits, n = five()
    n[2], likelihood[2], hits[2] = 0, 0, 0
    for mode in ("best", "likely", "sure"):
        s, r = after_consulting(Safe(inner=FedAvg(), mode=mode), likelihood, hits, n)
        given = Safe(inner=FedAvg(), mode=mode).deliver(s, r)
        assert set(given.shared) | set(given.rows) == {"inner.model"}


def test_sure_is_answered_the_others_choice() -> None:
    """Six clients, of which the last sent nothing: it has five others, everyone else four, which are too few."""
    likelihood, hits, n = five()
    method = Safe(inner=FedAvg(), mode="sure")
    more = [torch.cat([t, torch.zeros_like(t[:1])]) for t in (likelihood, hits, n)]
    s, r = after_consulting(method, *more)
    given = method.deliver(s, r)
    assert given.given["others"].tolist() == [False] * 5 + [True]
    wanted = left_out(likelihood, hits.double(), n.double(), torch.tensor([-1]))
    assert int(given.row(5).others) == int(wanted)
    assert "others" not in given.row(0)
    seven = [torch.cat([t, t[:1]]) for t in (likelihood, hits, n)]  # six tell: each has five others
    s, r = after_consulting(method, *seven)
    rows = method.deliver(s, r.but(ids=torch.tensor([1, 4])))
    wanted = left_out(seven[0], seven[1].double(), seven[2].double(), torch.tensor([1, 4]))
    assert rows.rows["others"].tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("hits", "held", "refused"),
    [([0, 0, 0, 6], 5, True), ([-6, 0, 0, 0], 5, True), ([5, -5, 0, 0], 5, False), ([0] * 4, -1, True)],
)
def test_impossible_numbers_are_refused(hits: list[int], held: int, refused: bool) -> None:
    """No more hits can differ than there are samples."""
    up = Bundle(likelihood=torch.zeros(4).double(), hits=torch.tensor(hits), held=torch.tensor(held))
    assert (
        asks(Safe(inner=FedAvg()), "evaluation").refuses(Safe(inner=FedAvg()), a_round(1), up) is not None
    ) == refused


def test_the_notes_say_what_clients_took() -> None:
    """Of the five: 3/4, 0, 0, 0 and, of one without any evidence, what the prior says; the share at 0 among them."""
    likelihood, hits, n = five()
    method = Safe(inner=FedAvg())
    s, _ = after_consulting(method, likelihood, hits, n)
    _, posts = posteriors(likelihood)
    own = [choose(r, gains(posts, hits.double(), n.double()), 0.2) for r in posts]
    assert numbers_of(method, s) == {"evaluated_lambda": sum(own) / 20, "evaluated_alone": own.count(0) / 5}
    assert own[:2] == [3, 0]
    assert numbers_of(method, method.aggregate(s, a_round(5), Bundle(model=torch.zeros(5, 2)).under("inner"))) == {}


# ---- runs ----------------------------------------------------------------------------------------------------------
LIKE: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedavg-ft": FedAvgFT(),
    "fedavg-ensemble": Ensemble(members=3),
    "fedproto": FedProto(),
    "fedrod": FedRoD(),
    "ifca-cam": CAM(inner=IFCA(clusters=2), warmup=1),
    "da-pfl": DAPFL(),
    "fedfomo": FedFomo(),
    "pfa": get_method("pfa"),
    "fedrep": get_method("fedrep"),
}


def of_method(views: Bundle) -> dict[str, Tensor]:
    return {n.removeprefix("method."): t for n, t in views.items() if n.startswith("method.")}


@pytest.mark.parametrize("name", LIKE)
def test_both_parts_are_what_they_are_by_themselves(name: str) -> None:
    """With all clients in every round: the wrapped method's server and clients end with the very bits of a run without
    the wrapper, the models alone with those of Local."""
    both = run(Safe(inner=LIKE[name]), mlp(), federation(), participation=1.0)
    shards = federation()
    if needs_of(LIKE[name]).validation:  # then it has every second held-out sample
        shards = [replace(c, validation=c.validation.every(2)) for c in shards]
    plain = run(LIKE[name], mlp(), shards, participation=1.0)
    local = run(Local(), mlp(), federation(), participation=1.0)
    inner = both.server.state.inside("inner")
    assert set(inner) == set(plain.server.state)
    assert all(torch.equal(inner[n], t) for n, t in plain.server.state.items())
    for i, state in both.clients.items():
        assert torch.equal(state.alone, local.clients[i].model)
        assert all(torch.equal(state.inside("inner")[n], t) for n, t in plain.clients.get(i, Bundle()).items())
    for mine, its, alone in zip(both.reports, plain.reports, local.reports, strict=True):
        for i, b in mine.evaluation.items():
            assert torch.equal(b["alone.test"], alone.evaluation[i].test)
            if name != "fedavg-ft":  # which trains to predict, so that its model is no view
                assert torch.equal(b["method.test"], its.evaluation[i].test)
        assert [mine.cohort, mine.answered, mine.bytes_up, mine.bytes_down] == [
            its.cohort,
            its.answered,
            its.bytes_up,
            its.bytes_down,
        ]


def test_partial_participation_leaves_the_method_as_it_is() -> None:
    """Half of the clients per round, drop-outs and a late joiner: the method's bits stay those of a run without it."""
    for method in (FedAvg(), LIKE["ifca-cam"]):
        how = {"participation": 0.5, "dropout": 0.2, "joins": [1, 1, 1, 1, 2], "rounds_": 5}
        both, plain = run(Safe(inner=method), mlp(), federation(), **how), run(method, mlp(), federation(), **how)
        assert all(torch.equal(both.server.state.inside("inner")[n], t) for n, t in plain.server.state.items())
        assert [r.cohort for r in both.reports] == [r.cohort for r in plain.reports]


def test_the_prior_of_noisy_choices() -> None:
    """Choices 0, 0, 1, 4 of four clients: without noise w = ([2, 1, 0, 0, 1] + 1/5) / 5; noise alone tells nothing.

    In between fifty steps in plain Python, with e^epsilon = 4: a report of j has the likelihoods 1 at j, 1/4 elsewhere.
    """
    choices = torch.tensor([0, 0, 1, 4])
    close(prior_of(choices, 700.0), [0.44, 0.24, 0.04, 0.04, 0.24], 1e-12)
    close(prior_of(choices, 1e-6), [0.2] * 5, 1e-5)
    w = [0.2] * 5
    for _ in range(50):
        total = [0.2] * 5
        for said in (0, 0, 1, 4):
            r = [w[j] * (1.0 if j == said else 0.25) for j in range(5)]
            total = [t + x / sum(r) for t, x in zip(total, r, strict=True)]
        w = [t / 5 for t in total]
    close(prior_of(choices, math.log(4)), w, 1e-12)
    assert w[0] > 0.4 > w[1] > w[2]


def test_what_it_costs() -> None:
    """In an evaluated round each of five clients sends four float64, four int64 and one: 72 bytes, is asked with
    FedAvg's model, and is answered w and T, 25 float64. The model travels once."""
    both = run(Safe(inner=FedAvg()), mlp(), federation(), participation=1.0)
    plain = run(FedAvg(), mlp(), federation(), participation=1.0)
    each = [a.bytes_evaluation - b.bytes_evaluation for a, b in zip(both.reports, plain.reports, strict=True)]
    assert each == [5 * (72 + 200)] * len(each)
    silent = run(Safe(inner=FedAvg(), send_numbers=False), mlp(), federation(), participation=1.0)
    assert [r.bytes_evaluation for r in silent.reports] == [r.bytes_evaluation for r in plain.reports]


def test_clients_decide_by_what_was_sent_in_the_same_round() -> None:
    """The numbers in the state are those of the models as they are after the round, own and delivered."""
    found = run(Safe(inner=FedAvg()), mlp(), federation(), participation=1.0)
    s, net = found.server.state, mlp()
    for i, shard in enumerate(federation()):
        held, own = shard.validation, found.clients[i].alone
        p, q = (net(w, held.x).double().softmax(1) for w in (s["inner.model"], own))
        likelihood, hits = numbers(p, q, held.y)
        close(s.likelihood[i], likelihood, 1e-12)
        assert s.hits[i].tolist() == hits.tolist()
        assert int(s.held[i]) == 5


def test_lost_and_refused_answers_do_not_count() -> None:
    """Numbers are of one round's models: those of a client that does not answer now are gone; one that lies is named,
    and the others are used."""
    setting = Setting(shards=tuple(_with_held(8)), plan=Plan(rounds=2, seed=1))

    def touch(messages, pass_on):  # type: ignore[no-untyped-def]
        answers, missing = pass_on(messages)
        asked = [i for i, m in messages.items() if m.step == "consult" and m.round == 2]
        for i in asked[:1]:
            del answers[i]
            missing[i] = Reason("gone")
        for i in asked[1:2]:
            answers[i] = answers[i].but(hits=torch.tensor([0, 0, 0, 99]))
        return answers, missing

    trial = play(Safe(inner=FedAvg()), setting, touch=touch)
    before, after = trial.moments[1].server.state, trial.moments[2].server.state
    assert (before.held.tolist(), after.held.tolist()) == ([8] * 6, [0, 0, 8, 8, 8, 8])
    assert not torch.equal(after.likelihood[2:], before.likelihood[2:])
    report = trial.reports[1]
    assert [one.client for one in report.refused] == [0, 1]
    assert report.refused[1] == outside("hits", 99, 0, 8).at("evaluate-query", 1)
    assert sorted(report.evaluation) == [0, 1, 2, 3, 4, 5]


def _with_held(n: int) -> list[ClientData]:
    """The contract's federation with a number of held-out samples at each client."""
    from fedkin.testing.toys import federation as toys
    from fedkin.testing.toys import samples

    return [replace(s, validation=samples(0, i, "validation", n)) for i, s in enumerate(toys())]


def test_one_that_is_unlike_the_others_stays_alone() -> None:
    """Twelve clients with one task and one whose labels are turned: FedAvg is wrong there, the safe form is not."""
    shards = []
    for i in range(13):
        parts = [_task(n, 10 * i + k, turn=int(i == 12)) for k, n in enumerate((40, 30, 60))]
        shards.append(ClientData(*parts))
    how = {"participation": 1.0, "rounds_": 8, "training": Training(epochs=3, batch_size=5, lr=0.3)}
    safe = run(Safe(inner=FedAvg()), mlp(), shards, **how).reports[-1].evaluation
    share = {n: [int(b[n][2].sum()) / 60 for b in safe.values()] for n in ("test", "method.test", "alone.test")}
    assert share["method.test"][12] < 0.3 < 0.55 < share["alone.test"][12]
    assert share["test"][12] > share["alone.test"][12] - 0.05
    assert sum(share["test"]) >= sum(share["method.test"])


def _task(n: int, seed: int, turn: int) -> Samples:
    from toys import blobs

    return blobs(n, (1 / 3, 1 / 3, 1 / 3), seed, turn)


def test_the_model_right_after_training_is_mixed_as_well() -> None:
    """In runs that score clients at that moment, the view "trained" takes the place of what is delivered."""
    method, c = Safe(inner=Fixed()), client([1] * 8, own=[0.5, 0.0])
    views = views_of(method, c)
    assert set(views) == {"trained", "start", "method", "alone"}
    assert float(predicted_with(method, c).share) > 0
    assert float(views["trained"].share) == 0  # this model is wrong on all samples, so the client would stay alone
    x, shown = torch.ones(1, 1), {n: method.predict(c.net, b, torch.ones(1, 1))[0] for n, b in views.items()}
    close(shown["alone"], [0.5, 0.0])
    close(shown["trained"], [0.5, 0.0])
    close(shown["method"], [0.0, 2.0])
    close(shown["start"], c.net(c.w0, x)[0])


# ---- settings ------------------------------------------------------------------------------------------------------
def test_it_is_not_wrapped_twice() -> None:
    """Nor by Fed-CAM, which wraps clustered methods."""
    for wrapper, inner in ((Safe, Safe(inner=FedAvg())), (CAM, Safe(inner=IFCA())), (Safe, Asking())):
        with pytest.raises(ConfigError):
            wrapper(inner=inner)


def test_presets_are_those_of_the_wrapped_method() -> None:
    """Their fields become those of the wrapped method, their tables stay."""
    method = Safe(inner=DAPFL())
    found = presets_of(method)
    assert set(found) == set(presets_of(DAPFL()))
    fields = {k: v for k, v in presets_of(DAPFL())["code"].items() if k not in ("training", "run")}
    assert found["code"]["inner"] == fields
    assert preset(Safe, "code", inner=DAPFL(), mode="best") == Safe(inner=preset(DAPFL, "code"), mode="best")


@pytest.mark.parametrize(("mode", "title"), [("likely", "FedProx-safe"), ("best", "FedProx-safe (best)")])
def test_titles(mode: Literal["best", "likely"], title: str) -> None:
    """The wrapped method's title, and the mode where it is not the usual one."""
    assert Safe(inner=FedProx(), mode=mode).title == title


@dataclass(frozen=True)
class Asking(Averaging, Method):
    """Asks its clients before evaluations."""

    can = (Asks("evaluation", lambda m, s, r: to_all(model=s.model), lambda m, c: Bundle(), lambda m, s, r, up: s),)


@dataclass(frozen=True)
class Twice(Averaging, Method):
    """Trains two models one after the other; only the second counts."""

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        v = yield Train(w)
        return Bundle(model=v)


def test_requests_of_the_wrapped_method_keep_their_numbers() -> None:
    """The model alone is trained last, on the batches of request 0: both requests of this method draw as without it."""
    both = run(Safe(inner=Twice()), mlp(), federation(), participation=1.0)
    plain, local = (run(m, mlp(), federation(), participation=1.0) for m in (Twice(), Local()))
    assert torch.equal(both.server.state["inner.model"], plain.server.state.model)
    assert len(both.clients) == 5
    for i, state in both.clients.items():
        assert torch.equal(state.alone, local.clients[i].model)
