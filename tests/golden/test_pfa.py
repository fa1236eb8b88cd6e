"""PFA against numbers worked out by hand (Liu, Guo, Chen, WWW 2021).

A client's sparsity is the share of zeros in each channel's map behind the last ReLU, averaged over its samples; clients
whose sparsities are near each other make a group. Here the inputs themselves are the maps: three of 2 x 2, where -1
becomes a zero.
"""

import itertools
from collections.abc import Sequence

import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor, nn
from torch.func import functional_call

import plain
from fedkin.capabilities.asks import asks
from fedkin.core import Bundle, Net, Samples, Training
from fedkin.functional.pairs import differences_from
from fedkin.methods import CAM, FedAvg
from fedkin.methods.pfa import PFA, channel_shares
from toys import ByHand, ClientData, Run, blobs, close, copies, draw, federation, mlp, quadratic, run, seeded

SPARSITIES = [(0.625, 0.875, 0.125), (0.5, 0.75, 0.25), (0.1, 0.2, 0.9), (0.125, 0.25, 0.875)]


def maps_net() -> Net:
    """ReLU on three maps of 2 x 2, max-pooling to one number each, and a head of two classes."""
    return Net(lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2)), (3, 2, 2), 2)


def maps(zeros: Sequence[Sequence[int]]) -> Samples:
    """One sample per row: how many of the four places of each map are negative, the others positive."""
    x = torch.ones(len(zeros), 3, 4)
    for i, sample in enumerate(zeros):
        for j, count in enumerate(sample):
            x[i, j, :count] = -1.0
    return Samples(x.view(-1, 3, 2, 2), torch.arange(len(zeros)) % 2)


def with_sparsity(share: Sequence[float]) -> Samples:
    """Ten samples with these shares of zeros: 40 places for each map, filled one sample after another."""
    totals = [round(40 * s) for s in share]
    return maps([[max(0, min(4, total - 4 * i)) for total in totals] for i in range(10)])


def clients(method: PFA, shares: Sequence[Sequence[float]] = SPARSITIES, **more: object) -> ByHand:
    """Clients with these sparsities, on the network of maps."""
    return ByHand(method, maps_net(), [with_sparsity(s) for s in shares], **more)


# ---- golden numbers ------------------------------------------------------------------------------------------------
def test_sparsity_of_each_sample() -> None:
    """2, 4, 0 zeros of 4 and 3, 3, 1: (.5, 1, 0) and (.75, .75, .25), from the maps before pooling."""
    net = maps_net()
    close(channel_shares(net, net.w0, maps([(2, 4, 0), (3, 3, 1)]).x), [[0.5, 1, 0], [0.75, 0.75, 0.25]])


def test_a_clients_answer() -> None:
    """The mean of both samples: (.625, .875, .125); then three clients that are built to have the others'."""
    hand = ByHand(PFA(after=0), maps_net(), [maps([(2, 4, 0), (3, 3, 1)]), *map(with_sparsity, SPARSITIES[1:])])
    close(hand.ask().sparsity, SPARSITIES)


def distances(points: Tensor) -> Tensor:
    """Distances of all pairs, as the method takes them."""
    return differences_from(points, torch.arange(len(points)), 2).sqrt()


def test_distances() -> None:
    """D_01 = |(.125, .125, -.125)| = .21650635, and so on; over channels 0 and 2 only D_01 = .1767767."""
    a = torch.tensor(SPARSITIES)
    whole = [
        [0, 0.21650635, 1.15406889, 1.09687055],
        [0.21650635, 0, 0.94074439, 0.88388348],
        [1.15406889, 0.94074439, 0, 0.06123724],
        [1.09687055, 0.88388348, 0.06123724, 0],
    ]
    some = [
        [0, 0.1767767, 0.93608226, 0.90138782],
        [0.1767767, 0, 0.76321688, 0.72886899],
        [0.93608226, 0.76321688, 0, 0.03535534],
        [0.90138782, 0.72886899, 0.03535534, 0],
    ]
    close(distances(a), whole)
    close(distances(a[:, [0, 2]]), some)


