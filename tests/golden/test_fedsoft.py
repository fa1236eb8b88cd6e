"""FedSoft against numbers worked out by hand (Ruan and Joe-Wong, AAAI 2022).

Importance of centre s for client k: the share of its samples that s fits best, at least sigma: ``u_ks = max(n_ks/n_k,
sigma)``. The client's part in the centre: ``v_ks = u_ks n_k / sum_j u_js n_j``. A client trains its own model on
``F_k(w) + lam/2 sum_s u_ks |w - c_s|^2``; the centre becomes the plain mean of those drawn for it by v.
"""

import math

import pytest
import torch
from torch import nn

import plain
from fedkin.capabilities.asks import asks
from fedkin.capabilities.groups import labels_of
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Client, Net, Round, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.methods import Local
from fedkin.methods.fedsoft import FedSoft
from toys import (
    ByHand,
    ClientData,
    apart,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    vector_net,
)

LOSSES = [[(0.1, 0.5), (0.2, 0.9), (0.7, 0.3), (0.4, 0.4)], [(0.1, 0.9), (0.2, 0.8)]]
U = [[0.75, 0.25], [1.0, 0.0001]]


def table(**fields: object) -> ByHand:
    """Two clients of four and two samples and two centres with the losses above: sample j's input is the j-th unit
    vector, so column j of a linear network is its logits; a loss l is the pair (log p, log(1 - p)) with p = exp(-l)."""
    data, sample = [], 0
    for rows in LOSSES:
        data.append(Samples(torch.eye(6)[sample : sample + len(rows)], torch.zeros(len(rows), dtype=torch.int64)))
        sample += len(rows)
    net = Net(lambda: nn.Sequential(nn.Linear(6, 2, bias=False)), (6,), 2)
    hand = ByHand(FedSoft(clusters=2, **fields), net, data)
    flat = [pair for rows in LOSSES for pair in rows]
    centres = [[[-row[s] for row in flat], [math.log(1 - math.exp(-row[s])) for row in flat]] for s in (0, 1)]
    hand.server = hand.server.but(centres=torch.tensor(centres).reshape(2, -1))
    return hand


def numbers(values: list[float], sizes: list[int], u: list[list[float]], **fields: object) -> ByHand:
    """Centres that are numbers, clients of these sizes whose importances are known."""
    hand = ByHand(
        FedSoft(clusters=len(values), **fields), vector_net(0.0), [copies(0.0, n) for n in sizes], loss=quadratic
    )
    known = torch.tensor(u, dtype=torch.float64)
    asked = torch.ones(len(sizes), dtype=torch.bool)
    hand.server = hand.server.but(centres=torch.tensor(values)[:, None], u=known, asked=asked)
    return hand


# ---- importance ----------------------------------------------------------------------------------------------------
def test_importances() -> None:
    """Client 0: centre 0 fits samples 0, 1 and 3 (a tie of .4 goes to the lower), centre 1 sample 2: (3/4, 1/4). Client
    1: both samples are centre 0's, so its second importance is sigma: (1, .0001)."""
    hand = table()
    said = hand.ask()
    close(said.share, [[0.75, 0.25], [1.0, 0.0]])
    close(hand.server.u, U)
    assert labels_of(hand.method, hand.server, hand.at("evaluate", [0, 1])).tolist() == [0, 0]


def test_parts_in_the_centres() -> None:
    """u n = (3, 1) and (2, .0002): column sums 5 and 1.0002, so v = (.6, .4) and (.99980004, .00019996)."""
    hand = table()
    hand.ask()
    v = hand.method.importance(hand.server, hand.at("sample", [0, 1]))
    close(v, [[0.6, 0.99980004], [0.4, 0.00019996]], 1e-8)


def test_importances_are_not_divided_by_their_sum() -> None:
    """sigma = .1 lifts the second importance of client 1 and leaves the first: (1, .1), sum 1.1; an importance above
    sigma stays as it is."""
    hand = table(sigma=0.1)
    hand.ask()
    close(hand.server.u, [[0.75, 0.25], [1.0, 0.1]])


