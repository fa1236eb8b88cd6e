"""Trying others' models: gains, weights, and whom to ask."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.functional.pairs import added, key, recalled
from fedkin.methods.fedfomo import gains, greedy, shares
from toys import close

GAINS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@settings(deadline=None, max_examples=80)
@given(GAINS)
def test_shares_are_a_mixture(values: list[float]) -> None:
    """Not negative, of sum 1, nothing for a gain of 0 or less unless nobody gains, then all for the first."""
    g = torch.tensor(values, dtype=torch.float64)
    w = shares(g)
    assert float(w.min()) >= 0
    assert math.isclose(float(w.sum()), 1.0, abs_tol=1e-9)
    if bool((g > 0).any()):
        assert not bool(w[g <= 0].any())
    else:
        assert w.tolist() == [1.0] + [0.0] * (len(values) - 1)


@settings(deadline=None, max_examples=80)
@given(GAINS, st.integers(0, 10), st.floats(0, 1), st.integers(0, 1000))
def test_greedy_chooses_different_ones(values: list[float], count: int, chance: float, seed: int) -> None:
    """As many as there are places and candidates, each once; without chance the best ones, best first."""
    v = torch.tensor(values, dtype=torch.float64)
    chosen = greedy(v, count, chance, torch.Generator().manual_seed(seed))
    assert len(chosen) == len(set(chosen)) == min(count, len(values))
    best = greedy(v, count, 0.0, torch.Generator().manual_seed(seed))
    assert [values[i] for i in best] == sorted(values, reverse=True)[:count]


@pytest.mark.parametrize(
    ("before", "loss", "distance", "wanted"),
    [
        (2.0, 0.5, 0.5, 3.0),
        (2.0, 0.5, 0.0, 0.0),
        (2.0, math.inf, 1.0, -1e6),
        (math.inf, 0.5, 1.0, 1e6),
        (math.inf, math.inf, 1.0, -1e6),
        (2.0, math.nan, 1.0, -1e6),
        (math.nan, 0.5, 0.0, 0.0),
    ],
)
def test_gains(before: float, loss: float, distance: float, wanted: float) -> None:
    """Loss gained per unit of length; 0 at distance 0; finite whatever the losses are."""
    found = gains(before, torch.tensor([loss]), torch.tensor([distance]))
    assert found.dtype == torch.float64
    assert found.tolist() == [wanted]


@settings(max_examples=200, deadline=None)
@given(
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-3, 3)), max_size=6), max_size=5)
)
def test_a_record_of_pairs_is_a_table(rounds: list[list[tuple[int, int, float]]]) -> None:
    """Sums over any pairs, some many times, are those of a table of all pairs; pairs not known are 0."""
    known, values = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    table, who = torch.zeros(6, 6, dtype=torch.float64), torch.arange(6)
    for entries in rounds:
        rows, columns = (torch.tensor([e[i] for e in entries], dtype=torch.int64) for i in (0, 1))
        amounts = torch.tensor([e[2] for e in entries], dtype=torch.float64)
        known, values = added(known, values, key(rows, columns), amounts)
        table.index_put_((rows, columns), amounts, accumulate=True)
        assert torch.equal(known, known.unique())
        close(recalled(known, values, key(who[:, None], who)), table, 1e-12)


def test_shares_and_chance() -> None:
    """Rows by themselves; a chance of .3 leaves the best of ten 73 % of 4000 draws."""
    close(shares(torch.tensor([[1.0, 3.0, -2.0], [-1.0, 0.0, -2.0]])), [[0.25, 0.75, 0], [1, 0, 0]], 1e-15)
    rng = torch.Generator().manual_seed(0)
    v = torch.arange(10, dtype=torch.float64)
    hits = sum(greedy(v, 1, 0.3, rng) == [9] for _ in range(4000)) / 4000
    assert abs(hits - 0.73) < 0.03
