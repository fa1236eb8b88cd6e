"""CFL against numbers worked out by hand (Sattler, Müller, Samek, IEEE TNNLS 32(8), 2021).

The network is a vector and local training adds a given update, so that every length and cosine can be done with a
pencil. Throughout, "two pairs" are the updates (2, .2), (2, -.2), (-2, .4), (-2, -.4): their sum is 0.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage

import plain
from fedkin.capabilities.groups import labels_of
from fedkin.capabilities.logs import numbers_of
from fedkin.core import Bundle, Client, Train, Training
from fedkin.functional.linkage import bipartition, cosines
from fedkin.methods import CAM, FedAvg
from fedkin.methods.cfl import CFL
from toys import ByHand, ClientData, apart, blobs, close, copies, federation, mlp, mlp_with_batchnorm, run, vector_net

PAIRS = [(2.0, 0.2), (2.0, -0.2), (-2.0, 0.4), (-2.0, -0.4)]
NOW = {"eps1": 1e9, "eps2": 0.0, "after": 0}  # divides whenever everybody has reported
Updates = Sequence[Sequence[float]] | Mapping[int, Sequence[float]]


class Moves:
    """A federation whose clients move by given updates, whatever they start from."""

    def __init__(
        self, method: CFL, clients: int, sizes: Sequence[int] | None = None, present: int | None = None, width: int = 2
    ) -> None:
        self.updates: Updates = []
        self.starts: dict[int, list[float]] = {}
        data = [copies([0.0] * width, n) for n in sizes or [1] * clients]
        self.hand = ByHand(method, vector_net(*[1.0] * width), data, solve=self._solve, present=present)

    def _solve(self, request: Train, client: Client) -> torch.Tensor:
        self.starts[client.id] = request.start.tolist()
        return request.start + torch.tensor(self.updates[client.id])

    def play(self, updates: Updates, ids: Sequence[int] | None = None) -> None:
        self.updates = updates
        self.starts = {}
        self.hand.play(range(len(updates)) if ids is None else ids)

    @property
    def state(self) -> Bundle:
        return self.hand.server

    @property
    def clusters(self) -> list[int]:
        return labels_of(self.hand.method, self.state, self.hand.at("evaluate", [])).tolist()

    def served(self, *ids: int) -> list[list[float]]:
        """What these clients predict with."""
        return [self.hand.used(i).model.tolist() for i in ids]


# ---- golden numbers ------------------------------------------------------------------------------------------------
def test_two_pairs_similarities() -> None:
    """cos(0, 1) = 3.96/4.04, cos(2, 3) = 3.84/4.16; across -3.92 and -4.08 over sqrt(4.04 * 4.16). The most similar
    pair across is at -.9562, the least similar within at .923077: a gap of 1.879277, a dissimilarity of
    sqrt((1 + .9562)/2) = .988989."""
    alike = cosines(torch.tensor(PAIRS))
    a, b, c = 0.980198, -0.9562, -0.995229
    close(alike, [[1, a, b, c], [a, 1, c, b], [b, c, 1, 0.923077], [c, b, 0.923077, 1]])
    second, across = bipartition(alike)
    assert second.tolist() == [False, False, True, True]
    close(across, -0.9562)
    close(float(alike[2, 3]) - across, 1.879277)
    close(math.sqrt((1 - across) / 2), 0.988989)


def test_two_pairs_are_divided() -> None:
    """Mean update 0 < .4, the longest sqrt(4.16) = 2.039608 > 1.6: {0, 1} and {2, 3}. Both start from (1, 1) and get
    their own mean: (3, 1) and (-1, 1)."""
    moves = Moves(CFL(after=0), 4)
    moves.play(PAIRS)
    assert moves.clusters == [0, 0, 1, 1]
    close(moves.state.centres, [[3, 1], [-1, 1]])
    close(moves.served(0, 1, 2, 3), [[3, 1], [3, 1], [-1, 1], [-1, 1]])


def test_the_log_says_mean_and_longest() -> None:
    """Not divided, the lengths of the mean update and of the longest are noted: 0 and 2.039608."""
    moves = Moves(CFL(), 4)
    moves.play(PAIRS)
    notes = numbers_of(moves.hand.method, moves.state)
    assert notes["clusters"] == 1
    close([notes["mean_update"], notes["longest_update"]], [0, 2.039608])


def test_a_heavy_client_keeps_the_mean_from_rest() -> None:
    """Samples 1, 1, 1, 5: the mean update is (-1, -.2) with length 1.019804 > .4, so nothing is divided. Clients that
    weigh the same (a run's choice) are divided as before."""
    moves = Moves(CFL(after=0), 4, [1, 1, 1, 5])
    moves.play(PAIRS)
    assert moves.clusters == [0, 0, 0, 0]
    close(moves.state.norms, [[1.019804, 2.039608]])
    moves = Moves(CFL(after=0), 4, [1, 1, 1, 5])
    moves.hand.uniform = True
    moves.play(PAIRS)
    assert moves.clusters == [0, 0, 1, 1]


def test_each_half_takes_its_weighted_mean() -> None:
    """Samples 1, 1, 1, 5 and a looser first threshold: (1, 1) + (2, 0) and (1, 1) + (-2, (.4 - 5 * .4)/6) =
    (-1, .733333); with equal weights (-1, 1)."""
    for uniform, second in ((False, [-1, 0.733333]), (True, [-1, 1])):
        moves = Moves(CFL(eps1=2.0, after=0), 4, [1, 1, 1, 5])
        moves.hand.uniform = uniform
        moves.play(PAIRS)
        assert moves.clusters == [0, 0, 1, 1]
        close(moves.state.centres, [[3, 1], second])


@pytest.mark.parametrize(
    ("linkage", "labels", "across"), [("single", [0, 0, 0, 0, 1], 0.866025), ("complete", [0, 0, 1, 1, 1], 0.939693)]
)
def test_linkages_differ(linkage: str, labels: list[int], across: float) -> None:
    """Updates of length 1 at 0, 20, 40, 60, 90 degrees. The best halves are {0..60} | {90}, 30 degrees apart (cosine
    .866025); the authors' complete linkage makes {0, 20} | {40, 60, 90}, 20 apart (.939693)."""
    angles = [math.radians(a) for a in (0, 20, 40, 60, 90)]
    updates = [(math.cos(a), math.sin(a)) for a in angles]
    moves = Moves(CFL(linkage=linkage, **NOW), 5)
    moves.play(updates)
    assert moves.clusters == labels
    close(bipartition(cosines(torch.tensor(updates)), linkage)[1], across)


def test_second_division_keeps_client_ids() -> None:
    """Trap of the authors' notebook and of FL-bench: halves of {5..9} written as positions {0, 1}, {2, 3, 4}. Round 1:
    0-4 move by (3, 0), 5-9 by (-3, 0). Round 2: 0-4 are at rest, 5 and 6 move by (0, 3), 7, 8, 9 by (0, -2): mean 0.
    The cluster {5..9} becomes {5, 6} and {7, 8, 9}; 0-4 stay where they are."""
    moves = Moves(CFL(after=0), 10)
    moves.play([(3.0, 0.0)] * 5 + [(-3.0, 0.0)] * 5)
    assert moves.clusters == [0] * 5 + [1] * 5
    moves.play([(0.0, 0.0)] * 5 + [(0.0, 3.0)] * 2 + [(0.0, -2.0)] * 3)
    assert moves.clusters == [0] * 5 + [1] * 2 + [2] * 3
    close(moves.state.centres, [[4, 1], [-2, 4], [-2, -1]])
    assert moves.state.splits.tolist() == [0, 1]


def test_zero_update() -> None:
    """A client that did not move has cosine 0 with the others and 1 with itself: with (2, 0), (-2, 0), (0, 0) the most
    similar pairs, at 0, tie; the lowest indices join, and nothing is NaN."""
    moves = Moves(CFL(**NOW), 3)
    moves.play([(2.0, 0.0), (-2.0, 0.0), (0.0, 0.0)])
    assert moves.clusters == [0, 1, 0]
    assert bool(torch.isfinite(moves.state.centres).all())
    close(cosines(torch.tensor([(2.0, 0.0), (0.0, 0.0)])), torch.eye(2), 0)


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_clients_are_never_divided(clients: int) -> None:
    """|c| > 2 is asked for, whatever the thresholds; the two halves of two clients would be {0} and {1}."""
    moves = Moves(CFL(**NOW), clients)
    moves.play(PAIRS[1 : 1 + clients])
    assert moves.clusters == [0] * clients
    assert bipartition(cosines(torch.tensor(PAIRS[1:3])))[0].tolist() == [False, True]


def test_identical_updates_are_not_divided() -> None:
    """Three updates (1, 1): mean and longest are both sqrt(2), not below .4 and above 1.6. With thresholds that let
    them pass the dissimilarity sqrt((1 - 1)/2) = 0 is not above gamma = 0."""
    for method in (CFL(after=0), CFL(**NOW)):
        moves = Moves(method, 3)
        moves.play([(1.0, 1.0)] * 3)
        assert moves.clusters == [0, 0, 0]
        close(moves.state.norms, [[1.414214, 1.414214]])


# ---- thresholds ----------------------------------------------------------------------------------------------------
def test_gamma_asks_for_a_dissimilarity() -> None:
    """Two pairs are .988989 apart: divided with gamma .98, not with .99."""
    for gamma, wanted in ((0.98, [0, 0, 1, 1]), (0.99, [0, 0, 0, 0])):
        moves = Moves(CFL(after=0, gamma=gamma), 4)
        moves.play(PAIRS)
        assert moves.clusters == wanted


def test_both_thresholds_are_needed() -> None:
    """Not below eps1, or not above eps2: not divided. The bounds themselves do not pass."""
    longest = float(torch.tensor(PAIRS[3]).double().norm())
    for method in (CFL(eps1=0.0, after=0), CFL(eps2=longest, after=0), CFL(eps2=2.1, after=0)):
        moves = Moves(method, 4)
        moves.play(PAIRS)
        assert moves.clusters == [0, 0, 0, 0]


def test_not_before_its_time() -> None:
    """after = 2: rounds 1 and 2 divide nothing, round 3 does."""
    moves = Moves(CFL(after=2), 4)
    for wanted in ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]):
        moves.play(PAIRS)
        assert moves.clusters == wanted


