"""FeSEM against numbers worked out by hand (Long et al., World Wide Web 26, 2023).

Clients are grouped by weighted K-means on their newest models, warm-started at the centres; a centre becomes the mean
of its members that took part, weighted by samples.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import plain
from fedkin.core import Bundle, Net, Samples, Training
from fedkin.functional.grouping import lloyd, nearest
from fedkin.methods import FeSEM
from toys import ByHand, ClientData, apart, blobs, close, copies, federation, mlp, quadratic, run, vector_net


def grouped(centres: list[float], sizes: list[int], *, lam: float = 0.0, uniform: bool = False) -> ByHand:
    """Centres that are numbers, clients of these sizes, clusters already formed once (all in the first)."""
    method = FeSEM(clusters=len(centres), feature="all", lam=lam)
    hand = ByHand(method, vector_net(0.0), [copies(0.0, n) for n in sizes], uniform=uniform)
    hand.server = hand.server.but(
        centres=torch.tensor(centres)[:, None],
        labels=torch.zeros(len(sizes), dtype=torch.int64),
        grouped=torch.tensor(True),
    )
    return hand


def upload(hand: ByHand, models: list[float], ids: list[int] | None = None) -> tuple[list[int], list[float]]:
    """Labels and centres after these uploads."""
    ids = list(range(len(models))) if ids is None else ids
    hand.t += 1
    up = Bundle(model=torch.tensor(models)[:, None])
    hand.server = hand.method.aggregate(hand.server, hand.at("aggregate", ids), up)
    return hand.server.labels.tolist(), hand.server.centres.flatten().tolist()


def test_lloyd_from_given_centres() -> None:
    """Points 0, 1, 10 with weights 10, 30, 60 from centres 0, 9, 100: labels 0, 0, 1; centres (10 * 0 + 30 * 1)/40 =
    .75, 10, and the empty one stays at 100."""
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0]])
    labels, centres = lloyd(points, torch.tensor([10, 30, 60]), torch.tensor([[0.0, 0], [9.0, 0], [100.0, 0]]))
    assert labels.tolist() == [0, 0, 1]
    close(centres, [[0.75, 0], [10, 0], [100, 0]])


def test_one_round_of_grouping() -> None:
    """The same through the server's step."""
    labels, centres = upload(grouped([0.0, 9.0, 100.0], [10, 30, 60]), [0.0, 1.0, 10.0])
    assert labels == [0, 0, 1]
    close(centres, [0.75, 10.0, 100.0])


def test_one_cluster_is_the_weighted_mean() -> None:
    """K = 1: (10 * 0 + 30 * 1 + 60 * 10)/100 = 6.3."""
    labels, centres = upload(grouped([4.0], [10, 30, 60]), [0.0, 1.0, 10.0])
    assert labels == [0, 0, 0]
    close(centres, [6.3])


@pytest.mark.parametrize(("uniform", "centres"), [(True, [0.5, 9.5]), (False, [0.75, 9.5])])
def test_two_groups_uniform_and_weighted(uniform: bool, centres: list[float]) -> None:
    """Models 0, 1, 9, 10 of 1, 3, 2, 2 samples from centres 0 and 10: groups of two; means .5 and 9.5 uniform, .75 and
    9.5 by samples."""
    labels, got = upload(grouped([0.0, 10.0], [1, 3, 2, 2], uniform=uniform), [0.0, 1.0, 9.0, 10.0])
    assert labels == [0, 0, 1, 1]
    close(got, centres)


def test_groups_are_weighted_by_samples() -> None:
    """Models 0, 4, 7 of 9, 1 and 1 samples from centres 0 and 8: 4 is as near to both and goes to the first, whose
    centroid is then .4; 7 is nearer, so 4 moves over. With equal weights the centroid would be 2 and 4 would stay."""
    assert upload(grouped([0.0, 8.0], [9, 1, 1]), [0.0, 4.0, 7.0]) == ([0, 1, 1], [0.0, 5.5])
    assert upload(grouped([0.0, 8.0], [1, 1, 1]), [0.0, 4.0, 7.0]) == ([0, 0, 1], [2.0, 7.0])


