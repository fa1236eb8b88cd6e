"""FedFomo against numbers worked out by hand (Zhang et al., ICLR 2021).

A client compares its own trained model and up to M others with its model before the last local training, theta_prev:
``Delta_n = (L(theta_prev) - L(theta_n)) / |theta_n - theta_prev|`` on its validation data, ``w_n = max(Delta_n, 0)``
over their sum, ``theta = theta_prev + sum_n w_n (theta_n - theta_prev)``. The server adds up Delta in P and sends the
models with the largest entries.

In the tests the loss is 1/2 |w - (1, 0)|^2 and the models are points of the plane.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Download, Round, Samples, Training
from fedkin.functional.pairs import key
from fedkin.methods import Local
from fedkin.methods.fedfomo import FedFomo
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
    unusable,
    vector_net,
)

B, C = [1.0, 0.0], [-1.0, 0.0]


def plane(method: FedFomo, others: list[list[float]], before: list[float], own: list[float]) -> ByHand:
    """Client 0 with its two models, and the models that clients 1, 2, ... uploaded in round 1."""
    hand = ByHand(
        method,
        vector_net(0.0, 0.0),
        [copies([1.0, 0.0], 4)] * (1 + len(others)),
        training=Training(steps=1, lr=0.5, batch_size=1000),
        loss=quadratic,
    )
    hand.t = 1
    hand.kept[0] = Bundle(before=torch.tensor(before), model=torch.tensor(own))
    hand.server = hand.server.but(
        models=torch.tensor(others).reshape(-1, 2), owner=torch.arange(1, 1 + len(others), dtype=torch.int64)
    )
    return hand


def mixed(hand: ByHand) -> tuple[dict[int, float], list[float]]:
    """Gain of each candidate by its id (0 is the client itself), and what the client trained from."""
    up = hand.play([0])
    ids = [0, *up.ids[0].tolist()]
    return dict(zip(ids, up.gains[0].tolist(), strict=True)), hand.kept[0].before.tolist()


def liked(hand: ByHand) -> torch.Tensor:
    """P as a table of all pairs."""
    table = torch.zeros(len(hand.roster), len(hand.roster), dtype=torch.float64)
    table[hand.server.known >> 32, hand.server.known & (2**32 - 1)] = hand.server.affinity
    return table


def like(hand: ByHand, table: torch.Tensor) -> None:
    """These are P's entries."""
    who = torch.arange(len(table))
    hand.server = hand.server.but(known=key(who[:, None], who).flatten(), affinity=table.double().flatten())


def learned(hand: ByHand) -> dict[int, float]:
    """Client 0's weights as the server knows them."""
    r = hand.at("distribute", [0])
    return {i: float(v) for i, v in enumerate(hand.method.distribute(hand.server, r).weights[0])}


def same(got: dict[int, float], wanted: dict[int, float], tolerance: float = 1e-6) -> None:
    assert sorted(got) == sorted(wanted)
    close([got[i] for i in sorted(got)], [wanted[i] for i in sorted(wanted)], tolerance)


# ---- the mixture ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("a", [[1.0, 1.0], [2.0, 0.0]])
def test_gains_weights_and_mixture(a: list[float]) -> None:
    """theta_prev = 0 (L = .5), own (.5, 0): (.5 - .125)/.5 = .75; A, as far from (1, 0) as theta_prev: 0; B = (1, 0):
    .5/1; C = (-1, 0): (.5 - 2)/1 = -1.5. Weights .75/1.25 = .6 and .4; theta = .6 * .5 + .4 * 1 = .7. Then one step
    of half the way to (1, 0): .85."""
    hand = plane(FedFomo(), [a, B, C], [0.0, 0.0], [0.5, 0.0])
    gains, theta = mixed(hand)
    same(gains, {0: 0.75, 1: 0.0, 2: 0.5, 3: -1.5})
    same(learned(hand), {0: 0.6, 1: 0.0, 2: 0.4, 3: 0.0})
    close(theta, [0.7, 0.0])
    close(hand.kept[0].model, [0.85, 0.0])


