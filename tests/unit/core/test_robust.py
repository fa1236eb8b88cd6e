"""Rules of aggregation: numbers worked out by hand, and what each promises for any numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.core import Aggregation, ConfigError, MethodError, Roster, Round, robust
from refusals import refuses
from toys import apart, close, draw, vector_net

OTHERS = ("median", "trimmed", "krum", "norm")
EVERY = pytest.mark.parametrize("kind", OTHERS)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def ruled(kind: str, share: float) -> Aggregation:
    """The rule, with a fraction where it has one."""
    return Aggregation(f"{kind}@fraction={share!r}" if kind in ("trimmed", "krum") else kind)


def of(rule: Aggregation, values: list[float], weights: list[float] | None = None) -> float:
    rows = column(*values)
    return float(robust.mean(rule, rows, torch.tensor(weights or [1.0] * len(values), dtype=torch.float64)))


def round_(sizes: list[int], **more: Any) -> Round:
    ids = torch.arange(len(sizes))
    return Round(index=3, rounds=9, net=vector_net(0.0), roster=Roster(torch.tensor(sizes)), ids=ids, **more)


# ---- median -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "weights", "wanted"),
    [
        ([100, 2, 1], None, 2.0),
        ([3, 100, 2, 1], None, 2.5),  # even: between the two in the middle
        ([1, 2, 3], [1, 1, 3], 3.0),  # up to 2: 2 of 5
        ([1, 2, 3], [1, 1, 2], 2.5),  # up to 2: exactly half of 4
        ([1, 2, 3], [2, 0, 2], 2.0),  # who weighs nothing does not stand between
        ([1, 5, 3], [2, 0, 2], 2.0),
        ([1, 2, 3, 4], [0.2, 0.2, 0.3, 0.1], 2.5),  # half of .8, though the sum of the shares is a bit above 1/2
        ([1, 2], [3, 1], 1.0),
        ([7], [5], 7.0),
    ],
)
def test_median_by_hand(values: list[float], weights: list[float] | None, wanted: float) -> None:
    """Sorted by value, the first at which the weights pass half of all; where they reach it exactly, half way on."""
    assert of(Aggregation("median"), values, weights) == wanted


@pytest.mark.parametrize("count", range(1, 14))
def test_halves_are_found_for_any_number_of_equal_weights(count: int) -> None:
    """1/6 + 1/6 + 1/6 is not 1/2 in floating point; equal weights still give numpy's median."""
    rows = draw(count, 40, seed=count)
    for weight in (1.0, 1 / 3, 0.1):
        got = robust.mean(Aggregation("median"), rows, torch.full((count,), weight, dtype=torch.float64))
        close(got, np.median(rows.double().numpy(), axis=0), 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=9))
def test_a_weight_is_so_many_equal_rows(pairs: list[tuple[int, int]]) -> None:
    """A weighted median is numpy's of rows repeated by their weights, ties included; likewise the trimmed mean."""
    values, weights = [float(v) for v, _ in pairs], [float(w) for _, w in pairs]
    repeated = np.repeat(values, [int(w) for w in weights])
    assert of(Aggregation("median"), values, weights) == np.median(repeated)
    even = robust.mean(Aggregation("trimmed@fraction=0.2"), column(*repeated.tolist()), torch.ones(len(repeated)))
    close(of(Aggregation("trimmed@fraction=0.2"), values, weights), even[0], 1e-5)


# ---- trimmed mean -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "values", "weights", "wanted"),
    [
        (0.2, [100, 3, 0, 2, 1], None, 2.0),  # one of five at either end
        (0.25, [3, 100, 2, 1], None, 2.5),
        (0.2, [0, 3, 9], None, 11 / 3),  # of three, 1/3 - 1/5 of both ends are left: (1 + 6/5) / (3/5)
        (0.2, [0, 4], [1, 3], 11 / 3),  # .05 and .55 are left
        (0.0, [1, 2, 6], None, 3.0),
        (0.4, [0, 4], [3, 2], 0.0),  # all of the lighter one is cut
        (0.49, [7], [2], 7.0),
    ],
)
def test_trimmed_mean_by_hand(share: float, values: list[float], weights: list[float] | None, wanted: float) -> None:
    """The share of the weight is cut at both ends; a row on the border counts with what is left of it."""
    close(of(ruled("trimmed", share), values, weights), wanted, 1e-6)


