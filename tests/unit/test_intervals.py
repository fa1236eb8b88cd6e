"""Intervals and verdicts: by hand, against scipy, and on planted cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate import Against, against, difference, interval, verdict


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 10), (1, 40), (500, 1000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_an_accuracy_is_wilsons(correct: int, n: int, level: float) -> None:
    """The same as scipy's, an independent implementation."""
    theirs = binomtest(correct, n).proportion_ci(level, method="wilson")
    assert interval(correct, n, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_without_samples_nothing_is_known() -> None:
    """No test part: the whole range."""
    assert interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("correct", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_counts_that_cannot_be_are_refused(correct: int, n: int) -> None:
    """More correct than there are, or fewer than none."""
    with pytest.raises(DataError, match=f"correct={correct}, n={n}"):
        interval(correct, n)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_share(level: float) -> None:
    """95 is not 0.95."""
    with pytest.raises(ConfigError, match=r"such as 0\.95"):
        interval(1, 2, level)


# ---- paired differences ---------------------------------------------------------------------------------------------
def seeds(rows: np.ndarray) -> list[Against]:
    """One comparison per row of gains ``[seeds, clients]``."""
    return [against(dict.fromkeys(range(len(row)), 0.5), {k: 0.5 + g for k, g in enumerate(row)}) for row in rows]


def gains(rows: np.ndarray) -> list[dict[int, float]]:
    return [a.gains for a in seeds(rows)]


def test_one_seed_is_students_interval_over_clients() -> None:
    """The same as scipy's."""
    row = np.random.default_rng(1).normal(0.02, 0.05, 30)
    theirs = ttest_1samp(row, 0).confidence_interval(0.9)
    found = difference([dict(enumerate(row))], level=0.9)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_seeds_that_deal_clients_anew_are_students_interval_over_seeds() -> None:
    """No client in two seeds: only the means of the seeds count, as in scipy's interval of them."""
    rows = np.random.default_rng(2).normal(0.02, 0.05, (4, 10)) + np.array([[0.1], [0.0], [0.2], [0.05]])
    apart = [{100 * s + k: g for k, g in enumerate(row)} for s, row in enumerate(rows)]
    theirs = ttest_1samp(rows.mean(1), 0).confidence_interval(0.95)
    found = difference(apart)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert not found.gaining


def test_clients_that_differ_widen_the_interval_although_seeds_agree() -> None:
    """Three seeds that repeat six clients' gains of 0, 3, 6, ... points exactly: only clients are a source of luck."""
    row = 0.03 * np.arange(6)
    found = difference(gains(np.stack([row] * 3)))
    error = row.std(ddof=1) / math.sqrt(6)
    assert (found.low, found.high) == pytest.approx((0.075 - 4.302653 * error, 0.075 + 4.302653 * error))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (5, 1)])
def test_few_figures_have_no_interval(shape: tuple[int, int]) -> None:
    """However large the difference and however well they agree."""
    found = difference(gains(np.full(shape, 0.3)))
    assert (found.low, found.high, found.word) == (None, None, "too few")


def test_a_difference_of_nothing_is_refused() -> None:
    """No seed, an empty seed, a missing accuracy."""
    for bad in ([], [{}], [{0: 0.1}, {}], [{0: math.nan}]):
        with pytest.raises(DataError):
            difference(bad)


# ---- planted cases --------------------------------------------------------------------------------------------------
def simulated(case: int, seeds: int, clients: int, run: float, client: float, mean: float = 0.0) -> np.ndarray:
    """Gains with an offset that a run's clients share, one that a client keeps in all seeds, and noise of 5 points."""
    rng = np.random.default_rng([case, seeds, clients])
    shared = rng.normal(0, run, (seeds, 1))
    return mean + shared + rng.normal(0, client, (1, clients)) + rng.normal(0, 0.05, (seeds, clients))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("clients", [4, 20])
@pytest.mark.parametrize(("run", "client"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.05), (0.02, 0.05)])
def test_noise_is_seldom_called_a_difference(count: int, clients: int, run: float, client: float) -> None:
    """Of 200 comparisons without any difference at most 5 % and the luck of such a count (two standard deviations,
    8 %) are called better or worse; and where clients do not differ no client is said to gain or lose in more.

    With one seed what its clients share cannot be seen, so it is left out there.
    """
    found = [difference(gains(simulated(c, count, clients, run * (count > 1), client))) for c in range(200)]
    assert sum(d.word in ("better", "worse") for d in found) <= 16
    if not client:
        assert sum(bool(d.gaining or d.losing) for d in found) <= 16


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_clear_gain_of_everybody_is_found(count: int) -> None:
    """10 points above with 5 points of noise and 20 clients: better in nearly all of 50 comparisons, worse in none."""
    words = [difference(gains(simulated(c, count, 20, 0.0, 0.0, mean=0.1))).word for c in range(50)]
    assert words.count("better") >= 48
    assert "worse" not in words


@pytest.mark.parametrize("count", [2, 3, 5])
def test_better_for_half_and_worse_for_the_rest(count: int) -> None:
    """Ten clients gain 20 points and ten lose 20: no clear difference on average, and the verdict says for whom."""
    rows = simulated(0, count, 20, 0.0, 0.0) / 5 + np.repeat([0.2, -0.2], 10)
    text = verdict("M", seeds(rows))
    assert text.startswith(
        "M: no clear difference from Local on average, but clearly better for 10 clients and worse for 10 clients ("
    )
    assert difference(gains(rows)).gaining == tuple(range(10))


def test_better_for_half_and_worse_for_the_rest_in_one_seed() -> None:
    """One seed cannot tell a client's own gain from luck; it counts them."""
    rows = simulated(0, 1, 20, 0.0, 0.0) / 5 + np.repeat([0.2, -0.2], 10)
    text = verdict("M", seeds(rows))
    assert text.startswith("M: no clear difference from Local on average (")
    assert "10 of 20 clients gain, 10 lose; one seed" in text


def test_a_few_clients_that_lose_are_named() -> None:
    """18 clients gain 10 points, two lose 20, in each of five seeds, with noise."""
    rows = simulated(3, 5, 20, 0.0, 0.0) / 10 + np.array([-0.2, *[0.1] * 10, -0.2, *[0.1] * 8])
    text = verdict("M", seeds(rows), "FedAvg")
    assert text.startswith("M: better than FedAvg, by 6.9 points")
    assert "on average, but clearly worse for clients 0 and 11 (" in text


def test_identical_to_the_reference() -> None:
    """Every client equal to the last digit in every seed."""
    assert verdict("M", seeds(np.zeros((3, 20)))) == "M: identical to Local: it has collapsed to local training"
    assert difference(gains(np.zeros((3, 20)))).word == "identical"
