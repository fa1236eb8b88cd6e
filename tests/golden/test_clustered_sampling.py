"""Clustered sampling against numbers worked out by hand (Fraboni et al., ICML 2021).

m slots, K clients of n_i samples, M of all: an integer table [m, K] with row sums M and column sums m n_i; slot j draws
client i with chance table[j, i]/M, and the model is the plain mean over slots.
"""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

import plain
from fedkin.core import Bundle, Client, Round, Samples, Train, Training
from fedkin.core.refusals import UNUSED
from fedkin.core.rows import weighted_mean
from fedkin.core.seeds import generator
from fedkin.engines import Job, Loop, Task
from fedkin.engines.loop import sgd
from fedkin.methods.clustered_sampling import ClusteredSampling, table_by_group, unlikeness
from fedkin.methods.fedavg import FedAvg
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, run, vector_net


def clients(
    method: ClusteredSampling, sizes: list[int], slots: int, *, width: int = 2, uniform: bool = False
) -> ByHand:
    """Clients of these sizes, a cohort of so many slots, a model of ``width`` numbers that starts at 0."""
    zero = [0.0] * width
    hand = ByHand(method, vector_net(*zero), [copies(zero, n) for n in sizes], cohort=slots, uniform=uniform)
    hand.t = 1
    return hand


def remember(hand: ByHand, updates: list[list[float]]) -> None:
    """These are the clients' last updates."""
    rows, everybody = torch.tensor(updates), torch.arange(len(updates))
    hand.server = hand.server.but(updates=rows, unlike=unlikeness(rows, everybody, hand.method.measure))


def table(hand: ByHand, updates: list[list[float]] | None = None, ids: list[int] | None = None) -> list[list[int]]:
    """What the slots are drawn from, after these updates, with these clients available."""
    if updates is not None:
        remember(hand, updates)
    r = hand.at("sample", range(len(hand.data)) if ids is None else ids)
    got: list[list[int]] = hand.method.table(hand.server, r, r.rng).tolist()
    return got


def weights_vary(rows: list[list[int]], total: int) -> list[float]:
    """Variance of each client's weight in the mean: sum_j r_j (1 - r_j)/m^2."""
    r = torch.tensor(rows).double() / total
    got: list[float] = ((r * (1 - r)).sum(0) / len(rows) ** 2).tolist()
    return got


def at_degrees(*angles: float) -> list[list[float]]:
    return [[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in angles]


# ---- Algorithm 1: by size ------------------------------------------------------------------------------------------
BY_SIZE = ClusteredSampling(by="size")


def test_by_size_with_a_dominant_client() -> None:
    """n = (60, 20, 10, 10), m = 2: masses 120, 40, 20, 20 poured into slots of 100. Variances (r (1 - r) summed)/4:
    .2 * .8/4 = .04, .4 * .6/4 = .06, .04, .04; two draws by size have p (1 - p)/2 = .12, .08, .045, .045."""
    rows = table(clients(BY_SIZE, [60, 20, 10, 10], 2))
    assert rows == [[100, 0, 0, 0], [20, 40, 20, 20]]
    close(weights_vary(rows, 100), [0.04, 0.06, 0.04, 0.04])
    close(weights_vary([[60, 20, 10, 10]] * 2, 100), [0.12, 0.08, 0.045, 0.045])


def test_by_size_with_equal_sizes() -> None:
    """Six clients of 10, m = 3: masses 30, slots of 60: pairs in the order of ids."""
    wanted = [[30, 30, 0, 0, 0, 0], [0, 0, 30, 30, 0, 0], [0, 0, 0, 0, 30, 30]]
    assert table(clients(BY_SIZE, [10] * 6, 3)) == wanted


def test_by_size_with_clients_over_two_slots() -> None:
    """n = (7, 5, 5, 3), m = 3: masses 21, 15, 15, 9 and slots of 20: 20 | 1 + 15 + 4 | 11 + 9."""
    assert table(clients(BY_SIZE, [7, 5, 5, 3], 3)) == [[20, 0, 0, 0], [1, 15, 4, 0], [0, 0, 11, 9]]


@pytest.mark.parametrize("by", ["size", "similarity"])
def test_one_client_has_every_slot(by: str) -> None:
    """K = 1, m = 2: it is drawn twice."""
    hand = clients(ClusteredSampling(by=by), [5], 2)
    assert table(hand) == [[5], [5]]
    drawn = hand.method.sample(hand.server, hand.at("sample", [0]))
    assert (drawn.ids.tolist(), drawn.times.tolist()) == ([0], [2])


# ---- Algorithm 2: by similarity ------------------------------------------------------------------------------------
def test_angles_between_updates() -> None:
    """v, v, a vector at a right angle, and two clients without an update: 0, pi/2 = 1.570796, and 0 to all."""
    got = unlikeness(
        torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0], [0.0, 0.0]]), torch.arange(5), "angle"
    )
    right = 1.570796
    wanted = [[0, 0, right, 0, 0], [0, 0, right, 0, 0], [right, right, 0, 0, 0], [0] * 5, [0] * 5]
    close(got, wanted)


