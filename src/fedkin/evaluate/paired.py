"""The mean of paired differences over seeds and clients, and an interval for it that three seeds can support."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.core.errors import ConfigError, DataError
from fedkin.record.lines import ClientLine

FEWEST = 6
"""Minimum number of paired figures for an interval: five all have the same sign by chance in 1 of 16 cases."""
SEED_EFFECT = 0.2
"""Prior median of the effect of a seed on all its clients, in standard deviations between clients."""
SMALLEST = 0.05
"""Least prior median that `seed_effect` returns."""
_MEDIANS = tuple(SMALLEST * 2 ** (i / 3) for i in range(16))  # 0.05 to 1.6
NODES = 200
"""Points at which the prior is evaluated; the quadrature is then exact to 0.02 % of the half-width."""
_ROUNDING = 1e-12  # two figures that are closer are equal but for rounding
_NOTHING = 1e-24  # a sum of squares below this, relative to that of the gains, is rounding

Word = Literal[
    "better", "worse", "no clear difference", "ahead", "behind", "level", "too few", "identical"
]  # fmt: skip
Gains = Mapping[int, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds and clients with its interval; all fractions.

    Attributes:
        mean: mean over seeds of the mean over clients.
        low, high: ends of its interval; None where there are too few figures.
        level: nominal probability that the interval contains the true mean.
        seeds, clients: numbers of seeds and of clients that it is based on.
        tail: remaining probability of a true mean of zero or below; less than ``(1 - level) / 2`` where the interval
            lies above zero. None without an interval.
        identical: every single difference is exactly zero.
    """

    mean: float
    low: float | None
    high: float | None
    level: float
    seeds: int
    clients: int
    tail: float | None = None
    identical: bool = False

    @property
    def word(self) -> Word:
        """Conclusion from the interval: the whole of it must lie on one side of zero.

        With one seed the words are "ahead", "behind" and "level": they concern this one run, since clients that share a
        model share its randomness. "better" and "worse" need two seeds or more.
        """
        if self.identical:
            return "identical"
        if self.low is None or self.high is None:
            return "too few"
        if self.seeds == 1:
            return "ahead" if self.low > 0 else "behind" if self.high < 0 else "level"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear difference"


def gain_over(figure: float, reference: float) -> float:
    """Return the difference of two figures (fractions); zero where they differ by rounding alone."""
    result = figure - reference
    return 0.0 if abs(result) < _ROUNDING else result


def difference(
    gains: Sequence[Gains], level: float = 0.95, same_clients: bool | None = None, *, seed_effect: float = SEED_EFFECT
) -> Difference:
    """Estimate the mean of paired differences with an interval for the randomness of seeds and of clients.

    The gain of client k in seed s is modelled as the true mean, plus an effect of the seed that all its clients share,
    plus a deviation of the client. Two or three seeds cannot estimate the size r of the seed effect, relative to the
    standard deviation between clients, and no unbiased rule of a fixed size for every r beats Student's interval over
    the seed means. This one therefore takes a half-Cauchy prior for r with median ``seed_effect`` and a flat one for
    the mean and the logarithm of the scale, and integrates r out numerically: the tail of the mean is a mixture of
    Student's distributions. The prior's tail is heavy, so seeds that disagree override it. docs/verdicts.md has the
    sizes and powers that were simulated, and when 5 % does not hold.

    Where seeds have the same clients, the deviation of a client repeats: the variance between clients is then estimated
    over clients (Student's with the number of clients minus one degrees of freedom in the limit of no seed effect), and
    the effect of a seed is judged against what changes from seed to seed.

    With one seed: Student's interval over the clients. It describes clients like these in this one run and says nothing
    of other seeds. With fewer than `FEWEST` figures there is no interval.

    Args:
        gains: for each seed, client id -> method minus reference, a fraction.
        level: of the interval, in (0, 1).
        same_clients: whether a client id means the same client in every seed (natural clients, a fixed data seed) or
            clients are drawn anew. None, not known, is treated as the same: that is the cautious choice.
        seed_effect: prior median of r. Towards 0 the clients of all seeds are pooled; a larger value costs power.

    Raises:
        ConfigError: the level is not in (0, 1), or the prior median not above 0.
        DataError: there is no seed, or a seed without clients, or a figure that is not finite.
    """
    check_level(level)
    if not 0 < seed_effect < math.inf:
        raise ConfigError(f"expected a seed effect above 0, such as {SEED_EFFECT}, got {seed_effect}")
    table = _table(gains)
    seeds, clients = table.shape
    mean = gain_over(math.fsum(math.fsum(g.values()) / len(g) for g in gains) / len(gains), 0.0)
    identical = all(g == 0 for seed in gains for g in seed.values())
    if np.isfinite(table).sum() < FEWEST:
        return Difference(mean, None, None, level, seeds, clients, None, identical)
    error = _error(table, same_clients is not False, seed_effect)
    half = error.half_width(level)
    return Difference(mean, mean - half, mean + half, level, seeds, clients, error.tail(mean), identical)