@pytest.mark.parametrize(("fallback", "theta"), [("previous", [1.0, 0.0]), ("trained", [0.5, 0.0])])
def test_nothing_better_than_before(fallback: str, theta: list[float]) -> None:
    """theta_prev at the minimum: own (.5, 0) -.125/.5 = -.25, A = (1, 1) -.5/1, B = theta_prev 0, C -2/2 = -1. The
    client goes back to theta_prev, losing its last training, or keeps that; the log counts it."""
    hand = plane(FedFomo(fallback=fallback), [[1.0, 1.0], B, C], [1.0, 0.0], [0.5, 0.0])
    gains, found = mixed(hand)
    same(gains, {0: -0.25, 1: -0.5, 2: 0.0, 3: -1.0})
    close(found, theta)
    same(learned(hand), {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0})
    assert numbers_of(hand.method, hand.server) == {"own_weight": 1.0, "stuck": 1.0}


def test_alone() -> None:
    """No other model: the own one has a gain of .75 and all the weight."""
    hand = plane(FedFomo(), [], [0.0, 0.0], [0.5, 0.0])
    gains, theta = mixed(hand)
    same(gains, {0: 0.75})
    close(theta, [0.5, 0.0])


def test_an_own_model_that_has_not_moved() -> None:
    """own = theta_prev: its gain is 0, not 0/0; B gains .5 and is taken over whole."""
    gains, theta = mixed(plane(FedFomo(), [B], [0.0, 0.0], [0.0, 0.0]))
    same(gains, {0: 0.0, 1: 0.5})
    close(theta, [1.0, 0.0])


@pytest.mark.parametrize(
    ("norm", "gain", "theta"), [("l2", 0.353553, [0.655904, 0.110241]), ("l1", 0.25, [0.666667, 0.083333])]
)
def test_distances(norm: str, gain: float, theta: list[float]) -> None:
    """A = (.5, .5): L falls by .25 over sqrt(.5) in L2, over 1 in L1, the authors' default. Weights .75, .353553, .5
    over 1.603553 (.467711, .220481, .311808), or .75, .25, .5 over 1.5 (1/2, 1/6, 1/3)."""
    hand = plane(FedFomo(norm=norm), [[0.5, 0.5], B, C], [0.0, 0.0], [0.5, 0.0])
    gains, found = mixed(hand)
    same(gains, {0: 0.75, 1: gain, 2: 0.5, 3: -1.5})
    close(found, theta)
    same(learned(hand), {0: 0.75 / (1.25 + gain), 1: gain / (1.25 + gain), 2: 0.5 / (1.25 + gain), 3: 0.0})


def test_the_mixture_is_not_added_to_the_old_model() -> None:
    """theta_prev = (-1, 0), own = B = (1, 0): theta is (1, 0), whatever their weights. Added to theta_prev instead of
    differences, as in a published program, it would be (0, 0)."""
    _, theta = mixed(plane(FedFomo(), [B], [-1.0, 0.0], [1.0, 0.0]))
    close(theta, [1.0, 0.0])


def test_the_baseline_is_the_model_before_training() -> None:
    """Own progress counts: compared with the trained model itself, as in a published program, the own gain would always
    be 0 and B would take over although the client has improved as much per unit of length: here .75 against .5."""
    gains, theta = mixed(plane(FedFomo(), [B], [0.0, 0.0], [0.5, 0.0]))
    assert gains[0] > gains[1] > 0
    apart(theta, B, 0.2)