def test_relative_thresholds_do_not_see_the_scale() -> None:
    """Updates a hundred times smaller never reach 1.6, and CFL stays FedAvg. In quarters of the longest update of the
    first rounds (2.039608/4 = .509902 as they are) the defaults are 0.1 and 0.4 of it: divided at any scale."""
    small = [[v / 100 for v in u] for u in PAIRS]
    moves = Moves(CFL(after=0), 4)
    moves.play(small)
    assert moves.clusters == [0, 0, 0, 0]
    for updates in (PAIRS, small):
        moves = Moves(CFL(after=0, eps="relative"), 4)
        moves.play(updates)
        assert moves.clusters == [0, 0, 1, 1]


def test_the_scale_is_that_of_the_first_five_rounds() -> None:
    """Longest updates 3, 5, 2, 2, 2, then 50: the scale stays 5, and a mean of length .6 is above a tenth of it (.5)
    in round 7, one of .4 below it in round 8."""
    moves = Moves(CFL(after=6, eps="relative"), 3)
    for length in (3.0, 5.0, 2.0, 2.0, 2.0, 50.0):
        moves.play([(length, 0.0), (-length, 0.0), (0.0, 0.0)])
    assert moves.state.scale.tolist() == [3.0, 5.0, 2.0, 2.0, 2.0]
    moves.play([(3.0, 0.6), (-3.0, 0.6), (0.0, 0.6)])
    assert moves.clusters == [0, 0, 0]
    moves.play([(3.0, 0.4), (-3.0, 0.4), (0.0, 0.4)])
    assert len(set(moves.clusters)) == 2