def of_these_clients(result: Difference, gains: Sequence[Gains], test_share: float = 0.0) -> Difference | None:
    """Return the difference with an interval for these very clients, the same in every seed, instead of clients like
    them: Student's over the seed means. None for one seed, and where there are too few figures.

    Where each seed draws a client's test samples again from all of its samples, test parts overlap, and the variance of
    the mean is that of a seed times ``1 / S + n_test / n_other`` (Nadeau and Bengio, "Inference for the generalization
    error", Machine Learning 2003). The others are all that are not tested, for training and validation. With the same
    test samples in every seed it is ``1 / S``, and the interval is for these samples.

    Args:
        result: the difference; gains: what it was computed from, see `difference`.
        test_share: fraction of a client's samples that each seed draws for testing, in [0, 1); 0: always the same ones.
    """
    if result.seeds == 1 or result.low is None:
        return None
    spread = statistics.stdev(math.fsum(seed.values()) / len(seed) for seed in gains)
    error = _student(spread * math.sqrt(1 / result.seeds + test_share / (1 - test_share)), result.seeds - 1)
    half = error.half_width(result.level)
    return replace(result, low=result.mean - half, high=result.mean + half, tail=error.tail(result.mean))


def seed_effect(comparisons: Iterable[Sequence[Gains]], same_clients: bool | None = None) -> float:
    """Return the prior median of the effect of a seed for `difference`, for comparisons that are judged together.

    The seeds of one comparison say little about their effect, those of all methods of a table say more: this is the
    median with the highest likelihood for all of them, `SMALLEST` or more. With fewer than two comparisons of several
    seeds it is `SEED_EFFECT`: the likelihood of a single one is too flat.

    Args:
        comparisons: for each method its gains, as for `difference`.
        same_clients: as for `difference`.

    Raises:
        DataError: as for `difference`.
    """
    tables, same = [_table(gains) for gains in comparisons], same_clients is not False
    there = [t for t in tables if np.isfinite(t).sum() >= FEWEST and len(_error(t, same, SEED_EFFECT).weights) > 1]
    if len(there) < 2:
        return SEED_EFFECT
    return max(_MEDIANS, key=lambda median: math.fsum(_error(t, same, median).evidence for t in there))


def _table(gains: Sequence[Gains]) -> Floats:
    """Return gains as ``[seeds, clients]``, NaN where one is missing."""
    if not gains or not all(gains):
        raise DataError("a difference needs at least one seed, and a client in every seed, to be computed from")
    if not all(math.isfinite(g) for seed in gains for g in seed.values()):
        raise DataError("a difference needs finite figures; a client's accuracy is missing or not a number")
    ids = sorted(set().union(*gains))
    return np.array([[seed.get(i, math.nan) for i in ids] for seed in gains])