# ---- the server's record -------------------------------------------------------------------------------------------
def test_raw_record() -> None:
    """P starts at 0 with .1 on the diagonal: .1 + .75, 0, .5, -1.5; a second round adds to it."""
    hand = plane(FedFomo(), [[1.0, 1.0], B, C], [0.0, 0.0], [0.5, 0.0])
    mixed(hand)
    close(liked(hand)[0], [0.85, 0.0, 0.5, -1.5], 1e-6)
    close(liked(hand)[1:], 0.1 * torch.eye(4)[1:], 1e-7)


def test_normalised_record() -> None:
    """Divided by the size of the sum, |-.25|, as the authors' program does: .1 + 3, 0, 2, -6: positive and negative
    gains cancel in the divisor, and one round outweighs many."""
    hand = plane(FedFomo(affinity="normalised"), [[1.0, 1.0], B, C], [0.0, 0.0], [0.5, 0.0])
    mixed(hand)
    close(liked(hand)[0], [3.1, 0.0, 2.0, -6.0], 1e-5)
    still = plane(FedFomo(affinity="normalised"), [], [0.0, 0.0], [0.0, 0.0])
    mixed(still)
    close(liked(still), [[0.1]], 1e-12)  # a sum of 0 divides nothing


def test_the_record_is_of_the_last_mixture_alone() -> None:
    """Mixed with B (client 1) first, then sent only client 2's model: client 1 is gone from the record, the row sums to
    1, and P keeps what both rounds have shown."""
    hand = plane(FedFomo(), [B, C], [0.0, 0.0], [0.5, 0.0])
    mixed(hand)
    same(learned(hand), {0: 0.6, 1: 0.4, 2: 0.0})
    hand.server = hand.server.but(models=torch.tensor([B]), owner=torch.tensor([2]))
    hand.kept[0] = Bundle(before=torch.tensor([0.0, 0.0]), model=torch.tensor([0.5, 0.0]))
    mixed(hand)
    same(learned(hand), {0: 0.6, 1: 0.0, 2: 0.4})
    close(liked(hand)[0], [0.1 + 2 * 0.75, 0.5, -1.5 + 0.5])


def test_the_best_other_comes_first() -> None:
    """After that round B (client 2) is the one to ask for; sorted the wrong way, as in a published program, it would be
    C, the worst."""
    hand = plane(FedFomo(peers=1, epsilon=0.0), [[1.0, 1.0], B, C], [0.0, 0.0], [0.5, 0.0])
    like(hand, torch.tensor([[0.85, 0.0, 0.5, -1.5]] * 4))
    assert hand.download([0]).row(0).ids.tolist() == [2]
    hand.method = FedFomo(peers=2, epsilon=0.0)
    assert hand.download([0]).row(0).ids.tolist() == [2, 1]


# ---- who is sent ---------------------------------------------------------------------------------------------------
def test_exploration_schedule() -> None:
    """.3 less .05 a round, never below 0. Nobody has anything to choose from in round 1."""
    method = FedFomo(epsilon=0.3, epsilon_decay=0.05)
    close([method.exploration(t) for t in range(1, 9)], [0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0, 0], 1e-12)


def ten(method: FedFomo, t: int) -> ByHand:
    """Ten clients that have all uploaded, client i at i; each likes high numbers."""
    hand = ByHand(method, vector_net(0.0), [copies(0.0, 2)] * 10)
    hand.t = t
    like(hand, torch.arange(10.0).expand(10, 10))
    models = torch.arange(10.0)[:, None]
    hand.server = hand.server.but(models=models, owner=torch.arange(10))
    return hand


def test_own_model_takes_no_place() -> None:
    """The own entry of P is the largest for client 9, yet it is sent the four best others: five candidates in all."""
    sent = ten(FedFomo(epsilon=0.0), 1).download([0, 9])
    assert sent.row(0).ids.tolist() == [9, 8, 7, 6]
    assert sent.row(1).ids.tolist() == [8, 7, 6, 5]
    close(sent.row(1).models[:, 0], [8, 7, 6, 5])