# ---- partial participation -----------------------------------------------------------------------------------------
def test_waits_until_all_have_reported() -> None:
    """Only 0, 1, 2 take part: their mean is not the cluster's. When 3 comes in round 2 its update meets their newest,
    from round 1, and the cluster is divided; who did not take part gets the centre of its half, which did not move:
    round 1 moved (1, 1) by the mean (2, .4)/3, round 2 only the second half, by (-2, -.4)."""
    moves = Moves(CFL(eps1=0.7, after=0), 4)
    moves.play(PAIRS, [0, 1, 2])
    assert moves.clusters == [0, 0, 0, 0]
    moves.play(PAIRS, [3])
    assert moves.clusters == [0, 0, 1, 1]
    close(moves.state.centres, [[5 / 3, 17 / 15], [-1 / 3, 11 / 15]])


def test_updates_from_before_a_division_are_not_used_again() -> None:
    """Trap of stale updates: after the division of round 1, cluster {0, 1, 2} has three new members' updates only when
    all three have taken part again. Round 2 has 0 and 1; an old update of 2 would complete them and divide."""
    updates = [(0.0, 3.0), (0.3, 3.0), (-0.3, 3.0), (0.0, -9.0)]
    moves = Moves(CFL(**NOW), 4)
    moves.play(updates)
    assert moves.clusters == [0, 0, 0, 1]
    moves.play([(1.0, 0.0), (-1.0, 0.0)], [0, 1])
    assert moves.clusters == [0, 0, 0, 1]
    assert moves.state.fresh.tolist() == [True, True, False, False]
    moves.play({2: (0.9, 0.1)}, [2])
    assert moves.clusters == [0, 2, 0, 1]


