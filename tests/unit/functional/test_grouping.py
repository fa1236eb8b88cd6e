"""Grouping of points and of distances."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.functional.divisions import fork, largest_within_reach, more_like_second, within_reach
from fedkin.functional.grouping import first_argmin, kmeans, kmeans_plus_plus, lloyd, nearest, two_means, ward_groups
from fedkin.functional.prototypes import class_average, nearness
from toys import close, seeded


def test_the_nearest_is_the_first_of_ties() -> None:
    """The lowest index; around 4096 a float32 Gram formula loses the difference of 1/64 that decides here."""
    assert first_argmin(torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [3.0, 2.0, 1.0]])).tolist() == [1, 0, 2]
    points = torch.full((1, 8), 4096.0)
    centroids = torch.stack([points[0] + 2**-6, points[0] + 2**-7])
    assert nearest(points, centroids).tolist() == [1]


def test_starts_are_distinct_points_with_weight() -> None:
    """A chosen point is never drawn again, nor one of weight 0; fewer distinct points make fewer starts."""
    points = torch.tensor([[0.0], [0.0], [5.0], [5.0], [9.0]])
    for seed in range(20):
        starts = kmeans_plus_plus(points, torch.ones(5), 3, seeded(seed))
        assert sorted(starts.flatten().tolist()) == [0.0, 5.0, 9.0]
    assert kmeans_plus_plus(points[:4], torch.ones(4), 3, seeded(0)).shape == (2, 1)
    assert kmeans_plus_plus(points[:2], torch.ones(2), 3, seeded(0)).shape == (1, 1)
    points, weights = torch.tensor([[0.0], [1.0], [100.0]]), torch.tensor([1.0, 1.0, 0.0])
    for seed in range(20):
        assert 100.0 not in kmeans_plus_plus(points, weights, 2, seeded(seed)).flatten().tolist()


def planted(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten normal clouds of four points each in 20 dimensions, centres three standard deviations long in each."""
    rng = seeded(seed)
    centres, label = 3 * torch.randn(10, 20, generator=rng), torch.arange(10).repeat_interleave(4)
    return centres[label] + torch.randn(40, 20, generator=rng), label


def test_kmeans_finds_ten_planted_clusters() -> None:
    """In at least 59 of 60 draws. With one candidate for each start (plain k-means++) it is 46 of 60."""
    found = 0
    for seed in range(60):
        points, label = planted(seed)
        got = kmeans(points, torch.ones(40), 10, seeded(seed))
        found += torch.equal(got[:, None] == got, label[:, None] == label)
    assert found >= 59


def drawn_in_turn(monkeypatch: pytest.MonkeyPatch, *draws: list[int]) -> list[int]:
    """Puts these draws in the place of the random ones; the list fills with how many were asked for each time."""
    waiting, asked = iter(draws), []

    def draw(weights: torch.Tensor, count: int, **_: object) -> torch.Tensor:
        asked.append(count)
        return torch.tensor(next(waiting))

    monkeypatch.setattr(torch, "multinomial", draw)
    return asked


def test_of_several_candidates_the_one_that_lowers_the_potential_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points 0, 4, 10, 11, the first start is 0, so squared distances are 0, 16, 100, 121. Candidates 4, 10: with 4
    there remain 36 + 49 = 85, with 10 there remain 16 + 1 = 17. Of weights 1, 10, 1, 1: 85 and 160 + 1, so 4."""
    points = torch.tensor([[0.0], [4.0], [10.0], [11.0]])
    for weights, wanted in (([1.0, 1, 1, 1], 10.0), ([1.0, 10, 1, 1], 4.0)):
        drawn_in_turn(monkeypatch, [0], [1, 2])
        starts = kmeans_plus_plus(points, torch.tensor(weights), 2, seeded(0))
        assert starts.flatten().tolist() == [0.0, wanted]


def test_wide_and_many_points_are_measured_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three columns and two rows give the same groups as all at once."""
    points, weights = torch.randn(31, 10, generator=seeded(6)), torch.rand(31, generator=seeded(7)) + 0.1
    whole = nearest(points, points[:5]), kmeans(points, weights, 4, seeded(8))
    monkeypatch.setattr("fedkin.functional.grouping._WIDTH", 3)
    monkeypatch.setattr("fedkin.functional.grouping._BLOCK", 6)
    assert torch.equal(nearest(points, points[:5]), whole[0])
    assert torch.equal(kmeans(points, weights, 4, seeded(8)), whole[1])