def test_sigma_lifts_every_small_importance() -> None:
    """1 of 4 samples is a share of .25; with sigma = .3 it counts .3 (the authors' program lifts shares of 0 only)."""
    hand = table(sigma=0.3)
    hand.ask()
    close(hand.server.u[0], [0.75, 0.3])


def test_a_share_out_of_range_counts_as_one() -> None:
    """A client that says 50 instead of a share gets no more than 1: it cannot take all the draws."""
    hand = numbers([0.0, 1.0], [1, 1], [[0.5, 0.5]] * 2)
    s = asks(hand.method, "round").collect(
        hand.method, hand.server, hand.at("collect", [1]), Bundle(share=torch.tensor([[50.0, -3.0]]))
    )
    close(s.u, [[0.5, 0.5], [1.0, 0.0001]])


def test_importance_comes_from_training_samples_alone() -> None:
    """Other test and validation labels: the same importances; other training labels: others."""
    shards = federation()
    turn = lambda d: Samples(d.x, (d.y + 1) % 3)  # noqa: E731
    held = [ClientData(s.train, turn(s.validation), turn(s.test)) for s in shards]
    trained = [ClientData(turn(s.train), s.validation, s.test) for s in shards]
    a, b, c = (run(FedSoft(clusters=2), mlp(), data).state for data in (shards, held, trained))
    assert torch.equal(a.u, b.u)
    assert torch.equal(a.centres, b.centres)
    assert not torch.equal(a.u, c.u)


def test_centres_start_apart() -> None:
    """Equal centres would fit every sample alike, so that all samples fall to the first for ever."""
    hand = ByHand(FedSoft(clusters=3))
    for i in range(3):
        for j in range(i):
            apart(hand.server.centres[i], hand.server.centres[j], 0.1)
    hand.server = hand.server.but(centres=hand.net.w0.repeat(3, 1))
    close(hand.ask().share, [[1.0, 0, 0]] * 5)


# ---- when clients are asked ----------------------------------------------------------------------------------------
def asked(hand: ByHand, t: int) -> list[int]:
    """Who is asked in round t."""
    r = hand.at("survey", range(len(hand.roster)), t)
    sent = asks(hand.method, "round").question(hand.method, hand.server, r)
    return [] if sent is None else [i for i in range(len(r.ids)) if sent.row(i)]


def test_everybody_is_asked_every_tau_rounds() -> None:
    """tau = 3: rounds 1, 4, 7; in between nobody, since everybody has answered."""
    hand = ByHand(FedSoft(clusters=2, tau=3))
    assert asked(hand, 1) == [0, 1, 2, 3, 4]
    hand.ask()
    assert [asked(hand, t) for t in range(2, 8)] == [[], [], [0, 1, 2, 3, 4], [], [], [0, 1, 2, 3, 4]]


def test_newcomers_are_asked_when_they_come() -> None:
    """Client 4 comes in round 2, when nobody else is asked. Until it answers all clusters count 1/S and its cluster is
    not known; it gets all centres and nothing else."""
    hand = ByHand(FedSoft(clusters=2, tau=9), present=4)
    hand.ask()
    hand.t = 1
    hand.join(5)
    close(hand.server.u[4], [0.5, 0.5])
    assert labels_of(hand.method, hand.server, hand.at("evaluate", range(5)))[4] == -1
    assert asked(hand, 2) == [4]
    sent = asks(hand.method, "round").question(hand.method, hand.server, hand.at("survey", range(5), 2))
    assert sent is not None
    assert list(sent.row(4)) == ["centres"]
    assert torch.equal(sent.row(4).centres, hand.server.centres)
    before = hand.server.u[:4].clone()
    hand.ask()
    assert torch.equal(hand.server.u[:4], before)
    assert asked(hand, 3) == []
    assert labels_of(hand.method, hand.server, hand.at("evaluate", range(5)))[4] >= 0


