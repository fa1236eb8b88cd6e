"""Methods against a reference: a comparison in numbers, and client by client who was helped, unchanged or harmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedkin.evaluate import (
    Against,
    Conclusion,
    Difference,
    Spread,
    against,
    clear_clients,
    client_p,
    counts,
    difference,
    gain_over,
    judge_all,
    marked,
    not_below,
    seed_effect,
    spread,
)
from fedkin.evaluate.verdict import TEST_SHARE
from fedkin.record.figures import GROUPED, METRICS, OTHER_MOMENT
from fedkin.record.result import Result
from fedkin.report.wording import DASH

NOTICEABLE = 0.0005
"""Minimum change, a fraction, of a client that is not equal: a smaller one is 0.0 points on the page."""


@dataclass(frozen=True)
class ClientGain:
    """A client under a method and under a reference, in the last evaluated round of one seed; fractions.

    Attributes:
        seed: the seed; client: its number.
        gain: the headline metric of the method minus that of the reference.
        value: the metric of the method.
        n_test: number of test samples, 0 if not known.
        kind: 1 measured higher, -1 lower, 0 equal.
        p: exact p-value of the difference in accuracy on its test samples; None where these are not known.
        clear: the difference in accuracy is significant after Holm's correction for all clients.
    """

    seed: int
    client: int
    gain: float
    value: float
    n_test: int
    kind: int
    p: float | None = None
    clear: bool = False


@dataclass(frozen=True)
class Standing:
    """A method against a reference.

    Attributes:
        title: the method; reference: what it is compared with.
        seeds: the gain of every client, seed by seed.
        finding: the joint conclusion.
        before: the reference's final metric over the same clients and seeds, a fraction.
    """

    title: str
    reference: str
    seeds: tuple[tuple[ClientGain, ...], ...]
    finding: Conclusion
    before: float

    @property
    def difference(self) -> Difference:
        """The mean gain with its interval; its ``word`` is the verdict."""
        return self.finding.difference

    @property
    def gains(self) -> list[ClientGain]:
        """All gains of all seeds."""
        return [one for seed in self.seeds for one in seed]

    @property
    def clients(self) -> int:
        """Number of clients, the largest of a seed."""
        return max(map(len, self.seeds))

    @property
    def clear(self) -> set[object]:
        """Clients whose gain or loss is clear by itself; where seeds have different clients, of each seed."""
        by_client = self.finding.of == "clients"
        return {one.client if by_client else (one.seed, one.client) for one in self.gains if one.clear}

    @property
    def marks(self) -> list[tuple[int, bool]]:
        """Kind and clearness of every client's gain, higher ones first."""
        return sorted(((one.kind, one.clear) for one in self.gains), key=lambda one: (-one[0], -one[1] * one[0]))

    @property
    def harmed(self) -> str:
        """The range for the number of harmed clients: 0–4, of 60 results where seeds have different clients."""
        text = harmed_range(self.finding)
        return text.partition(" of ")[0] if self.finding.of == "clients" else text

    def counts(self, kind: int) -> list[int]:
        """Return the number of clients of a kind, by seed."""
        return [sum(one.kind == kind for one in seed) for seed in self.seeds]


def harmed_range(finding: Conclusion | None) -> str:
    """Return the range for the number of harmed clients: "0–4 of 60", or "–" where it is not known."""
    harmed = None if finding is None else finding.harmed
    if harmed is None:
        return DASH
    return f"{harmed.low}{f'–{harmed.high}' if harmed.high > harmed.low else ''} of {harmed.of}"


def standing(
    title: str,
    reference: str,
    runs: Sequence[Result],
    compared: Mapping[int, Against],
    finding: Conclusion,
    metric: str,
) -> Standing:
    """Return a method against a reference.

    Args:
        title: the method; reference: title of the reference.
    """
    each = {run.seed: run for run in runs}
    # clients of different seeds are different tests: each seed gets its part of the level
    level = 1 - 0.05 / (1 if finding.of == "clients" else len(compared))
    seeds = []
    for seed, one in compared.items():
        own = None if finding.of == "clients" else clear_clients(counts([one.changed], True), level)
        seeds.append(_seed(each[seed], one, own or (finding.gaining, finding.losing), metric))
    finals = [spread([each[seed].averaged(metric)[c] for c in one.gains]) for seed, one in compared.items()]
    after = spread([result.mean for result in finals if result])
    return Standing(title, reference, tuple(seeds), finding, (after.mean if after else 0.0) - finding.difference.mean)