def test_rows_far_away_cost_nobody_digits() -> None:
    """A row that is cut leaves nothing; huge rows do not blur distances; a difference is shortened as a whole."""
    close(of(Aggregation("trimmed@fraction=0.1"), [1.0] * 9 + [1e8]), 1.0, 0)
    close(of(Aggregation("trimmed@fraction=0.3"), [1.0] * 7 + [1e8, -1e8, 1e8]), 1.0, 0)
    rows = torch.cat([draw(8, 50) * 1e-3, draw(1, 50) * 1e-3 + 9, torch.full((2, 50), 1e8)])
    got = robust.mean(Aggregation("krum@fraction=0.28"), rows, torch.ones(11))  # f = 3
    close(got, rows[:8].double().mean(0), 1e-7)
    rows = torch.tensor([[0.0, 5], [0, -5], [5, 0], [-5, 0], [30, 40], [0, 0], [0, 0]])
    # median 0, lengths 5, 5, 5, 5, 50, 0, 0
    close(robust.mean(Aggregation("norm"), rows, torch.ones(7)), [3 / 7, 4 / 7], 1e-6)


# ---- Krum ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "values", "weights", "wanted"),
    [
        # f = 1, two neighbours: scores 5, 2, 5, 4 + 9, 96^2 + 98^2: the last is left out
        (0.2, [0, 1, 2, 4, 100], None, 7 / 4),
        (0.2, [0, 1, 2, 4, 100], [1, 1, 1, 5, 9], 23 / 8),  # weights count in the mean only
        # scores 16 + 49, 9 + 16, 1 + 9, 1 + 16, 25 + 36: the first; by three neighbours it would be the last
        (0.2, [0, 4, 7, 8, 13], None, 8.0),
        # .29 times 100 is 28.999... in floating point: f = 29 leaves out all that are not 0
        (0.29, [0] * 71 + [1000 * i for i in range(1, 30)], None, 0.0),
        # f = 2, three neighbours: 1+4+9, 1+1+4, 1+1+4, 1+1+4, 1+4+9; two that agree are far from the rest
        (0.3, [0, 1, 2, 3, 4, 100, 100], None, 2.0),
        # f would be 2, but m >= 2 f + 3 allows 1
        (0.45, [0, 1, 2, 4, 100], None, 7 / 4),
        # four rows allow none: the mean
        (0.45, [0, 1, 2, 97], None, 25.0),
        (0.2, [0, 100], [3, 1], 25.0),
        (0.2, [6], None, 6.0),
        # 0 and 4 are equally good: both stay, or their order would decide (f = 1; scores 1+4, 1+1, 1+1, 1+1, 1+4)
        (0.2, [0, 1, 2, 3, 4], None, 2.0),
    ],
)
def test_krum_by_hand(share: float, values: list[float], weights: list[float] | None, wanted: float) -> None:
    """m - f rows with the least sums of squared distances to their m - f - 2 nearest ones are averaged."""
    close(of(ruled("krum", share), values, weights), wanted, 1e-6)


# ---- norm bound ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("factor", "values", "weights", "wanted"),
    [
        # around 2: -2, -1, 0, 1, 12, of median length 1
        (1.0, [0, 1, 2, 3, 14], None, 2.0),
        (4.0, [0, 1, 2, 3, 14], None, 2.4),
        (0.5, [0, 1, 2, 3, 14], None, 2.0),
        (100.0, [0, 1, 2, 3, 14], None, 4.0),
        # weighted median 1; lengths 1, 0, 8 of weights 2, 2, 1: median 1; (0 + 2 + 2) / 5
        (1.0, [0, 1, 9], [2, 2, 1], 0.8),
        (1.0, [0, 4], None, 2.0),
        (1.0, [0, 4], [3, 1], 0.0),  # the median is 0, and so is the median length
        (1.0, [3], None, 3.0),
    ],
)
def test_norm_bound_by_hand(factor: float, values: list[float], weights: list[float] | None, wanted: float) -> None:
    """Differences to the median are shortened to the factor times their median length, then averaged."""
    close(of(Aggregation(f"norm@bound={factor}"), values, weights), wanted, 1e-6)


# ---- what all promise ---------------------------------------------------------------------------------------------
WEIGHTS = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@EVERY
@settings(max_examples=25, deadline=None)
@given(weights=WEIGHTS, seed=st.integers(0, 99))
def test_equal_rows_give_that_row(kind: Any, weights: list[int], seed: int) -> None:
    """Bit for bit, whatever the weights."""
    row = draw(7, seed=seed)
    got = robust.mean(ruled(kind, 0.3), row.expand(len(weights), 7), torch.tensor(weights))
    assert torch.equal(got, row)