def test_who_did_not_answer_is_asked_again() -> None:
    """Only client 1 answered the first survey: the others are asked in the next round, too."""
    hand = ByHand(FedSoft(clusters=2, tau=9))
    hand.ask([1])
    assert asked(hand, 2) == [0, 2, 3, 4]


# ---- who takes part ------------------------------------------------------------------------------------------------
def drawn(hand: ByHand, seed: int = 0) -> tuple[list[int], torch.Tensor]:
    r = hand.at("sample", range(len(hand.data)), 1).but(seed=seed)
    out = hand.method.sample(hand.server, r)
    assert isinstance(out, Bundle)
    return out.ids.tolist(), out.chosen


@pytest.mark.parametrize(
    ("cohort", "clusters", "each"), [(8, 3, 2), (20, 7, 2), (2, 3, 1), (6, 3, 2), (1, 1, 1), (20, 1, 20)]
)
def test_how_many_are_drawn_for_each_centre(cohort: int, clusters: int, each: int) -> None:
    """max(1, floor(cohort / S)) for each centre, different clients each; their union trains, at most the cohort unless
    there are more centres than that."""
    hand = numbers([0.0] * clusters, [5] * 20, [[1 / clusters] * clusters] * 20)
    hand.cohort = cohort
    ids, chosen = drawn(hand)
    assert chosen.sum(0).tolist() == [each] * clusters
    assert ids == sorted(set(ids))
    assert bool(chosen.any(1).all())
    assert len(ids) <= max(cohort, clusters)


def test_draws_follow_the_parts() -> None:
    """One drawn for each of two centres. v = (.6, .4): in 2000 draws 1200 +- 3 sqrt(2000 * .24) = 66 of client 0. v =
    (.9998, .0002): at most 5 of client 1 (expected .4)."""
    hand = numbers([0.0, 1.0], [4, 2], U, per_cluster=1)
    first = second = 0
    for seed in range(2000):
        ids, chosen = drawn(hand, seed)
        first += int(chosen[ids.index(0), 0]) if 0 in ids else 0
        second += int(chosen[ids.index(1), 1]) if 1 in ids else 0
    assert abs(first - 1200) <= 66
    assert second <= 5


def test_more_wanted_than_there_are() -> None:
    """Five for each centre of two clients: both are drawn for both."""
    hand = numbers([0.0, 1.0], [4, 2], U, per_cluster=5)
    ids, chosen = drawn(hand)
    assert ids == [0, 1]
    assert bool(chosen.all())


def test_the_same_seed_draws_the_same() -> None:
    """Draws come from the round's generator: equal for equal seeds, different over seeds."""
    hand = numbers([0.0, 1.0], [5] * 9, [[0.5, 0.5]] * 9, per_cluster=3)
    assert drawn(hand, 1)[0] == drawn(hand, 1)[0]
    assert len({tuple(drawn(hand, seed)[0]) for seed in range(10)}) > 3


# ---- training ------------------------------------------------------------------------------------------------------
def test_exact_local_model() -> None:
    """L = (w - 2)^2/2, centres 0 and 4, u = (.75, .25), lam = .5: (2 + .5 * (.75 * 0 + .25 * 4))/(1 + .5) = 5/3. The
    pull is one term: towards the mean 1 by u, of weight .5 * (.75 + .25)."""

    def solve(request: Train, client: Client) -> torch.Tensor:
        assert request.center is not None
        close(request.center, [1.0])
        close(request.mu, 0.5)
        return (2 + request.mu * request.center) / (1 + request.mu)

    hand = numbers([0.0, 4.0], [4, 2], U, lam=0.5)
    hand.solve = solve
    close(hand.play([0], drawn=Bundle(chosen=torch.tensor([[True, True]]))).model, [[1.6666666666666667]])