def test_empty_cluster_keeps_its_centre() -> None:
    """Centres 4 and 100: all four go to the first, mean 5; the other stays at 100 (and is not 0/0)."""
    labels, centres = upload(grouped([4.0, 100.0], [2, 2, 2, 2]), [0.0, 1.0, 9.0, 10.0])
    assert labels == [0, 0, 0, 0]
    close(centres, [5.0, 100.0])


def test_tie_goes_to_the_lowest_centre() -> None:
    """A model at 5 between centres 4 and 6 belongs to the first; from equal centres everybody is assigned the first."""
    assert upload(grouped([4.0, 6.0], [3]), [5.0])[0] == [0]
    assert nearest(torch.tensor([[0.0], [1.0], [9.0], [10.0]]), torch.full((2, 1), 2.0)).tolist() == [0, 0, 0, 0]


def test_absent_clients_are_grouped_by_their_last_model() -> None:
    """Models -4, 4, 10 from centres 0, 10: groups {0, 1}, {2}. Then client 0 alone comes, at 5.5, nearer to 10 than to
    0; but with the last models 4 and 10 K-means goes on to centroids 4 and 7.75, and 5.5 belongs to the first. A centre
    is the mean of those that took part: 5.5; the other stays."""
    hand = grouped([0.0, 10.0], [1, 1, 1])
    assert upload(hand, [-4.0, 4.0, 10.0])[0] == [0, 0, 1]
    labels, centres = upload(hand, [5.5], ids=[0])
    assert labels == [0, 0, 1]
    close(centres, [5.5, 10.0])


def test_labels_keep_their_numbers() -> None:
    """K-means starts from the centres, so clusters do not swap numbers when only the models' order changes."""
    hand = grouped([10.0, 0.0], [1, 1, 1, 1])
    for shift in (0.0, 1.0, 2.0, 3.0):
        labels, _ = upload(hand, [0.0 + shift, 1.0 + shift, 9.0 + shift, 10.0 + shift])
        assert labels == [1, 1, 0, 0]


def test_first_round_has_one_common_start() -> None:
    """All centres start equal, so that no differently initialised networks are averaged; the first uploads form the
    groups by k-means++, and with two clear groups these are found."""
    net = mlp()
    hand = ByHand(FeSEM(clusters=2), net)
    assert all(torch.equal(row, net.w0) for row in hand.server.centres)
    assert all(torch.equal(hand.download([i]).row(0).model, net.w0) for i in range(5))
    flat = ByHand(FeSEM(clusters=2, feature="all"), vector_net(0.0), [copies(0.0, 4)] * 4)
    labels, centres = upload(flat, [0.0, 0.5, 20.0, 21.0])
    assert labels[0] == labels[1] != labels[2] == labels[3]
    close(sorted(centres), [0.25, 20.5])


def test_ten_planted_groups_are_found_from_the_first_uploads() -> None:
    """Ten clouds of four models in 20 dimensions: all are found in each of ten runs. One K-means from one start each,
    or starts by plain k-means++, miss some."""
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        models = 3 * torch.randn(10, 20, generator=rng).repeat_interleave(4, 0) + torch.randn(40, 20, generator=rng)
        method = FeSEM(clusters=10, feature="all")
        hand = ByHand(method, vector_net(*[0.0] * 20), [copies([0.0] * 20, 1)] * 40, seed=seed)
        labels = method.aggregate(hand.server, hand.at("aggregate", range(40), 1), Bundle(model=models)).labels
        assert torch.equal(
            labels[:, None] == labels, torch.eye(10, dtype=torch.bool).repeat_interleave(4, 0).repeat_interleave(4, 1)
        )


def small_cnn() -> Net:
    """A convolution of 2 filters on 4 x 4 images, a hidden linear layer and the head."""
    layers = lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))  # noqa: E731
    return Net(layers, (1, 4, 4), 3)