def test_lloyd_result_is_a_fixed_point() -> None:
    """Every point is nearest to its own centroid, every centroid the weighted mean of its points."""
    points, weights = torch.randn(40, 3, generator=seeded(3)), torch.rand(40, generator=seeded(4)) + 0.1
    labels, centres = lloyd(points, weights, points[:4])
    assert torch.equal(labels, nearest(points, centres))
    for j in labels.unique():
        w = weights[labels == j].double()
        close(centres[j], (w[:, None] * points[labels == j].double()).sum(0) / w.sum())


def test_two_means_finds_the_best_split() -> None:
    """Against every split of random numbers; equal numbers stay together."""
    for seed in range(30):
        d = torch.rand(7, generator=seeded(seed), dtype=torch.float64)

        def spread(low: torch.Tensor, d: torch.Tensor = d) -> float:
            parts = [d[low], d[~low]]
            return sum(float((p - p.mean()).square().sum()) for p in parts if len(p))

        splits = [torch.tensor(bits) for bits in product([True, False], repeat=7) if 0 < sum(bits) < 7]
        close(spread(two_means(d)), min(spread(s) for s in splits), 1e-12)
        assert d[two_means(d)].max() < d[~two_means(d)].min()
    assert two_means(torch.tensor([0.0, 0.0, 0.0, 1.0])).tolist() == [True, True, True, False]
    assert two_means(torch.tensor([0.3, 0.3, 0.3])).tolist() == [True, True, True]


def pairs_of(points: list[float]) -> torch.Tensor:
    return torch.pdist(torch.tensor(points, dtype=torch.float64)[:, None])


@pytest.mark.parametrize(
    ("most", "groups"),
    [(1, [0, 1, 2, 3, 4]), (2, [0, 1, 0, 1, 2]), (3, [0, 1, 0, 1, 1]), (4, [0, 1, 0, 1, 1]), (5, [0, 0, 0, 0, 0])],
)
def test_highest_nodes_that_are_light_enough(most: int, groups: list[int]) -> None:
    """Points 0, 9, 1, 9.5, 13: Ward joins 1 and 3, then 0 and 2, then 4 to the first pair, then all. Cut from the top:
    the first nodes of at most 1 to 5 points, numbered by their first point."""
    pairs = pairs_of([0.0, 9.0, 1.0, 9.5, 13.0])
    assert ward_groups(pairs, torch.ones(5, dtype=torch.int64), most).tolist() == groups


def test_the_cut_goes_by_weight() -> None:
    """A heavy point is alone and spoils only its own group; two tight pairs of which one is heavy; one point and
    two."""
    weights = torch.tensor([1, 1, 1, 1, 7])
    assert ward_groups(pairs_of([0.0, 9.0, 1.0, 9.5, 13.0]), weights, 4).tolist() == [0, 1, 0, 1, 2]
    weights = torch.tensor([1, 1, 3, 3])
    assert ward_groups(pairs_of([0.0, 2.0, 10.0, 10.1]), weights, 4).tolist() == [0, 0, 1, 2]
    assert ward_groups(pairs_of([3.0]), torch.tensor([9]), 1).tolist() == [0]
    assert ward_groups(pairs_of([3.0, 4.0]), torch.tensor([2, 2]), 4).tolist() == [0, 0]
    assert ward_groups(pairs_of([3.0, 4.0]), torch.tensor([2, 2]), 3).tolist() == [0, 1]


# ---- divided clusters -----------------------------------------------------------------------------------------------
# 0 divided: 0 | 1; 1 divided: 1 | 2; 0 divided: 0 | 3; 1 divided: 1 | 4
SPLITS = torch.tensor([0, 1, 0, 1])


def at(label: int, passed: int, splits: torch.Tensor = SPLITS) -> int:
    return int(fork(splits, torch.tensor([label]), torch.tensor([passed])))


