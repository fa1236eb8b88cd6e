"""How sure an accuracy is: the interval that the size of its test part leaves."""

from __future__ import annotations

import math
from statistics import NormalDist

from fedkin.core.errors import ConfigError, DataError


def interval(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of an accuracy: what ``correct`` of ``n`` test samples say of the true share.

    Sound for small ``n`` and for shares of 0 and 1, where the usual mean ± 1.96 standard errors has no width (Wilson,
    "Probable inference, the law of succession, and statistical inference", JASA 1927; recommended by Brown, Cai and
    DasGupta, "Interval estimation for a binomial proportion", Statistical Science 2001). It takes the samples as
    independent draws.

    Args:
        correct: test samples that were predicted correctly.
        n: test samples.
        level: how often such intervals hold the true share, in (0, 1).

    Returns:
        lower and upper end, fractions in 0..1; (0, 1) where ``n`` is 0.

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
    low = 0.0 if correct == 0 else max(0.0, middle - half)  # exact at the ends, where rounding would be seen
    return low, 1.0 if correct == n else min(1.0, middle + half)


def half_width(accuracy: float, n: int, level: float = 0.95) -> float:
    """Half of Wilson's score interval (see `interval`) of an accuracy, a fraction, that was measured on ``n`` > 0
    samples; it need not be a count over ``n``, as with a mean over rounds."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))


def check_level(level: float) -> None:
    """Raises `ConfigError` unless it is a confidence level."""
    if not 0 < level < 1:
        raise ConfigError(f"expected a confidence level in (0, 1), such as 0.95, got {level}")