def test_exploring_draws_anew_in_every_round_and_for_every_client() -> None:
    """With a chance of 1 all four are random: distinct, never the client itself, other ones in other rounds and for
    other clients, the same when asked again. (The authors' program seeds its generator anew in every round.)"""
    method = FedFomo(epsilon=1.0, epsilon_decay=0.0)
    drawn = {(t, k): tuple(ten(method, t).download([k]).row(0).ids.tolist()) for t in range(1, 6) for k in range(10)}
    assert all(len(set(ids)) == 4 and k not in ids for (_, k), ids in drawn.items())
    assert len({drawn[t, 3] for t in range(1, 6)}) == 5
    assert len({drawn[1, k] for k in range(10)}) >= 9
    assert drawn[2, 3] == tuple(ten(method, 2).download([3]).row(0).ids.tolist())


def test_ties_are_broken_at_random() -> None:
    """At the start P is equal for all others: every client is asked for about as often as any other."""
    hand = ten(FedFomo(epsilon=0.0), 1)
    like(hand, torch.zeros(10, 10))
    seen = torch.zeros(10)
    for hand.t in range(1, 41):
        for ids in hand.download(range(10)).rows.ids:
            seen[ids] += 1
    assert int(seen.sum()) == 40 * 10 * 4
    assert float(seen.min()) > 120
    assert float(seen.max()) < 200


def test_only_models_that_were_uploaded_are_sent() -> None:
    """Five clients, two uploads in round 1: the others are given both, the two each other's; a place that stays empty
    has the id -1 and gains nothing. Start models of clients that have not taken part, which a published program sends,
    are never sent."""
    net = mlp()
    hand = ByHand(FedFomo(epsilon=1.0, epsilon_decay=0.0), net)
    assert hand.download([0, 1]).row(0) == Bundle()
    up = hand.play([1, 3])
    sent = hand.download([0, 1, 3])
    assert sorted(sent.row(0).ids.tolist()) == [1, 3]
    assert sent.row(1).ids.tolist() == [3, -1]
    assert sent.row(2).ids.tolist() == [1, -1]
    assert torch.equal(sent.row(1).models[0], up.model[1])
    assert not bool(sent.row(1).models[1].any())
    gained = hand.play([0, 1, 3]).gains
    assert gained[1:, 2].tolist() == [0.0, 0.0]
    assert bool(gained[:, :2].any(1).all())
    assert float(hand.download([1]).weights[0, [0, 2, 4]].sum()) == 0.0


@pytest.mark.parametrize(("pool", "ids"), [("last-round", [2]), ("bank", [0, 1, 2])])
def test_pool(pool: str, ids: list[int]) -> None:
    """Rounds with {0, 1}, then {2}: client 3 may be sent the last upload, or the newest of all three."""
    hand = ByHand(FedFomo(pool=pool))
    hand.play([0, 1])
    newest = hand.play([2]).model[0]
    row = hand.download([3]).row(0)
    assert sorted(row.ids.tolist()) == ids
    assert torch.equal(row.models[row.ids.tolist().index(2)], newest)
    again = hand.play([0]).model[0]
    assert torch.equal(hand.server.models[hand.server.owner.tolist().index(0)], again)


def test_traffic_is_a_few_models_down_and_one_up() -> None:
    """M models and ids down, to train and to predict; one model, M ids and M + 1 gains up."""
    net = mlp()
    hand = ByHand(FedFomo(peers=3), net)
    hand.play()
    sent = hand.download([2]).row(0)
    assert {n: tuple(t.shape) for n, t in sent.items()} == {"models": (3, net.size), "ids": (3,)}
    up = hand.play()
    assert {n: tuple(t.shape) for n, t in up.items()} == {"model": (5, net.size), "ids": (5, 3), "gains": (5, 4)}
    shown = hand.method.deliver(hand.server, hand.at("evaluate", [0, 1])).row(0)
    assert {n: tuple(t.shape) for n, t in shown.items()} == {"models": (3, net.size), "ids": (3,)}