@pytest.mark.parametrize(("feature", "width"), [("fc", 63), ("all", 83), ("head", 15)])
def test_features_seen_by_k_means(feature: str, width: int) -> None:
    """Weights and biases of the fully-connected layers (40 + 5 + 15 + 3), all parameters (with the convolution's 18 +
    2), or the head's weight (15); the first upload's are those of the model itself."""
    net = small_cnn()
    hand = ByHand(FeSEM(clusters=1, feature=feature), net, [Samples(torch.zeros(4, 1, 4, 4), torch.zeros(4).long())])
    assert hand.server.features.shape[1] == width
    up = torch.randn(net.size, generator=torch.Generator().manual_seed(0))
    hand.server = hand.method.aggregate(hand.server, hand.at("aggregate", [0], 1), Bundle(model=up[None]))
    named = net.unflatten(up)
    wanted = {"fc": ["2.weight", "2.bias", "4.weight", "4.bias"], "all": list(named), "head": ["4.weight"]}[feature]
    seen = torch.cat([named[name].flatten() for name in wanted])
    assert torch.equal(hand.server.features[0].sort().values, seen.sort().values)  # the order does not matter


# the flat vector is [head 2 x 2, its bias 2, body 2 x 2, its bias 2]
@pytest.mark.parametrize(
    ("feature", "labels"), [("head", [0, 0, 0]), ("fc", [0, 1, 1]), ("all", [0, 1, 1])], ids=["head", "fc", "all"]
)
def test_groups_go_by_the_feature(feature: str, labels: list[int]) -> None:
    """Three models with the same head weight; the second and third have a head bias of 9. Centres 0 with biases 0 and
    9: by the head's weight all are at distance 0 of both and go to the first; by fully-connected layers or by all
    parameters the bias tells them apart."""
    net = Net(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (2,), 2)
    models, centres = torch.zeros(3, net.size), torch.zeros(2, net.size)
    models[1:, 4:6], centres[1, 4:6] = 9.0, 9.0
    hand = ByHand(FeSEM(clusters=2, feature=feature), net, [copies([0.0, 0.0], 2)] * 3)
    hand.server = hand.server.but(centres=centres, grouped=torch.tensor(True))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", range(3), 1), Bundle(model=models))
    assert s.labels.tolist() == labels


def test_convolutions_do_not_group_by_default() -> None:
    """Two models that differ in their convolution alone are one to "fc", and two to "all"."""
    net = small_cnn()
    conv = net.places()["0.weight"][0]
    models = torch.zeros(2, net.size)
    models[1, conv] = 9.0
    for feature, labels in (("fc", [0, 0]), ("all", [0, 1])):
        data = [Samples(torch.zeros(4, 1, 4, 4), torch.zeros(4).long())] * 2
        hand = ByHand(FeSEM(clusters=2, feature=feature), net, data)
        hand.server = hand.server.but(centres=models.clone(), grouped=torch.tensor(True))
        s = hand.method.aggregate(hand.server, hand.at("aggregate", range(2), 1), Bundle(model=models))
        assert s.labels.tolist() == labels


def test_a_client_that_is_not_grouped_yet_gets_the_mean_of_the_centres() -> None:
    """Centres 2, 5, 100 with 2, 1 and 0 members: a newcomer trains from (2 * 2 + 5)/3 = 3, not from the first; members
    get their own."""
    hand = grouped([2.0, 5.0, 100.0], [4, 4, 4, 4])
    hand.server = hand.server.but(labels=torch.tensor([0, 0, 1, -1]))
    close(hand.download(range(4)).row(3).model, [3.0])
    close([float(hand.download([i]).row(0).model) for i in range(3)], [2.0, 2.0, 5.0])
    close(hand.used(3).model, [3.0])


def test_pull_towards_the_centre() -> None:
    """L = 1/2 (w - 4)^2 + 1/2 (w - 1)^2 from the centre 1, steps of .1: 1.3, 1.54; without pull 1.3, 1.57: the term
    has a gradient from the second step on."""
    for lam, wanted in ((1.0, 1.54), (0.0, 1.57)):
        hand = ByHand(
            FeSEM(clusters=1, lam=lam),
            vector_net(1.0),
            [copies(4.0, 3)],
            training=Training(steps=2, lr=0.1, batch_size=1000),
            loss=quadratic,
        )
        close(hand.play().model, [[wanted]])