def _seed(
    run: Result, compared: Against, clear: tuple[Sequence[int], Sequence[int]], metric: str
) -> tuple[ClientGain, ...]:
    values, gains = run.single(metric), []
    for client, gain in compared.single.items():
        net, n = compared.changed.get(client), run.test_parts.get(client, (0, None))[0]
        p = None if net is None else client_p(int((net.net > 0).sum()), int((net.net < 0).sum()), exact=True)
        kind = 0 if abs(gain) < NOTICEABLE else 1 if gain > 0 else -1
        gains.append(ClientGain(run.seed, client, gain, values[client], n, kind, p, client in clear[gain < 0]))
    return tuple(gains)


@dataclass(frozen=True)
class Row:
    """A method in a comparison; fractions, over its seeds.

    Attributes:
        against: one comparison with the reference for each seed that both ran; ``finding``: their joint conclusion.
        metrics: every metric that a run of it has.
        rank: mean over the seeds that all methods ran of its rank by the headline metric, from 1; equals share a rank.
        best: it is marked, as by :func:`fedkin.evaluate.marked`.
        tied: it is not clearly below the highest, as by :func:`fedkin.evaluate.not_below`.
        reference: title of the method that it is compared with.
    """

    title: str
    seeds: int
    accuracy: Spread | None
    worst_decile: Spread | None
    macro_f1: Spread | None
    megabytes: Spread | None
    against: tuple[Against, ...] = ()
    finding: Conclusion | None = None
    metrics: Mapping[str, Spread] = field(default_factory=dict)
    rank: float | None = None
    best: bool = False
    tied: bool = False
    reference: str = ""

    @property
    def left_out(self) -> int:
        """Number of clients' figures without a partner."""
        return sum(a.left_out for a in self.against)

    @property
    def gain(self) -> Spread | None:
        """Mean gain over the reference, a fraction, over the seeds that both ran."""
        return spread([a.mean for a in self.against])

    @property
    def difference(self) -> Difference | None:
        """The mean gain with its interval."""
        return None if self.finding is None else self.finding.difference


def comparison_rows(
    groups: Mapping[str, Sequence[Result]],
    reference: str = "",
    findings: Mapping[str, Conclusion] | None = None,
    metric: str = "accuracy",
) -> list[Row]:
    """Return one row per method, with intervals, in the order of ``groups`` (title -> seeds, as from ``by_title``).

    A run is compared with the reference's run of the *same seed*, since seeds split the data differently; seeds that
    the reference did not run are not part of gain and harm.

    Args:
        reference: title of the method that the others are compared with; by default training alone.
        findings: conclusions from the comparisons with the reference, by title, where known already.
        metric: the headline metric, which gains, intervals, marks and ranks are of.
    """
    reference = reference or next((t for t, runs in groups.items() if runs[0].role == "alone"), "")
    same, ranks = same_clients(groups), _ranks(groups, metric)
    (top, tied), base = _top(groups, same, metric), {run.seed: run for run in groups.get(reference, ())}
    compared = {t: tuple(comparisons(base, runs, metric).values()) for t, runs in groups.items() if t != reference}
    if findings is None:
        findings = judge_all({t: seeds for t, seeds in compared.items() if seeds}, same, test_share(groups))
    rows = []
    for title, runs in groups.items():
        finals = [run.final for run in runs]
        metrics = {name: s for name in (*METRICS, *GROUPED, *OTHER_MOMENT)
                   if (s := spread([f.of(name) for f in finals])) is not None}  # fmt: skip
        rows.append(Row(
            title, len(runs), metrics.get("accuracy"), metrics.get("worst_decile"), metrics.get("macro_f1"),
            spread([run.bytes / 1e6 for run in runs]), compared.get(title, ()), findings.get(title), metrics,
            ranks.get(title), best=title in top, tied=title in tied, reference=reference,
        ))  # fmt: skip
    return rows