def test_empty_places_do_not_travel() -> None:
    """Three of five clients in a round, four places: in round 2 there are three models, so a client of the last cohort
    is sent the two of the others and another client three, and each as many ids as the most have places."""
    p = mlp().size * 4
    one, two = run(FedFomo(peers=4), mlp(), federation(), rounds_=2, participation=0.6).reports
    again = len(set(one.cohort) & set(two.cohort))
    width = 3 if again < 3 else 2
    assert again > 0
    assert two.bytes_down == (2 * again + 3 * (3 - again)) * p + 3 * width * 8


def test_a_newcomer_chooses_among_models_at_once() -> None:
    """A client that comes late has the common start as both of its models: its own gain is 0, others may have some. Its
    row of P is new, the others' are as they were."""
    hand = ByHand(FedFomo(), present=4)
    hand.play([0, 1, 2, 3])
    hand.play([0, 1, 2, 3])
    before = liked(hand)
    hand.join(5)
    assert torch.equal(liked(hand)[:4, :4], before)
    close(liked(hand)[4], [0, 0, 0, 0, 0.1], 1e-12)
    up = hand.play([4])
    assert float(up.gains[0, 0]) == 0.0
    assert float(up.gains[0, 1:].max()) > 0
    assert not torch.equal(hand.kept[4].before, hand.net.w0)


# ---- the client's data ---------------------------------------------------------------------------------------------
def test_losses_are_of_the_validation_part() -> None:
    """Validation at (1, 0), training at (-1, 0): B gains, C does not; without a validation part it is the other way."""
    hand = plane(FedFomo(), [B, C], [0.0, 0.0], [0.0, 0.0])
    hand.data = [copies([-1.0, 0.0], 4)] * 3
    for held, wanted in ((copies([1.0, 0.0], 2), {1: 0.5, 2: -1.5}), (copies([1.0, 0.0], 0), {1: -1.5, 2: 0.5})):
        sent = hand.download([0]).row(0)
        client = replace(hand.client(0, sent), validation=held)
        candidates = torch.cat([client.state.model[None], sent.models])
        gains = hand.method.gained(client, client.state.before, candidates, sent.ids)
        same(dict(zip(sent.ids.tolist(), gains[1:].tolist(), strict=True)), wanted)


def test_validation_decides_and_test_data_do_not() -> None:
    """With other validation labels clients mix otherwise; with other test labels nothing changes."""
    shards = federation()
    turn = lambda d: Samples(d.x, (d.y + 1) % 3)  # noqa: E731
    usual = run(FedFomo(), mlp(), shards, participation=1.0)
    tested = run(FedFomo(), mlp(), [ClientData(s.train, s.validation, turn(s.test)) for s in shards], participation=1.0)
    judged = run(FedFomo(), mlp(), [ClientData(s.train, turn(s.validation), s.test) for s in shards], participation=1.0)
    assert all(torch.equal(usual.state[n], tested.state[n]) for n in usual.state)
    apart(usual.state.models, judged.state.models, 1e-3)