def test_a_cluster_without_participants_is_unchanged() -> None:
    """Trap of a division by zero: after the division only clients of the first half come; the other's centre stays."""
    moves = Moves(CFL(after=0), 4)
    moves.play(PAIRS)
    before = moves.state.centres.clone()
    moves.play([(0.5, 0.5), (0.5, 0.7)], [0, 1])
    assert torch.equal(moves.state.centres[1], before[1])
    close(moves.state.centres[0], before[0] + torch.tensor([0.5, 0.6]))


def test_a_half_without_participants_keeps_the_model() -> None:
    """Divided in a round of 0, 1, 2, 3 and 4 after 5 came alone: nobody of {5} took part, its centre is what the
    cluster's was."""
    moves = Moves(CFL(**NOW), 6)
    moves.play({5: (-5.0, 0.0)}, [5])
    before = moves.state.centres[0].clone()
    moves.play([(1.0, 0.1), (1.0, 0.2), (1.0, 0.0), (1.0, 0.1), (1.0, -0.1)])
    assert moves.clusters == [0, 0, 0, 0, 0, 1]
    assert torch.equal(moves.state.centres[1], before)


def test_going_by_those_who_have_reported() -> None:
    """The other rule: 0, 1, 2 are divided at once; client 3, who was away, is assigned when it comes: it trains the
    model that was divided, and its (-2, -.4) is more like -(2, -.4) of client 2 than like the first half's (2, 0)."""
    moves = Moves(CFL(eps1=1.0, after=0, split_requires="reported"), 4)
    moves.play(PAIRS, [0, 1, 2])
    assert moves.clusters == [0, 0, 1, -1]
    centres = moves.state.centres.clone()
    moves.play(PAIRS, [3])
    assert moves.starts[3] == [1.0, 1.0]
    assert moves.clusters == [0, 0, 1, 1]
    assert torch.equal(moves.state.centres, centres)


# ---- newcomers -----------------------------------------------------------------------------------------------------
def test_a_newcomer_walks_down_the_tree() -> None:
    """Round 1 at (1, 1): {0, 1, 2} by (3, 0) | {3, 4, 5} by (-3, 0). Round 2 at (-2, 1): {3, 4} by (0, 2) | {5} by
    (0, -4). Client 6 joins in round 3. It trains (1, 1) and moves by (-1, .3): second side, cosine .96. Then it trains
    (-2, 1), where the second cluster was divided, and moves by (.1, -1): the side of 5. Neither update moves a centre;
    from then on it trains its cluster's model."""
    moves = Moves(CFL(after=0), 7, present=6)
    moves.play([(3.0, 0.0)] * 3 + [(-3.0, 0.0)] * 3)
    moves.play([(0.0, 0.0)] * 3 + [(0.0, 2.0)] * 2 + [(0.0, -4.0)])
    assert moves.clusters == [0, 0, 0, 1, 1, 2]
    centres = moves.state.centres.clone()
    moves.hand.join(7)
    assert moves.clusters[6] == -1
    for update, start in (((-1.0, 0.3), [1.0, 1.0]), ((0.1, -1.0), [-2.0, 1.0])):
        moves.play({6: update}, [6])
        assert moves.starts[6] == start
        assert torch.equal(moves.state.centres, centres)
    assert moves.clusters[6] == 2
    moves.play({6: (1.0, 0.0)}, [6])
    assert moves.starts[6] == centres[2].tolist()
    close(moves.state.centres[2], centres[2] + torch.tensor([1.0, 0.0]))


