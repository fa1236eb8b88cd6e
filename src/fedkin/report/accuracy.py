"""Figures of accuracy: over rounds, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.evaluate import Choice, spread
from fedkin.evaluate.rounds import evaluated, over
from fedkin.report.charts import PALETTE, Spec
from fedkin.report.figures import (
    REFERENCE,
    WIDTH,
    Figure,
    Groups,
    coloured,
    colours,
    dashed,
    hidden,
    percent,
    thinned,
    x_axis,
    x_rounds,
    y_axis,
    y_methods,
)
from fedkin.report.first import NAMED
from fedkin.report.folder import Run
from fedkin.report.headline import headline, rounds_of

CONSTANT = "always its most frequent class"
"""Name of the series of a constant answer."""
_MEASURES = {"mean over clients": "accuracy", "worst 10 % of clients": "worst_decile"}
_BALANCED = {"balanced accuracy, mean over clients": "balanced"}
MOST_BANDS = 8
"""With more methods than this in one figure the bands would hide the lines, so they are omitted."""


def over_rounds(
    groups: Groups, reference: str = "Local", local: float | None = None, first: Choice | None = None
) -> Figure:
    """Return accuracy by round: several methods with a band of ± one standard deviation over seeds, or one run with its
    worst tenth and a band of ± one standard deviation over clients.

    Args:
        groups: title -> its runs, as from :func:`fedkin.report.folder.by_title`.
        reference: method drawn in grey.
        local: of one run: final accuracy of the reference, a fraction, drawn as a dashed line.
        first: the headline metric; None: accuracy.
    """
    fair, metric = first is None or first.fair, "accuracy" if first is None else first.metric
    if len(groups) == 1 and len(next(iter(groups.values()))) == 1:
        return _one_over_rounds(next(iter(groups.values()))[0], reference, local, fair)
    seeds = max(len(runs) for runs in groups.values())
    bands = seeds > 1 and len(groups) <= MOST_BANDS
    measures = _MEASURES if fair else _BALANCED | _MEASURES
    rows = [row for title, runs in groups.items() for row in _over_seeds(title, runs, measures)]
    finals = {t: spread([r.final.get(metric) for r in runs]) for t, runs in groups.items()}
    titles = sorted(groups, key=lambda t: -(finals[t].mean if finals[t] else -1.0))  # type: ignore[union-attr]
    of_all = colours(list(groups), reference)
    shades = {t: of_all[t] for t in titles}
    over = f" (mean{' ± std' if bands else ''} over {seeds} seeds)" if seeds > 1 else ""
    by = "" if fair else f" by {NAMED[metric]}"
    fact = f"{titles[0]} ends highest{by}{over}" if finals[titles[0]] else "No round was evaluated"
    params, keep = hidden()
    spec: Spec = {
        "width": WIDTH, "height": 300, "params": [*params, {"name": "measure", "value": next(iter(measures))}],
        "data": {"values": rows}, "transform": [*keep, {"filter": "datum.measure === measure"}],
        "encoding": {"x": x_rounds(), "color": coloured(shades)},
        "layer": [
            *([_band(coloured(shades, legend=False))] if bands else []),
            {"mark": {"type": "line", "point": len({r["round"] for r in rows}) == 1, "tooltip": True},
             "encoding": {"y": y_axis("test accuracy (%)"), "strokeDash": dashed(list(groups), reference)}},
        ],
    }  # fmt: skip
    caption = f"How fast each method gets there, in order of the final {NAMED[metric]} ({headline(groups).rounds})."
    caption += " The band is ± one standard deviation over seeds." if bands else ""
    return Figure("accuracy-over-rounds", fact, caption, spec, shades)


def _band(colour: Spec) -> Spec:
    return {
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"y": y_axis("test accuracy (%)", "low"), "y2": {"field": "high"}, "color": colour},
    }


def _one_over_rounds(run: Run, reference: str, local: float | None, fair: bool) -> Figure:
    lines = thinned(evaluated(run.rounds))
    rows = []
    for line in lines:
        mean, std = line.get("accuracy"), line.get("std") or 0.0
        if mean is not None:
            rows.append({"round": line["round"], "series": "mean over clients", "value": percent(mean),
                         "low": percent(max(mean - std, 0.0)), "high": percent(min(mean + std, 1.0))})  # fmt: skip
        if line.get("worst_decile") is not None:
            rows.append({"round": line["round"], "series": "worst 10 %", "value": percent(line["worst_decile"])})
        if not fair and line.get("balanced") is not None:
            rows.append({"round": line["round"], "series": "balanced", "value": percent(line["balanced"])})
    shades = {"mean over clients": PALETTE[0], "worst 10 %": PALETTE[1]}
    shades = shades if fair else {"balanced": PALETTE[2], **shades}
    levels = {f"{reference}, final": local, CONSTANT: None if fair else run.final.get("majority")}
    for series, level in levels.items():
        if level is not None and lines:
            shades[series] = REFERENCE
            rows += [{"round": lines[i]["round"], "series": series, "value": percent(level)}
                     for i in sorted({0, len(lines) - 1})]  # fmt: skip
    accuracy, worst = run.final.get("accuracy"), run.final.get("worst_decile")
    fact = "no round was evaluated" if accuracy is None else f"{100 * accuracy:.1f} % on average ({rounds_of([run])})"
    if not fair:
        fact = f"{100 * (run.final.get('balanced') or 0.0):.1f} % balanced accuracy; accuracy {fact}"
    elif accuracy is not None and worst is not None:
        fact += f", {100 * worst:.1f} % for the worst tenth of clients"
    params, keep = hidden()
    colour = coloured(shades)
    dash = {t: [2, 2] if t == CONSTANT else [4, 2] if t in levels else [1, 0] for t in shades}
    dash_channel = {"field": "series", "type": "nominal", "legend": {"title": None},
                    "scale": {"domain": list(dash), "range": list(dash.values())}}  # fmt: skip
    spec: Spec = {
        "width": WIDTH, "height": 300, "params": params, "data": {"values": rows}, "transform": keep,
        "encoding": {"x": x_rounds(), "color": colour},
        "layer": [
            {**_band({**colour, "legend": None}), "transform": [{"filter": "isValid(datum.low)"}]},
            {"mark": {"type": "line", "point": len(lines) == 1, "tooltip": True},
             "encoding": {"y": y_axis("test accuracy (%)"), "strokeDash": dash_channel}},
        ],
    }  # fmt: skip
    caption = "The band is ± one standard deviation over clients."
    caption += "" if fair else f" {CONSTANT.capitalize()}: what predicting a client's most frequent class gets."
    return Figure("accuracy-over-rounds", f"{run.title}: {fact}", caption, spec, shades)


def _over_seeds(title: str, runs: Sequence[Run], measures: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over the seeds that were evaluated in a round, in per cent, by round."""
    rows = []
    for measure, key in measures.items():
        values: dict[int, list[float | None]] = {}
        for run in runs:
            for line in evaluated(run.rounds):
                values.setdefault(int(line["round"]), []).append(line.get(key))
        for r in thinned(sorted(values)):
            found = spread(values[r])
            if found is not None:
                row = {"round": r, "series": title, "measure": measure, "value": percent(found.mean)}
                std = found.std or 0.0
                rows.append({**row, "low": percent(found.mean - std), "high": percent(found.mean + std)})
    return rows