def test_distances_leave_running_statistics_out() -> None:
    """A model that differs in running statistics only is at distance 0: no gain. The mixture takes them along."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedFomo(), net, [federation()[0].train])
    client, other = hand.client(0), net.w0
    other[net.buffers] += 1.0
    assert float(hand.method.gained(client, net.w0, other[None], torch.empty(0, dtype=torch.int64))) == 0.0


def test_a_model_that_has_diverged_does_no_harm() -> None:
    """A received model of 1e30 has an infinite or undefined loss: the worst gain, a finite number, no weight; and a
    client whose own models have diverged is rescued by a sound one."""
    gains, theta = mixed(plane(FedFomo(), [[1e30, 0.0], B], [0.0, 0.0], [0.5, 0.0]))
    assert gains[1] < -1e5
    assert all(abs(g) <= 1e6 for g in gains.values())
    close(theta, [0.7, 0.0])
    gains, theta = mixed(plane(FedFomo(), [B], [1e30, 0.0], [1e30, 0.0]))
    assert gains[1] > 0
    close(theta, B)


def test_views() -> None:
    """Evaluated is what the client mixes of its own model and those that it would be sent now, without training: here
    just what its next round trains from. "trained" is the model after its last local training."""
    hand = plane(FedFomo(), [B], [0.0, 0.0], [0.5, 0.0])
    before = hand.kept[0].model.clone()
    given = hand.client(0, hand.download([0, 1]).row(0))
    would = hand.method.personalize(given).model
    assert torch.equal(views_of(hand.method, given)["trained"].model, before)
    _, theta = mixed(hand)
    assert would.tolist() == theta
    apart(would, before, 0.1)
    assert torch.equal(views_of(hand.method, hand.client(0))["trained"].model, hand.kept[0].model)


def test_what_is_delivered_for_an_evaluation() -> None:
    """The candidates of the next round and whose they are, never the client's own; nothing before any upload."""
    hand = ByHand(FedFomo(peers=2))
    assert dict(hand.method.deliver(hand.server, hand.at("evaluate", [0, 1])).row(0)) == {}
    hand.play([0, 1, 2])
    at = hand.at("evaluate", [0, 1, 2, 3, 4])
    found = hand.method.deliver(hand.server, at)
    assert {n: tuple(t.shape) for n, t in found.row(0).items()} == {"models": (2, hand.net.size), "ids": (2,)}
    for i in range(5):
        ids = found.row(i).ids.tolist()
        assert i not in ids
        assert len(set(ids)) == 2
        assert set(ids) <= {0, 1, 2}
        for k, w in zip(ids, found.row(i).models, strict=True):
            assert torch.equal(w, hand.kept[k].model)


@pytest.mark.parametrize(
    ("ids", "ok"), [([1, 2], True), ([1, -1], True), ([1, 3], False), ([-2, 1], False), ([2, 2], False)]
)
def test_ids_that_point_at_nobody_are_refused(ids: list[int], ok: bool) -> None:
    """Three clients: ids are 0, 1, 2 or -1 for an empty place, each once."""
    hand = plane(FedFomo(), [B, C], [0.0, 0.0], [0.5, 0.0])
    why = unusable(hand.method, hand.at("distribute", [0, 1, 2]), Bundle(ids=torch.tensor(ids)))
    assert (why is None) == ok


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_it_is_not_local_training() -> None:
    """With others it is not; the record of who learned from whom has rows that sum to 1, and says so one round late: in
    the rounds 1 and 2 that everybody has learned from itself."""
    ours = run(FedFomo(), mlp(), federation(), participation=1.0, rounds_=5)
    local = run(Local(), mlp(), federation(), participation=1.0, rounds_=5)
    assert any(float((ours.clients[i].model - local.clients[i].model).abs().max()) > 0.01 for i in range(5))
    for report in ours.reports:
        close(report.weights.sum(1), torch.ones(5), 1e-12)
    assert all(torch.equal(r.weights, torch.eye(5, dtype=torch.float64)) for r in ours.reports[:2])
    assert float(ours.reports[2].weights.diagonal().min()) < 0.99