@dataclass(frozen=True)
class _Error:
    """The distribution of the error of a mean: a mixture of Student's, by component ``[J]``; ``evidence`` is the
    logarithm of the likelihood of the seed means, up to a constant."""

    weights: Floats
    scales: Floats
    free: Floats
    evidence: float = 0.0

    def tail(self, x: float) -> float:
        """Return the probability beyond ``x``."""
        from scipy.special import stdtr  # imported here: a run without a report need not wait for it

        if not self.scales.all():  # the error is zero
            return 0.0 if x > 0 else 1.0 if x < 0 else 0.5
        return float(self.weights @ stdtr(self.free, -x / self.scales))

    def half_width(self, level: float) -> float:
        """Return the ``x`` with a tail of ``(1 - level) / 2``."""
        from scipy.optimize import brentq  # as above

        if not self.scales.all():
            return 0.0
        beyond, high = (1 - level) / 2, float(self.weights @ self.scales)
        while self.tail(high) > beyond:
            high *= 2
        return float(brentq(lambda x: self.tail(x) - beyond, 0.0, high, xtol=1e-12 * high))


def _student(scale: float, free: float) -> _Error:
    return _Error(np.ones(1), np.array([scale]), np.array([float(free)]))


def _error(table: Floats, same: bool, seed_effect: float) -> _Error:
    """Return the error of the mean; ``table [seeds, clients]`` has NaN where a figure is missing."""
    there = np.isfinite(table)
    sizes, seeds = there.sum(1), len(table)
    means = np.nansum(table, 1) / sizes
    rest = np.where(there, table - means[:, None], 0.0)
    within, nu = float((rest**2).sum()), int((sizes - 1).sum())
    if seeds == 1:
        return _student(math.sqrt(within / nu / sizes[0]), nu)
    between = float(((means - means.mean()) ** 2).sum())
    rounding = _NOTHING * max(1.0, float(np.nansum(table**2)))
    if nu == 0 or within <= rounding:
        return _student(math.sqrt(between / (seeds - 1) / seeds) if between > rounding else 0.0, seeds - 1)
    v, free = within / nu, nu
    by_seed = by_client = float((1 / sizes).mean())  # of a seed's mean, and S times that of the overall one, in v
    if same:  # by a two-way analysis of variance
        of_clients, free = float((rest.sum(0) ** 2 / there.sum(0)).sum()), table.shape[1] - 1
        by_client *= max(1.0, of_clients / free / v)
        by_seed *= min(1.0, max(0.0, within - of_clients) / (nu - free) / v) if nu > free else 1.0
    # numerical integration over r, the effect of a seed in units of sqrt(v)
    squares = _squares(seed_effect)
    known = squares + by_seed
    log = -(seeds - 1) / 2 * np.log(known) - (nu + seeds - 1) / 2 * np.log(within + between / known)
    weights = np.exp(log - log.max())
    spread = squares + by_client
    return _Error(
        weights / weights.sum(),
        np.sqrt(v * spread / seeds),
        spread**2 / (by_client**2 / free + (spread**2 - by_client**2) / nu),  # Satterthwaite's
        float(log.max() + np.log(weights.mean())),
    )


@lru_cache(maxsize=32)
def _squares(median: float) -> Floats:
    """Return squares of the half-Cauchy's quantiles at the middles of `NODES` equal shares."""
    return (median * np.tan(np.pi / 2 * (np.arange(NODES) + 0.5) / NODES)) ** 2


@dataclass(frozen=True, eq=False)
class Changed:
    """Changes for the test samples of one client from the reference to a method.

    Attributes:
        net: by sample, int8 ``[n]``: 1 where only the method is correct, -1 where only the reference is, else 0.
        digest: digest of the samples.
        alike: both gave the same logits for every sample; False where they differ or are not known.
    """

    net: NDArray[np.int8]
    digest: str
    alike: bool = False


def changed(reference: ClientLine, method: ClientLine) -> Changed | None:
    """Return the differences sample by sample; None where the two were not tested on the same samples."""
    if (reference.test_part, reference.n_test) != (method.test_part, method.n_test):
        return None
    bits = (np.frombuffer(line.right, np.uint8) for line in (reference, method))
    a, b = (np.unpackbits(one, count=method.n_test).astype(np.int8) for one in bits)
    return Changed(b - a, method.test_part, alike="" != reference.logits == method.logits)


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
