"""The share of samples that a client can have by its own word."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.server.plan import limited


@pytest.mark.parametrize(
    ("claimed", "most", "used"),
    [
        ([100, 60, 60], 0.5, [100, 60, 60]),  # 45 %
        ([120, 60, 60], 0.5, [120, 60, 60]),  # half, to the sample
        ([121, 60, 60], 0.5, [120, 60, 60]),
        ([60, 10_000_000, 60], 0.5, [60, 120, 60]),
        ([60, 40], 0.5, [60, 40]),  # two cannot both be below half
        ([10_000_000, 1], 0.5, [10_000_000, 1]),
        ([7], 0.5, [7]),
        ([60, 10_000_000, 60], 1.0, [60, 10_000_000, 60]),
        ([90, 10], 0.75, [30, 10]),
        ([900, 800, 10, 10], 0.4, [40, 40, 10, 10]),  # two are lowered: 40 of 100 each
        ([900, 900, 900], 0.25, [900, 900, 900]),  # three cannot all be at a quarter
    ],
)
def test_claims_by_hand(claimed: list[int], most: float, used: list[int]) -> None:
    """Worked out by hand: what is above the limit is lowered to it, and nothing else changes."""
    assert limited(torch.tensor(claimed), most).tolist() == used


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=12), st.sampled_from([0.1, 0.3, 1 / 3, 0.5, 0.8, 1.0]))
def test_nobody_has_more_than_the_limit(claimed: list[int], most: float) -> None:
    """Whatever is claimed: no share is above the limit, nobody gains a sample, the lowered are the largest and have one
    common number, and one sample more would be too much."""
    sizes = torch.tensor(claimed)
    used = limited(sizes, most)
    if len(claimed) * most <= 1:
        assert used is sizes
        return
    lowered = [u for u, c in zip(used.tolist(), claimed, strict=True) if u < c]
    assert bool((used <= sizes).all())
    assert int(used.max()) <= most * int(used.sum()) + most * len(lowered) + 1e-6  # numbers were rounded down
    assert bool((used >= 1).all())
    if lowered:
        assert len(set(lowered)) == 1
        assert lowered[0] == int(used.max())
        more = used + (used < sizes)
        assert int(more.max()) > most * int(more.sum()) - 1e-6
