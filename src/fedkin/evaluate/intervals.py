"""How sure a figure is: the interval of one client's accuracy, and of a paired difference over seeds and clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.core.errors import ConfigError, DataError

FEWEST = 6
"""Paired figures below which no interval is given: that five all have one sign happens by chance in 1 of 16 times."""

Word = Literal["better", "worse", "no clear difference", "too few", "identical"]
Gains = Mapping[int, float]


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


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds and clients, with what can be said of it; all fractions.

    Attributes:
        mean: mean over seeds of the mean over clients.
        low, high: ends of its confidence interval; None where there are too few figures for one.
        level: how often such intervals hold the true mean.
        seeds, clients: how many of each it rests on.
        gaining, losing: clients whose own difference is above or below zero beyond what changes from seed to seed.
        identical: every single difference is exactly zero.
    """

    mean: float
    low: float | None
    high: float | None
    level: float
    seeds: int
    clients: int
    gaining: tuple[int, ...] = ()
    losing: tuple[int, ...] = ()
    identical: bool = False

    @property
    def word(self) -> Word:
        """What the interval says: the whole of it must lie on one side of zero."""
        if self.identical:
            return "identical"
        if self.low is None or self.high is None:
            return "too few"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"


def difference(gains: Sequence[Gains], level: float = 0.95) -> Difference:
    """The mean of paired differences with an interval that counts both the luck of seeds and that of clients.

    With several seeds: the variance of the mean is clustered both ways (Cameron, Gelbach and Miller, "Robust inference
    with multiway clustering", J. Business & Economic Statistics 2011: by seed, plus by client, minus by single figure),
    never below that of either way alone, and the interval is Student's with one degree of freedom less than there are
    seeds, or clients if they are fewer. This holds for the same clients in all seeds and, where every seed deals
    clients anew, too: seeds are clusters then. A bootstrap over two or three seeds would be far too sure of itself
    (its resamples repeat the same two or three); Student's quantile is not: 12.7 standard errors for two seeds, 4.3 for
    three, 2.8 for five.

    With one seed: Student's interval over the clients. It tells how the method does on clients like these in this one
    run, and nothing of other seeds: clients that share a model share its luck.

    With fewer than `FEWEST` figures there is no interval.

    Single clients are judged where seeds repeat them: first whether clients differ at all beyond chance (the F test of
    clients in a two-way layout without interaction), then each by Student's interval with the spread over seeds pooled
    over clients (Satterthwaite's degrees of freedom), corrected for their number (Bonferroni). Where client 3 of one
    seed has nothing to do with client 3 of another, the F test finds nothing, as it should.

    Args:
        gains: for each seed, client id -> method minus reference, a fraction.
        level: of the interval, in (0, 1).

    Raises:
        ConfigError: the level is not in (0, 1).
        DataError: there is no seed, or a seed without clients, or a figure that is not finite.
    """
    check_level(level)
    if not gains or not all(gains):
        raise DataError("a difference needs at least one seed, and a client in every seed, to be computed from")
    if not all(math.isfinite(g) for seed in gains for g in seed.values()):
        raise DataError("a difference needs finite figures; a client's accuracy is missing or not a number")
    ids = sorted(set().union(*gains))
    table = np.array([[seed.get(i, math.nan) for i in ids] for seed in gains])
    mean = math.fsum(math.fsum(g.values()) / len(g) for g in gains) / len(gains)
    low = high = None
    if np.isfinite(table).sum() >= FEWEST:
        half = _half(table, mean, level)
        low, high = mean - half, mean + half
    gaining, losing = _clear(table, ids, level)
    same = all(g == 0 for seed in gains for g in seed.values())
    return Difference(mean, low, high, level, len(gains), len(ids), gaining, losing, same)


def _half(table: NDArray[np.float64], mean: float, level: float) -> float:
    """Half the width of the interval of the mean; ``table [seeds, clients]`` has NaN where a figure is missing."""
    seeds, clients = table.shape
    weight = 1 / (seeds * np.isfinite(table).sum(1, keepdims=True))
    rest = np.nan_to_num((table - mean) * weight)
    single = _clustered(rest[np.isfinite(table)])
    if seeds == 1:
        return _student(level, clients - 1) * math.sqrt(single)
    by_seed = _clustered(rest.sum(1))
    if clients == 1:
        return _student(level, seeds - 1) * math.sqrt(by_seed)
    by_client = _clustered(rest.sum(0))
    variance = max(by_seed, by_client, by_seed + by_client - single)
    return _student(level, min(seeds, clients) - 1) * math.sqrt(variance)


def _clustered(sums: NDArray[np.float64]) -> float:
    """Variance of a mean from the sums of its weighted deviations in each cluster."""
    return float((sums**2).sum() * len(sums) / (len(sums) - 1))


def _clear(table: NDArray[np.float64], ids: Sequence[int], level: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The clients that gain, and that lose, beyond what changes from seed to seed."""
    everywhere = np.flatnonzero(np.isfinite(table).all(axis=0))
    kept, who = table[:, everywhere], [ids[int(k)] for k in everywhere]
    seeds, clients = kept.shape
    if seeds < 2 or clients < 2:
        return (), ()
    from scipy.special import fdtrc  # here: a run that reports nothing need not wait for it

    means = kept.mean(0)
    by_client = seeds * means.var(ddof=1)
    by_seed = clients * kept.mean(1).var(ddof=1)
    rest = kept - means - kept.mean(1, keepdims=True) + kept.mean()
    free = (seeds - 1) * (clients - 1)
    left = float((rest**2).sum() / free)
    # figures that repeat to the last digits leave only rounding, which is no spread to test against
    exact = left <= 1e-24 * max(1.0, by_client)
    if (by_client <= 1e-24) if exact else fdtrc(clients - 1, free, by_client / left) > 1 - level:
        return (), ()
    parts = (by_seed / clients, left * (clients - 1) / clients)  # spread over seeds: shared by clients, and their own
    within = sum(parts)
    shared = parts[0] ** 2 / (seeds - 1) + parts[1] ** 2 / free
    half = 0.0 if exact and within <= 1e-24 else _student(1 - (1 - level) / clients, within**2 / shared)
    half *= math.sqrt(within / seeds)
    return (
        tuple(i for i, m in zip(who, means, strict=True) if m > half),
        tuple(i for i, m in zip(who, means, strict=True) if m < -half),
    )


def _student(level: float, free: float) -> float:
    """How many standard errors Student's two-sided interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(free, 0.5 + level / 2))