def test_the_pool_of_full_rounds_is_the_bank() -> None:
    """When all take part in every round both pools hold the same models: the same run."""
    a, b = (run(FedFomo(pool=p), mlp(), federation(), participation=1.0) for p in ("last-round", "bank"))
    assert all(torch.equal(a.state[n], b.state[n]) for n in a.state)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method",
    [
        FedFomo(peers=2, epsilon=0.0, pool="bank"),
        FedFomo(peers=2, epsilon=0.0, pool="bank", norm="l1", affinity="normalised"),
        FedFomo(peers=1, epsilon=0.0, fallback="trained"),
        FedFomo(peers=2, epsilon=0.9, epsilon_decay=0.1, pool="bank"),
    ],
    ids=["raw", "l1-normalised", "trained", "exploring"],
)
def test_an_independent_program_gives_the_same(method: FedFomo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates one by one and P as a table in float64, three of five unequal clients in each of eight rounds; ties in
    P are the library's."""
    sent: dict[tuple[int, int], list[int]] = {}
    distribute = FedFomo.distribute

    def recorded(self: FedFomo, s: Bundle, r: Round) -> Download:
        out = distribute(self, s, r)
        for row, k in enumerate(r.ids.tolist() if r.step == "distribute" else []):
            sent[r.index, k] = [n for n in out.row(row).get("ids", torch.empty(0)).tolist() if n >= 0]
        return out

    monkeypatch.setattr(FedFomo, "distribute", recorded)
    training = Training(epochs=2, batch_size=5, lr=0.3)
    found, shards, w0 = plain.played(method, rounds_=8, training=training)
    liked = [[0.1 if n == k else 0.0 for n in range(5)] for k in range(5)]
    pool: dict[int, Tensor] = {}
    before, own = [w0] * 5, [w0] * 5
    stuck = moved = chosen = explored = 0
    for t, cohort in plain.cohorts(found):
        for k in cohort:
            others, got = set(pool) - {k}, sent[t, k]
            assert set(got) <= others
            best = sorted((liked[k][n] for n in others), reverse=True)[: method.peers]
            if method.epsilon == 0:
                assert [liked[k][n] for n in got] == pytest.approx(best, abs=1e-5)
            assert len(set(got)) == len(got) == min(method.peers, len(others))
            explored += [liked[k][n] for n in got] != pytest.approx(best, abs=1e-5)
            chosen += len(others) > len(got) and best[-1] != 0
            candidates = {k: own[k], **{n: pool[n] for n in got}}
            gains = {n: _gain(before[k], w, shards[k].validation, method.norm) for n, w in candidates.items()}
            total = sum(max(g, 0) for g in gains.values())
            stuck += total == 0 and gains[k] < 0
            moved += any(gains[n] > 0 for n in got)
            if total:
                start = sum(max(g, 0) / total * candidates[n] for n, g in gains.items())
            else:
                start = before[k] if method.fallback == "previous" else own[k]
            size = abs(sum(gains.values())) if method.affinity == "normalised" else 1.0
            for n, g in gains.items():
                liked[k][n] += g / (size or 1.0)
            before[k], (own[k], _) = start, plain.descend(start, shards[k].train, k, t, training=training)
        pool = {**(pool if method.pool == "bank" else {}), **{k: own[k] for k in cohort}}
    assert stuck > 2
    assert moved > 1
    assert chosen > 3
    assert (explored > 3) == (method.epsilon > 0)
    assert sorted(found.state.owner.tolist()) == sorted(pool)
    for k, w in zip(found.state.owner.tolist(), found.state.models, strict=True):
        assert plain.distance(w, pool[k]) < 2e-6
    for k, kept in found.clients.items():
        assert plain.distance(kept.before, before[k]) < 2e-6
        assert plain.distance(kept.model, own[k]) < 2e-6
    pairs = [(int(code) >> 32, int(code) & (2**32 - 1)) for code in found.state.known]
    table = torch.tensor([liked[k][n] for k, n in pairs], dtype=torch.float64)
    assert plain.distance(found.state.affinity, table) < 5e-6  # differences of losses in float32, divided by small sums
    assert {(k, n) for k in range(5) for n in range(5) if liked[k][n]} == set(pairs)


def _gain(before: Tensor, w: Tensor, held: Samples, norm: str) -> float:
    fall = float(plain.loss(before, held.x.double(), held.y) - plain.loss(w, held.x.double(), held.y))
    far = float((w - before).abs().sum() if norm == "l1" else (w - before).square().sum().sqrt())
    return fall / far if far else 0.0
