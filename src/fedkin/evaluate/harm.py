"""Clients that gain or lose, and the number of harmed clients: from the predictions on which two methods differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.core.errors import DataError
from fedkin.evaluate.paired import FEWEST, Changed

DELTA = 0.01
"""A client is harmed if its true accuracy is lower than with the reference by more than this (a fraction)."""
LEVEL = 0.9
"""Nominal probability that the range of the number of harmed clients contains the true number."""
_UNTOUCHED = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # fractions of clients with a true gain of zero, for the lower end
_CROWD = 25  # beyond this number, clients do not make the assumed distribution more accurate
_PLACES, _STEPS = 101, 100  # of a population of any shape: gains on its grid, steps of its estimation
_TINY = np.float32(1e-30)  # a client so far out that its density underflows counts as one that differs
_NEGLIGIBLE = 1e-3  # posterior mass of the nodes that are omitted
_NONE = 1e-9  # sums of differences that are equal but for rounding
_DIRECT = 64  # maximum number of clients for adding clients one by one
Floats = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Harmed:
    """A range for the number of harmed clients: between ``low`` and ``high`` of ``of``, with probability ``level``."""

    low: int
    high: int
    of: int
    level: float = LEVEL


@dataclass(frozen=True)
class Counts:
    """Test samples by client, or by client and seed, on which the method and its reference differ.

    A sample's difference is 1 where only the method predicts it correctly, -1 where only the reference does, and the
    mean of these where several seeds predict it.

    Attributes:
        ids: the client of each row.
        gained, lost: the sums of the differences above and below zero, without their signs ``[N]``.
        differing: the sum of their squares, ``gained + lost`` where every sample was predicted once ``[N]``.
        samples: test samples ``[N]``.
    """

    ids: tuple[int, ...]
    gained: Floats
    lost: Floats
    differing: Floats
    samples: Floats

    @property
    def net(self) -> Floats:
        """The sum of the differences ``[N]``."""
        return self.gained - self.lost

    def whole(self) -> tuple[Floats, Floats]:
        """Return gained and lost in samples: as many, predicted once, as have the same sum and sum of squares ``[N]``.

        A sample that one of three seeds lost has a third of the weight in the sum, but decides a sign test like others.
        """
        moved = self.gained + self.lost
        size = np.divide(self.differing, moved, out=np.ones_like(moved), where=moved > 0)  # of a difference
        return self.gained / size, self.lost / size


def counts(seeds: Sequence[Mapping[int, Changed]], same_clients: bool) -> Counts:
    """Count differing predictions: one row per client where seeds have the same clients, else per client and seed.

    Samples that several seeds predict (equal digests) are not new samples: their differences are averaged over these
    seeds first. Otherwise, three seeds on one test part would count as three times the samples.
    """
    rows: dict[tuple[int, int], list[Changed]] = {}
    for number, seed in enumerate(seeds):
        for client, changed in seed.items():
            rows.setdefault((0 if same_clients else number, client), []).append(changed)
    result = []
    for tests in rows.values():
        by_test: dict[tuple[str, int], list[NDArray[np.int8]]] = {}
        for changed in tests:
            by_test.setdefault((changed.digest, len(changed.net)), []).append(changed.net)
        mean = np.concatenate([np.mean(nets, axis=0) for nets in by_test.values()])
        result.append((mean[mean > 0].sum(), -mean[mean < 0].sum(), (mean**2).sum(), len(mean)))
    columns = np.array(result, dtype=np.float64).reshape(-1, 4).T
    return Counts(tuple(client for _, client in rows), *columns)


def client_p(gained: int, lost: int, *, exact: bool = False) -> float:
    """Return the two-sided p-value of one client, for the hypothesis that its accuracy does not differ.

    Among the samples on which the two methods disagree, each is won by either with probability 1/2 if there is no
    difference (McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika
    1947). The mid-p version counts half of what was observed; it keeps its size in practice with far more power
    (Fagerland, Lydersen and Laake, "The McNemar test for binary matched-pairs data", BMC Med. Res. Methodol. 2013).

    Where only the numbers of correct predictions are known, `most_differing` gives a safe number of differing samples.

    Args:
        gained, lost: samples that only the method, and only the reference, predicts correctly.
        exact: the exact p-value, which never exceeds its nominal size.

    Raises:
        DataError: a number below zero.
    """
    if min(gained, lost) < 0:
        raise DataError(f"expected numbers of samples >= 0, got gained={gained}, lost={lost}")
    return float(_sign_test(np.array([gained], np.float64), np.array([lost], np.float64), exact)[0])


def most_differing(correct: int, correct_reference: int, n: int) -> tuple[int, int]:
    """Return the largest possible number of differing samples, (gained, lost), where only correct ones were counted.

    The p-value of a client grows with the number of differing samples while their difference stays, so that
    ``client_p(*most_differing(...))`` is an upper bound of the true one.

    Args:
        correct, correct_reference: samples that each predicts correctly.
        n: test samples.

    Raises:
        DataError: a number is not in 0..n.
    """
    if not 0 <= min(correct, correct_reference) <= max(correct, correct_reference) <= n:
        raise DataError(f"expected 0 to n correct samples, got {correct} and {correct_reference} of n={n}")
    differing = min(correct + correct_reference, 2 * n - correct - correct_reference)
    return (differing + correct - correct_reference) // 2, (differing - correct + correct_reference) // 2


def clear_clients(result: Counts, level: float = 0.95) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the clients that gain, and that lose, significantly: Holm's correction of exact p-values.

    Returns:
        Client ids in ascending order; the probability that any is listed wrongly is at most ``1 - level``. With fewer
        than six differing samples a client is never listed.
    """
    chosen = np.flatnonzero(holm(_sign_test(*result.whole(), exact=True)) <= 1 - level)
    up = sorted(result.ids[k] for k in chosen if result.gained[k] > result.lost[k])
    return tuple(up), tuple(sorted(result.ids[k] for k in chosen if result.gained[k] < result.lost[k]))


