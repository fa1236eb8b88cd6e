"""Intervals and verdicts: by hand, against scipy, and on planted cases."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate import interval


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