def test_the_tree_of_divisions() -> None:
    """Forks on the way from the root; clusters that are within reach."""
    assert [at(0, 0), at(0, 1), at(0, 3)] == [0, 2, -1]
    assert [at(1, 1), at(1, 2), at(1, 4)] == [1, 3, -1]
    assert [at(2, 2), at(3, 3), at(4, 4)] == [-1, -1, -1]
    assert within_reach(SPLITS, 0, 0) == [0, 1, 2, 3, 4]
    assert within_reach(SPLITS, 0, 1) == [0, 3]
    assert within_reach(SPLITS, 1, 1) == [1, 2, 4]
    assert within_reach(SPLITS, 1, 2) == [1, 4]
    assert within_reach(SPLITS, 4, 4) == [4]


@given(data=st.data(), divisions=st.integers(0, 8))
def test_any_walk_ends_at_home_in_a_cluster_within_reach(data: st.DataObject, divisions: int) -> None:
    """Whichever side is taken at each fork, after at most as many steps as there are divisions a client is at home, in
    one of the clusters that were within reach from the start."""
    splits = torch.tensor([data.draw(st.integers(0, i)) for i in range(divisions)], dtype=torch.int64)
    label, passed = 0, 0
    reach = within_reach(splits, 0, 0)
    assert reach == list(range(divisions + 1))
    for _ in range(divisions):
        i = at(label, passed, splits)
        if i < 0:
            break
        label, passed = (i + 1 if data.draw(st.booleans()) else label), i + 1
        now = within_reach(splits, label, passed)
        assert set(now) < set(reach)
        reach = now
    assert at(label, passed, splits) == -1
    assert reach == [label]


def test_the_largest_cluster_counts_those_at_home() -> None:
    """Clusters 0..4 with 1, 2, 2, 3, 0 at home, and two newcomers: at the root the largest is 3, behind the second side
    of division 0 it is 1 (2 has as many, 1 comes first). Who is at home keeps its own."""
    labels = torch.tensor([0, 1, 1, 2, 2, 3, 3, 3, 0, 1])
    passed = torch.tensor([4, 4, 4, 4, 4, 4, 4, 4, 0, 1])
    got = largest_within_reach(SPLITS, labels, passed, torch.tensor([0, 3, 5, 8, 9]))
    assert got.tolist() == [0, 2, 3, 3, 1]


def test_the_side_with_the_larger_cosine() -> None:
    """(1, 0) is more like (2, 1) than like (1, 1); lengths do not matter; ties and zero stay on the first side."""
    pairs = torch.tensor(
        [[[1.0, 1.0], [2.0, 1.0]], [[1.0, 1.0], [100.0, 200.0]], [[1.0, 0], [2.0, 0]], [[1.0, 0], [0, 1]]]
    )
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [3.0, 1.0], [0.0, 0.0]])
    assert more_like_second(rows, pairs).tolist() == [True, False, False, False]


# ---- prototypes -----------------------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 5), classes=st.integers(1, 4), d=st.integers(1, 3), seed=st.integers(0, 999))
def test_average_is_over_owners_only(m: int, classes: int, d: int, seed: int) -> None:
    """Whatever those say that do not have the class, the average is that of the others; nobody's class keeps its row;
    permuting clients changes nothing."""
    rng = torch.Generator().manual_seed(seed)
    rows, old = torch.randn(m, classes, d, generator=rng), torch.randn(classes, d, generator=rng)
    weight = torch.randint(0, 3, (m, classes), generator=rng)
    found = class_average(rows, weight, old)
    for c in range(classes):
        w = weight[:, c].double()
        wanted = old[c].double() if w.sum() == 0 else (w[:, None] * rows[:, c]).sum(0) / w.sum()
        close(found[c], wanted, 1e-5)
    junk = torch.where(weight[..., None] > 0, rows, torch.full_like(rows, 1e6))
    assert torch.equal(class_average(junk, weight, old), found)
    order = torch.randperm(m, generator=rng)
    close(class_average(rows[order], weight[order], old), found, 1e-5)


def test_the_nearest_prototype() -> None:
    """Far from the origin differences decide, not a Gram matrix; unknown classes are never nearest."""
    a = torch.full((1, 512), 4096.0)
    prototypes = torch.cat([a + 0.02, a + 0.01])
    found = nearness(a, prototypes, torch.tensor([True, True]))
    assert int(found.argmax()) == 1
    close(found, -(prototypes - a).double().square().sum(1)[None], 1e-4)
    found = nearness(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.tensor([False, True]))
    assert found.tolist() == [[-torch.inf, -162.0]]
    assert nearness(torch.zeros(0, 2), torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)).shape == (0, 3)