@pytest.mark.parametrize("grouping", ["average", "kmeans"])
@pytest.mark.parametrize("channels", [[0, 1, 2], [0, 2]])
def test_two_groups(grouping: str, channels: list[int]) -> None:
    """G = 2: {0, 1} and {2, 3}, by both rules, over all channels and over two. Each starts from the common model; the
    centroids are the mean sparsities."""
    hand = clients(PFA(clusters=2, after=0, grouping=grouping))
    hand.server = hand.server.but(channels=torch.tensor(channels), centroids=torch.empty(0, len(channels)))
    hand.ask()
    assert hand.server.labels.tolist() == [0, 0, 1, 1]
    wanted = torch.tensor([[0.5625, 0.8125, 0.1875], [0.1125, 0.225, 0.8875]])
    close(hand.server.centroids, wanted[:, channels])
    close(hand.server.centres, hand.server.model.expand(2, -1), 0)


def test_centroids_weigh_clients_the_same() -> None:
    """Sparsities 0 and .4 of ten and thirty samples in one group: the centroid is .2; by samples it would be .3."""
    few, many = with_sparsity([0.0, 0.0, 0.0]), with_sparsity([0.4, 0.4, 0.4])
    many = Samples(many.x.repeat(3, 1, 1, 1), many.y.repeat(3))
    hand = ByHand(PFA(clusters=1, after=0), maps_net(), [few, many])
    close(hand.ask().sparsity, [[0.0] * 3, [0.4] * 3])
    close(hand.server.centroids, [[0.2] * 3])


def test_only_drawn_channels_are_told() -> None:
    """q = 2 of three: the same two for all clients, ascending; another seed may draw others. More than there are: all
    of them."""
    drawn = set()
    for seed in range(20):
        hand = clients(PFA(channels=2, after=0), seed=seed)
        said = hand.ask().sparsity
        q = hand.server.channels.tolist()
        drawn.add(tuple(q))
        close(said, torch.tensor(SPARSITIES)[:, q])
    assert drawn == set(itertools.combinations(range(3), 2))
    assert clients(PFA(channels=20)).server.channels.tolist() == [0, 1, 2]


# ---- groups --------------------------------------------------------------------------------------------------------
def test_fewer_clients_than_groups() -> None:
    """N = 2 < G = 3: each its own group; nothing is empty."""
    hand = clients(PFA(clusters=3, after=0), SPARSITIES[:2])
    hand.ask()
    assert hand.server.labels.tolist() == [0, 1]
    assert len(hand.server.centres) == 2


def test_groups_are_joined_by_the_mean_over_pairs() -> None:
    """One channel with 0, .175, .525, .95: after {0, 1}, client 2 is .35 from the nearer and .4375 on average, .425
    from client 3: average linkage joins it with 3, single linkage would not."""
    hand = clients(PFA(clusters=2, after=0), [(s, 0.5, 0.5) for s in (0.0, 0.175, 0.525, 0.95)])
    hand.ask()
    assert hand.server.labels.tolist() == [0, 0, 1, 1]


def test_equal_sparsities() -> None:
    """All distances 0: ties join the lowest indices, {0, 1, 2} and {3}, by average linkage; one group by K-means, which
    finds only one distinct point."""
    for grouping, labels in (("average", [0, 0, 0, 1]), ("kmeans", [0, 0, 0, 0])):
        hand = clients(PFA(clusters=2, after=0, grouping=grouping), SPARSITIES[:1] * 4)
        hand.ask()
        assert hand.server.labels.tolist() == labels
        hand.play()
        assert bool(torch.isfinite(hand.server.centres).all())