def test_a_newcomer_predicts_with_the_largest_cluster_it_may_belong_to() -> None:
    """Round 1: {0, 1} | {2, 3, 4, 5}, round 2: {2, 3, 4} | {5}. Before it has found a side, a newcomer predicts
    with the model of the largest of all, {2, 3, 4}; at home with its own, {0, 1}."""
    moves = Moves(CFL(after=0), 7, present=6)
    moves.play([(6.0, 0.0)] * 2 + [(-3.0, 0.0)] * 4)
    moves.play([(0.0, 0.0)] * 2 + [(0.0, 2.0)] * 3 + [(0.0, -6.0)])
    assert moves.clusters == [0, 0, 1, 1, 1, 2]
    moves.hand.join(7)
    assert moves.served(6) == moves.served(2) != moves.served(0)
    moves.play({6: (1.0, 0.0)}, [6])
    assert moves.served(6) == moves.served(0)


def test_a_newcomer_before_any_division_is_one_of_all() -> None:
    """It joins the only cluster, trains its model, and must have reported before anything is divided."""
    moves = Moves(CFL(after=0), 4, present=3)
    moves.play([(0.1, 0.0)] * 3)
    moves.hand.join(4)
    moves.play(PAIRS, [0, 1, 2])
    assert moves.clusters == [0, 0, 0, 0]


def test_a_walking_newcomer_does_not_hold_up_its_cluster() -> None:
    """{0, 1, 2} can be divided while client 6 is on its way; it then has one more fork to pass."""
    moves = Moves(CFL(after=0), 7, present=6)
    moves.play([(3.0, 0.0)] * 3 + [(-3.0, 0.0)] * 3)
    moves.hand.join(7)
    moves.play([(0.0, 2.0), (0.0, 2.0), (0.0, -4.0)])
    assert moves.clusters == [0, 0, 2, 1, 1, 1, -1]
    moves.play({6: (1.0, 0.0)}, [6])
    assert moves.clusters[6] == -1
    moves.play({6: (0.0, -1.0)}, [6])
    assert moves.clusters[6] == 2


# ---- identities and real rounds ------------------------------------------------------------------------------------


def test_divisions_in_real_rounds_change_what_is_learned() -> None:
    """With loose thresholds the same federation is divided again and again, down to clusters of at most two."""
    result = run(CFL(**NOW), mlp(), federation(), rounds_=6, participation=1.0)
    sizes = torch.bincount(result.state.labels)
    assert len(sizes) >= 3
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) <= 2
    fedavg = run(FedAvg(), mlp(), federation(), rounds_=6, participation=1.0)
    for centre in result.state.centres:
        apart(centre, fedavg.state.model, 1e-2)


def test_clients_that_contradict_each_other_are_told_apart() -> None:
    """Six clients with the same inputs; the odd ones turn the labels by one. The halves are the true groups."""
    shares = [1.0, 1, 1]
    shards = [ClientData(*[blobs(n, shares, 10 * i + n, i % 2) for n in (40, 5, 9)]) for i in range(6)]
    result = run(CFL(eps="relative", eps1=3.0, after=3), mlp(), shards, rounds_=4, participation=1.0)
    assert len(result.state.centres) == 2
    assert result.reports[-1].clusters.tolist() == [0, 1, 0, 1, 0, 1]


def test_running_statistics_take_no_part_in_updates() -> None:
    """Updates and directions cover parameters, models all."""
    result = run(CFL(**NOW), mlp_with_batchnorm(), federation(), participation=1.0)
    net = mlp_with_batchnorm()
    assert len(result.state.splits) >= 1
    assert result.state.updates.shape[1] == result.state.ways.shape[2] == net.params.stop < net.size
    assert result.state.roots.shape[1] == result.state.centres.shape[1] == net.size


