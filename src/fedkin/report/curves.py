"""Accuracy over rounds and at the end, and the traffic until each method is above training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedkin.evaluate import Choice, gain_over, spread
from fedkin.record.figures import evaluated, over
from fedkin.record.result import Result
from fedkin.report import figures
from fedkin.report.charts import Datum, Spec, chart
from fedkin.report.figures import Figure, Groups, channels, end_labels, percent, prominent, thinned
from fedkin.report.headline import ALONE, NAMED, headline, rounds_of
from fedkin.report.wording import cut, fitted, say, short_mb

HEIGHT = 316
"""Height of the curves in pixels: the writer spreads their labels for it."""
_ROOM = 8.6
"""Width of a name at the end of a curve, next to its figure, as a multiple of the font's size; bold names are wider."""
_BAR, _MANY_BARS = 52, 38  # height of a row of the traffic, and of more than six
_MEASURES = {
    "balanced": ("Balanced", "balanced accuracy, mean over clients"),
    "accuracy": ("Mean", "mean over clients"),
    "worst_decile": ("Worst tenth", "the worst tenth of the clients"),
}


def over_rounds(groups: Groups, first: Choice | None = None) -> list[Figure]:
    """Return accuracy by round of every method, a figure for each measure: the mean over clients and the worst tenth;
    balanced accuracy before them, where it is the headline.

    With several seeds the picked method has a band of ± one standard deviation over seeds.

    Args:
        first: the headline metric; None: accuracy.
    """
    drawn: list[Figure] = []
    for key in _MEASURES:
        rows = [row for title, runs in groups.items() for row in _line(title, runs, key)]
        if key == "balanced" and (first is None or first.fair):
            continue
        if rows or not drawn:
            drawn.append(_figure(groups, rows, key, not drawn))
    return drawn


def _figure(groups: Groups, rows: list[Datum], key: str, first: bool) -> Figure:
    shown, titles, (measure, what) = prominent(groups), list(groups), _MEASURES[key]
    finals = {t: 100 * mean for t, mean in figures.final_means({t: groups[t] for t in shown}, key).items()}
    low, high = figures.axis_ends(list(finals.values()), [row["value"] for row in rows if row["series"] in shown])
    ends = [{"series": t, "name": "Alone" if groups[t][0].role == "alone" else fitted(t, _ROOM),
             "text": f"{finals[t]:.1f}", "value": round(max(finals[t], low), 2), "label": label}
            for t, label in end_labels(finals, low, high, HEIGHT)]  # fmt: skip
    start = f"The axis starts at {low}%. " if low else ""
    seeds, rounds = max(len(runs) for runs in groups.values()), headline(groups).rounds
    over = f"mean over {rounds}" if rounds.startswith("rounds") else rounds
    caption = f"{start}Accuracy: {what}. Figures at the right: {over}, as in the table."
    caption += " Dashed: training alone." if any(runs[0].role == "alone" for runs in groups.values()) else ""
    uneven = any(len({run.total for run in runs}) > 1 for runs in groups.values())
    caption += " A line ends with the first of its seeds to end early." if uneven else ""
    caption += " The band is ± one standard deviation over seeds, for the method picked." if seeds > 1 else ""
    caption += figures.others(groups)
    tips, by_round = _reading(rows, titles) if len(titles) <= 12 else ([], [])
    spec = chart("over-rounds", rows=rows, ends=ends, domain=[low, high], bands=seeds > 1, tips=tips,
                 by_round=by_round, alone=len({r["round"] for r in rows}) == 1, method=shown[0], shown=shown,
                 **channels(groups, titles))  # fmt: skip
    name = "accuracy-over-rounds" + ("" if first else f"-{'-'.join(measure.lower().split())}")
    return Figure(name, f"{measure}: {course(groups, key)}", caption, spec)


def _line(title: str, runs: Sequence[Result], key: str) -> list[Datum]:
    """Return mean and standard deviation over the seeds that were evaluated in a round, in per cent, by round."""
    values, rows = _by_round(runs, key), []
    for r in thinned(sorted(values)):
        if (over := spread(values[r])) is not None:
            rows.append({"round": r, "series": title, "value": percent(over.mean)})
            if over.std is not None:
                rows[-1] |= {"low": percent(over.mean - over.std), "high": percent(over.mean + over.std)}
    return rows


