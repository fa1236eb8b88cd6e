"""Hierarchical grouping: single, complete and average linkage, and the bipartition of CFL."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedkin.functional.linkage import agglomerate, bipartition, by_first_member, cosines
from toys import close

LINKAGES = ("single", "complete", "average")


def distances(m: int, seed: int) -> torch.Tensor:
    """Symmetric, zero on the diagonal, all others different."""
    d = torch.rand(m, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (d + d.T).fill_diagonal_(0)


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 14), groups=st.integers(1, 6), kind=st.sampled_from(LINKAGES), seed=st.integers(0, 10**6))
def test_the_same_groups_as_scipy(m: int, groups: int, kind: str, seed: int) -> None:
    d = distances(m, seed)
    got = agglomerate(d, groups, kind)
    if m <= groups:
        assert got.tolist() == list(range(m))
        return
    theirs = fcluster(linkage(squareform(d.numpy()), kind), groups, "maxclust")
    assert got.tolist() == by_first_member(torch.from_numpy(theirs.astype(np.int64))).tolist()


@pytest.mark.parametrize("kind", LINKAGES)
@pytest.mark.parametrize("height", [0.1, 0.3, 0.5])
def test_a_cut_at_a_height_is_scipy_s(kind: str, height: float) -> None:
    """No groups farther apart than that are joined, and those at that distance are."""
    d = distances(12, 7)
    theirs = fcluster(linkage(squareform(d.numpy()), kind), height, "distance")
    got = agglomerate(d, 1, kind, within=height)
    assert got.tolist() == by_first_member(torch.from_numpy(theirs.astype(np.int64))).tolist()
    x = torch.tensor([0.0, 1.0, 3.0])
    assert agglomerate((x[:, None] - x).abs(), 1, "single", within=1.0).tolist() == [0, 0, 1]


def plainly(distance: torch.Tensor, groups: int, kind: str) -> torch.Tensor:
    """The first smallest entry of the whole matrix, again and again."""
    m, d = len(distance), torch.maximum(distance, distance.T).double().fill_diagonal_(math.inf)
    group, size = torch.arange(m), torch.ones(m, dtype=torch.float64)
    for _ in range(m - groups):
        i, j = divmod(int((d == d.min()).flatten().to(torch.uint8).argmax()), m)
        mean = (size[i] * d[i] + size[j] * d[j]) / (size[i] + size[j])
        joined = {"single": torch.minimum(d[i], d[j]), "complete": torch.maximum(d[i], d[j]), "average": mean}[kind]
        d[i], d[:, i] = joined, joined
        d[i, i] = d[j] = d[:, j] = math.inf
        group[group == j] = i
        size[i] += size[j]
    return by_first_member(group)


@settings(max_examples=300, deadline=None)
@given(
    m=st.integers(1, 16),
    groups=st.integers(1, 5),
    kind=st.sampled_from(LINKAGES),
    seed=st.integers(0, 10**6),
    values=st.sampled_from([2, 3, 5, 10**6]),
)
def test_the_first_smallest_pair_is_joined(m: int, groups: int, kind: str, seed: int, values: int) -> None:
    """With any number of ties, the same groups as by looking at the whole matrix before every join."""
    d = torch.randint(values, (m, m), generator=torch.Generator().manual_seed(seed)).double()
    assert agglomerate(d, groups, kind).tolist() == plainly(d, groups, kind).tolist()


def test_groups_are_numbered_by_their_first_members() -> None:
    """Labels 7, 2, 7, -1, 2 are groups 0, 1, 0, 2, 1; no labels are no groups."""
    assert by_first_member(torch.tensor([7, 2, 7, -1, 2])).tolist() == [0, 1, 0, 2, 1]
    assert by_first_member(torch.empty(0, dtype=torch.int64)).tolist() == []


@settings(max_examples=60, deadline=None)
@given(m=st.integers(2, 9), p=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_single_linkage_is_the_best_bipartition(m: int, p: int, seed: int) -> None:
    """Against every way to make two groups: the least of the largest similarity across; complete linkage is never
    better."""
    alike = cosines(torch.randn(m, p, generator=torch.Generator().manual_seed(seed)))
    second, across = bipartition(alike)
    assert not bool(second[0])
    assert 1 <= int(second.sum()) < m
    best = math.inf
    for size in range(1, m):
        for part in combinations(range(1, m), size):
            inside = torch.zeros(m, dtype=torch.bool)
            inside[list(part)] = True
            best = min(best, float(alike[inside][:, ~inside].max()))
    assert across == best
    assert bipartition(alike, "complete")[1] >= across


@settings(max_examples=40, deadline=None)
@given(m=st.integers(2, 12), seed=st.integers(0, 10**6))
def test_permuting_clients_permutes_the_halves(m: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows, order = torch.randn(m, 4, generator=rng), torch.randperm(m, generator=rng)
    for kind in ("single", "complete"):
        a, first = bipartition(cosines(rows), kind)
        b, second = bipartition(cosines(rows[order]), kind)
        together = b == b[order.argsort()[0]]  # with client 0 or not
        assert torch.equal(together, ~a[order])
        close(first, second, 1e-12)


def test_cosines_by_hand() -> None:
    """Of four rows; 0 with a zero row; 1 between multiples, while an angle of 1e-5 is kept."""
    rows = torch.tensor([[2.0, 0.2], [2.0, -0.2], [-2.0, 0.4], [-2.0, -0.4]])
    mixed = math.sqrt(4.04 * 4.16)
    a, b, c, d = 3.96 / 4.04, -3.92 / mixed, -4.08 / mixed, 3.84 / 4.16
    close(cosines(rows), [[1, a, b, c], [a, 1, c, b], [b, c, 1, d], [c, b, d, 1]])
    close(cosines(torch.tensor([[0.0, 0.0], [3.0, 4.0]])), torch.eye(2), 0)
    close(cosines(torch.zeros(3, 2)), torch.eye(3), 0)
    close(cosines(torch.tensor([[1e-30, 0.0], [1e-30, 1e-30]])), [[1, 0.5**0.5], [0.5**0.5, 1]])
    rows = torch.tensor([[1.0, 1.0], [1.0, 1.0], [3.0, 3.0], [0.1, 0.1]])
    close(cosines(rows), torch.ones(4, 4), 0)
    assert float(cosines(torch.tensor([[1.0, 0.0], [1.0, 1e-5]]))[0, 1]) < 1