def test_a_late_client_joins_the_nearest_group() -> None:
    """Groups as above without clients 4 and 5, who come later with (.5, .75, .25) and (.1, .2, .9): 0 and 1. Only they
    are asked then, on the model the others were asked on, though the groups' models have moved."""
    hand = clients(PFA(clusters=2, after=1), [*SPARSITIES, SPARSITIES[1], SPARSITIES[2]], present=4)
    hand.play(range(4))
    model = hand.server.model.clone()
    hand.ask()
    hand.play(range(4))
    hand.join(6)
    assert hand.server.labels.tolist() == [0, 0, 1, 1, -1, -1]
    sent = asks(hand.method, "round").question(hand.method, hand.server, hand.at("survey", range(6), hand.t + 1))
    assert [bool(sent.row(i)) for i in range(6)] == [False] * 4 + [True] * 2
    assert torch.equal(sent.row(4).model, model)
    assert not torch.equal(hand.server.centres[0], model)
    centroids = hand.server.centroids.clone()
    hand.ask()
    assert hand.server.labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert torch.equal(hand.server.centroids, centroids)
    assert torch.equal(hand.used(4).model, hand.used(0).model)


def test_labels_of_the_data_play_no_part_in_the_answer() -> None:
    """Other labels, same inputs: the same answer."""
    hand = clients(PFA(after=0))
    other = ByHand(hand.method, hand.net, [Samples(d.x, 1 - d.y) for d in hand.data])
    assert torch.equal(hand.ask().sparsity, other.ask().sparsity)


# ---- rounds --------------------------------------------------------------------------------------------------------
def surveys(result: Run) -> list[int]:
    """The rounds after which clients have groups."""
    return [r.round for r in result.reports if int(r.clusters.max()) >= 0]


def test_groups_are_made_after_half_of_the_rounds() -> None:
    """Six rounds: FedAvg in 1, 2, 3, groups from round 4 on; with after = 1 from round 2 on, with 0 from the first."""
    for after, wanted in ((None, [4, 5, 6]), (1, [2, 3, 4, 5, 6]), (0, [1, 2, 3, 4, 5, 6]), (6, [])):
        assert surveys(run(PFA(after=after), mlp(), federation(), rounds_=6)) == wanted


def test_the_first_phase_is_fedavg() -> None:
    """The model that stands still is FedAvg's of as many rounds, and the second phase starts from it."""
    ours = run(PFA(after=2), mlp(), federation(), rounds_=3)
    assert torch.equal(ours.state.model, run(FedAvg(), mlp(), federation(), rounds_=2).state.model)
    assert not torch.equal(ours.state.centres[0], ours.state.model)


def test_each_group_averages_its_own_members() -> None:
    """Groups {0, 1} and {2, 3} with 1, 3, 2, 2 samples; losses 1/2 |w - a|^2 with a = 4, 8, -1, -3 and a step size of 1
    lead every client straight to its a: (4 + 3 * 8)/4 = 7 and -2; with equal weights 6 and -2."""
    net = Net(lambda: nn.Sequential(nn.Linear(1, 1, bias=False)), (1,), 1)
    data = [copies(a, n) for a, n in ((4.0, 1), (8.0, 3), (-1.0, 2), (-3.0, 2))]
    for uniform, first in ((False, 7.0), (True, 6.0)):
        hand = ByHand(
            PFA(clusters=2, after=0), net, data, Training(lr=1.0, batch_size=10), loss=quadratic, uniform=uniform
        )
        hand.ask()  # without a ReLU the share of inputs that are not positive: 0, 0, 1, 1
        hand.play()
        assert hand.server.labels.tolist() == [0, 0, 1, 1]
        close(hand.server.centres, [[first], [-2.0]])


def test_a_group_without_participants_is_unchanged() -> None:
    """Only clients of the first group come: the second keeps its model."""
    hand = clients(PFA(clusters=2, after=0))
    hand.ask()
    before = hand.server.centres.clone()
    hand.play([0, 1])
    assert torch.equal(hand.server.centres[1], before[1])
    assert not torch.equal(hand.server.centres[0], before[0])


def test_until_somebody_answers_it_goes_on_as_fedavg() -> None:
    """Nobody answers the survey of round 2: FedAvg goes on, and the next survey makes the groups."""
    hand = clients(PFA(clusters=2, after=1))
    fedavg = ByHand(FedAvg(), hand.net, hand.data)
    for _ in range(2):
        hand.play()
        fedavg.play()
    assert torch.equal(hand.server.model, fedavg.server.model)
    hand.ask()
    assert hand.server.labels.tolist() == [0, 0, 1, 1]