GROUPS = [
    ([10] * 6, 2, [0, 0, 0, 1, 1, 2], [[0, 0, 0, 20, 20, 20], [20, 20, 20, 0, 0, 0]]),
    ([60, 20, 10, 10], 2, [0, 1, 1, 2], [[100, 0, 0, 0], [20, 40, 20, 20]]),
    ([6, 5, 4, 3, 2], 3, [0, 1, 2, 3, 3], [[0, 15, 5, 0, 0], [0, 0, 5, 9, 6], [18, 0, 2, 0, 0]]),
]


@pytest.mark.parametrize(("sizes", "slots", "group", "wanted"), GROUPS, ids=["equal", "heavy", "many"])
def test_groups_become_slots(sizes: list[int], slots: int, group: list[int], wanted: list[list[int]]) -> None:
    """Equal: masses 60, 40, 20 of M = 60; the lighter of the two kept groups comes first and takes the third. Heavy:
    client 0 has mass 120, one slot of its own; of 20, 60, 20 the middle is kept. Many: masses 18, 15, 12, 15 of 20: the
    15s and the 18 are kept, light to heavy, ties by id; the 12 of client 2 fills up 5 + 5 + 2."""
    assert table_by_group(torch.tensor(sizes), slots, torch.tensor(group), generator(0)).tolist() == wanted


@pytest.mark.parametrize("linkage_input", ["rows", "condensed"])
def test_tables_from_updates(linkage_input: str) -> None:
    """The same three tables from updates that make these groups. Equal: 0, 1, 2 point east, 5 nearly so, 3 and 4 west;
    four of 20 are too heavy for 60. Heavy: all that is left over fits into one slot, whatever its direction. Many: 3
    and 4 are alike; any two others weigh more than 20 or join late."""
    method = ClusteredSampling(linkage_input=linkage_input)
    directions = [(0, 1, 2, 180, 179, 40), (0, 120, 240, 60), (0, 90, 180, 270, 271)]
    for (sizes, slots, _, wanted), angles in zip(GROUPS, directions, strict=True):
        assert table(clients(method, sizes, slots), at_degrees(*angles)) == wanted


def test_rows_of_the_matrix_or_distances() -> None:
    """Updates 2, 4, -1, -3, 1 by squared distances, five clients of 10, M = 50, masses 20: 0 and 4 join first.

    Distances: then 2 and 3, at 4, while 2 and {0, 4} are sqrt((2 * 81 + 2 * 16 - 1)/3) = 8.0 apart. Rows of the matrix
    as points, which is what the authors' program hands to SciPy: 2 goes to {0, 4}, at sqrt(4/3 * 741.25) = 31.4, before
    it goes to 3, at sqrt(1008) = 31.7; three are too heavy, so nobody but 0 and 4 is grouped."""
    updates = [[2.0], [4.0], [-1.0], [-3.0], [1.0]]
    by_rows, by_distances = (
        table(clients(ClusteredSampling(measure="l2", linkage_input=i), [10] * 5, 2, width=1), updates)
        for i in ("rows", "condensed")
    )
    assert by_rows == [[0, 20, 10, 20, 0], [20, 0, 10, 0, 20]]
    assert by_distances == [[20, 10, 0, 0, 20], [0, 10, 20, 20, 0]]


