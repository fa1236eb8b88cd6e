"""How often verdicts are wrong, and how often they find what is there.

    python bench/verdict.py [--only size families harmed ...] [--scale 1.0]
    python bench/verdict.py --table

Simulated comparisons with a known truth: a gain is the true mean, an effect that all clients of a seed share (normal, r
standard deviations of a client), a deviation of the client (normal or skewed), and the noise of its test samples (5 to
200; one in five is predicted differently by the two methods). Sizes are the percentages of comparisons without a
difference that are called better or worse; powers those of a true difference that are called so.

The rule is written here a second time, vectorised over comparisons, and compared with `fedkin.evaluate.difference` on
random tables before anything is simulated. Lines go to `bench/results/verdict.jsonl`, the last one of each cell counts;
`--table` prints the tables of `docs/verdicts.md`. `--scale` multiplies the numbers of repetitions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from fedkin.evaluate import Counts, clear_clients, difference, harmed_range, marked, seed_effect
from fedkin.evaluate.paired import SEED_EFFECT, half_width

Floats = NDArray[np.float64]
LINES = Path(__file__).parent / "results" / "verdict.jsonl"
EFFECTS = (0.0, 0.1, 0.2, 0.33, 0.5, 1.0)
SHAPES = tuple((s, k) for s in (2, 3, 5, 10) for k in (4, 20, 100))
MEDIANS = tuple(0.05 * 2 ** (i / 3) for i in range(16))
REPEATS = 3000
DIFFERENT = 0.2  # fraction of test samples on which two methods differ
CLIENT = 0.05  # standard deviation of true gains
FEWEST_SAMPLES, MOST_SAMPLES = 5, 200
MEASURED = 0.2  # root mean square of r in real comparisons
SIGMA = float(np.sqrt(CLIENT**2 + DIFFERENT * (1 / np.arange(FEWEST_SAMPLES, MOST_SAMPLES + 1)).mean()))


# ---- the rule, vectorised over comparisons --------------------------------------------------------------------------
def mixture(d: Floats, same: bool, h: Floats | float = SEED_EFFECT) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Means ``[R]``; weights, scales and degrees of freedom ``[R, 200]``; logarithms of the likelihood ``[R]``.

    NaN in ``d [R, S, K]`` is missing; ``h`` is the prior median of r, one or ``[R]``.
    """
    there = ~np.isnan(d)
    n = there.sum(2)
    means = np.nansum(d, 2) / n
    e = np.where(there, d - means[:, :, None], 0)
    between = ((means - means.mean(1, keepdims=True)) ** 2).sum(1)
    within, nu, s = (e**2).sum((1, 2)), (n - 1).sum(1), d.shape[1]
    v, base = within / nu, (1 / n).mean(1)
    a_b, a_m, nu_m = base, base, nu
    if same:
        seen = there.sum(1)
        k = (seen > 0).sum(1)
        of_clients = (e.sum(1) ** 2 / np.maximum(seen, 1)).sum(1)
        a_m = base * np.maximum(1, of_clients / (k - 1) / v)
        nu_m, nu_e = k - 1, n.sum(1) - s - k + 1
        left = within - of_clients
        a_b = np.where(nu_e >= 1, np.minimum(1, left / np.maximum(nu_e, 1) / v), 1) * base
    r2 = (np.reshape(h, (-1, 1)) * np.tan(np.pi / 2 * (np.arange(1, 201) - 0.5) / 200)) ** 2
    vj = r2 + a_b[:, None]
    log = -(s - 1) / 2 * np.log(vj) - (nu[:, None] + s - 1) / 2 * np.log(within[:, None] + between[:, None] / vj)
    w = np.exp(log - log.max(1, keepdims=True))
    mj = r2 + a_m[:, None]
    free = mj**2 / ((a_m**2 / nu_m)[:, None] + (mj**2 - a_m[:, None] ** 2) / nu[:, None])
    likelihood = log.max(1) + np.log(w.mean(1))
    return means.mean(1), w / w.sum(1, keepdims=True), np.sqrt(v[:, None] * mj / s), free, likelihood