def test_who_has_not_answered_waits_outside() -> None:
    """Client 3's answer is lost: it trains and predicts with the common model, its upload moves no group, and it is
    asked again in the next round."""
    hand = clients(PFA(clusters=2, after=1))
    hand.play()
    hand.ask([0, 1, 2])
    assert hand.server.labels.tolist() == [0, 0, 1, -1]
    hand.play([0, 1, 2])
    before = hand.server
    assert torch.equal(hand.download([0, 3]).row(1).model, before.model)
    hand.play([3])
    assert torch.equal(hand.server.centres, before.centres)
    assert torch.equal(hand.server.model, before.model)
    assert torch.equal(hand.used(3).model, before.model)
    hand.ask()
    assert hand.server.labels.tolist() == [0, 0, 1, 1]


def test_nobody_is_asked_twice_or_too_early() -> None:
    """No survey in the first phase, none once all have answered: nothing is sent."""
    hand = clients(PFA(after=1))
    assert hand.ask() == Bundle()
    hand.play()
    assert len(hand.ask()) == 1
    hand.play()
    assert hand.ask() == Bundle()


def test_clients_that_see_other_inputs_are_told_apart() -> None:
    """Six clients with the same labels; the odd ones see their inputs with the opposite sign. The groups are the true
    ones, although nobody told the server."""
    shares = [1.0, 1, 1]

    def seen(n: int, i: int) -> Samples:
        data = blobs(n, shares, 10 * i + n)
        return Samples(data.x * (1 - 2 * (i % 2)), data.y)

    shards = [ClientData(*[seen(n, i) for n in (40, 5, 9)]) for i in range(6)]
    result = run(PFA(clusters=2), mlp(), shards, participation=1.0)
    assert result.reports[-1].clusters.tolist() == [0, 1, 0, 1, 0, 1]


def test_the_survey_reaches_clients_that_do_not_train() -> None:
    """Two of five train in each round, all five have a group after the first survey."""
    result = run(PFA(after=1), mlp(), federation(), rounds_=2, participation=0.4)
    assert int(result.reports[-1].clusters.min()) >= 0
    assert len(result.reports[-1].cohort) == 2


