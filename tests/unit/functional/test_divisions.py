"""The tree of divided clusters: where clients stand and where they can still go."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.functional.divisions import fork, largest_within_reach, more_like_second, within_reach

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