def _by_round(runs: Sequence[Result], key: str) -> dict[int, list[float | None]]:
    """Return the figures of all seeds by evaluated round, up to the round in which the first of them ends."""
    values: dict[int, list[float | None]] = {}
    end = min((run.total for run in runs), default=0)  # a mean over all seeds
    for run in runs:
        for round, figures_of_round in evaluated(run.rounds[:end]):
            values.setdefault(round, []).append(figures_of_round.of(key))
    return values


def _reading(rows: Sequence[Datum], titles: Sequence[str]) -> tuple[list[Spec], list[Datum]]:
    """Return the tooltip at the nearest round, with the figures of all methods, and its data."""
    by_round: dict[int, Datum] = {}
    for row in rows:
        by_round.setdefault(row["round"], {"round": row["round"]})[f"s{titles.index(row['series'])}"] = row["value"]
    last = max(by_round.values(), key=lambda row: row["round"], default={})
    order = sorted(range(len(titles)), key=lambda n: -last.get(f"s{n}", -1.0))
    each = ({"field": f"s{n}", "title": figures.tip_title(titles[n]), "type": "quantitative"} for n in order)
    return [{"field": "round"}, *each], list(by_round.values())


def course(groups: Groups, key: str = "accuracy") -> str:
    """Return a sentence: from which round on the methods hardly rise in the mean over seeds, and which still do."""
    rising, level = [], []
    for title, runs in groups.items():
        means = {r: spread(values) for r, values in sorted(_by_round(runs, key).items())}
        known = [(r, over.mean) for r, over in means.items() if over is not None and math.isfinite(over.mean)]
        fifth = len(known) // 5
        if fifth < 2:
            continue
        last = sum(v for _, v in known[-fifth:]) / fifth
        before = sum(v for _, v in known[-2 * fifth : -fifth]) / fifth
        if last - before > 0.01:
            rising.append(title)
        else:
            level.append(next(r for r, v in known if v >= last - 0.02))
    by = sorted(level)[len(level) * 3 // 4 if len(level) > 1 else 0] if level else None
    return say("course", len(groups), rising, len(level), by)


def traffic(groups: Groups, reference: str) -> Figure | None:
    """Return megabytes of each method until its mean accuracy is first above the reference's final accuracy, and in all
    rounds; of several seeds the first. None if nothing was counted.

    A method that ends no higher than the reference is never above it: a rising curve of the same accuracies would be.

    Args:
        reference: the method whose final accuracy is the target; without it only totals are drawn.
    """
    base = groups.get(reference)
    target = None if base is None else base[0].final.accuracy
    rows: list[Datum] = []
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
    titles = [row["method"] for row in rows]
    spec = chart("traffic", rows=rows, titles=titles, method=titles[0], step=_BAR if len(rows) <= 6 else _MANY_BARS,
                 **channels(groups, titles, "method"))  # fmt: skip
    return Figure("traffic", fact, caption, spec)


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


CONSTANT = "always its most frequent class"
"""Name of the series of a constant answer."""
ONE_HEIGHT = 300
"""Height of the lines of one run in pixels."""


def one_over_rounds(run: Result, reference: str, local: float | None, fair: bool) -> Figure:
    """Return the accuracy of one run by round, its worst tenth, and a band of ± one standard deviation over clients.

    Args:
        local: final accuracy of the reference, a fraction, drawn as a dashed line.
        fair: whether accuracy is the headline metric; else balanced accuracy comes first.
    """
    rows, lines = [], thinned(evaluated(run.rounds))
    for round, f in lines:
        if f.accuracy is not None:
            mean, std = f.accuracy, f.std or 0.0
            rows.append({"round": round, "series": "mean over clients", "value": percent(mean),
                         "low": percent(max(mean - std, 0.0)), "high": percent(min(mean + std, 1.0))})  # fmt: skip
        if f.worst_decile is not None:
            rows.append({"round": round, "series": "worst 10 %", "value": percent(f.worst_decile)})
        if not fair and f.balanced is not None:
            rows.append({"round": round, "series": "balanced", "value": percent(f.balanced)})
    shades = {"mean over clients": "var(--m1)", "worst 10 %": "var(--m2)"}
    shades = shades if fair else {"balanced": "var(--m4)", **shades}
    levels = {f"{reference}, final": local, CONSTANT: None if fair else run.final.majority}
    for series, level in levels.items():
        if level is not None and lines:
            shades[series] = "var(--same)"
            rows += [{"round": lines[i][0], "series": series, "value": percent(level)}
                     for i in sorted({0, len(lines) - 1})]  # fmt: skip
    accuracy, worst = run.final.accuracy, run.final.worst_decile
    fact = "no round was evaluated" if accuracy is None else f"{100 * accuracy:.1f} % on average ({rounds_of([run])})"
    if not fair:
        fact = f"{100 * (run.final.balanced or 0.0):.1f} % balanced accuracy; accuracy {fact}"
    elif accuracy is not None and worst is not None:
        fact += f", {100 * worst:.1f} % for the worst tenth of clients"
    dash = {t: [2, 2] if t == CONSTANT else [4, 2] if t in levels else [1, 0] for t in shades}
    finals = {"mean over clients": accuracy, "worst 10 %": worst, "balanced": run.final.balanced}
    last = {row["series"]: row["value"] for row in rows}
    last |= {series: percent(value) for series, value in finals.items() if series in last and value is not None}
    drawn = [row[key] for row in rows for key in ("value", "low", "high") if key in row]
    low, high = (5 * math.floor(min(drawn) / 5), 5 * math.ceil(max(drawn) / 5)) if drawn else (0, 100)
    high = max(high, low + 5)
    names = {**{series: series for series in last}, "worst 10 %": "worst 10%", CONSTANT: "most frequent class"}
    ends = [{"series": t, "name": names[t], "short": names[t].removesuffix(" over clients").removesuffix(" class"),
             "text": f"{last[t]:.1f}", "value": last[t], "label": label}
            for t, label in end_labels(last, low, high, ONE_HEIGHT)]  # fmt: skip
    spec = chart("one-run", rows=rows, ends=ends, domain=[low, high], alone=len(lines) == 1,
                 colours=figures.scale(shades), dashes=figures.scale(dash))  # fmt: skip
    rounds = rounds_of([run])
    caption = "The band is ± one standard deviation over clients."
    caption += f" Figures at the right: mean over {rounds}." if rounds.startswith("rounds") else ""
    caption += "" if fair else f" {CONSTANT.capitalize()}: what predicting a client's most frequent class gets."
    return Figure("accuracy-over-rounds", f"{run.title}: {fact}", caption, spec)


def final_accuracies(groups: Groups, reference: str, first: Choice | None = None) -> Figure:
    """Return one row per method in order of its final accuracy, or of the headline metric ``first``: a dot per seed,
    the mean with ± one standard deviation, and the reference's mean as a dashed line."""
    metric = "accuracy" if first is None else first.metric
    known = figures.final_spreads(groups, metric)
    order = sorted(known, key=lambda title: -known[title].mean)
    means, seeds, lead = [], [], headline(groups)
    for title in order:
        value, std = known[title], known[title].std
        text = f"{100 * value.mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}") + lead.mark(title)
        last = lead.last.get(title)
        means.append({"series": title, "value": percent(value.mean), "text": text,
                      "last round": None if last is None else percent(last.mean),
                      "low": percent(value.mean - (std or 0)), "high": percent(value.mean + (std or 0))})  # fmt: skip
        seeds += [{"series": title, "value": percent(v)} for v in value.values if std is not None]
    level = percent(known[reference].mean) if reference in known else None
    spec = chart("final-accuracies", means=means, seeds=seeds, level=level, methods=figures.y_methods(order),
                 colour=figures.coloured({t: groups[t] for t in order}, legend=False),
                 title=f"final {NAMED[metric].replace('acc', 'test acc')}, mean over clients (%)")  # fmt: skip
    caption = f"{NAMED[metric].capitalize()}: mean over clients {over(lead.rounds)}"
    caption += ", ± one standard deviation over seeds; small dots are seeds" if seeds else ""
    caption += f"; the dashed line is {reference}" if reference in known else ""
    caption = "; ".join([caption, *lead.notes]) + "."
    kind = "" if metric == "accuracy" else f" {NAMED[metric]}"
    top = f"{100 * known[order[0]].mean:.1f} %{kind}" if order else ""
    best = figures.leader({title: 100 * known[title].mean for title in order}, apart=1.0)
    compared = reference in known and len(known) > 1
    above = sum(one.mean > known[reference].mean for one in known.values()) if compared else None
    return Figure("final-accuracies", say("ranking", order, top, best, above, reference), caption, spec)