def test_pull_matters_in_a_run() -> None:
    """lam = 0 and lam = 1 give different centres."""
    a, b = (run(FeSEM(clusters=2, lam=lam), mlp(), federation()) for lam in (0.0, 1.0))
    apart(a.state.centres, b.state.centres, 1e-3)


def test_identical_clients_fall_into_one_cluster() -> None:
    """All uploads equal: one cluster, the others keep their centres, nothing is NaN."""
    hand = ByHand(FeSEM(clusters=3, feature="all"), vector_net(7.0), [copies(0.0, 4)] * 3)
    labels, centres = upload(hand, [2.0, 2.0, 2.0])
    assert labels == [0, 0, 0]
    close(centres, [2.0, 7.0, 7.0])


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("feature", "seed"), [("fc", 2), ("head", 4)])
def test_an_independent_program_gives_the_same(feature: str, seed: int) -> None:
    """The best of all partitions of the first uploads, then Lloyd's loops with numpy in float64; seven unequal clients,
    four of them in each of six rounds."""
    sizes, clusters = (9, 23, 14, 30, 11, 17, 26), 2
    shards = [
        ClientData(*[blobs(m, [0.4, 0.3, 0.3], 1000 * seed + 10 * i + k, int(i > 4)) for k, m in enumerate((n, 5, 8))])
        for i, n in enumerate(sizes)
    ]
    first: list[list[int]] = []
    found = run(
        FeSEM(clusters=clusters, feature=feature, lam=0.5),
        mlp(),
        shards,
        rounds_=6,
        each_round=lambda server, _: first.append(server.state.labels.tolist()),
    )
    centres, labels, seen = [mlp().w0.double()] * clusters, {}, {}
    moves = 0
    width = plain.HEAD - 3 if feature == "head" else len(centres[0])
    for t, cohort in plain.cohorts(found):
        ends = {}
        for i in cohort:
            count = [list(labels.values()).count(k) for k in range(clusters)]
            mean = sum(n * c for n, c in zip(count, centres, strict=True)) / sum(count) if labels else centres[0]
            start = centres[labels[i]] if i in labels else mean
            pull = lambda w, *_, c=start: 0.25 * (w - c).square().sum()  # noqa: E731
            ends[i], _ = plain.descend(start, shards[i].train, i, t, extra=pull)
        seen |= {i: w[:width].numpy() for i, w in ends.items()}
        if not labels:
            ids = sorted(seen)
            tries = [dict(zip(ids, c, strict=True)) for c in product(range(clusters), repeat=len(ids))]
            after = min((c for c in tries if len(set(c.values())) == clusters), key=lambda c: _spread(c, seen, sizes))
            if after[ids[0]] != first[0][ids[0]]:  # the number of a cluster is drawn
                after = {i: 1 - k for i, k in after.items()}
        else:
            means, after, before = [c[:width].numpy() for c in centres], {}, None
            while after != before:
                before = after
                after = {i: int(np.argmin([np.square(x - m).sum() for m in means])) for i, x in seen.items()}
                means = [_mean(after, seen, sizes, k) if k in after.values() else m for k, m in enumerate(means)]
        moves += sum(after[i] != k for i, k in labels.items())
        labels = after
        assert labels == {i: k for i, k in enumerate(first[t - 1]) if i in seen}
        for k in range(clusters):
            if some := [i for i in ends if labels[i] == k]:
                centres[k] = sum(sizes[i] * ends[i] for i in some) / sum(sizes[i] for i in some)
    assert len(seen) > 5
    assert moves > 0
    assert plain.distance(found.state.centres, torch.stack(centres)) < 2e-6


def _mean(labels: dict[int, int], seen: dict[int, np.ndarray], sizes: Sequence[int], k: int) -> np.ndarray:
    return sum(sizes[i] * seen[i] for i in seen if labels[i] == k) / sum(sizes[i] for i in seen if labels[i] == k)


def _spread(labels: dict[int, int], seen: dict[int, np.ndarray], sizes: Sequence[int]) -> float:
    """The weighted squares of all distances from the means of clusters."""
    means = {k: _mean(labels, seen, sizes, k) for k in labels.values()}
    return sum(sizes[i] * float(np.square(seen[i] - means[k]).sum()) for i, k in labels.items())