def test_the_pull_has_a_gradient() -> None:
    """The same by SGD: one step of .1 from 0: gradient (0 - 2) + .5 (.75 * (0 - 0) + .25 * (0 - 4)) = -2.5, so .25;
    without a gradient of the pull .2."""
    hand = numbers([0.0, 4.0], [4, 2], U, lam=0.5)
    hand.data = [copies(2.0, 4), copies(2.0, 2)]
    hand.training = Training(steps=1, lr=0.1, batch_size=1000)
    close(hand.play([0], drawn=Bundle(chosen=torch.tensor([[True, True]]))).model, [[0.25]])


def test_one_pull_is_all_pulls() -> None:
    """lam/2 sum_s u_s |w - c_s|^2 and lam U/2 |w - mean|^2 have the same gradient, also where u sums to more than 1."""
    rng = torch.Generator().manual_seed(3)
    net, s, lam = mlp(), 4, 0.7
    centres, w = torch.randn(s, net.size, generator=rng), torch.randn(net.size, generator=rng).double()
    u = torch.rand(s, generator=rng).clamp(min=0.3)
    client = ByHand(FedSoft(clusters=s, lam=lam), net, [federation()[0].train]).client(0, Bundle(centres=centres, u=u))
    request = next(FedSoft(clusters=s, lam=lam).client_update(client))
    wanted = lam * (u.double()[:, None] * (w - centres.double())).sum(0)
    close(request.mu * (w - request.center.double()), wanted, 1e-5)