def test_measures_group_differently() -> None:
    """Updates 1, 9 to the east and 1, 9 to the north, two slots: by angle the directions; by length the short ones
    share a slot and the long ones, which are far from everybody, get the other."""
    updates = [[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 9.0]]
    rows = {m: table(clients(ClusteredSampling(measure=m), [10] * 4, 2), updates) for m in ("angle", "l1", "l2")}
    assert rows["angle"] == [[20, 20, 0, 0], [0, 0, 20, 20]]
    assert rows["l1"] == rows["l2"] == [[0, 20, 0, 20], [20, 0, 20, 0]]


def test_one_of_each_kind_in_every_cohort() -> None:
    """Three clients that move one way, three the other, two slots: each cohort has one of each; drawn by size alone it
    has two of one kind in half of the rounds."""
    hand = clients(ClusteredSampling(), [10] * 6, 2)
    remember(hand, at_degrees(0, 175, 5, 180, 10, 185))
    for t in range(1, 30):
        drawn = hand.method.sample(hand.server, hand.at("sample", range(6), t))
        assert sorted(i % 2 for i in drawn.ids.tolist()) == [0, 1]


def test_cohorts_are_unbiased() -> None:
    """n = (7, 5, 5, 3), three slots, 1,000 rounds: client i is drawn 3 n_i/20 times on average."""
    for method in (BY_SIZE, ClusteredSampling()):
        hand = clients(method, [7, 5, 5, 3], 3)
        if method.by == "similarity":
            remember(hand, at_degrees(0, 10, 90, 100))
        count = torch.zeros(4)
        for t in range(1, 1001):
            drawn = hand.method.sample(hand.server, hand.at("sample", range(4), t))
            assert int(drawn.times.sum()) == 3
            count[drawn.ids] += drawn.times
        close(count / 1000, torch.tensor([21, 15, 15, 9]) / 20, 0.06)


@pytest.mark.parametrize("sizes", [[60, 20, 10, 10], [80, 10, 10], [50, 30, 10, 5, 5]])
def test_clients_due_in_every_round_stay_unbiased(sizes: list[int]) -> None:
    """n_i/M > 1/m: whole slots of their own, the rest with the others. A table that only closes whole groups gives such
    a client one slot and no more; here its column still sums to m n_i."""
    for slots in (2, 3, 7):
        method = ClusteredSampling()
        rows = torch.tensor(table(clients(method, sizes, slots), at_degrees(*range(0, 40 * len(sizes), 40))))
        assert rows.sum(0).tolist() == [slots * n for n in sizes]
        assert rows.sum(1).tolist() == [sum(sizes)] * slots
        assert int((rows[:, 0] == sum(sizes)).sum()) >= slots * sizes[0] // sum(sizes)


# ---- clients that are drawn twice ----------------------------------------------------------------------------------
def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    """Drawn a, a, b; a's two runs end at 1 and 2, b's at 9: w = (1 + 2 + 9)/3 = 4, though a has 30 samples and b 10.
    Without the second run (1 + 9)/2 = 5; weighted by samples again it would be (30 * 1.5 + 10 * 9)/40 = 3.4."""
    ends = {0: [1.0, 2.0], 1: [9.0]}
    asked: list[int] = []

    def solve(request: Train, client: Client) -> torch.Tensor:
        asked.append(client.id)
        return torch.tensor([ends[client.id][asked.count(client.id) - 1]])

    hand = ByHand(ClusteredSampling(by="size"), vector_net(0.0), [copies(0.0, 30), copies(0.0, 10)], solve=solve)
    hand.play(drawn=Bundle(times=torch.tensor([2, 1])))
    assert asked == [0, 0, 1]
    close(hand.server.model, [4.0])


def test_the_second_run_has_batches_of_its_own() -> None:
    """Through the engine: drawn once, a client's upload is FedAvg's; drawn twice, the mean of two runs from the same
    model on differently shuffled batches, of which the first is the same."""
    shards, net, training = federation(), mlp(), Training(epochs=2, batch_size=5, lr=0.1)

    def upload(method: ClusteredSampling | FedAvg, **also: torch.Tensor) -> torch.Tensor:
        session = Loop().start(Job(method, net, training, shards, 0))
        (answer,) = session.map([Task("update", 1, 3, Bundle(model=net.w0, **also), Bundle())])
        return answer.reply.model

    twice, once = (upload(ClusteredSampling(), times=torch.tensor(n)) for n in (2, 1))
    rngs = [generator(0, "batches", "update", 3, 1, n) for n in (0, 1)]
    runs = torch.stack([sgd(Train(net.w0), shards[1].train, net, training, rng) for rng in rngs])
    assert torch.equal(once, runs[0])
    assert torch.equal(once, upload(FedAvg()))
    assert torch.equal(twice, weighted_mean(runs, torch.ones(2)))
    apart(runs[0], runs[1], 1e-3)