def medians(tables: Floats, same: bool) -> Floats:
    """Prior medians of r ``[R]`` with the highest likelihood for all methods of tables ``[R, M, S, K]``."""
    found = [mixture(tables.reshape(-1, *tables.shape[2:]), same, h)[4].reshape(tables.shape[:2]) for h in MEDIANS]
    return np.asarray(MEDIANS)[np.argmax(np.sum(found, 2), 0)]


def tails(d: Floats, same: bool, h: Floats | float = SEED_EFFECT) -> Floats:
    """Tail of the mean of each comparison ``[R]``; below 0.025 or above 0.975 it is called better or worse."""
    m, w, scale, free, _ = mixture(d, same, h)
    return np.asarray((w * stdtr(free, -m[:, None] / scale)).sum(1))


def pooled_tails(d: Floats) -> Floats:
    """Student's tail on the seed means, for comparison."""
    means = d.mean(2)
    s = means.shape[1]
    return np.asarray(stdtr(s - 1, -means.mean(1) / (means.std(1, ddof=1) / np.sqrt(s))))


def check() -> None:
    """The rule above is the library's: tails agree to 1e-9 on random tables, and 0 lies outside for the same ones."""
    rng = np.random.default_rng(7)
    for number in range(200):
        seeds, clients, same = int(rng.integers(2, 7)), int(rng.integers(4, 30)), bool(number % 2)
        d = (
            rng.normal(0, 0.02, (seeds, 1))
            + rng.normal(0, 0.05, clients) * same
            + rng.normal(0, 0.05, (seeds, clients))
        )
        d[rng.random(d.shape) < 0.1 * (number % 3)] = np.nan
        d[:, :2] = 0.01  # every seed keeps two clients
        gains = [{k: float(g) for k, g in enumerate(row) if not np.isnan(g)} for row in d]
        found, tail = difference(gains, same_clients=same), float(tails(d[None], same)[0])
        assert found.tail is not None
        assert abs(found.tail - tail) < 1e-9, (found, tail)
        assert (found.word in ("better", "worse")) == (min(tail, 1 - tail) < 0.025)
        table = np.stack([d, d + rng.normal(0, 0.03, d.shape), d[:, ::-1]])
        each = [[{k: float(g) for k, g in enumerate(row) if not np.isnan(g)} for row in one] for one in table]
        assert abs(seed_effect(each, same) - medians(table[None], same)[0]) < 1e-12


