"""Sampling tables: sums that make the plain mean over slots unbiased, draws, and how unlike updates are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.functional.grouping import ward_groups
from fedkin.methods.clustered_sampling import draw_slots, left_over, table_by_group, table_by_size
from fedkin.methods.clustered_sampling import unlikeness as unlikeness_of
from toys import close, seeded

MANY = settings(max_examples=500, deadline=None)
sizes_of_clients = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5000)), min_size=1, max_size=25).filter(any)
seeds = st.integers(0, 2**20)


def unlikeness(updates: Tensor, measure: str) -> Tensor:
    return unlikeness_of(updates, torch.arange(len(updates)), measure)


def unbiased(table: Tensor, sizes: list[int], slots: int) -> None:
    """Rows sum to M, columns to m n_i, nothing is negative: integers, so exactly."""
    assert table.shape == (slots, len(sizes))
    assert table.dtype == torch.int64
    assert bool((table >= 0).all())
    assert table.sum(1).tolist() == [sum(sizes)] * slots
    assert table.sum(0).tolist() == [slots * n for n in sizes]


def steadier(table: Tensor, sizes: list[int]) -> None:
    """No client's weight varies more than if every slot were drawn by size: each variance is at most p (1 - p)/m."""
    m, p = len(table), torch.tensor(sizes).double() / sum(sizes)
    r = table.double() / sum(sizes)
    assert bool(((r * (1 - r)).sum(0) / m**2 <= p * (1 - p) / m + 1e-12).all())


@MANY
@given(sizes=sizes_of_clients, slots=st.integers(1, 30))
def test_tables_by_size_are_unbiased(sizes: list[int], slots: int) -> None:
    """Any sizes, more slots than clients and clients due more than once in every round included."""
    table = table_by_size(torch.tensor(sizes), slots)
    unbiased(table, sizes, slots)
    steadier(table, sizes)


@MANY
@given(sizes=sizes_of_clients, slots=st.integers(1, 30), seed=seeds)
def test_tables_by_similarity_are_unbiased(sizes: list[int], slots: int, seed: int) -> None:
    """The same for groups cut out of a dendrogram of random distances; no group is too heavy for one slot."""
    n, k = torch.tensor(sizes), len(sizes)
    rest = left_over(n, slots)
    group = ward_groups(torch.rand(k * (k - 1) // 2, generator=seeded(seed)), rest, int(n.sum()))
    weight = torch.zeros(k, dtype=torch.int64).index_add_(0, group, rest)
    assert int(weight.max()) <= sum(sizes)
    table = table_by_group(n, slots, group, seeded(seed))
    unbiased(table, sizes, slots)
    steadier(table, sizes)


@pytest.mark.parametrize(
    ("sizes", "table"),
    [
        ([10] * 10, [[30, 30, 30, 10, 0, 0, 0, 0, 0, 0], [0, 0, 0, 20, 30, 30, 20, 0, 0, 0]]),
        ([30, 30, 20, 10, 10], [[90, 10, 0, 0, 0], [0, 80, 20, 0, 0]]),
    ],
)
def test_slots_close_exactly(sizes: list[int], table: list[list[int]]) -> None:
    """Three slots, M = 100, masses of 30, and of 90, 90, 60, 30, 30: in integers every slot is filled to the last unit;
    in floating point the third of them is never full and a fourth is reached for."""
    got = table_by_size(torch.tensor(sizes), 3)
    assert got[:2].tolist() == table
    unbiased(got, sizes, 3)


def test_slots_are_drawn_by_their_rows() -> None:
    """Divided groups in any order of their clients; 20,000 draws within four standard deviations."""
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    tables = [table_by_group(torch.tensor([10] * 6), 2, group, seeded(seed)).tolist() for seed in range(20)]
    here, there = [20, 0, 20, 20, 0, 0], [0, 20, 0, 0, 20, 20]
    other_here, other_there = [0, 20, 20, 20, 0, 0], [20, 0, 0, 0, 20, 20]
    assert {str(t) for t in tables} == {str([here, there]), str([other_here, other_there])}
    table = torch.tensor([[100, 0, 0, 0], [20, 40, 20, 20], [0, 0, 99, 1]])
    drawn = draw_slots(table.repeat(20_000, 1), seeded(3)).view(-1, 3)
    for j, row in enumerate(table.double() / 100):
        share = torch.bincount(drawn[:, j], minlength=4) / len(drawn)
        assert not bool(share[row == 0].any())
        close((share - row).abs() / (row * (1 - row) / len(drawn)).sqrt().clamp(min=1e-9), torch.zeros(4), 4.0)


# ---- how unlike updates are ----------------------------------------------------------------------------------------
def test_how_unlike_updates_are() -> None:
    """Angles of parallel, orthogonal, opposite and empty updates; squared l2, plain l1; never NaN."""
    updates = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-2.0, 1.0], [0.0, 0.0], [0.0, 0.0], [-3.0, -6.0]])
    half = math.pi / 2
    wanted = torch.zeros(6, 6, dtype=torch.float64)
    wanted[2, :2] = wanted[:2, 2] = wanted[2, 5] = wanted[5, 2] = half
    wanted[5, :2] = wanted[:2, 5] = math.pi
    close(unlikeness(updates, "angle"), wanted)
    rows = torch.tensor([[0.0, 0.0], [3.0, -4.0], [3.0, 0.0]])
    close(unlikeness(rows, "l2"), [[0, 25, 9], [25, 0, 16], [9, 16, 0]])
    close(unlikeness(rows, "l1"), [[0, 7, 3], [7, 0, 4], [3, 4, 0]])
    rows = torch.randn(2000, 1, 40, generator=seeded(5)) * torch.tensor([[1.0], [3.7]])
    raw = torch.nn.functional.cosine_similarity(rows[:, 0], rows[:, 1])
    assert bool((raw > 1).any())
    angles = torch.stack([unlikeness(pair, "angle") for pair in rows])
    close(angles, torch.zeros(2000, 2, 2), 1e-3)
