"""Accuracy over rounds of several methods, and the traffic until each is above training alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.evaluate import Choice, gain_over, spread
from fedkin.record.figures import evaluated
from fedkin.record.result import Result
from fedkin.report.charts import Spec, chart
from fedkin.report.figures import (
    NARROW,
    Figure,
    Groups,
    axis_ends,
    channels,
    end_labels,
    others,
    percent,
    prominent,
    thinned,
    tip_title,
)
from fedkin.report.headline import headline
from fedkin.report.references import ALONE
from fedkin.report.wording import cut, fitted, listed, short_mb

HEIGHT = 316
"""Height of the curves in pixels: the writer spreads their labels for it."""
LABELS = 180
"""Width of the labels at the ends of curves, in pixels."""
_ROOM = 8.6
"""Width of a name at the end of a curve, next to its figure, as a multiple of the font's size; bold names are wider."""
_FIGURE = f"{NARROW} ? '' : datum.text"
_BAR, _MANY_BARS = 52, 38  # height of a row of the traffic, and of more than six
_MEASURES = {"Mean": "accuracy", "Worst tenth": "worst_decile"}


def over_rounds(groups: Groups, first: Choice | None = None) -> list[Figure]:
    """Return accuracy by round of every method, a figure for each measure: the mean over clients and the worst tenth;
    balanced accuracy before them, where it is the headline.

    With several seeds the picked method has a band of ± one standard deviation over seeds.

    Args:
        groups: title -> its runs, as from `fedkin.record.result.by_title`.
        first: the headline metric; None: accuracy.
    """
    fair = first is None or first.fair
    measures = _MEASURES if fair else {"Balanced": "balanced", **_MEASURES}
    made: list[Figure] = []
    for said, key in measures.items():
        rows = [row for title, runs in groups.items() for row in _line(title, runs, key)]
        if rows or not made:
            made.append(_figure(groups, rows, said, key, len(made)))
    return made


def _figure(groups: Groups, rows: list[dict[str, Any]], said: str, key: str, number: int) -> Figure:
    shown = prominent(groups)
    finals = {t: s.mean for t in shown if (s := spread([r.final.of(key) for r in groups[t]])) is not None}
    low, high = axis_ends([100 * v for v in finals.values()], [row["value"] for row in rows if row["series"] in shown])
    ends = _labels(groups, {t: 100 * v for t, v in finals.items()}, low, high)
    start = f"The axis starts at {low}%. " if low else ""
    seeds = max(len(runs) for runs in groups.values())
    what = {"Mean": "mean over clients", "Worst tenth": "the worst tenth of the clients"}.get(
        said, "balanced accuracy, mean over clients"
    )
    caption = f"{start}Accuracy: {what}. Figures at the right: {_over(groups)}, as in the table."
    caption += " Dashed: training alone." if any(runs[0].role == "alone" for runs in groups.values()) else ""
    uneven = any(len({run.total for run in runs}) > 1 for runs in groups.values())
    caption += " A line ends with the first of its seeds to end early." if uneven else ""
    caption += " The band is ± one standard deviation over seeds, for the method picked." if seeds > 1 else ""
    caption += others(groups)
    spec = _spec(groups, rows, ends, (low, high), seeds > 1)
    name = "accuracy-over-rounds" if number == 0 else f"accuracy-over-rounds-{'-'.join(said.lower().split())}"
    return Figure(name, f"{said}: {course(groups, key)}", caption, spec)


def _over(groups: Groups) -> str:
    rounds = headline(groups).rounds
    return f"mean over {rounds}" if rounds.startswith("rounds") else rounds


def _line(title: str, runs: Sequence[Result], key: str) -> list[dict[str, Any]]:
    """Return mean and standard deviation over the seeds that were evaluated in a round, in per cent, by round."""
    values, rows = _by_round(runs, key), []
    for r in thinned(sorted(values)):
        found = spread(values[r])
        if found is not None:
            row = {"round": r, "series": title, "value": percent(found.mean)}
            if found.std is not None:
                row |= {"low": percent(found.mean - found.std), "high": percent(found.mean + found.std)}
            rows.append(row)
    return rows


def _by_round(runs: Sequence[Result], key: str) -> dict[int, list[float | None]]:
    """Return the figures of all seeds by evaluated round, up to the round in which the first of them ends."""
    values: dict[int, list[float | None]] = {}
    end = min((run.total for run in runs), default=0)  # a mean over all seeds
    for run in runs:
        for round, figures in evaluated(run.rounds[:end]):
            values.setdefault(round, []).append(figures.of(key))
    return values


def _labels(groups: Groups, finals: Mapping[str, float], low: int, high: int) -> list[dict[str, Any]]:
    """Return the labels at the right, from the top, at least a line apart."""
    order = sorted(finals, key=lambda t: -finals[t])
    at = end_labels([finals[t] for t in order], low, high, HEIGHT)
    return [{"series": t, "name": "Alone" if groups[t][0].role == "alone" else fitted(t, _ROOM),
             "text": f"{finals[t]:.1f}", "value": round(max(finals[t], low), 2), "label": label}
            for t, label in zip(order, at, strict=True)]  # fmt: skip


def _spec(
    groups: Groups, rows: list[dict[str, Any]], ends: list[dict[str, Any]], domain: tuple[int, int], bands: bool
) -> Spec:
    shown, titles = prominent(groups), list(groups)
    tips, by_round = _reading(rows, titles) if len(titles) <= 12 else ([], [])
    return chart("over-rounds", rows=rows, ends=ends, domain=list(domain), bands=bands, tips=tips, by_round=by_round,
                 alone=len({r["round"] for r in rows}) == 1, method=shown[0], shown=shown,
                 **channels(groups, titles))  # fmt: skip