@EVERY
@settings(max_examples=25, deadline=None)
@given(weights=WEIGHTS, seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(kind: Any, weights: list[int], seed: int) -> None:
    """Clients in another order: the same beyond rounding."""
    m = len(weights)
    rows, w = draw(m, 9, seed=seed), torch.tensor(weights)
    order = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    rule = ruled(kind, 0.3)
    close(robust.mean(rule, rows[order], w[order]), robust.mean(rule, rows, w), 1e-6)


@EVERY
@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 4), seed=st.integers(0, 99), size=st.sampled_from([10.0, 1e4, 1e8]))
def test_a_minority_cannot_carry_it_away(kind: Any, count: int, seed: int, size: float) -> None:
    """Up to four of thirteen rows, anywhere: the result stays as near as the honest rows lie apart, unlike the mean."""
    rows = draw(13, 30, seed=seed)
    away = draw(30, seed=seed + 1)
    rows[:count] = size * away / away.norm()
    honest = rows[count:].double()
    got = robust.mean(ruled(kind, 0.31), rows, torch.ones(13))
    reach = (honest - honest.mean(0)).norm(dim=1).max()
    assert float((got - honest.mean(0)).norm()) <= 1.1 * float(reach)
    if kind in ("median", "trimmed"):
        assert bool((got >= honest.min(0).values - 1e-6).all() and (got <= honest.max(0).values + 1e-6).all())
    if count and size > 1e3:
        apart(robust.mean(Aggregation(), rows, torch.ones(13)), honest.mean(0), 10.0)


@EVERY
def test_who_weighs_nothing_takes_no_part(kind: Any) -> None:
    """A row of weight 0 is as if it were not there, in mixtures too."""
    rows, w = draw(7, 11), torch.tensor([3.0, 0, 1, 2, 0, 5, 4])
    rows[1] = 1e6
    rule, there = ruled(kind, 0.3), w > 0
    close(robust.mean(rule, rows, w), robust.mean(rule, rows[there], w[there]), 1e-6)
    close(robust.mix(rule, w[None], rows)[0], robust.mean(rule, rows[there], w[there]), 1e-6)


@EVERY
def test_a_mixture_is_the_rule_for_each_row_of_weights(kind: Any) -> None:
    """Each row by itself, at any scale; one without any weight gives 0."""
    rows, w = draw(8, 11), torch.rand(4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w[2] = 0
    rule = ruled(kind, 0.3)
    got = robust.mix(rule, w, rows)
    for i in (0, 1, 3):
        close(got[i], robust.mean(rule, rows, w[i]), 1e-7)
        close(got[i], robust.mix(rule, 7 * w[i : i + 1], rows)[0], 1e-7)
    assert not bool(got[2].any())


@EVERY
def test_groups_are_merged_each_by_itself(kind: Any) -> None:
    """The rule among a group's rows; a group without rows, or whose rows weigh nothing, keeps what it had."""
    rows, otherwise = draw(11, 6), draw(4, 6, seed=2)
    group, w = torch.tensor([0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 3]), torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0])
    rule = ruled(kind, 0.3)
    got = robust.group_mean(rule, rows, w, group, otherwise)
    for g in (0, 2):
        assert torch.equal(got[g], robust.mean(rule, rows[group == g], w[group == g]))
    assert torch.equal(got[[1, 3]], otherwise[[1, 3]])


# ---- the mean -----------------------------------------------------------------------------------------------------
@EVERY
def test_negative_weights_are_refused_by_name(kind: Any) -> None:
    """No rule but the mean says what they should mean."""
    with refuses(MethodError, f"'{kind}' is not defined for negative weights, got -0.5; use the rule"):
        robust.mix(Aggregation(kind), torch.tensor([[1.0, -0.5, 0.5]]), draw(3, 2))


@pytest.mark.parametrize(
    "rule", ["mode", "trimmed@fraction=0.5", "trimmed@fraction=-0.1", "krum@fraction=nan", "norm@bound=0", "median@a=1"]
)
def test_settings_out_of_range_are_named(rule: str) -> None:
    """With what was given."""
    with refuses(ConfigError, "rule", rule.partition("@")[0]):
        Aggregation(rule)


# ---- in a round ---------------------------------------------------------------------------------------------------
def test_a_round_merges_and_mixes_by_its_rule() -> None:
    """By sizes, uniformly or by weights of a method's own; mixtures by each client's weights."""
    rows = column(0, 1, 2, 30)
    for uniform, wanted in ((False, (63 / 5, 2.0)), (True, (33 / 4, 1.5))):
        for rule, value in zip((Aggregation(), Aggregation("median")), wanted, strict=True):
            close(round_([1, 1, 1, 2], aggregation=rule, uniform=uniform).mean(rows), [value])
    rows, w = column(0, 1, 2), torch.tensor([1, 1, 2])
    close(round_([7, 1, 1]).mean(rows, w), [1.25])
    close(round_([7, 1, 1], aggregation=Aggregation("median")).mean(rows, w), [1.5])
    rows, w = column(0, 1, 9), torch.tensor([[1.0, 1, 1], [1, 1, 3]]) / torch.tensor([[3.0], [5]])
    close(round_([1, 1, 1]).mix(w, rows), [[10 / 3], [28 / 5]])
    close(round_([1, 1, 1], aggregation=Aggregation("median")).mix(w, rows), [[1], [9]])