def test_inside_cam() -> None:
    """Fed-CAM around PFA: the survey passes through, groups are made and everything stays finite."""
    result = run(CAM(inner=PFA(after=2, clusters=2), warmup=1), mlp(), federation(), rounds_=5, joins=[1, 1, 1, 1, 4])
    assert sorted(result.reports[-1].clusters.unique().tolist()) == [0, 1]
    kept = [result.state, *result.clients.values()]
    assert all(bool(torch.isfinite(t).all()) for b in kept for t in b.values() if t.is_floating_point())


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("grouping", "clusters"), [("average", 2), ("average", 3), ("kmeans", 2)])
def test_an_independent_program_gives_the_same(grouping: str, clusters: int) -> None:
    """A module with a hook in float64, SciPy's average linkage or the best of all partitions; six unequal clients, one
    of them late, three or four in each of six rounds."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    shards, net = [_pictures(n, i) for i, n in enumerate((9, 23, 14, 30, 11, 17))], Net(_small_cnn, (1, 6, 6), 3)
    method = PFA(clusters=clusters, after=3, channels=4, grouping=grouping)
    found = run(method, net, shards, training=training, rounds_=6, participation=0.7, joins=[1, 1, 1, 1, 1, 5])
    module = _small_cnn().double()
    common = {name: w.double() for name, w in net.unflatten(net.w0).items()}
    kept = found.state.channels.tolist()  # drawn
    groups: dict[int, int] = {}
    models: list[dict[str, Tensor]] = []
    empty = 0
    for t, cohort in plain.cohorts(found):
        if t == 4:
            points = torch.stack([_zeros(module, common, shards[i].train.x)[kept] for i in range(5)])
            groups = dict(enumerate(_partition(points, grouping, clusters)))
            models = [common] * clusters
        if t == 5:
            late = _zeros(module, common, shards[5].train.x)[kept]
            middle = [points[[i for i in range(5) if groups[i] == g]].mean(0) for g in range(clusters)]
            groups[5] = min(range(clusters), key=lambda g: float((late - middle[g]).norm()))
        start = {i: models[groups[i]] if t > 3 else common for i in cohort}
        ends = {i: _fitted(module, start[i], shards[i].train, training, i, t) for i in cohort}
        if t <= 3:
            common = _weighted(ends, shards)
        for g in range(len(models)):
            members = {i: w for i, w in ends.items() if groups[i] == g}
            models[g] = _weighted(members, shards) if members else models[g]
            empty += not members
    assert set(groups.values()) == set(range(clusters))
    assert bool(empty) == (clusters == 3)
    assert any(5 in cohort for _, cohort in plain.cohorts(found))
    flat = [torch.cat([w[name].flatten() for name in net.names]) for w in (common, *models)]
    assert found.state.labels.tolist() == [groups[i] for i in range(6)]
    assert plain.distance(found.state.centroids, torch.stack(middle)) < 2e-6
    assert plain.distance(found.state.model, flat[0]) < 2e-6
    assert plain.distance(found.state.centres, torch.stack(flat[1:])) < 2e-6


def _small_cnn() -> nn.Module:
    """Five maps of 4 x 4 behind a ReLU, then pooled."""
    return nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3))


def _pictures(n: int, client: int) -> ClientData:
    """Pictures of three classes, on every client brighter or darker and behind a pattern of its own.

    With these numbers average linkage, single linkage and K-means give three different pairs of groups.
    """
    y = torch.randint(3, (n,), generator=seeded(client))
    own = 1.2 * draw(6, 1, 1, 1, seed=21)[client] + 0.7 * draw(6, 1, 6, 6, seed=1021)[client]
    x = 0.7 * draw(3, 1, 6, 6, seed=90)[y] + 0.5 * draw(n, 1, 6, 6, seed=91 + client) + own
    part = Samples(x, y)
    return ClientData(part, part, part)


def _zeros(module: nn.Module, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The fraction of zeros in each map behind the ReLU, averaged over the samples."""
    seen: list[Tensor] = []
    hook = module[1].register_forward_hook(lambda _m, _i, out: seen.append(out))
    functional_call(module, w, (x.double(),))
    hook.remove()
    each = [[float((picture == 0).sum()) / picture.numel() for picture in sample] for sample in seen[0]]
    return torch.tensor(each, dtype=torch.float64).mean(0)


def _partition(points: Tensor, grouping: str, clusters: int) -> list[int]:
    """Groups in the order of their first clients: by SciPy, or the two with the least sum of squares."""
    if grouping == "average":
        raw = fcluster(linkage(points.numpy(), "average"), clusters, "maxclust").tolist()
        return [list(dict.fromkeys(raw)).index(label) for label in raw]

    def within(labels: Sequence[int]) -> float:
        parts = [points[[i for i, label in enumerate(labels) if label == g]] for g in (0, 1)]
        return sum(float((part - part.mean(0)).square().sum()) for part in parts)

    return list(min(((0, *rest) for rest in itertools.product((0, 1), repeat=4) if any(rest)), key=within))


def _fitted(
    module: nn.Module, start: dict[str, Tensor], data: Samples, training: Training, client: int, t: int
) -> dict[str, Tensor]:
    """A client's parameters after SGD with momentum."""
    w, velocity = start, {name: torch.zeros_like(value) for name, value in start.items()}
    for index in plain.drawn(data, client, t, training):
        leaves = {name: value.detach().requires_grad_(True) for name, value in w.items()}
        out = functional_call(module, leaves, (data.x[index].double(),))
        slopes = torch.autograd.grad(nn.functional.cross_entropy(out, data.y[index]), list(leaves.values()))
        velocity = {name: training.momentum * velocity[name] + g for name, g in zip(w, slopes, strict=True)}
        w = {name: value.detach() - training.lr * velocity[name] for name, value in w.items()}
    return w


def _weighted(models: dict[int, dict[str, Tensor]], shards: Sequence[ClientData]) -> dict[str, Tensor]:
    """The mean by training samples."""
    n = {i: len(shards[i].train) for i in models}
    return {name: sum(n[i] * models[i][name] for i in n) / sum(n.values()) for name in next(iter(models.values()))}