def harmed_range(result: Counts, level: float = LEVEL, delta: float = DELTA) -> Harmed | None:
    """Return the range of `harmed`, with a lower end of at least the clients that surely lose more than ``delta``.

    A normal distribution of gains makes a single client far out look like noise. Its own samples may show that it is
    harmed: clients whose exact one-sided p-value for a loss of at most ``delta`` passes Holm's correction.
    """
    crowd = harmed(result.net, result.differing, result.samples, level, delta)
    if crowd is None:
        return None
    moved, (gained, lost) = result.gained + result.lost, result.whole()
    chance = np.clip((1 - delta * result.samples / np.maximum(moved, _NONE)) / 2, 0, 0.5)  # of winning, losing delta
    low = max(crowd.low, int((holm(_at_most(gained, gained + lost, chance)) <= (1 - level) / 2).sum()))
    return Harmed(low, max(low, crowd.high), crowd.of, level)


def holm(p: Floats) -> Floats:
    """Return p-values ``[N]`` adjusted for their number: those up to a level are significant together at that level.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
    """
    order = np.argsort(p, kind="stable")
    result = np.empty(len(p))
    result[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return result


def _at_most(won: Numbers, q: Numbers, chance: Floats | float) -> Floats:
    """Return P(at most ``won`` of ``q``), rounded up where these are not whole."""
    from scipy.special import bdtr  # imported here: a run without a report need not wait for it

    return np.asarray(bdtr(np.ceil(won - _NONE), np.floor(q + _NONE).astype(np.int64), chance))


def _sign_test(gained: Numbers, lost: Numbers, exact: bool) -> Floats:
    from scipy.special import gammaln  # imported here: a run without a report need not wait for it

    fewer, q = np.minimum(gained, lost), gained + lost
    twice = 2 * _at_most(fewer, q, 0.5)
    if not exact:
        twice = twice - np.exp(gammaln(q + 1) - gammaln(fewer + 1) - gammaln(q - fewer + 1) - q * math.log(2))
    return np.asarray(np.minimum(1.0, twice))


def harmed(
    net: Floats, differing: Floats, samples: Floats, level: float = LEVEL, delta: float = DELTA
) -> Harmed | None:
    """Return a range for the number of clients whose true gain is below ``-delta``.

    Counting the clients that were measured below the reference counts noise: 19 of 50 clients with 24 test samples each
    and no true difference are. Here the true gains follow a mixture: a fraction p0 of the clients has gain zero, the
    others' gains are normal, and each gain is measured with the variance that its differing samples give it. The
    posterior is integrated over grids of p0, mean and spread; the number of harmed clients at each node is
    Poisson-binomial. The lower end is the 5 % quantile where many clients may have gain zero, the upper end the 95 %
    quantile where all may differ: data cannot distinguish the two, so the range spans both.

    Normality is an assumption that more clients do not make more accurate. The likelihood of more than 25 clients is
    therefore flattened to that of 25. Two camps of clients, one of which loses, are no normal crowd all the same: the
    upper end is at least that of a population of any shape (a quantile further out, since the estimated population has
    an error of its own). docs/verdicts.md has the coverage.

    Clients whose every prediction is unchanged are measured so exactly that next to them losses of the others look like
    noise. The upper end is therefore at least that of the other clients alone.

    Args:
        net: samples gained minus samples lost, by client ``[K]``.
        differing: samples gained plus samples lost ``[K]``; both may be means over seeds, see `Counts`.
        samples: test samples ``[K]``, each at least 1.
        level: nominal probability that the range contains the true number.
        delta: a smaller loss, a fraction, does not count as harm.

    Returns:
        The range, or None for fewer than `FEWEST` clients.
    """
    if len(net) < FEWEST:
        return None
    if not differing.any():
        return Harmed(0, 0, len(net), level)
    pi = float(differing.sum() / samples.sum())
    variance = (differing + 4 * pi) / ((samples + 4) * samples)
    gain = net / samples
    beyond = (1 - level) / 2
    low = int((_distribution(gain, variance, _UNTOUCHED, 16, delta) < beyond).sum())
    normal = int((_distribution(gain, variance, (0.0,), 40, delta) < 1 - beyond).sum())
    high = max(normal, int((_free(gain, variance, delta) < 1 - beyond / 3).sum()))
    moved = differing > 0
    if not moved.all():
        high = max(high, int((_alone(gain[moved], variance[moved], delta) < 1 - beyond).sum()))
    return Harmed(low, high, len(net), level)


def _free(gain: Floats, variance: Floats, delta: float) -> Floats:
    """Return P(number of harmed clients <= i) in the population of highest likelihood, whatever its shape.

    The population is a share for each gain of a grid, estimated by the EM algorithm (Laird, "Nonparametric maximum
    likelihood estimation of a mixing distribution", JASA 1978).
    """
    grid, step = np.linspace(gain.min(), gain.max(), _PLACES, retstep=True)
    density = _normal(gain[:, None] - grid, np.maximum(variance, step**2)[:, None])
    share = np.full(_PLACES, 1 / _PLACES)
    for _ in range(_STEPS):
        share = share * (density.T @ (1 / (density @ share))) / len(gain)
    lost = grid < -delta
    return np.asarray(np.cumsum(_poisson_binomial((density[:, lost] @ share[lost] / (density @ share))[None])))


def _alone(gain: Floats, variance: Floats, delta: float) -> Floats:
    """Return P(number of harmed clients <= i), each client by its own samples, for too few clients."""
    from scipy.special import ndtr

    if len(gain) >= FEWEST:
        return _distribution(gain, variance, (0.0,), 40, delta)
    return np.cumsum(_poisson_binomial(ndtr((-delta - gain) / np.sqrt(variance))[None]))


def _distribution(gain: Numbers, variance: Numbers, untouched: Sequence[float], steps: int, delta: float) -> Floats:
    """Return P(number of harmed clients <= i), ``[K + 1]``, over a grid of mixtures."""
    from scipy.special import ndtr

    share, mu, t = (x.astype(np.float32) for x in _grid(gain, untouched, steps))  # quantiles are read to a percent
    gain, variance = gain.astype(np.float32), variance.astype(np.float32)
    spread = t**2 + variance
    slab = (1 - share) * _normal(gain - mu, spread)
    both = slab + share * _normal(gain, variance)
    log = min(1.0, _CROWD / len(gain)) * np.log(both + _TINY).sum(1, dtype=np.float64) - 1.5 * np.log(1 - share[:, 0])
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    order = np.argsort(weights)
    kept = np.sort(order[np.cumsum(weights[order]) > _NEGLIGIBLE])
    slab, both, mu, t, spread = slab[kept], both[kept], mu[kept], t[kept], spread[kept]
    shrunk = mu + t**2 / spread * (gain - mu)
    sd = t * np.sqrt(variance / spread)
    q = (slab + _TINY) / (both + _TINY) * ndtr((-delta - shrunk) / sd)
    return np.asarray(np.cumsum(weights[kept] / weights[kept].sum() @ _poisson_binomial(q)))


def _grid(gain: Numbers, untouched: Sequence[float], steps: int) -> tuple[Floats, Floats, Floats]:
    """Return nodes ``[G, 1]``: the fraction of clients with gain zero, mean and spread of the others' gains."""
    sd = max(float(gain.std(ddof=1)), 0.001)
    share, x, t = np.meshgrid(
        np.array(untouched), np.arange(-3, 3.1, 0.75), 2 * sd * (np.arange(steps) + 0.5) / steps, indexing="ij"
    )
    mu = (gain.mean() + x * sd / math.sqrt(min(len(gain), _CROWD))) / (1 - share)
    return share.reshape(-1, 1), mu.reshape(-1, 1), (t / np.sqrt(1 - share)).reshape(-1, 1)


def _normal(x: Numbers, variance: Numbers) -> Numbers:
    return np.asarray(np.exp(-(x**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance))


def _poisson_binomial(q: Numbers) -> Numbers:
    """Return probabilities ``[G, K + 1]`` of 0..K successes of K independent trials with probabilities ``[G, K]``."""
    from scipy.fft import next_fast_len  # imported here: a run without a report need not wait for it

    nodes, trials = q.shape
    if trials > _DIRECT:  # as a product of polynomials
        length, half = next_fast_len(trials + 1, real=True), trials // 2
        parts = [np.fft.rfft(_poisson_binomial(part), length, axis=1) for part in (q[:, :half], q[:, half:])]
        return np.fft.irfft(parts[0] * parts[1], length, axis=1)[:, : trials + 1]
    result = np.zeros((trials + 1, nodes), dtype=np.float32)
    result[0] = 1
    for k, chance in enumerate(np.ascontiguousarray(q.T, dtype=np.float32)):
        one = result[: k + 1] * chance
        result[: k + 1] -= one
        result[1 : k + 2] += one
    return result.T