def _reading(rows: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> tuple[list[Spec], list[dict[str, Any]]]:
    """Return the tooltip at the nearest round, with the figures of all methods, and its data."""
    by_round: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {"round": row["round"]})[f"s{titles.index(row['series'])}"] = row["value"]
    last = max(by_round.values(), key=lambda row: row["round"], default={})
    order = sorted(range(len(titles)), key=lambda n: -last.get(f"s{n}", -1.0))
    each = ({"field": f"s{n}", "title": tip_title(titles[n]), "type": "quantitative"} for n in order)
    return [{"field": "round"}, *each], list(by_round.values())


def course(groups: Groups, key: str = "accuracy") -> str:
    """Return a sentence: from which round on the methods hardly rise in the mean over seeds, and which still do."""
    rising, level = [], []
    for title, runs in groups.items():
        means = {r: spread(values) for r, values in sorted(_by_round(runs, key).items())}
        known = [(r, found.mean) for r, found in means.items() if found is not None and math.isfinite(found.mean)]
        fifth = len(known) // 5
        if fifth < 2:
            continue
        last = sum(v for _, v in known[-fifth:]) / fifth
        before = sum(v for _, v in known[-2 * fifth : -fifth]) / fifth
        if last - before > 0.01:
            rising.append(title)
        else:
            level.append(next(r for r, v in known if v >= last - 0.02))
    if not rising and not level:
        return "Accuracy over rounds"
    names = listed(rising) if len(rising) <= 3 else f"{', '.join(rising[:3])} and {len(rising) - 3} more"
    verb = "is" if len(rising) == 1 else "are"
    if not level:
        return "All methods are still rising" if len(groups) > 1 else f"{names} is still rising"
    by = sorted(level)[len(level) * 3 // 4 if len(level) > 1 else 0]
    if len(rising) >= len(level):
        rest = "the other levels" if len(level) == 1 else "the others level"
        return f"{names} {verb} still rising; {rest} off by round {by}"
    if rising:
        return f"Most methods level off by round {by}; {names} {verb} still rising"
    return f"{'The methods level' if len(groups) > 1 else 'It levels'} off by round {by}"


def traffic(groups: Groups, reference: str) -> Figure | None:
    """Return megabytes of each method until its mean accuracy is first above the reference's final accuracy, and in all
    rounds; of several seeds the first. None if nothing was counted.

    A method that ends no higher than the reference is never above it: a rising curve of the same accuracies would be.

    Args:
        groups: title -> its runs, as from `fedkin.record.result.by_title`.
        reference: the method whose final accuracy is the target; without it only totals are drawn.
    """
    base = groups.get(reference)
    target = None if base is None else base[0].final.accuracy
    rows = []
    for title in (t for t in prominent(groups) if t != reference and groups[t][0].role not in ALONE):
        run = groups[title][0]
        if run.bytes:
            until, at = _until(run, target)
            text = f"{short_mb(run.bytes / 1e6)} MB" if target is None else "not above"
            text = text if until is None else f"{short_mb(until)} MB, round {at}"
            rows.append({"method": title, "name": cut(title, 20), "total": round(run.bytes / 1e6, 3),
                         "until": None if until is None else round(until, 3), "text": text})  # fmt: skip
    if not rows:
        return None
    rows.sort(key=lambda row: (row["until"] is None, row["until"] or row["total"]))
    alone = base is not None and base[0].role == "alone"
    fact = "Traffic until it beats training alone" if alone else f"Traffic until it is above {reference}"
    fact = fact if target is not None else "Traffic"
    caption = "" if target is None else (
        f"Strong bar: megabytes sent, both directions, until mean accuracy was first above {100 * target:.1f}%, of "
        "methods that end above it. "
    )  # fmt: skip
    caption += "Faint bar: sent in all rounds." + _evaluation(groups)
    caption += " Of several seeds, the first." if max(len(runs) for runs in groups.values()) > 1 else ""
    return Figure("traffic", fact, caption, _traffic_spec(rows, groups))


def _evaluation(groups: Groups) -> str:
    """Return a sentence on the bytes of evaluations, which are not part of the traffic; "" if there were none."""
    sent = {t: sum(line.bytes_evaluation for line in runs[0].rounds) for t, runs in groups.items()}
    most = max(sent, key=lambda t: sent[t])
    mb = short_mb(sent[most] / 1e6)
    return f" Evaluations, not part of it, sent up to {mb} MB more ({most})." if sent[most] else ""


def _until(run: Result, target: float | None) -> tuple[float | None, int]:
    """Return megabytes and round when mean accuracy is first above a target, of a run that ends above it."""
    sent, end = 0, run.final.accuracy
    if target is None or end is None or gain_over(end, target) <= 0:
        return None, 0
    for line in run.rounds:
        sent += line.bytes
        if line.figures is not None and gain_over(line.accuracy or 0.0, target) > 0:
            return sent / 1e6, line.round
    return None, 0


def _traffic_spec(rows: list[dict[str, Any]], groups: Groups) -> Spec:
    titles, step = [row["method"] for row in rows], _BAR if len(rows) <= 6 else _MANY_BARS
    return chart("traffic", rows=rows, titles=titles, method=titles[0], step=step,
                 **channels(groups, titles, "method"))  # fmt: skip


def rounds_text(groups: Groups) -> str:
    """Return the number of rounds of a page, where all runs have the same: "100 rounds"; else ""."""
    counts = {len(run.rounds) for runs in groups.values() for run in runs}
    return f"{(n := counts.pop())} round{'' if n == 1 else 's'}" if len(counts) == 1 else ""