# ---- what is simulated ----------------------------------------------------------------------------------------------
def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Exponential deviations with mean 0 and standard deviation 1."""
    return rng.exponential(1, shape) - 1


def mixed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """One fifth of the clients lies 2.5 standard deviations lower than the others."""
    return np.asarray(0.5 - 2.5 * (rng.random(shape) < 0.2))


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    r: Floats | float,
    mu: float,
    same: bool,
    deviations: Callable[[np.random.Generator, tuple[int, ...]], Floats] = normal,
) -> Floats:
    """Gains ``[R, S, K]``; with ``same`` a client keeps its deviation and its number of test samples in all seeds."""
    repeats, seeds, clients = shape
    once = (repeats, 1 if same else seeds, clients)
    n = np.broadcast_to(rng.integers(FEWEST_SAMPLES, MOST_SAMPLES + 1, once), shape)
    effect = rng.standard_normal((repeats, seeds, 1)) * SIGMA * np.broadcast_to(r, repeats)[:, None, None]
    return mu + effect + CLIENT * deviations(rng, once) + noise(rng, n)


def noise(rng: np.random.Generator, n: NDArray[np.int64]) -> Floats:
    """Of a gain, from its test samples: of those that the two methods predict differently each wins half."""
    q = rng.binomial(n, DIFFERENT)
    return np.asarray((2 * rng.binomial(q, 0.5) - q) / n)


def wrong(p: Floats) -> float:
    """Percentage called better or worse."""
    return round(100 * float(((p < 0.025) | (p > 0.975)).mean()), 2)


def right(p: Floats) -> float:
    """Percentage called better."""
    return round(100 * float((p < 0.025).mean()), 2)


def sizes(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Size and power of the rule by shape; clients anew, the same, skewed and mixed."""
    cells: list[tuple[str, int, int, bool, Any]] = [("anew", s, k, False, normal) for s, k in SHAPES]
    cells += [("same", s, k, True, normal) for s, k in ((3, 4), (3, 20), (3, 100), (10, 20))]
    cells += [("skewed", 3, k, False, skewed) for k in (4, 20, 100)] + [("mixed", 3, k, False, mixed) for k in (4, 20)]
    for kind, s, k, same, deviations in cells:
        if s * k < 6:
            continue
        draw = partial(drawn, rng, (repeats, s, k), same=same, deviations=deviations)
        usual = np.abs(rng.normal(0, MEASURED, repeats))
        line: dict[str, Any] = {"part": "size", "kind": kind, "seeds": s, "clients": k, "repeats": repeats}
        line["size"] = [wrong(tails(draw(r=r, mu=0.0), same)) for r in EFFECTS]
        line["mean"] = wrong(tails(draw(r=usual, mu=0.0), same))
        found = [draw(r=r, mu=mu * SIGMA) for mu, r in ((0.5, 0.1), (0.5, 0.33), (1.0, 0.1))]
        line["power"] = [right(tails(d, same)) for d in found]
        line["student"] = [right(pooled_tails(d)) for d in found]
        line["coverage"] = [round(100 - wrong(tails(d - mu * SIGMA, same)), 2)
                            for d, mu in zip(found, (0.5, 0.5, 1.0), strict=True)]  # fmt: skip
        yield line


