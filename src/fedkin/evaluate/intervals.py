"""Confidence interval of an accuracy from the size of its test part."""

from __future__ import annotations

import math
from statistics import NormalDist

from fedkin.core.errors import ConfigError, DataError


def interval(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of an accuracy of ``correct`` in ``n`` test samples.

    Valid for small ``n`` and fractions of 0 and 1, where the usual mean ± 1.96 standard errors has width zero (Wilson,
    "Probable inference, the law of succession, and statistical inference", JASA 1927; recommended by Brown, Cai and
    DasGupta, "Interval estimation for a binomial proportion", Statistical Science 2001). It treats the samples as
    independent draws.

    Args:
        correct: test samples that were predicted correctly.
        n: test samples.
        level: probability that such intervals contain the true fraction, in (0, 1).

    Returns:
        Lower and upper end, fractions in 0..1; (0, 1) where ``n`` is 0.

    Raises:
        DataError: ``correct`` is not in 0..n.
        ConfigError: the level is not in (0, 1).
    """
    check_level(level)
    if not 0 <= correct <= n:
        raise DataError(f"expected 0 <= correct <= n test samples, got correct={correct}, n={n}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, half = correct / n, half_width(correct / n, n, level)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    low = 0.0 if correct == 0 else max(0.0, middle - half)  # exact at the ends, where rounding would be visible
    return low, 1.0 if correct == n else min(1.0, middle + half)


def half_width(accuracy: float, n: int, level: float = 0.95) -> float:
    """Return half the width of Wilson's interval (see `interval`) of an accuracy, a fraction, on ``n`` > 0 samples; it
    need not be a count over ``n``, as with a mean over rounds."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))


def check_level(level: float) -> None:
    """Raise `ConfigError` unless the value is a confidence level."""
    if not 0 < level < 1:
        raise ConfigError(f"expected a confidence level in (0, 1), such as 0.95, got {level}")
