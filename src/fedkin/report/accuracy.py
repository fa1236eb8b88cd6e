"""Figures of accuracy: of one run over rounds, and of several methods at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.evaluate import Choice, spread
from fedkin.record.figures import evaluated, over
from fedkin.record.result import Result
from fedkin.report import figures
from fedkin.report.charts import Spec, chart
from fedkin.report.figures import (
    Figure,
    Groups,
    coloured,
    leader,
    percent,
    scale,
    thinned,
    y_methods,
)
from fedkin.report.first import NAMED
from fedkin.report.headline import headline, rounds_of
from fedkin.report.wording import tight

CONSTANT = "always its most frequent class"
"""Name of the series of a constant answer."""
HEIGHT = 300
"""Height of the lines of one run in pixels."""
LABELS = 204
"""Width of the names and values at their ends, in pixels."""


def one_over_rounds(run: Result, reference: str, local: float | None, fair: bool) -> Figure:
    """Return the accuracy of one run by round, its worst tenth, and a band of ± one standard deviation over clients.

    Args:
        run: the run.
        reference: title of the reference.
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
    last = {row["series"]: row["value"] for row in rows}
    spec = _one_spec(rows, shades, dash, last | {t: v for t, v in _finals(run).items() if t in last}, len(lines) == 1)
    rounds = rounds_of([run])
    caption = "The band is ± one standard deviation over clients."
    caption += f" Figures at the right: mean over {rounds}." if rounds.startswith("rounds") else ""
    caption += "" if fair else f" {CONSTANT.capitalize()}: what predicting a client's most frequent class gets."
    return Figure("accuracy-over-rounds", f"{run.title}: {fact}", caption, spec)


def _finals(run: Result) -> dict[str, float]:
    """Return the final figures of the series, in per cent, as everywhere on the page."""
    fields = {"mean over clients": "accuracy", "worst 10 %": "worst_decile", "balanced": "balanced"}
    return {s: percent(value) for s, field in fields.items() if (value := run.final.of(field)) is not None}


def _one_spec(
    rows: list[dict[str, Any]],
    shades: Mapping[str, str],
    dash: Mapping[str, Sequence[int]],
    last: Mapping[str, float],
    alone: bool,
) -> Spec:
    """Return lines with their names and final values at the right, and a band; ``alone``: one round was evaluated."""
    drawn = [row[key] for row in rows for key in ("value", "low", "high") if key in row]
    low, high = (5 * math.floor(min(drawn) / 5), 5 * math.ceil(max(drawn) / 5)) if drawn else (0, 100)
    high = max(high, low + 5)
    order = sorted(last, key=lambda t: -last[t])
    at = figures.end_labels([last[t] for t in order], low, high, HEIGHT)
    names = {**{t: tight(t) for t in order}, CONSTANT: "most frequent class"}
    ends = [{"series": t, "name": names[t], "short": names[t].removesuffix(" over clients").removesuffix(" class"),
             "text": f"{last[t]:.1f}", "value": last[t], "label": label}
            for t, label in zip(order, at, strict=True)]  # fmt: skip
    return chart(
        "one-run", rows=rows, ends=ends, domain=[low, high], alone=alone, colours=scale(shades), dashes=scale(dash)
    )


def final_accuracies(groups: Groups, reference: str, first: Choice | None = None) -> Figure:
    """Return one row per method in order of its final accuracy, or of the headline metric ``first``: a dot per seed,
    the mean with ± one standard deviation, and the reference's mean as a dashed line."""
    metric = "accuracy" if first is None else first.metric
    found = {title: spread([run.final.of(metric) for run in runs]) for title, runs in groups.items()}
    known = {title: value for title, value in found.items() if value is not None}
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
    spec = chart("final-accuracies", means=means, seeds=seeds, level=level, methods=y_methods(order),
                 colour=coloured({t: groups[t] for t in order}, legend=False),
                 title=f"final {NAMED[metric].replace('acc', 'test acc')}, mean over clients (%)")  # fmt: skip
    caption = f"{NAMED[metric].capitalize()}: mean over clients {over(lead.rounds)}"
    caption += ", ± one standard deviation over seeds; small dots are seeds" if seeds else ""
    caption += f"; the dashed line is {reference}" if reference in known else ""
    caption = "; ".join([caption, *lead.notes]) + "."
    kind = "" if metric == "accuracy" else f" {NAMED[metric]}"
    fact = _ranking(order, {t: known[t].mean for t in order}, reference, kind)
    return Figure("final-accuracies", fact, caption, spec)


def _ranking(order: Sequence[str], means: Mapping[str, float], reference: str, kind: str = "") -> str:
    if not order:
        return "No method has a final accuracy"
    top = f"{100 * means[order[0]]:.1f} %{kind}"
    best = leader({title: 100 * mean for title, mean in means.items()}, apart=1.0)
    fact = f"{best} is highest with {top}" if best else f"Final accuracy: up to {top}"
    others = [title for title in order if title != reference]
    if reference in means and others:
        above = sum(means[title] > means[reference] for title in others)
        fact += f"; {above} of {len(others)} {'is' if above == 1 else 'are'} above {reference}"
    return fact