def mistold(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Sizes where the rule is told the wrong thing about clients (S = 3, K = 20), and with clients missing."""
    for truth, told in (("anew", "same"), ("same", "anew")):
        line: dict[str, Any] = {"part": "mistold", "truth": truth, "told": told, "repeats": repeats}
        line["size"] = [
            wrong(tails(drawn(rng, (repeats, 3, 20), r, 0.0, truth == "same"), told == "same")) for r in EFFECTS
        ]
        yield line
    for same in (False, True):
        line = {"part": "mistold", "truth": "same" if same else "anew", "told": "missing", "repeats": repeats}
        line["size"] = []
        for r in EFFECTS:
            d = drawn(rng, (repeats, 3, 20), r, 0.0, same)
            d[rng.random(d.shape) < 0.25] = np.nan
            d[:, :, :2] = np.nan_to_num(d[:, :, :2])
            line["size"].append(wrong(tails(d, same)))
        yield line


def rivals(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Sizes of Student's interval over the clients of one seed, and over all clients of three seeds as if of one."""
    for seeds, k in ((1, 20), (1, 100), (3, 20), (3, 100)):
        line: dict[str, Any] = {"part": "rivals", "seeds": seeds, "clients": k, "repeats": repeats, "size": []}
        for r in EFFECTS:
            d = drawn(rng, (repeats, seeds, k), r, 0.0, False)
            means = d.mean(2)
            nu = seeds * (k - 1)
            error = np.sqrt(((d - means[:, :, None]) ** 2).sum((1, 2)) / nu / (seeds * k))
            line["size"].append(wrong(stdtr(nu, -means.mean(1) / error)))
        yield line


def tables_of(rng: np.random.Generator, shape: tuple[int, int, int, int], r: Floats | float, same: bool) -> Floats:
    """Gains ``[R, M, S, K]`` of methods over one reference, whose own part is half of the variance of each gain."""
    repeats, methods, seeds, clients = shape
    seed = [rng.standard_normal((repeats, m, seeds, 1)) for m in (1, methods)]
    client = [rng.standard_normal((repeats, m, 1 if same else seeds, clients)) for m in (1, methods)]
    n = np.broadcast_to(rng.integers(10, MOST_SAMPLES + 1, (repeats, 1, 1 if same else seeds, clients)), shape)
    effect = SIGMA * np.broadcast_to(r, shape[:2])[:, :, None, None] * sum(seed)
    return np.asarray((effect + CLIENT * sum(client)) / np.sqrt(2) + noise(rng, n))


def families(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Tables of several methods, three seeds, 20 clients: with the usual prior median of r, and with that of the table;
    size, power at 3 points, and tables of equally good methods with a clear verdict, one by one and after Holm."""
    for methods, same in ((1, False), (2, False), (3, False), (10, False), (50, False), (10, True)):
        for r in (*EFFECTS, "as measured"):
            times = max(40, min(600, repeats // methods))
            each = np.abs(rng.normal(0, MEASURED, (times, methods))) if isinstance(r, str) else r
            d = tables_of(rng, (times, methods, 3, 20), each, same)
            flat, line = d.reshape(-1, 3, 20), {"part": "families", "methods": methods, "same": same, "r": r}
            own = medians(d, same) if methods > 1 else np.full(times, SEED_EFFECT)
            for name, h in (("usual", np.full(times, SEED_EFFECT)), ("table", own)):
                p = tails(flat, same, np.repeat(h, methods))
                power = right(tails(flat + 0.03, same, np.repeat(h, methods)))
                two = 2 * np.minimum(p, 1 - p).reshape(times, methods)
                line |= {name: [wrong(p), power, *(round(100 * float((two.min(1) < a).mean()), 1)
                                                   for a in (0.05, 0.05 / methods))]}  # fmt: skip
            yield line | {"repeats": times}


def these(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """The same clients with pools of 150 to 300 samples, a fifth of which each seed draws for testing; of a sample that
    the methods predict differently, the winner stays in all seeds (``agreeing``) or is drawn again. Size and power at 5
    points for clients like these, and for these clients with the factor for overlapping tests and without it."""
    repeats = max(100, repeats // 5)
    for seeds, clients in ((3, 4), (10, 4), (10, 20)):
        for agreeing in (0.0, 0.5, 1.0):
            d = np.empty((repeats, seeds, clients))
            own = CLIENT * rng.standard_normal((repeats, clients))
            for i in range(repeats):
                for k in range(clients):
                    n = int(rng.integers(150, 301))
                    pool = rng.choice([-1, 0, 1], n, p=[DIFFERENT / 2, 1 - DIFFERENT, DIFFERENT / 2])
                    for s in range(seeds):
                        again = rng.choice([-1, 0, 1], n, p=[DIFFERENT / 2, 1 - DIFFERENT, DIFFERENT / 2])
                        found = np.where(rng.random(n) < agreeing, pool, again)
                        d[i, s, k] = found[rng.permutation(n)[: n // 5]].mean()
            d += 0.1 * SIGMA * rng.standard_normal((repeats, seeds, 1))
            line: dict[str, Any] = {"part": "these", "seeds": seeds, "clients": clients, "agreeing": agreeing}
            mean, sd = d.mean((1, 2)), d.mean(2).std(1, ddof=1)
            line["like"] = [wrong(tails(d + own[:, None], True)), right(tails(d + own[:, None] + 0.05, True))]
            for name, factor in (("these", 1 / seeds + 0.25), ("without", 1 / seeds)):
                p = [stdtr(seeds - 1, -(mean + mu) / (sd * np.sqrt(factor))) for mu in (0.0, 0.05)]
                line[name] = [wrong(p[0]), right(p[1])]
            yield line | {"repeats": repeats}


def collapses(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """One seed in five loses four times what the others gain: no difference on average, and not a normal effect."""
    for seeds in (3, 5, 10):
        for gain in (0.02, 0.05, 0.1):
            lost = rng.random((repeats, seeds, 1)) < 0.2
            p = tails(drawn(rng, (repeats, seeds, 20), 0.1, 0.0, False) + np.where(lost, -4 * gain, gain), False)
            yield {"part": "collapses", "seeds": seeds, "gain": gain, "size": wrong(p), "repeats": repeats}


def pages(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """One run of 20 clients that all gain as much: pages that show a gain or loss as larger than chance explains, by
    half of Wilson's interval of the accuracy and by exact p-values after Holm's correction; and the numbers of clients
    that are measured higher and lower, 5 and 95 %."""
    for least, most in ((10, 40), (10, 200)):
        for gain in (0.0, 0.07):
            shown, higher, lower = np.zeros(2), [], []
            for _ in range(repeats):
                n = rng.integers(least, most + 1, 20)
                seen = counted(rng, np.full(20, gain), n)
                accuracy = rng.binomial(n, 0.8) / n
                wilson = [abs(g) > half_width(a, int(m)) for g, a, m in zip(seen.net / n, accuracy, n, strict=True)]
                shown += [any(wilson), clear_clients(seen) != ((), ())]
                higher.append(int((seen.net > 0).sum()))
                lower.append(int((seen.net < 0).sum()))
            ends = [[int(q) for q in np.quantile(x, [0.05, 0.95])] for x in (higher, lower)]
            yield {"part": "pages", "samples": [least, most], "gain": gain, "higher": ends[0], "lower": ends[1],
                   "shown": [round(100 * float(x) / repeats, 1) for x in shown], "repeats": repeats}  # fmt: skip


def marks(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Tables of equally good methods of unequal variances: how often a method is marked, on average and the least."""
    for methods in (2, 6, 12, 20):
        for same in (False, True):
            for r in (0.0, 0.2, 0.33, 0.5):
                kept, alone = np.zeros(methods), 0
                for _ in range(repeats):
                    scale = np.linspace(0.5, 1.5, methods)[:, None, None]
                    own = scale * rng.standard_normal((methods, 1 if same else 3, 20))
                    a = 0.7 + CLIENT * own + 0.06 * rng.standard_normal((methods, 3, 20))
                    a += r * np.sqrt((CLIENT * scale) ** 2 + 0.06**2) * rng.standard_normal((methods, 3, 1))
                    means = dict(enumerate(a.mean((1, 2)).tolist()))
                    highest = max(means, key=lambda i: means[i])
                    others = [i for i in means if i != highest]
                    tail = tails(a[highest] - a[others], same)
                    found = marked({str(i): m for i, m in means.items()},
                                   {str(i): float(p) for i, p in zip(others, tail, strict=True)})  # fmt: skip
                    kept += [1.0 if not found else str(i) in found for i in range(methods)]
                    alone += bool(found)
                share = 100 * kept / repeats
                yield {"part": "marks", "methods": methods, "same": same, "r": r, "repeats": repeats,
                       "marked": round(float(share.mean()), 2), "least": round(float(share.min()), 2),
                       "any_left_out": round(100 * alone / repeats, 2)}  # fmt: skip


def marks_of_one_seed(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """The same with one seed: the interval over clients leaves out what they have in common."""
    for methods in (2, 6, 20):
        for clients in (20, 100):
            for r in (0.0, 0.2, 0.33):
                kept = np.zeros(methods)
                for _ in range(repeats):
                    a = 0.7 + CLIENT * rng.standard_normal((methods, clients))
                    a += r * CLIENT * rng.standard_normal((methods, 1))
                    means = {str(i): float(m) for i, m in enumerate(a.mean(1))}
                    highest = max(means, key=lambda i: means[i])
                    d = a[int(highest)] - a
                    error = np.maximum(d.std(1, ddof=1), 1e-12) / np.sqrt(clients)
                    tail = stdtr(clients - 1, -d.mean(1) / error)
                    found = marked(means, {i: float(tail[int(i)]) for i in means if i != highest})
                    kept += [1.0 if not found else str(i) in found for i in range(methods)]
                yield {"part": "marks of one seed", "methods": methods, "clients": clients, "r": r,
                       "repeats": repeats, "marked": round(100 * float(kept.mean()) / repeats, 2)}  # fmt: skip


# ---- harmed clients -------------------------------------------------------------------------------------------------
TRUTHS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "no difference": lambda rng, k: np.zeros(k),
    "all gain 5 points": lambda rng, k: np.full(k, 0.05),
    "normal": lambda rng, k: rng.normal(0.03, 0.06, k),
    "skewed, long gains": lambda rng, k: 0.08 * rng.exponential(1, k) - 0.04,
    "skewed, long losses": lambda rng, k: 0.06 - 0.08 * rng.exponential(1, k),
    "one fifth loses 10": lambda rng, k: np.where(rng.random(k) < 0.2, -0.1, 0.05),
    "70 % untouched": lambda rng, k: np.where(rng.random(k) < 0.7, 0.0, rng.normal(0, 0.1, k)),
    "half lose 5, half gain 15": lambda rng, k: np.where(rng.random(k) < 0.5, -0.05, 0.15),
    "90 % untouched, 10 % lose 15": lambda rng, k: np.where(rng.random(k) < 0.9, 0.0, -0.15),
    "80 % predict the same, others lose 10": lambda rng, k: np.where(rng.random(k) < 0.8, 0.0, -0.1),
    "all lose 2, 3 % predicted differently": lambda rng, k: np.full(k, -0.02),
}
RATES = {"80 % predict the same, others lose 10": (0.0, 0.05), "all lose 2, 3 % predicted differently": (0.03, 0.0)}
"""Fraction of samples predicted differently, and what is added to a true gain's; otherwise `DIFFERENT` and 0.05."""
CROWDS = ((10, 24, 24), (20, 200, 200), (50, 24, 24), (50, 5, 200), (100, 5, 200), (150, 5, 200))


def counted(rng: np.random.Generator, truth: Floats, n: NDArray[np.int64], name: str = "") -> Counts:
    """Differing samples of clients with these true gains."""
    rate, more = RATES.get(name, (DIFFERENT, 0.05))
    differing = np.maximum(rate, np.abs(truth) + more * (truth != 0))
    q = rng.binomial(n, differing)
    gained = rng.binomial(q, (1 + truth / np.maximum(differing, 1e-9)) / 2)
    return Counts(tuple(range(len(n))), *(x.astype(float) for x in (gained, q - gained, q, n)))


def harm(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Coverage of the range for the number of harmed clients (nominal 90 %)."""
    for k, least, most in CROWDS:
        for name, truth in TRUTHS.items():
            times = max(100, min(repeats, repeats * 50 // k))
            rows = []
            for _ in range(times):
                gain, n = np.clip(truth(rng, k), -0.6, 0.6), rng.integers(least, most + 1, k)
                seen = counted(rng, gain, n, name)
                found = harmed_range(seen)
                assert found is not None
                rows.append((int((gain < -0.01).sum()), int((seen.net < 0).sum()), found.low, found.high))
            yield {**summary(np.array(rows)), "part": "harmed", "clients": k, "samples": [least, most],
                   "truth": name, "repeats": times}  # fmt: skip


def summary(rows: NDArray[np.int64]) -> dict[str, Any]:
    """Coverage and means of (true number, number measured below, low, high)."""
    true, below, low, high = rows.T
    return {
        "coverage": round(100 * float(((low <= true) & (true <= high)).mean()), 1),
        "low_too_high": round(100 * float((low > true).mean()), 1),
        "high_too_low": round(100 * float((high < true).mean()), 1),
        **{name: round(float(x.mean()), 1) for name, x in
           (("true", true), ("below", below), ("low", low), ("high", high))},
    }  # fmt: skip


REPEATED = {
    "no difference": (40, DIFFERENT),
    "one fifth loses 10": (40, DIFFERENT),
    "all lose half a point": (1000, 0.06),
}
"""Test samples of a client, and the least fraction of them that is predicted differently."""


def repeated(rng: np.random.Generator, repeats: int) -> Iterator[dict[str, Any]]:
    """Three seeds on the same test samples, whose answers agree mostly: counts added up, or averaged by sample."""
    for agreeing in (0.0, 0.8, 1.0):
        for name, (n, different) in REPEATED.items():
            rows: dict[str, list[tuple[int, ...]]] = {"added": [], "averaged": []}
            for _ in range(repeats):
                truth = TRUTHS[name](rng, 50) if name in TRUTHS else np.full(50, -0.005)
                differing = np.maximum(different, np.abs(truth) + 0.05)[:, None, None]
                up = (1 + truth[:, None, None] / differing) / 2

                def outcomes(seeds: int, p: Floats = differing, up: Floats = up, n: int = n) -> Floats:
                    shape = (50, seeds, n)
                    return (rng.random(shape) < p) * np.where(rng.random(shape) < up, 1.0, -1.0)

                nets = np.where(rng.random((50, 3, n)) < agreeing, outcomes(1), outcomes(3))
                true, below = int((truth < -0.01).sum()), int((nets.sum((1, 2)) < 0).sum())
                for how, x in (("added", nets.reshape(50, -1)), ("averaged", nets.mean(1))):
                    sums = np.maximum(x, 0).sum(1), np.maximum(-x, 0).sum(1), (x**2).sum(1)
                    found = harmed_range(Counts(tuple(range(50)), *sums, np.full(50, float(x.shape[1]))))
                    assert found is not None
                    rows[how].append((true, below, found.low, found.high))
            for how, each in rows.items():
                yield {**summary(np.array(each)), "part": "repeated", "agreeing": agreeing, "truth": name, "how": how,
                       "repeats": repeats}  # fmt: skip


# ---- lines and tables -----------------------------------------------------------------------------------------------
PARTS: dict[str, tuple[Callable[[np.random.Generator, int], Iterator[dict[str, Any]]], int]] = {
    "size": (sizes, REPEATS),
    "mistold": (mistold, REPEATS),
    "marks": (marks, 800),
    "harmed": (harm, 400),
    "repeated": (repeated, 200),
    "rivals": (rivals, REPEATS),
    "families": (families, REPEATS),
    "these": (these, REPEATS),
    "collapses": (collapses, REPEATS),
    "pages": (pages, 1000),
    "marks of one seed": (marks_of_one_seed, 800),
}
RESULTS = {"usual", "table", "like", "these", "without", "shown", "higher", "lower", "size", "mean", "power", "student",
           "coverage", "marked", "least", "any_left_out", "low_too_high", "high_too_low", "true", "below", "low",
           "high", "repeats"}  # fmt: skip


def known() -> list[dict[str, Any]]:
    """The last line of each cell."""
    text = LINES.read_text().splitlines() if LINES.is_file() else []
    cells = {}
    for line in map(json.loads, text):
        cells[json.dumps({k: v for k, v in sorted(line.items()) if k not in RESULTS})] = line
    return list(cells.values())


def row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def sizes() -> str:
    """Return the first table of docs/verdicts.md."""
    heads = ("seeds, clients", "r = 0", "0.2", "0.33", "1", "power", "power of Student's over seed means")
    rows = [
        row(
            f"{x['seeds']}, {x['clients']}{'' if x['kind'] == 'anew' else ', same'}",
            *(f"{x['size'][i]:.1f}" for i in (0, 2, 3, 5)),
            *(" · ".join(f"{v:.0f}" for v in x[name]) for name in ("power", "student")),
        )
        for x in known()
        if x["part"] == "size" and x["kind"] in ("anew", "same")
    ]
    return "\n".join([row(*heads), "| --- |" + " ---: |" * (len(heads) - 1), *rows])


def harmed() -> str:
    """Return the table of docs/verdicts.md on ranges of harmed clients."""
    return "\n".join(
        [row("clients, test samples each", *TRUTHS), "| --- |" + " ---: |" * len(TRUTHS), tables()["harmed"]]
    )


def tables() -> dict[str, str]:
    """Everything in Markdown; "sizes" and "harmed" are the rows of the tables of docs/verdicts.md."""
    lines = known()

    def of(part: str) -> list[dict[str, Any]]:
        return [x for x in lines if x["part"] == part]

    def whole(values: list[float]) -> str:
        return " · ".join(f"{v:.0f}" for v in values)

    sizes = []
    for x in of("size"):
        kind = "" if x["kind"] == "anew" else f", {x['kind']}"
        figures = (*(f"{v:.1f}" for v in (*x["size"], x["mean"])), whole(x["power"]), whole(x["student"]))
        sizes.append((x["kind"], row(f"{x['seeds']}, {x['clients']}{kind}", *figures)))
    harmed_rows: dict[tuple[int, ...], dict[str, float]] = {}
    for x in of("harmed"):
        harmed_rows.setdefault((x["clients"], *x["samples"]), {})[x["truth"]] = x["coverage"]
    crowds = [
        row(
            f"{k}, {least if least == most else f'{least} to {most}'}",
            *(f"{found[t]:.0f}" for t in TRUTHS if t in found),
        )
        for (k, least, most), found in harmed_rows.items()
        if len(found) == len(TRUTHS)
    ]
    other = [row(f"{x['truth']}, told {x['told']}", *(f"{v:.1f}" for v in x["size"])) for x in of("mistold")]
    other += [row(f"pooled: {x['seeds']}, {x['clients']}", *(f"{v:.1f}" for v in x["size"])) for x in of("rivals")]
    marked_rows = [
        row(x["methods"], "same" if x["same"] else "anew", x["r"], x["marked"], x["least"], x["any_left_out"])
        for x in of("marks")
    ]
    marked_rows += [row(x["methods"], x["clients"], x["r"], x["marked"]) for x in of("marks of one seed")]
    ranges = [
        row(x.get("clients", 50), x.get("samples", f"{x.get('agreeing')} {x.get('how')}"), x["truth"],
            *(x[name] for name in ("coverage", "low_too_high", "high_too_low", "true", "below", "low", "high")))
        for x in of("harmed") + of("repeated")
    ]  # fmt: skip
    together = [
        row(f"{x['methods']}{', same' if x['same'] else ''}", x["r"],
            *(" → ".join(f"{x[name][i]:.{1 if i == 0 else 0}f}" for name in ("usual", "table")) for i in range(4)))
        for x in of("families")
    ]  # fmt: skip
    rest = [
        row(*(v for k, v in x.items() if k != "part")) for part in ("these", "collapses", "pages") for x in of(part)
    ]
    return {
        "families (size, power at 3 points, tables with a clear verdict, after Holm)": "\n".join(together),
        "these, collapses, pages": "\n".join(rest),
        "sizes": "\n".join(text for kind, text in sizes if kind in ("anew", "same")),
        "harmed": "\n".join(crowds),
        "other shapes": "\n".join(text for kind, text in sizes if kind not in ("anew", "same")),
        "told otherwise": "\n".join(other),
        "marks": "\n".join(marked_rows),
        "ranges": "\n".join(ranges),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--table", action="store_true")
    flags = parser.parse_args()
    if flags.table:
        print("\n\n".join(f"{name}\n{text}" for name, text in tables().items()))
        return
    check()
    for name in flags.only:
        simulate, repeats = PARTS[name]
        rng = np.random.default_rng([11, list(PARTS).index(name)])
        for line in simulate(rng, max(20, int(repeats * flags.scale))):
            with LINES.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