# ---- the server's memory -------------------------------------------------------------------------------------------
def test_the_last_update_of_each_client_is_kept() -> None:
    """From w = (0, 0) clients 0 and 2 end at (1, 1) and (3, 0); then, from their mean (2, .5), clients 1 and 2 end at
    (2, 0) and (1, 0): the updates kept are (1, 1), (0, -.5), (-1, -.5)."""
    ends = iter([[1.0, 1.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    hand = clients(ClusteredSampling(), [10, 10, 10], 2)
    hand.solve = lambda request, client: torch.tensor(next(ends))
    hand.play([0, 2], drawn=Bundle(times=torch.tensor([1, 1])))
    close(hand.server.updates, [[1, 1], [0, 0], [3, 0]])
    close(hand.server.model, [2.0, 0.5])
    hand.play([1, 2], drawn=Bundle(times=torch.tensor([1, 1])))
    close(hand.server.updates, [[1, 1], [0, -0.5], [-1, -0.5]])


def test_running_statistics_are_averaged_and_no_part_of_an_update() -> None:
    """With batch normalisation the update has as many numbers as there are parameters."""
    net = mlp_with_batchnorm()
    hand = ByHand(ClusteredSampling(), net)
    assert hand.server.updates.shape == (5, net.params.stop)
    up = hand.play([0, 3], drawn=Bundle(times=torch.tensor([1, 2]))).model
    close(hand.server.model[net.buffers], (up[0] + 2 * up[1])[net.buffers] / 3)
    assert net.params.stop < net.size


def test_by_size_remembers_nobody() -> None:
    """The state is the model alone."""
    assert set(run(BY_SIZE, mlp(), federation()).state) == {"model"}


def test_newcomers_are_alike() -> None:
    """Two clients that move one way, two the other, two newcomers; three slots of M = 60, masses 30: the newcomers
    share a slot, and the bank has grown by zeros."""
    hand = ByHand(ClusteredSampling(), vector_net(0.0, 0.0), [copies([0.0, 0.0], 10)] * 6, cohort=3, present=4)
    remember(hand, at_degrees(0, 180, 1, 181))
    hand.join(6)
    assert not bool(hand.server.updates[4:].any())
    assert table(hand) == [[30, 0, 30, 0, 0, 0], [0, 30, 0, 30, 0, 0], [0, 0, 0, 0, 30, 30]]


HALF, PI = math.pi / 2, math.pi
PAIRS = {
    # (0, 1), (0, 2), (1, 2) after round 1; then (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3) after round 2
    "angle": ([0, HALF, 0], [PI, 0, HALF, PI, HALF, HALF], [0, 0, 0, 0]),
    "l2": ([1, 5, 4], [4, 4, 2, 16, 2, 10], [1, 1, 9, 1]),
    "l1": ([1, 3, 2], [2, 2, 2, 4, 2, 4], [1, 1, 3, 1]),
}


@pytest.mark.parametrize(("measure", "first", "second", "newcomer"), [(m, *rows) for m, rows in PAIRS.items()])
def test_what_is_known_of_pairs_follows_the_updates(
    measure: str, first: list[float], second: list[float], newcomer: list[float]
) -> None:
    """Of three clients 0 moves by (1, 0) and 2 by (0, 2), and 1 has no update yet, which is (0, 0). A fourth comes; 1
    moves by (-1, 0), 2 by (3, 0) and 3 by (0, -1), while 0 keeps its last one. Of a fifth there is no update."""
    moves = [{0: [1.0, 0.0], 2: [0.0, 2.0]}, {1: [-1.0, 0.0], 2: [3.0, 0.0], 3: [0.0, -1.0]}]
    hand = ByHand(ClusteredSampling(measure=measure), vector_net(5.0, 7.0), [copies([0.0, 0.0], 10)] * 5, present=3)
    hand.solve = lambda request, client: request.start + torch.tensor(moves[hand.t - 1][client.id])
    for ids, known, wanted in (([0, 2], 3, first), ([1, 2, 3], 4, second)):
        hand.join(known)
        hand.play(ids)
        above = torch.triu_indices(known, known, 1)
        close(hand.server.unlike[*above], wanted, 1e-6)
        assert torch.equal(hand.server.unlike, hand.server.unlike.T)
    hand.join(5)
    close(hand.server.unlike[4, :4], newcomer, 1e-6)
    assert hand.server.unlike.diagonal().tolist() == [0.0] * 5


def test_only_who_is_available_is_drawn() -> None:
    """Client 0 is away: the table is over the others, sums and all."""
    for method in (BY_SIZE, ClusteredSampling()):
        hand = clients(method, [60, 20, 10, 10], 2)
        assert table(hand, None if method.by == "size" else at_degrees(0, 0, 90, 180), [1, 2, 3])[0] == [40, 0, 0]
        for t in range(1, 20):
            assert 0 not in hand.method.sample(hand.server, hand.at("sample", [1, 2, 3], t)).ids.tolist()


def test_clients_that_weigh_the_same_are_drawn_the_same() -> None:
    """Under uniform weights the target is the plain mean over clients: the table of four equal clients, whatever n."""
    wanted = [[2, 2, 0, 0], [0, 0, 2, 2]]
    assert table(clients(BY_SIZE, [60, 20, 10, 10], 2, uniform=True)) == wanted


def test_more_slots_than_clients() -> None:
    """Two clients of 3 and 1 samples, six slots: 4.5 and 1.5 slots; every slot is drawn."""
    for method in (BY_SIZE, ClusteredSampling()):
        hand = clients(method, [3, 1], 6)
        rows = torch.tensor(table(hand))
        assert rows.sum(0).tolist() == [18, 6]
        drawn = hand.method.sample(hand.server, hand.at("sample", range(2)))
        assert int(drawn.times.sum()) == 6
        assert int(drawn.times[0]) >= 4


def test_who_answers_shares_the_mean() -> None:
    """Drawn 2, 1, 3 times; the last is lost: (2 * 0 + 1 * 6)/3."""
    hand = clients(BY_SIZE, [10, 10, 10], 6, width=1)
    r: Round = hand.at("aggregate", [0, 1, 2]).but(drawn=Bundle(times=torch.tensor([2, 1, 3])))
    up = Bundle(model=torch.tensor([[0.0], [6.0]]))
    close(hand.method.aggregate(hand.server, r.among(torch.tensor([0, 1])), up).model, [2.0])


# ---- identities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["size", "similarity"])
def test_duplicates_come_through_the_round_loop(by: str) -> None:
    """As many slots as unequal clients: the largest is due 1.7 times a round, so cohorts are smaller than they are
    meant to be; with drop-outs and a late joiner, too, nothing is refused and all is finite."""
    method = ClusteredSampling(by=by)
    result = run(method, mlp(), federation(), rounds_=6, participation=1.0, dropout=0.3, joins=[1, 1, 1, 1, 4])
    assert any(len(r.cohort) < 4 for r in result.reports)
    assert not any(one.code in UNUSED for r in result.reports for one in r.refused)
    assert all(bool(t.isfinite().all()) for t in result.state.values())


# ---- another program ------------------------------------------------------------------------------------------------
def _slots(
    method: ClusteredSampling, n: list[int], m: int, updates: torch.Tensor
) -> tuple[list[list[int]], list[dict[int, int]]]:
    """Groups of clients, and how much of each group every slot holds: Algorithm 1 or 2 with dictionaries."""
    total, clients = sum(n), range(len(n))
    left, full = {i: m * n[i] for i in clients}, []
    if method.by == "size":
        groups, bins = [[i] for i in clients], [{} for _ in range(m)]
        waiting = sorted(clients, key=lambda i: (-n[i], i))
    else:
        for i in clients:
            while left[i] >= total:
                full.append((i, total))
                left[i] -= total
        apart = np.array([[_APART[method.measure](a, b) for b in updates] for a in updates])
        each = [apart[i, j] for i in clients for j in clients if i < j]
        pairs = pdist(apart) if method.linkage_input == "rows" else np.array(each)
        nodes = [[i] for i in clients]
        parts: dict[int, tuple[int, int]] = {}
        for a, b, *_ in linkage(pairs, "ward"):
            parts[len(nodes)] = (int(a), int(b))
            nodes.append(nodes[int(a)] + nodes[int(b)])
        groups, below = [], [len(nodes) - 1]
        while below:
            node = below.pop()
            if sum(left[i] for i in nodes[node]) <= total:
                groups.append(sorted(nodes[node]))
            else:
                below += parts[node]
        groups.sort(key=lambda g: (sum(left[i] for i in g), g[0]))
        first = len(groups) - (m - len(full))
        bins = [{g: sum(left[i] for i in groups[g])} for g in range(first, len(groups))]
        waiting = list(range(first))
    for g in waiting:
        mass = sum(left[i] for i in groups[g])
        for held in bins:
            part = min(mass, total - sum(held.values()))
            held[g] = held.get(g, 0) + part
            mass -= part
    home = {i: g for g, members in enumerate(groups) for i in members}
    return groups, [{home[i]: mass} for i, mass in full] + bins


def _angle(a: torch.Tensor, b: torch.Tensor) -> float:
    lengths = float(a.norm() * b.norm())
    return math.acos(max(-1.0, min(1.0, float(a @ b) / lengths))) if lengths else 0.0


_APART = {
    "angle": _angle,
    "l2": lambda a, b: float((a - b).square().sum()),
    "l1": lambda a, b: float((a - b).abs().sum()),
}


@pytest.mark.parametrize(
    "method",
    [
        ClusteredSampling(),
        ClusteredSampling(measure="l2"),
        ClusteredSampling(measure="l1", linkage_input="condensed"),
        ClusteredSampling(by="size"),
    ],
    ids=["similarity", "l2", "l1-condensed", "size"],
)
def test_an_independent_program_gives_the_same(method: ClusteredSampling) -> None:
    """Slots and mean over slots in float64, on seven clients of unequal size, one of them with a slot of its own, four
    slots in each of sixteen rounds."""
    shards, w = federation((9, 23, 14, 30, 11, 40, 7)), mlp().w0.double()
    n, hand = [len(shard.train) for shard in shards], ByHand(method, mlp(), [s.train for s in shards], cohort=4)
    states = [hand.server]
    keep = lambda server, _: states.append(server.state)  # noqa: E731
    found = run(method, mlp(), shards, rounds_=16, training=plain.TRAINING, each_round=keep)
    updates, twice, split = torch.zeros(7, len(w)).double(), 0, 0
    for t, cohort in plain.cohorts(found):
        groups, wanted = _slots(method, n, 4, updates)
        r = hand.at("sample", range(7), t)
        got = method.table(states[t - 1], r, r.rng)
        assert sorted(got[:, g].sum(1).tolist() for g in groups) == sorted(
            [slot.get(k, 0) for slot in wanted] for k in range(len(groups))
        )
        assert got.sum(0).tolist() == [4 * k for k in n]
        # only the draw is the library's: a client for each slot
        drawn = method.sample(states[t - 1], r)
        assert drawn.ids.tolist() == cohort
        times = dict(zip(cohort, drawn.times.tolist(), strict=True))
        people = [k for i in cohort for k, g in enumerate(groups) for _ in range(times[i]) if i in g]
        assert any(all(map(dict.get, wanted, order)) for order in permutations(people))
        moves = []
        for i in cohort:
            runs = [_descend(w, shards[i].train, i, t, number) for number in range(times[i])]
            updates[i] = sum(runs) / len(runs) - w
            moves += runs
            twice += len(runs) > 1
        assert len(moves) == 4
        w = sum(moves) / 4
        split += sum(sum(slot.get(k, 0) > 0 for slot in wanted) > 1 for k in range(len(groups)))
    assert twice
    assert split >= 8
    assert plain.distance(found.state.model, w) < 2e-6
    if method.by == "similarity":
        assert plain.distance(found.state.updates, updates) < 2e-6


def _descend(w: torch.Tensor, data: Samples, client: int, t: int, number: int) -> torch.Tensor:
    for index in plain.drawn(data, client, t, number=number):
        x, y = data.x[index].double(), data.y[index]
        w = w - 0.1 * plain.gradient(lambda v, x=x, y=y: plain.loss(v, x, y), w)
    return w