@pytest.mark.parametrize("warmup_of", ["global", "cluster"])
def test_inside_cam(warmup_of: str) -> None:
    """Fed-CAM around CFL: the cluster models are divided, and a client that joins after the warm-up finds its place."""
    method = CAM(inner=CFL(**NOW), warmup=1, warmup_of=warmup_of)
    result = run(method, mlp(), federation(), rounds_=8, participation=1.0, joins=[1, 1, 1, 1, 6])
    assert len(result.state["inner.centres"]) >= 2
    assert int(result.reports[-1].clusters.min()) >= 0
    kept = [result.state, *result.clients.values()]
    assert all(bool(torch.isfinite(t).all()) for b in kept for t in b.values() if t.is_floating_point())


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "participation"),
    [
        (CFL(eps="relative", eps1=2.0, eps2=1.8, after=1), 0.6),
        (CFL(eps1=0.6, eps2=0.8, after=1, gamma=0.68, linkage="complete"), 1.0),
    ],
    ids=["single", "complete"],
)
def test_an_independent_program_gives_the_same(method: CFL, participation: float) -> None:
    """A tree of nodes in float64, halves found by trying them all (or by scipy's complete linkage), eight unequal
    clients of three tasks, of which one joins after a division."""
    sizes = (9, 23, 14, 30, 11, 17, 26, 13)
    shards = [
        ClientData(*[blobs(m, [0.4, 0.3, 0.3], 4000 + 10 * i + k, i % 3) for k, m in enumerate((n, 5, 8))])
        for i, n in enumerate(sizes)
    ]
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5)
    joins = [1] * 7 + [6]
    found = run(method, mlp(), shards, rounds_=12, participation=participation, training=training, joins=joins)
    root = Node(mlp().w0.double(), set(range(7)))
    at, scale, divided, walked = dict.fromkeys(range(7), root), 0.0, [], 0
    for t, cohort in plain.cohorts(found):
        if t == 6:
            at[7] = root
            if not root.halves:
                root.members.add(7)
        ends = {i: plain.descend(at[i].model, shards[i].train, i, t, training=training)[0] for i in cohort}
        moved = {i: ends[i] - at[i].model for i in cohort}
        if 7 in cohort and at[7].halves:  # one step down; where it arrives it is a member before the tests
            step = moved.pop(7)
            at[7] = max(at[7].halves, key=lambda half, u=step: float(F.cosine_similarity(half.way, u, 0)))
            at[7].members |= set() if at[7].halves else {7}  # from now on
            walked += 1
        if t <= 5:
            scale = max([scale, *(float(u.norm()) for u in moved.values())])
        unit = scale / 4 if method.eps == "relative" else 1.0
        for node in {id(n): n for n in at.values() if not n.halves}.values():
            here = sorted(node.members & set(moved))
            node.newest |= {i: moved[i] for i in here}
            halves = _halves(node, sizes, method, unit) if t > method.after else ()
            if halves:
                node.halves = tuple(Node(node.model, half) for half in halves)
                divided.append(t)
                for child in node.halves:
                    child.way = _mean({i: node.newest[i] for i in child.members}, sizes)
                    at |= dict.fromkeys(child.members, child)
            for leaf in node.halves or (node,):
                if some := {i: moved[i] for i in here if i in leaf.members}:
                    leaf.model = leaf.model + _mean(some, sizes)
    assert len(divided) >= 3
    assert walked > 0
    labels = found.state.labels.tolist()
    for i in range(8):
        assert [labels[i] == labels[j] for j in range(8)] == [at[i] is at[j] for j in range(8)]
        assert plain.distance(found.state.centres[labels[i]], at[i].model) < 2e-6


class Node:
    """A cluster; after its division the model that was divided, and two halves."""

    def __init__(self, model: torch.Tensor, members: set[int]) -> None:
        self.model, self.members = model, members
        self.newest: dict[int, torch.Tensor] = {}
        self.halves: tuple[Node, ...] = ()
        self.way = torch.zeros_like(model)


def _mean(rows: dict[int, torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    return sum(sizes[i] * row for i, row in rows.items()) / sum(sizes[i] for i in rows)


def _halves(node: Node, sizes: Sequence[int], method: CFL, unit: float) -> tuple[set[int], ...]:
    """The members in two halves, if all conditions hold."""
    ids, rows = sorted(node.members), node.newest
    if len(ids) <= 2 or set(ids) != set(rows):
        return ()
    longest = max(float(rows[i].norm()) for i in ids)
    if float(_mean(rows, sizes).norm()) >= method.eps1 * unit or longest <= method.eps2 * unit:
        return ()
    alike = {(i, j): float(F.cosine_similarity(rows[i], rows[j], 0)) for i in ids for j in ids}
    across = lambda half: max(alike[i, j] for i in half for j in ids if j not in half)  # noqa: E731
    if method.linkage == "complete":
        tree = linkage([1 - alike[i, j] for i, j in combinations(ids, 2)], "complete")
        number = fcluster(tree, 2, "maxclust").tolist()
        half = {i for i, n in zip(ids, number, strict=True) if n == number[0]}
    else:
        half = min((set(c) for n in range(1, len(ids)) for c in combinations(ids, n)), key=across)
    return (half, set(ids) - half) if math.sqrt((1 - across(half)) / 2) > method.gamma else ()