def test_clients_train_their_own_model() -> None:
    """Round 2 starts from what the client had after round 1, not from a centre; who is not drawn keeps its own."""
    starts: dict[int, list[float]] = {0: [], 1: []}

    def solve(request: Train, client: Client) -> torch.Tensor:
        starts[client.id].append(float(request.start))
        return request.start + 10 * (client.id + 1)

    hand = numbers([3.0, 5.0], [4, 2], U)
    hand.solve = solve
    both, one = torch.ones(2, 2, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    hand.play(drawn=Bundle(chosen=both))
    hand.play([1], drawn=Bundle(chosen=one))
    hand.play(drawn=Bundle(chosen=both))
    assert starts == {0: [0.0, 10.0], 1: [0.0, 20.0, 40.0]}
    close(hand.used(0).model, [20.0])


def test_first_model() -> None:
    """One random start for all clients, which is neither a centre's nor the run's; the first training starts there."""
    hand = ByHand(FedSoft(clusters=2))
    first = hand.used(0).model
    assert all(torch.equal(hand.used(i).model, first) for i in range(5))
    for other in (hand.net.w0, *hand.server.centres):
        apart(first, other, 0.1)
    hand.ask()
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert torch.equal(request.start, first)


def test_the_best_centre_is_evaluated_beside_the_own_model() -> None:
    """The view "centre" is that of the largest importance."""
    hand = numbers([3.0, 5.0], [4, 2], [[0.2, 0.8], [1.0, 0.0001]])
    for i, wanted in ((0, 5.0), (1, 3.0)):
        sent = hand.method.deliver(hand.server, hand.at("evaluate", [i])).row(0)
        close(views_of(hand.method, hand.client(i, sent))["centre"].model, [wanted])


# ---- new centres ---------------------------------------------------------------------------------------------------
def aggregated(hand: ByHand, models: list[float], ids: list[int], chosen: list[list[bool]] | None) -> list[float]:
    r = hand.at("aggregate", ids, 1)
    r = r if chosen is None else r.but(drawn=Bundle(chosen=torch.tensor(chosen)))
    return hand.method.aggregate(hand.server, r, Bundle(model=torch.tensor(models)[:, None])).centres.flatten().tolist()


def test_a_centre_is_the_plain_mean_of_those_drawn_for_it() -> None:
    """Clients of 10, 30 and 60 samples at 1, 3 and 8; drawn for centre 0: 0 and 1, for centre 1: 1 and 2. Plain means
    2 and 5.5; by samples they would be 2.5 and 6.33."""
    hand = numbers([0.0, 0.0], [10, 30, 60], [[0.5, 0.5]] * 3)
    chosen = [[True, False], [True, True], [False, True]]
    close(aggregated(hand, [1.0, 3.0, 8.0], [0, 1, 2], chosen), [2.0, 5.5])


def test_a_lost_answer_leaves_the_others_mean() -> None:
    """Client 1 did not answer: its row of the draw is gone, centre 0 is client 0's model, centre 1 client 2's."""
    hand = numbers([0.0, 0.0], [10, 30, 60], [[0.5, 0.5]] * 3)
    close(aggregated(hand, [1.0, 8.0], [0, 2], [[True, False], [False, True]]), [1.0, 8.0])


def test_a_centre_for_which_nobody_answered_stays() -> None:
    """Both who were drawn for centre 1 are lost: it stays, bit for bit."""
    hand = numbers([0.0, 7.0], [10, 30, 60], [[0.5, 0.5]] * 3)
    close(aggregated(hand, [4.0], [0], [[True, False]]), [4.0, 7.0])


def test_without_selection_centres_are_means_by_part() -> None:
    """Everybody trains; u n = (3, 1), (2, .0002): centres (.6 * 1 + .4 * 3) = 1.8 and .99980004 * 1 + .00019996 * 3 =
    1.00039992. If client 1 is lost, both are client 0's model."""
    hand = numbers([0.0, 0.0], [4, 2], U, selection=False)
    hand.cohort = 1
    assert hand.method.sample(hand.server, hand.at("sample", [0, 1], 1)).tolist() == [0, 1]
    close(aggregated(hand, [1.0, 3.0], [0, 1], None), [1.8, 1.00039992])
    close(aggregated(hand, [1.0], [0], None), [1.0, 1.0])


def test_all_drawn_is_the_plain_mean_and_not_the_mean_by_part() -> None:
    """K = N: both clients for both centres, (1 + 3)/2 = 2 each; without selection 1.8 and 1.0004."""
    close(aggregated(numbers([0.0, 0.0], [4, 2], U, per_cluster=2), [1.0, 3.0], [0, 1], [[True] * 2] * 2), [2.0, 2.0])


# ---- special cases -------------------------------------------------------------------------------------------------
def test_one_cluster_is_a_personal_model_near_the_mean() -> None:
    """S = 1: every importance is 1, so v goes by samples, and the pull is FedProx's, towards the one centre."""
    hand = ByHand(FedSoft(clusters=1, lam=0.3))
    hand.ask()
    close(hand.server.u, [[1.0]] * 5)
    close(hand.method.importance(hand.server, hand.at("sample", range(5)))[:, 0] * 87, [9.0, 23, 14, 30, 11])
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert torch.equal(request.center, hand.server.centres[0])
    close(request.mu, 0.3)


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
def test_without_a_pull_it_is_local_training(net: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """lam = 0, one start, all clients take part: every client's model is that of local training, bit for bit."""
    shards = federation()
    monkeypatch.setattr(Net, "fresh", lambda self, *stream: self.w0)
    ours = run(FedSoft(clusters=2, lam=0.0, selection=False), net(), shards, participation=1.0)
    local = run(Local(), net(), shards, participation=1.0)
    for i, kept in local.clients.items():
        assert torch.equal(ours.clients[i].model, kept.model)
    for a, b in zip(ours.reports, local.reports, strict=True):
        assert all(torch.equal(a.evaluation[i].test, b.evaluation[i].test) for i in range(5))


def test_one_cluster_with_all_drawn_is_no_selection_with_equal_weights() -> None:
    """S = 1 and equal weights: the plain mean of all and the mean by part are the same, bit for bit."""
    shards = federation()
    a, b = (
        run(FedSoft(clusters=1, **fields), mlp(), shards, participation=1.0, uniform=True)
        for fields in ({"per_cluster": 5}, {"selection": False})
    )
    assert torch.equal(a.state.centres, b.state.centres)
    assert all(torch.equal(a.clients[i].model, b.clients[i].model) for i in range(5))


def test_a_strong_pull_brings_models_to_the_centres() -> None:
    """The pull acts in a run: with lam = 5 the clients' models end nearer to each other than with lam = 0."""
    spread = []
    for lam in (0.0, 5.0):
        r = run(FedSoft(clusters=2, lam=lam, selection=False), mlp(), federation(), participation=1.0)
        models = torch.stack([r.clients[i].model for i in range(5)])
        spread.append(float(models.var(0).sum()))
    assert spread[1] < 0.5 * spread[0]


def test_identical_clients_and_a_single_one_stay_finite() -> None:
    """One client, or four equal ones, more centres than clients: nothing is NaN and every centre has one drawn."""
    shards = federation()
    for data in (shards[:1], [shards[1]] * 4):
        r = run(FedSoft(clusters=6, tau=1), mlp(), data)
        assert bool(torch.isfinite(r.state.centres).all())
        assert bool(torch.isfinite(r.state.u).all())


def test_weights_of_the_run_count() -> None:
    """In a run where every client weighs the same, v leaves the samples out: u = (.75, .25), (1, .0001) over their
    column sums 1.75 and .2501."""
    hand = table()
    hand.uniform = True
    hand.ask()
    r: Round = hand.at("sample", [0, 1])
    close(hand.method.importance(hand.server, r), [[0.75 / 1.75, 0.25 / 0.2501], [1 / 1.75, 0.0001 / 0.2501]])


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("selection", [True, False])
def test_an_independent_program_gives_the_same(selection: bool) -> None:
    """Samples counted one by one and a pull for every centre in float64, on five unequal clients, seven rounds, asked
    every third."""
    sigma, lam, net = 0.07, 0.4, mlp()
    method = FedSoft(clusters=3, lam=lam, sigma=sigma, tau=3, selection=selection, per_cluster=2)
    found, shards, _ = plain.played(method, rounds_=7)
    centres = [net.fresh(s).double() for s in (0, 1, 2)]
    own = [net.fresh("own", 0).double()] * 5
    size = [len(s.train) for s in shards]
    u: list[list[float]] = []
    smallest, cohorts = 1.0, set()
    for t, cohort in plain.cohorts(found):
        if t % 3 == 1:
            u = []
            for shard in shards:
                best = [0, 0, 0]
                for x, y in zip(shard.train.x.double(), shard.train.y, strict=True):
                    losses = [float(plain.loss(c, x[None], y[None])) for c in centres]
                    best[losses.index(min(losses))] += 1
                smallest = min(smallest, *best)
                u.append([max(n / len(shard.train), sigma) for n in best])
        total = [sum(u[k][s] * size[k] for k in range(5)) for s in range(3)]
        v = [[u[k][s] * size[k] / total[s] for k in range(5)] for s in range(3)]
        chosen = [list(range(5))] * 3
        if selection:
            rng = generator(0, "server", "", "sample", t)
            columns = torch.tensor(v, dtype=torch.float64).T.contiguous()  # numbers are drawn as they lie in memory
            chosen = torch.multinomial(columns.T, 2, generator=rng).tolist()
        assert list(cohort) == sorted({k for row in chosen for k in row})
        cohorts.add(tuple(cohort))
        for k in cohort:

            def pulls(w, parts=u[k], centres=centres):
                return lam * sum(part * (w - c) for part, c in zip(parts, centres, strict=True))

            own[k], _ = plain.descend(own[k], shards[k].train, k, t, along=pulls)
        weights = [[0.5 if k in chosen[s] else 0.0 for k in range(5)] for s in range(3)] if selection else v
        centres = [sum(weights[s][k] * own[k] for k in range(5)) for s in range(3)]
    assert smallest == 0
    assert len(cohorts) > 3 or not selection
    assert plain.distance(found.state.centres, torch.stack(centres)) < 2e-6
    assert plain.distance(found.state.u, torch.tensor(u, dtype=torch.float64)) < 2e-6
    for k, kept in found.clients.items():
        assert plain.distance(kept.model, own[k]) < 2e-6
