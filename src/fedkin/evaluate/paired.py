"""The mean of paired differences over seeds and clients, and an interval for it that three seeds can support."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate.intervals import check_level

FEWEST = 6
"""Minimum number of paired figures for an interval: five all have the same sign by chance in 1 of 16 cases."""
SEED_EFFECT = 0.2
"""Prior median of the effect of a seed on all its clients, in standard deviations between clients."""
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
    found = figure - reference
    return 0.0 if abs(found) < _ROUNDING else found


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
    if not gains or not all(gains):
        raise DataError("a difference needs at least one seed, and a client in every seed, to be computed from")
    if not all(math.isfinite(g) for seed in gains for g in seed.values()):
        raise DataError("a difference needs finite figures; a client's accuracy is missing or not a number")
    ids = sorted(set().union(*gains))
    table = np.array([[seed.get(i, math.nan) for i in ids] for seed in gains])
    mean = gain_over(math.fsum(math.fsum(g.values()) / len(g) for g in gains) / len(gains), 0.0)
    identical = all(g == 0 for seed in gains for g in seed.values())
    if np.isfinite(table).sum() < FEWEST:
        return Difference(mean, None, None, level, len(gains), len(ids), None, identical)
    error = _error(table, same_clients is not False, seed_effect)
    half = error.half_width(level)
    return Difference(mean, mean - half, mean + half, level, len(gains), len(ids), error.tail(mean), identical)


@dataclass(frozen=True)
class _Error:
    """The distribution of the error of a mean: a mixture of Student's, by component ``[J]``."""

    weights: Floats
    scales: Floats
    free: Floats

    def tail(self, x: float) -> float:
        """Return the probability beyond ``x``."""
        from scipy.special import stdtr  # imported here: a run without a report need not wait for it

        if not self.scales.all():  # the error is zero
            return 0.0 if x > 0 else 1.0 if x < 0 else 0.5
        return float(self.weights @ stdtr(self.free, -x / self.scales))

    def half_width(self, level: float) -> float:
        """Return the ``x`` with a tail of ``(1 - level) / 2``, to a relative accuracy of about 1e-12.

        False position (the Illinois rule) on logarithms, in which a tail is nearly linear: 10 steps instead of 45.
        """
        if not self.scales.all():
            return 0.0

        def above(u: float) -> float:
            return math.log(max(2 * self.tail(math.exp(u)) / (1 - level), 1e-300))

        low = high = math.log(float(self.weights @ self.scales))
        while (at_low := above(low)) < 0:
            low -= 1
        while (at_high := above(high)) > 0:
            high += 1
        side = 0
        for _ in range(100):
            middle = low if at_low == at_high else (low * at_high - high * at_low) / (at_high - at_low)
            at = above(middle)
            if abs(at) < 1e-12:
                break
            if at > 0:
                at_high /= 2 if side > 0 else 1  # an end that stays twice gets less weight
                low, at_low, side = middle, at, 1
            else:
                at_low /= 2 if side < 0 else 1
                high, at_high, side = middle, at, -1
        return math.exp(middle)


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
    v = within / nu
    by_seed, by_client, free = _shares(rest, there, v, nu) if same else (*[float((1 / sizes).mean())] * 2, nu)
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
    )


def _shares(rest: Floats, there: NDArray[np.bool_], v: float, nu: int) -> tuple[float, float, int]:
    """Return the variances of a seed's mean due to seeds and clients, in units of ``v``, where clients repeat.

    Args:
        rest: deviations from the mean of the seed ``[seeds, clients]``, 0 where ``there`` is False.
        there: where there is a figure.
        v: variance between the clients of a seed.
        nu: its degrees of freedom.

    Returns:
        The variance of a seed against other seeds, from the deviations that do not repeat; S times that of the overall
        mean, from the sums over seeds of each client; and the degrees of freedom of the latter.
    """
    sizes, (seeds, clients) = there.sum(1), there.shape
    apart = float((1 / sizes).mean())
    sums = (rest / (seeds * sizes[:, None])).sum(0)
    variance = clients / (clients - 1) * float((sums**2).sum())
    free = nu - clients + 1
    left = float((rest**2).sum() - (rest.sum(0) ** 2 / there.sum(0)).sum())
    changes = apart * min(1.0, max(0.0, left) / (free * v)) if free >= 1 else apart
    return changes, max(apart, seeds * variance / v), clients - 1


@lru_cache(maxsize=8)
def _squares(median: float) -> Floats:
    """Return squares of the half-Cauchy's quantiles at the middles of `NODES` equal shares."""
    return (median * np.tan(np.pi / 2 * (np.arange(NODES) + 0.5) / NODES)) ** 2
