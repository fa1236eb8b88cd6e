"""Intervals and verdicts: worked examples, against scipy, and on planted cases."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import binomtest, t, ttest_1samp

from fedkin.core.errors import DataError
from fedkin.evaluate import Against, Changed, against, details, difference, interval, judge, judge_all, seed_effect
from fedkin.evaluate import verdict as verdict_on
from fedkin.evaluate.harm import holm
from fedkin.evaluate.paired import _error

verdict = partial(verdict_on, reference="Local")


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 10), (1, 40), (500, 1000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_an_accuracy_is_wilsons(correct: int, n: int, level: float) -> None:
    """The same as scipy's, an independent implementation."""
    theirs = binomtest(correct, n).proportion_ci(level, method="wilson")
    assert interval(correct, n, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


# ---- paired differences ---------------------------------------------------------------------------------------------
def seeds(rows: np.ndarray) -> list[Against]:
    """One comparison per row of gains ``[seeds, clients]``."""
    return [against(dict.fromkeys(range(len(row)), 0.5), {k: 0.5 + g for k, g in enumerate(row)}) for row in rows]


def gains(rows: np.ndarray) -> list[dict[int, float]]:
    """One mapping per row; NaN is a client that is missing in the seed."""
    return [{k: float(g) for k, g in enumerate(row) if not math.isnan(g)} for row in rows]


NONE = math.nan
A = np.array([[6, 1, 8, 3, 7], [2, 5, 1, 4, 3]]) / 100
C = np.array([[4, 10, -2, 5], [2, 8, 0, 6], [5, 9, 1, NONE]]) / 100


def real() -> np.ndarray:
    """Example B, a real comparison of 3 seeds and 50 clients: its seed means and its variance within seeds."""
    z = np.random.default_rng(0).normal(size=(3, 50))
    z -= z.mean(1, keepdims=True)
    return z * math.sqrt(0.741027 / (z**2).sum()) + np.array([[0.1024], [0.0612], [0.0458]])


@pytest.mark.parametrize(
    ("rows", "same", "mean", "tail", "half", "word"),
    [
        (A, False, 0.04, 0.009071, 0.025542, "better"),
        (real(), False, 0.0698, 0.007865, 0.044648, "better"),
        (C, True, 0.0441667, 0.061235, 0.065280, "no clear difference"),
        (C, None, 0.0441667, 0.061235, 0.065280, "no clear difference"),  # not known: as if the same
        (C, False, 0.0441667, None, 0.034114, "better"),
    ],
)
def test_worked_examples(
    rows: np.ndarray, same: bool | None, mean: float, tail: float | None, half: float, word: str
) -> None:
    """Mean, tail and half-width of the examples that were worked out beside the rule, to the digits given."""
    found = difference(gains(rows), same_clients=same)
    assert found.low is not None
    assert found.high is not None
    assert found.mean == pytest.approx(mean, abs=5e-8)
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx((half, half), abs=6e-7)
    assert tail is None or found.tail == pytest.approx(tail, abs=6e-7)
    assert found.word == word


def test_clients_that_repeat_nothing() -> None:
    """Two seeds in which four clients change sides: sums over seeds are all zero, so the variance of a client's mean is
    bounded by that of figures that are drawn anew (a_M = max(1/n, 0)), and what changes from seed to seed by all there
    is (a_B = min(1, 2)/n). Written out: nu 6, W .002, B .0002, K' - 1 = 3 degrees of freedom for the clients."""
    rows = np.array([[5, 1, 4, 2], [3, 7, 4, 6]]) / 100
    within, between, nu, a = 0.002, 0.0002, 6, 1 / 4
    assert rows - rows.mean(1, keepdims=True) == pytest.approx(np.array([[2, -2, 1, -1], [-2, 2, -1, 1]]) / 100)
    r2 = (0.2 * np.tan(np.pi / 2 * (np.arange(1, 201) - 0.5) / 200)) ** 2
    v = r2 + a
    weights = np.exp(-0.5 * np.log(v) - (nu + 1) / 2 * np.log(within + between / v))
    free = v**2 / (a**2 / 3 + (v**2 - a**2) / nu)
    tail = (weights / weights.sum()) @ t.cdf(-0.04 / np.sqrt(within / nu * v / 2), free)
    assert difference(gains(rows), same_clients=True).tail == pytest.approx(tail, rel=1e-9)


def test_without_an_effect_of_seeds_clients_that_repeat_are_clusters() -> None:
    """h -> 0, the same clients: Student's with K - 1 degrees of freedom over clients. Example C by hand: deviations
    from the seed means add up to -2.25, 13.75, -14.25 and (two seeds) 2.75 points, so the sum of squares of clients is
    (2.25^2 + 13.75^2 + 14.25^2) / 3 + 2.75^2 / 2, and n~ is 3.6."""
    found = difference(gains(C), same_clients=True, seed_effect=1e-9)
    squares = ((2.25**2 + 13.75**2 + 14.25**2) / 3 + 2.75**2 / 2) / 1e4
    assert found.high == pytest.approx(found.mean + t.ppf(0.975, 3) * math.sqrt(squares / 3 / 3.6 / 3), rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("rows", [A, 1e-6 * A, C, real(), np.array([[0.02], [0.03], [0.01], [0.05], [0.02], [0.04]])])
def test_the_interval_ends_where_the_tail_does(rows: np.ndarray, level: float) -> None:
    """The tail beyond half of the width is (1 - level) / 2, for every level, size and shape of the gains."""
    error = _error(rows, True, 0.2)
    assert error.tail(error.half_width(level)) == pytest.approx((1 - level) / 2, rel=1e-6)


# ---- the effect of a seed, from all methods -------------------------------------------------------------------------
def methods(r: float, count: int, case: int = 0) -> list[list[dict[int, float]]]:
    """Gains of methods in three seeds of 20 clients, with an effect of the seed of r standard deviations."""
    rng = np.random.default_rng([case, round(100 * r), count])
    shape = (count, 3, 20)
    rows = 0.03 + 0.05 * (r * rng.standard_normal((*shape[:2], 1)) + rng.standard_normal(shape))
    return [gains(one) for one in rows]


@pytest.mark.parametrize(("r", "low", "high"), [(0.0, 0.05, 0.05), (0.2, 0.06, 0.3), (1.0, 0.5, 1.6)])
def test_methods_together_show_the_effect_of_a_seed(r: float, low: float, high: float) -> None:
    """Thirty methods in three seeds: no effect, one of 0.2 and one of 1 standard deviation."""
    assert low <= seed_effect(methods(r, 30), same_clients=False) <= high


def test_the_effect_of_a_seed_is_the_likeliest() -> None:
    """Three methods, written out: the likelihood of a median is the product over methods of the mean over 200 nodes of
    V^(-(S - 1) / 2) (W + B / V)^(-(nu + S - 1) / 2), with V = r^2 + 1/20."""
    tables = [np.array([[row[k] for k in range(20)] for row in one]) for one in methods(0.5, 3)]
    medians = [0.05 * 2 ** (i / 3) for i in range(16)]

    def likelihood(median: float) -> float:
        v = (median * np.tan(np.pi / 2 * (np.arange(1, 201) - 0.5) / 200)) ** 2 + 1 / 20
        total = 1.0
        for d in tables:
            m = d.mean(1)
            within, between = ((d - m[:, None]) ** 2).sum(), ((m - m.mean()) ** 2).sum()
            total *= ((1 / v) * (1 + between / v / within) ** (-59 / 2)).mean()
        return total

    assert seed_effect(methods(0.5, 3), same_clients=False) == max(medians, key=likelihood)


def test_one_method_alone_keeps_the_usual_effect() -> None:
    """So do one seed each, methods that equal the reference, and too few figures: none of them shows an effect."""
    one = methods(1.0, 1)
    assert seed_effect(one) == seed_effect([]) == 0.2
    assert seed_effect([each[:1] for each in methods(1.0, 9)]) == 0.2
    assert seed_effect([*one, gains(np.zeros((3, 20))), gains(np.full((2, 2), 0.1))]) == 0.2


def test_one_figure_per_seed_or_client_is_students_interval() -> None:
    """As scipy's, over clients of one seed and over seeds of one client."""
    row = np.random.default_rng(1).normal(0.02, 0.05, 30)
    theirs = ttest_1samp(row, 0).confidence_interval(0.9)
    found = difference([dict(enumerate(row))], level=0.9)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.tail == pytest.approx(ttest_1samp(row, 0, alternative="greater").pvalue)
    rows = np.array([[0.02], [0.03], [0.01], [0.05], [0.02], [0.04]])
    theirs = ttest_1samp(rows[:, 0], 0).confidence_interval(0.95)
    for same in (True, False):
        found = difference(gains(rows), same_clients=same)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
        assert found.word == "better"


@pytest.mark.parametrize("same", [True, False])
def test_figures_that_all_agree_have_an_interval_without_width(same: bool) -> None:
    """W = 0 and B = 0: 30 points in every figure, in either direction."""
    for value, tail, word in ((0.3, 0.0, "better"), (-0.3, 1.0, "worse")):
        found = difference(gains(np.full((3, 4), value)), same_clients=same)
        assert (found.low, found.high) == pytest.approx((value, value), abs=1e-12)
        assert (found.tail, found.word) == (tail, word)


def test_clients_that_differ_widen_the_interval_although_seeds_agree() -> None:
    """Three seeds that repeat six clients' gains of 0, 3, 6, ... points exactly: with no seed effect at all, Student's
    over the six clients. Taken for 18 other clients the interval would be narrower."""
    row = 0.03 * np.arange(6)
    rows = np.stack([row] * 3)
    error = row.std(ddof=1) / math.sqrt(6)
    found = difference(gains(rows), same_clients=True, seed_effect=1e-9)
    assert (found.low, found.high) == pytest.approx((0.075 - 2.570582 * error, 0.075 + 2.570582 * error))
    same, anew = (difference(gains(rows), same_clients=told).high for told in (True, False))
    assert same is not None
    assert anew is not None
    assert same > anew + 0.01


def test_the_number_of_clients_may_change_from_seed_to_seed() -> None:
    """Seeds of 4 and 12 clients weigh the same in the mean; by hand n~ = 2 / (1/4 + 1/12) = 6 and h -> 0."""
    rng = np.random.default_rng(5)
    rows = [dict(enumerate(rng.normal(0.1, 0.02, 4))), dict(enumerate(rng.normal(0.0, 0.02, 12)))]
    values = [np.array(list(r.values())) for r in rows]
    v = sum(((x - x.mean()) ** 2).sum() for x in values) / 14
    found = difference(rows, same_clients=False, seed_effect=1e-9)
    mean = (values[0].mean() + values[1].mean()) / 2
    assert found.mean == pytest.approx(mean)
    assert found.high == pytest.approx(mean + t.ppf(0.975, 14) * math.sqrt(v / (2 * 6)), rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (5, 1)])
def test_few_figures_have_no_interval(shape: tuple[int, int]) -> None:
    """However large the difference and however well they agree."""
    found = difference(gains(np.full(shape, 0.3)))
    assert (found.low, found.high, found.tail, found.word) == (None, None, None, "too few")


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


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("clients", [4, 20])
@pytest.mark.parametrize(("run", "client"), [(0.0, 0.0), (0.01, 0.05)])
def test_noise_is_seldom_called_a_difference(count: int, clients: int, run: float, client: float) -> None:
    """Of 200 comparisons without any difference at most 5 % and the luck of such a count (two standard deviations,
    8 %) are called better or worse, with a usual effect of seeds (r = .2).

    With one seed what its clients share cannot be seen, so it is left out there.
    """
    found = [difference(gains(simulated(c, count, clients, run * (count > 1), client))) for c in range(200)]
    assert sum(d.word not in ("no clear difference", "level", "too few") for d in found) <= 16


def answered(rows: np.ndarray, n: int = 100, same_test: bool = False) -> list[Against]:
    """Comparisons in which 30 of each client's ``n`` test samples change, so that the gain is as in ``rows``."""
    found = []
    for number, (row, one) in enumerate(zip(rows, seeds(rows), strict=True)):
        kept = {}
        for client, gain in enumerate(row):
            gained = round((30 + n * gain) / 2)
            net = np.repeat([1, -1, 0], [gained, 30 - gained, n - 30]).astype(np.int8)
            kept[client] = Changed(net, f"{client}" if same_test else f"{number} {client}")
        found.append(Against(one.gains, one.mean, one.identical, 0, one.gains, kept))
    return found


@pytest.mark.parametrize("count", [2, 3, 5])
def test_better_for_half_and_worse_for_the_rest(count: int) -> None:
    """Ten clients gain 20 points and ten lose 20: no clear difference on average, and the verdict says for whom; not
    where other clients may hide behind the numbers."""
    rows = np.stack([np.repeat([0.2, -0.2], 10)] * count)
    rows[:, 0] += 0.02 * np.arange(count)
    assert verdict("M", answered(rows), same_clients=True).startswith("M: no clear difference from Local (")
    found = judge(answered(rows), True)
    assert details(found).endswith("; clearly higher for 10 clients and lower for 10 clients")
    assert found.gaining == tuple(range(10))
    assert "clearly" not in details(judge(answered(rows), False))
    assert "clearly" not in details(judge(seeds(rows), True))
    assert judge([*answered(rows)[:-1], seeds(rows)[-1]], True).harmed is None  # a seed without single samples
    assert f"{10 * count} of {20 * count} client results are harmed" in details(judge(answered(rows)))


def test_a_few_clients_that_lose_are_named() -> None:
    """18 clients gain 10 points, two lose 20, in each of five seeds; by name where they have names."""
    rows = np.stack([np.array([-0.2, *[0.1] * 10, -0.2, *[0.1] * 8])] * 5)
    rows += np.linspace(-0.01, 0.01, 5)[:, None]
    text = verdict("M", answered(rows), reference="FedAvg", same_clients=True)
    assert text.startswith("M: better than FedAvg by 7.0 points (likely ")
    found = judge(answered(rows), True)
    assert details(found).endswith("; clearly lower for clients 0 and 11")
    assert details(found, [f"ward {i}" for i in range(20)]).endswith("; clearly lower for ward 0 and ward 11")


def test_identical_to_the_reference() -> None:
    """Every client equal to the last digit in every seed; nothing is known of single samples."""
    assert verdict("M", seeds(np.zeros((3, 20)))) == "M: the same result as Local for every client"
    found = difference(gains(np.zeros((3, 20))))
    assert (found.word, found.low, found.high, found.tail) == ("identical", 0.0, 0.0, 0.5)


# ---- methods of one table -------------------------------------------------------------------------------------------
def test_methods_of_a_table_are_judged_with_the_effect_that_they_show_together() -> None:
    """Nine methods whose seeds agree: 3 points that alone are no clear difference are clear beside the others."""
    rng = np.random.default_rng(4)
    rows = {f"m{i}": seeds(0.03 + 0.08 * rng.standard_normal((3, 20))) for i in range(9)}
    found = judge_all(rows, same_clients=False)
    effect = seed_effect([[a.gains for a in each] for each in rows.values()], same_clients=False)
    assert effect < 0.1
    for title, each in rows.items():
        alone = judge(each, False).difference
        assert found[title].difference == judge(each, False, effect).difference
        assert (found[title].difference.high or 0) < (alone.high or 0)
    assert judge_all({"m0": rows["m0"]}, False)["m0"].difference == judge(rows["m0"], False).difference
    assert judge_all({}) == {}


def test_p_values_of_a_table_are_holms() -> None:
    """A verdict knows among how many it stands; a method with too few figures is none of them."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7, 0.9])) == pytest.approx([1.0, 1.0, 1.0])
    assert holm(np.array([])).tolist() == []
    base = 0.05 * np.random.default_rng(0).standard_normal((3, 20))
    base -= base.mean(1, keepdims=True)
    rows = {f"m{i}": seeds(base * (-1) ** i + (0.016 if i == 7 else 0.0)) for i in range(20)}
    found = judge_all({**rows, "few": seeds(np.full((1, 2), 0.1))}, same_clients=False)
    one, tail = found["m7"], found["m7"].difference.tail
    assert tail is not None
    assert one.difference.word == "better"
    assert one.p == pytest.approx(min(1.0, 20 * 2 * tail))
    assert 2 * tail < 0.05 < one.p
    assert (one.comparisons, found["m3"].p, found["few"].p, found["few"].comparisons) == (20, 1.0, None, 20)
    lost = judge_all({t: seeds(-np.stack([list(a.gains.values()) for a in each])) for t, each in rows.items()}, False)
    assert lost["m7"].p == pytest.approx(one.p)


# ---- these clients --------------------------------------------------------------------------------------------------
HOSPITALS = np.array([[0.02, 0.10, -0.01, 0.05], [0.03, 0.11, 0.01, 0.05], [0.01, 0.12, -0.02, 0.05]])


@pytest.mark.parametrize(("share", "factor"), [(0.0, 1 / 3), (0.2, 1 / 3 + 0.2 / 0.8), (0.5, 1 / 3 + 1)])
def test_these_clients_have_students_interval_over_seeds(share: float, factor: float) -> None:
    """Seed means 4, 5 and 4 points: the variance of their mean is that of a seed times 1/S, and n_test / n_other more
    where seeds draw test samples again (Nadeau and Bengio)."""
    found = judge(seeds(HOSPITALS), True, test_share=share).these
    means = HOSPITALS.mean(1)
    half = t.ppf(0.975, 2) * means.std(ddof=1) * math.sqrt(factor)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx(
        (means.mean(), means.mean() - half, means.mean() + half)
    )
    assert found.tail == pytest.approx(t.sf(means.mean() / half * t.ppf(0.975, 2), 2))


def test_these_clients_are_another_question() -> None:
    """Clear for four hospitals, not for others like them; none where clients are dealt anew, or seeds are too few."""
    found = judge(seeds(np.repeat(HOSPITALS, 3, axis=0)), True)
    assert found.these is not None
    assert (found.difference.word, found.these.word) == ("no clear difference", "better")
    assert found.difference.mean == found.these.mean
    assert judge(seeds(HOSPITALS), False).these is judge(seeds(HOSPITALS)).these is None
    assert judge(seeds(HOSPITALS[:1]), True).these is None
    assert judge(seeds(HOSPITALS[:2, :2]), True).these is None
    assert judge_all({"a": seeds(HOSPITALS)}, True)["a"].these == judge(seeds(HOSPITALS), True).these


def test_seeds_that_test_the_same_samples_do_not_overlap() -> None:
    """Digests show whether a client's test samples are drawn again; where they are not known, they may be."""
    rows = np.array([[0.1] * 6, [0.2] * 6, [0.1] * 6])
    unknown, again, fixed = (
        judge(each, True, test_share=0.5).these
        for each in (seeds(rows), answered(rows), answered(rows, same_test=True))
    )
    assert unknown is not None
    assert again is not None
    assert fixed is not None
    assert unknown.low == again.low
    assert (fixed.mean - (fixed.low or 0)) * 2 == pytest.approx(again.mean - (again.low or 0))  # 1/3, 1/3 + 1
    left = [*answered(rows, same_test=True)]
    left[1] = Against(left[1].gains, 0.2, False, 0, 0.0, {c: one for c, one in left[1].changed.items() if c != 3})
    missing = judge(left, True, test_share=0.5).these
    assert missing is not None
    assert missing.low == fixed.low  # a client that a seed lacks is not drawn again
