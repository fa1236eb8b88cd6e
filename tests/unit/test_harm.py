"""Single clients and the number of harmed ones: by hand, on the worked example, and simulated."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from fedkin.evaluate import (
    Changed,
    Harmed,
    changed,
    clear_clients,
    client_p,
    counts,
    harmed,
    harmed_range,
    most_differing,
)
from fedkin.evaluate.harm import _UNTOUCHED, _alone, _distribution, _free, _poisson_binomial
from fedkin.record.lines import ClientLine

GAINED = np.array([4.0, 3, 5, 1, 2, 0, 3, 2, 4, 1])
LOST = np.array([1.0, 0, 1, 3, 2, 1, 0, 2, 0, 5])


def change(gained: int, lost: int, same: int = 10, digest: str = "x") -> Changed:
    return Changed(np.repeat([1, -1, 0], [gained, lost, same]).astype(np.int8), digest)


def answers(right: str, n: int = 3, part: str = "d", logits: str = "") -> ClientLine:
    return ClientLine(1, 0, n_test=n, right=bytes.fromhex(right), test_part=part, logits=logits)


# ---- single samples -------------------------------------------------------------------------------------------------
def test_bits_pair_by_sample() -> None:
    """Ten samples, most significant bit first; other test parts do not pair; unknown logits are not alike."""
    reference, method = answers("0000", n=10), answers("b4ff", n=10)
    found, turned = changed(reference, method), changed(method, reference)
    assert found is not None and turned is not None  # noqa: PT018
    assert found.net.tolist() == [1, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    assert turned.net.tolist() == [-1, 0, -1, -1, 0, -1, 0, 0, -1, -1]
    known, other, unknown = (answers("a0", logits=logits) for logits in ("0a", "a0", ""))
    pairs = ((known, known), (known, other), (known, unknown), (unknown, unknown))
    found = [changed(a, b) for a, b in pairs]
    assert [one is not None and one.alike for one in found] == [True, False, False, False]
    one = answers("00", n=8)
    assert changed(one, answers("00", n=8, part="e")) is None
    assert changed(one, answers("00", n=7)) is None


# ---- one client -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gained", "lost", "mid", "exact"),
    [
        (6, 0, 1 / 64, 2 / 64),  # 2 P(X < 0) + P(X = 0); 2 P(X <= 0)
        (5, 1, (2 * 1 + 6) / 64, 14 / 64),
        (1, 5, (2 * 1 + 6) / 64, 14 / 64),
        (3, 3, 1.0, 1.0),
        (0, 0, 1.0, 1.0),
    ],
)
def test_the_p_value_of_a_client_by_hand(gained: int, lost: int, mid: float, exact: float) -> None:
    """Of six differing samples 0, 1 or 3 on the smaller side."""
    assert client_p(gained, lost) == pytest.approx(mid)
    assert client_p(gained, lost, exact=True) == pytest.approx(exact)


def test_p_values_of_clients() -> None:
    """The exact one is the binomial test; of all tables with these correct counts the most differing one has the
    highest."""
    for gained, lost in ((12, 3), (40, 21), (100, 130)):
        theirs = binomtest(gained, gained + lost).pvalue
        assert client_p(gained, lost, exact=True) == pytest.approx(theirs)
    assert most_differing(7, 4, 10) == (6, 3)
    assert most_differing(9, 9, 10) == (1, 1)
    for a, b in ((7, 4), (2, 9), (5, 5), (10, 0), (0, 0)):
        both = range(max(0, a + b - 10), min(a, b) + 1)  # samples that both predict correctly
        for exact in (False, True):
            worst = max(client_p(a - k, b - k, exact=exact) for k in both)
            assert client_p(*most_differing(a, b, 10), exact=exact) == pytest.approx(worst)


def test_clients_are_named_after_holm() -> None:
    """p: 2/512 (9 : 0), 2/128 (0 : 7), 2/64 (6 : 0), limits .05 / 3, .05 / 2, .05: all three; with one client more
    (5 : 5) the limits are .0125, .0167, .025, and 6 : 0 is not named, nor anybody behind it."""
    three = [{4: change(9, 0), 2: change(0, 7), 7: change(6, 0)}]
    four = [{**three[0], 9: change(5, 5)}]
    assert clear_clients(counts(three, True)) == ((4, 7), (2,))
    assert clear_clients(counts(four, True)) == ((4,), (2,))
    assert clear_clients(counts([{1: change(5, 0)}], True)) == ((), ())
    assert clear_clients(counts([{1: change(6, 0)}], True)) == ((1,), ())


# ---- counts over seeds ----------------------------------------------------------------------------------------------
def test_counts_over_seeds() -> None:
    """The same clients are added, those dealt anew are counted apart."""
    seeds = [{5: change(4, 1, digest="x")}, {5: change(2, 3, digest="y"), 6: change(1, 0, 4)}]
    found = counts(seeds, True)
    assert found.ids == (5, 6)
    assert (found.gained.tolist(), found.lost.tolist()) == ([6, 1], [4, 0])
    assert (found.net.tolist(), found.differing.tolist(), found.samples.tolist()) == ([2, 1], [10, 1], [30, 5])
    found = counts([{5: change(4, 1)}, {5: change(2, 3, digest="y")}], False)
    assert found.ids == (5, 5)
    assert (found.net.tolist(), found.samples.tolist()) == ([3, -1], [15, 15])


def test_the_same_test_samples_in_all_seeds_are_no_new_ones() -> None:
    """Three seeds on one test part: a sample won in all three is one, one won in two of three counts 2/3, squared 4/9;
    one that is lost and won is neither. Together they are 2 / (14/9 / 2) samples."""
    nets = [np.array(row, dtype=np.int8) for row in ([1, 1, -1, 0], [1, 1, 0, 0], [1, 0, 1, -1])]
    found = counts([{0: Changed(net, "x")} for net in nets], True)
    assert found.samples.tolist() == [4]
    assert np.concatenate([found.gained, found.lost]) == pytest.approx([5 / 3, 1 / 3])
    assert found.net == pytest.approx([1 + 2 / 3 - 1 / 3])
    assert found.differing == pytest.approx([1 + 4 / 9 + 1 / 9])
    assert np.concatenate(found.whole()) == pytest.approx([15 / 7, 3 / 7])


def lost_in_turn(each: int, n: int = 1000, seeds: int = 3) -> list[Changed]:
    """In each seed as many samples are lost, of the same test part, but others."""
    nets = np.zeros((seeds, n), np.int8)
    for s in range(seeds):
        nets[s, s * each : (s + 1) * each] = -1
    return [Changed(net, "x") for net in nets]


@pytest.mark.parametrize(("each", "low"), [(7, 0), (40, 6)])
def test_what_one_seed_of_three_loses_is_a_third(each: int, low: int) -> None:
    """Six clients that lose 0.7 points in each seed, always other samples, are not harmed; with 4 points they are."""
    tests = lost_in_turn(each)
    found = harmed_range(counts([dict.fromkeys(range(6), test) for test in tests], True))
    assert found is not None
    assert (found.low, found.of) == (low, 6)


def test_no_client_is_named_whose_mean_is_equal() -> None:
    """Each of three seeds loses 10 other samples, and all win the same 10: 10 won and 30 lost, a third each."""
    nets = [test.net.copy() for test in lost_in_turn(10)]
    for net in nets:
        net[-10:] = 1
    found = counts([{0: Changed(net, "x")} for net in nets], True)
    assert found.net == pytest.approx([0], abs=1e-12)
    assert clear_clients(found) == ((), ())


# ---- how many are harmed --------------------------------------------------------------------------------------------
def test_the_worked_example() -> None:
    """Ten clients with 24 samples each, three of them measured below: between 0 and 7 are harmed. The inputs of the
    example (pi 1/6, s_1^2 .008433, mean .041667, sd .116203) and both ends by themselves: in a normal crowd up to 5,
    in one of any shape up to 7."""
    net, differing, n = GAINED - LOST, GAINED + LOST, np.full(10, 24.0)
    pi = differing.sum() / n.sum()
    variance = (differing + 4 * pi) / ((n + 4) * n)
    gain = net / n
    assert (pi, variance[0], gain.mean(), gain.std(ddof=1)) == pytest.approx(
        (1 / 6, 0.008433, 0.041667, 0.116203), rel=1e-4
    )
    assert harmed(net, differing, n) == Harmed(0, 7, 10, 0.9)
    low = _distribution(gain, variance, _UNTOUCHED, 16, 0.01)
    high = _distribution(gain, variance, (0.0,), 40, 0.01)
    assert low[0] > 0.05
    assert high[4] < 0.95 < high[5]
    free = _free(gain, variance, 0.01)
    assert free[6] < 1 - 0.05 / 3 < free[7]
    assert (low[:10] > high[:10]).all()  # untouched clients only ever take away


@pytest.mark.parametrize("untouched", [(0.0,), (0.0, 0.5, 0.9), _UNTOUCHED])
def test_the_distribution_written_out(untouched: tuple[float, ...]) -> None:
    """The worked example's ten clients, node by node and client by client in plain loops: the weight of a node is
    (1 - p0)^-1.5 times the product of (1 - p0) N(d; mu, t^2 + s^2) + p0 N(d; 0, s^2)."""
    d, pi = (GAINED - LOST) / 24, (GAINED + LOST).sum() / 240
    s2 = (GAINED + LOST + 4 * pi) / (28 * 24)
    mean, sd, steps = d.mean(), d.std(ddof=1), 8
    total, expected = 0.0, np.zeros(11)
    for p0 in untouched:
        for i in range(1, steps + 1):
            for x in np.arange(-3, 3.1, 0.75):
                t = 2 * sd * (i - 0.5) / steps / np.sqrt(1 - p0)
                mu = mean / (1 - p0) + x * sd / (np.sqrt(10) * (1 - p0))
                weight, count = (1 - p0) ** -1.5, np.ones(1)
                for dk, sk2 in zip(d, s2, strict=True):
                    slab = (1 - p0) * norm.pdf(dk, mu, np.sqrt(t**2 + sk2))
                    both = slab + p0 * norm.pdf(dk, 0, np.sqrt(sk2))
                    shrink = t**2 / (t**2 + sk2)
                    q = slab / both * norm.cdf((-0.01 - mu - shrink * (dk - mu)) / (t * np.sqrt(1 - shrink)))
                    weight, count = weight * both, np.convolve(count, [1 - q, q])
                total, expected = total + weight, expected + weight * count
    assert _distribution(d, s2, untouched, steps, 0.01) == pytest.approx(np.cumsum(expected / total), abs=1.5e-3)


def test_where_all_is_clear() -> None:
    """Nothing differs: nobody is harmed; twenty that lose 5 of 40 are all harmed together."""
    zero = np.zeros(8)
    assert harmed(zero, zero, np.full(8, 20.0)) == Harmed(0, 0, 8)
    found = harmed_range(counts([{k: change(1, 6, 33) for k in range(20)}], True))
    assert found == Harmed(20, 20, 20)


@pytest.mark.parametrize(("clients", "given"), [(1, False), (5, False), (6, True)])
def test_below_six_clients_there_is_no_range(clients: int, given: bool) -> None:
    """Five clients do not tell what a crowd is like."""
    found = harmed(GAINED[:clients], GAINED[:clients], np.full(clients, 24.0))
    assert (found is not None) == given


def test_unchanged_predictions_do_not_hide_a_loss() -> None:
    """Of 20 clients with 40 samples 17 keep every prediction, three lose net 2, 4 and 13: up to all three are harmed.
    Counted by hand: chances that each alone loses more than 1 point, from its own variance with pi = 31/800."""
    gained, lost = np.array([0, 3, 3]), np.array([2, 7, 16])
    clients = {k: change(gained[k], lost[k], 40 - gained[k] - lost[k]) for k in range(3)}
    clients |= {k: change(0, 0, 40) for k in range(3, 20)}
    assert harmed_range(counts([clients], True)) == Harmed(0, 3, 20)
    gain, variance = (gained - lost) / 40, (gained + lost + 4 * 31 / 800) / (44 * 40)
    a, b, c = norm.cdf((-0.01 - gain) / np.sqrt(variance))
    none, one = (1 - a) * (1 - b) * (1 - c), a * (1 - b) * (1 - c) + b * (1 - a) * (1 - c) + c * (1 - a) * (1 - b)
    assert _alone(gain, variance, 0.01) == pytest.approx([none, none + one, 1 - a * b * c, 1], rel=1e-4)


def test_a_crowd_that_loses_is_counted_among_unchanged_clients() -> None:
    """Eight clients that each lose net 6 of 40 samples are harmed, all of them. Twelve more without a changed
    prediction do not lower the upper end, nor do 99 beside a single one that loses."""
    net, differing = np.repeat([-6.0, 0.0], [8, 12]), np.repeat([8.0, 0.0], [8, 12])
    assert harmed(net[:8], differing[:8], np.full(8, 40.0)) == Harmed(8, 8, 8)
    found = harmed(net, differing, np.full(20, 40.0))
    assert found is not None
    assert found.low <= 8 <= found.high
    one = harmed(np.repeat([-13.0, 0.0], [1, 99]), np.repeat([19.0, 0.0], [1, 99]), np.full(100, 40.0))
    assert one == Harmed(0, 1, 100)


@pytest.mark.parametrize("clients", [20, 150])
@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_the_range_holds_the_true_number(clients: int, lost: float) -> None:
    """A fifth of the clients loses 10 points or nobody does; 5 to 200 samples: missed in at most 6 of 60 crowds. Of
    150 clients, a normal crowd that is believed in full misses the fifth in most."""
    rng = np.random.default_rng([clients, round(10 * lost)])
    missed = 0
    for _ in range(60):
        truth = np.where(rng.random(clients) < 0.2, -lost, lost / 2)
        n = rng.integers(5, 201, clients)
        q = rng.binomial(n, 0.2)
        gained = rng.binomial(q, (1 + truth / 0.2) / 2)
        found = harmed(2.0 * gained - q, q.astype(float), n.astype(float))
        assert found is not None
        missed += not found.low <= (truth < -0.01).sum() <= found.high
    assert missed <= 6


@pytest.mark.parametrize(("clients", "crowds"), [(20, 20), (100, 8)])
@pytest.mark.parametrize(("lose", "gain"), [(0.05, 0.15), (0.1, 0.1), (0.05, 0.25)])
def test_two_camps_are_not_taken_for_one_crowd(clients: int, crowds: int, lose: float, gain: float) -> None:
    """Half of the clients lose and half gain, with 10 to 200 samples: the range holds those that lose in three quarters
    of the crowds or more. A normal population alone holds them in up to none (38 of 100 clients for 49)."""
    rng = np.random.default_rng([clients, round(100 * gain)])
    missed = 0
    for _ in range(crowds):
        truth = np.repeat([-lose, gain], clients // 2)
        n = rng.integers(10, 201, clients)
        q = rng.binomial(n, np.maximum(0.2, np.abs(truth) + 0.05))
        gained = rng.binomial(q, (1 + truth / np.maximum(0.2, np.abs(truth) + 0.05)) / 2)
        found = harmed(2.0 * gained - q, q.astype(float), n.astype(float))
        assert found is not None
        missed += not found.low <= clients // 2 <= found.high
    assert missed <= crowds / 4


def test_a_population_of_any_shape_written_out() -> None:
    """Two places: five clients at -10 and five at +10 points, measured so exactly that each is where it is."""
    gain = np.repeat([-0.1, 0.1], 5)
    found = _free(gain, np.full(10, 1e-4), 0.01)
    assert found == pytest.approx([0] * 5 + [1] * 6, abs=1e-4)
    assert _free(np.full(10, 0.1), np.full(10, 1e-4), 0.01) == pytest.approx(np.ones(11))
    assert _free(np.full(10, -0.1), np.full(10, 1e-4), 0.01) == pytest.approx([0] * 10 + [1])


def test_the_poisson_binomial_distribution() -> None:
    """Equal chances are binomial, below and above the size from which halves are joined; two trials by hand."""
    assert _poisson_binomial(np.array([[0.5, 0.2]]))[0] == pytest.approx([0.4, 0.5, 0.1])
    for k in (40, 300, 1001):
        found = _poisson_binomial(np.full((2, k), 0.3))
        assert found[1] == pytest.approx(binom.pmf(np.arange(k + 1), k, 0.3), abs=1e-5)


def test_a_client_far_out_is_counted() -> None:
    """Of 400 clients that gain 5 points of 200 samples one loses 50. A normal crowd would swallow it; its own samples
    show the harm. A loss of at most a point is not harm, however sure it is."""
    crowd = {k: change(25, 15, 160) for k in range(399)}
    found = harmed_range(counts([{**crowd, 7: change(0, 100, 100)}], True))
    assert found is not None
    assert (found.low, found.of) == (1, 399)
    assert found.high >= 1
    small = harmed_range(counts([{**crowd, 7: change(0, 20, 5000)}], True))
    assert small is not None
    assert small.low == 0