def final_accuracies(groups: Groups, reference: str = "Local", first: Choice | None = None) -> Figure:
    """Return one row per method in order of its final accuracy, or of the headline metric ``first``: a dot per seed,
    the mean with ± one standard deviation, and the reference's mean as a dashed line."""
    metric = "accuracy" if first is None else first.metric
    found = {title: spread([run.final.get(metric) for run in runs]) for title, runs in groups.items()}
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
    of_all = colours(list(groups), reference)
    shades = {t: of_all[t] for t in order}
    x = {
        **x_axis("value", f"final {NAMED[metric].replace('acc', 'test acc')}, mean over clients (%)"),
        "scale": {"zero": False, "padding": 16},
    }
    colour = coloured(shades, legend=False)
    params, keep = hidden()
    layer: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour}},
        {"mark": {"type": "circle", "size": 110, "opacity": 1, "tooltip": True}, "encoding": {"x": x, "color": colour}},
        # the figures have a separate column, where neither dots nor the dashed line cross them
        {"mark": {"type": "text", "align": "left", "dx": 12},
         "encoding": {"x": {"value": "width"}, "text": {"field": "text"}}},
    ]  # fmt: skip
    if seeds:
        layer.append({"data": {"values": seeds}, "transform": keep,
                      "mark": {"type": "circle", "size": 18, "opacity": 0.6, "yOffset": 8, "tooltip": True},
                      "encoding": {"x": x, "color": colour}})  # fmt: skip
    if reference in known:
        line = {"mark": {"type": "rule", "strokeDash": [4, 2], "color": REFERENCE},
                "encoding": {"x": {"datum": percent(known[reference].mean)}, "y": None}}  # fmt: skip
        layer.insert(0, line)
    spec = {
        "width": WIDTH, "height": {"step": 30}, "params": params, "data": {"values": means}, "transform": keep,
        "encoding": {"y": y_methods(order)}, "layer": layer,
    }  # fmt: skip
    caption = f"{NAMED[metric].capitalize()}: mean over clients {over(lead.rounds)}"
    caption += ", ± one standard deviation over seeds; small dots are seeds" if seeds else ""
    caption += f"; the dashed line is {reference}" if reference in known else ""
    caption = "; ".join([caption, *lead.notes]) + "."
    kind = "" if metric == "accuracy" else f" {NAMED[metric]}"
    fact = _ranking(order, {t: known[t].mean for t in order}, reference, kind)
    return Figure("final-accuracies", fact, caption, spec, shades)


def _ranking(order: Sequence[str], means: Mapping[str, float], reference: str, kind: str = "") -> str:
    if not order:
        return "No method has a final accuracy"
    fact = f"{order[0]} is highest with {100 * means[order[0]]:.1f} %{kind}"
    others = [title for title in order if title != reference]
    if reference in means and others:
        above = sum(means[title] > means[reference] for title in others)
        fact += f"; {above} of {len(others)} {'is' if above == 1 else 'are'} above {reference}"
    return fact