def comparisons(base: Mapping[int, Result], runs: Sequence[Result], metric: str = "accuracy") -> dict[int, Against]:
    """Return comparisons of runs with the reference's of the same seed by a metric, by seed, where they share a
    client."""
    pairs = [(base[run.seed], run) for run in runs if run.seed in base]
    finals = [(a, b, a.averaged(metric), b.averaged(metric)) for a, b in pairs]
    return {
        b.seed: against(before, after, (a.answers, b.answers), (a.single(metric), b.single(metric)))
        for a, b, before, after in finals
        if before.keys() & after.keys()
    }


def same_clients(groups: Mapping[str, Sequence[Result]]) -> bool | None:
    """Return whether a client number means the same client in every seed.

    Returns:
        True where clients have the same names, or the settings determine them (partition natural, a data seed, a folder
        with a federation), or every client's test samples are the same in all seeds. False where the settings split the
        data again for each seed, and the test parts differ. None where this is unknown, as with runs of a program that
        splits the data itself.
    """
    runs = [run for each in groups.values() for run in each]
    names = {run.names for run in runs}
    if names != {()}:
        return True if len(names) == 1 else None
    said = {_fixed(run) for run in runs}
    seeds = [run.test_parts for run in max(groups.values(), key=len, default=())]
    alike = all(parts == seeds[0] for parts in seeds)
    known = all(digest for parts in seeds for _, digest in parts.values())
    if said == {True} or (alike and known and len(seeds) > 1):
        return True
    return False if said == {False} and not alike else None


def test_share(groups: Mapping[str, Sequence[Result]]) -> float:
    """Return the fraction of a client's samples that is tested, the largest of the runs."""
    shares = [run.settings.data.test for runs in groups.values() for run in runs]
    return max(shares, default=TEST_SHARE)


def _fixed(run: Result) -> bool | None:
    """Return whether the settings of a run determine the clients for every seed; None where that is unknown."""
    data = run.table("data")
    if "made_by" in run.config or data.get("partition") is None:
        return None
    where = data.get("data")
    shelf = isinstance(where, str) and (Path(where) / "index.json").is_file()
    return shelf or data["partition"] == "natural" or data.get("data_seed") is not None


def _ranks(groups: Mapping[str, Sequence[Result]], metric: str) -> dict[str, float]:
    """Return the mean rank by a metric over the seeds that all methods ran; empty if they share no seed."""
    finals = {t: {r.seed: a for r in runs if (a := r.final.of(metric)) is not None} for t, runs in groups.items()}
    common = set.intersection(*(set(seeds) for seeds in finals.values())) if finals else set()
    ranks: dict[str, list[float]] = {title: [] for title in finals} if common else {}
    for seed in common:
        for title in ranks:
            above = [gain_over(seeds[seed], finals[title][seed]) for seeds in finals.values()]
            ranks[title].append(0.5 + sum(g > 0 for g in above) + above.count(0) / 2)
    return {title: sum(places) / len(places) for title, places in ranks.items()}


def _top(groups: Mapping[str, Sequence[Result]], same: bool | None, metric: str) -> tuple[set[str], set[str]]:
    """Return the marked methods, and those not significantly below the highest by a metric, which are among them."""
    means = {t: s.mean for t, runs in groups.items() if (s := spread([r.final.of(metric) for r in runs]))}
    if not means:
        return set(), set()
    highest = max(means, key=lambda t: means[t])
    below: dict[str, list[dict[int, float]]] = {}
    for title in means.keys() - {highest}:
        others = {run.seed: run for run in groups[title]}
        gains = [_gains(others[run.seed], run, metric) for run in groups[highest] if run.seed in others]
        below |= {title: known} if (known := [g for g in gains if g]) else {}
    effect = seed_effect(below.values(), same)
    tails = {t: difference(g, same_clients=same, seed_effect=effect).tail for t, g in below.items()}
    return marked(means, tails), not_below(means, tails)


def _gains(base: Result, run: Result, metric: str) -> dict[int, float]:
    before = base.averaged(metric)
    return {c: gain_over(a, before[c]) for c, a in run.averaged(metric).items() if c in before}
