"""The figures of a report as Vega-Lite specifications: accuracy, gains, kinds of classes, bytes and time.

Accuracies come as fractions and are drawn in per cent. Who learned from whom is in ``relations``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.evaluate import Against, spread
from fedkin.evaluate.rounds import evaluated
from fedkin.report.charts import PALETTE, Spec
from fedkin.report.folder import Run

Groups = Mapping[str, Sequence[Run]]
REFERENCE = "#8c8c8c"
HELPED, HARMED, UNCHANGED = PALETTE[0], PALETTE[1], REFERENCE
WIDTH = 640
MOST_BANDS = 8
"""With more methods than this in one figure the bands would hide the lines, so there are none."""
MOST_DOTS = 4000
"""With more dots than this in one figure, dots of about equal value become one whose size is their number."""
MOST_POINTS = 200
"""Of a line more points than this are not drawn."""


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: of its file, and its id in the page.
        fact: what it shows, in a sentence: its title.
        caption: how it is read.
        spec: the chart, its data inside, without a title.
        series: names that the page lets its reader show and hide, with their colours; none: there is nothing to hide.
    """

    name: str
    fact: str
    caption: str
    spec: Spec
    series: Mapping[str, str] | None = None

    @property
    def titled(self) -> Spec:
        """The chart with the fact as its title, to stand alone."""
        return {**self.spec, "title": {"text": self.fact, "limit": WIDTH}}


def colours(titles: Sequence[str], reference: str = "Local") -> dict[str, str]:
    """A colour for each method, in the order given; the reference is grey. After six they come again, other dashes."""
    others = [t for t in titles if t != reference]
    return {t: REFERENCE if t == reference else PALETTE[others.index(t) % len(PALETTE)] for t in titles}


def dashes(titles: Sequence[str], reference: str = "Local") -> list[list[int]]:
    """A dash for each method, so that no two look the same; the reference's is its own."""
    kinds = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]
    others = [t for t in titles if t != reference]
    return [[4, 2] if t == reference else kinds[others.index(t) // len(PALETTE) % 4] for t in titles]


def _colour(titles: Sequence[str], shades: Mapping[str, str], *, legend: bool = True) -> Spec:
    scale = {"domain": list(titles), "range": [shades[t] for t in titles]}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": {"title": None} if legend else None}


def _x_rounds() -> Spec:
    return {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1, "grid": False}}


def _y(title: str, field: str = "value") -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}}


def _hidden() -> tuple[list[Spec], list[Spec]]:
    """A parameter with the names that are not shown, and the filter that leaves them out."""
    return [{"name": "hidden", "value": []}], [{"filter": "indexof(hidden, datum.series) < 0"}]


def over_rounds(groups: Groups, reference: str = "Local", local: float | None = None) -> Figure:
    """Accuracy by round: several methods with a band of ± one standard deviation over seeds, or one run with its worst
    tenth and a band of ± one standard deviation over clients.

    Args:
        groups: title -> its runs, as from :func:`fedkin.report.folder.by_title`.
        reference: the method drawn in grey.
        local: of one run: final accuracy of the reference, a fraction, drawn as a dashed line.
    """
    if len(groups) == 1 and len(next(iter(groups.values()))) == 1:
        return _one_over_rounds(next(iter(groups.values()))[0], reference, local)
    seeds = max(len(runs) for runs in groups.values())
    bands = seeds > 1 and len(groups) <= MOST_BANDS
    rows = [row for title, runs in groups.items() for row in _over_seeds(title, runs)]
    finals = {t: spread([r.final.get("accuracy") for r in runs]) for t, runs in groups.items()}
    titles = sorted(groups, key=lambda t: -(finals[t].mean if finals[t] else -1.0))  # type: ignore[union-attr]
    shades = colours(list(groups), reference)
    over = f" (mean{' ± std' if bands else ''} over {seeds} seeds)" if seeds > 1 else ""
    fact = f"{titles[0]} ends highest{over}" if finals[titles[0]] else "No round was evaluated"
    params, keep = _hidden()
    stroke = {**_colour(titles, shades), "legend": None}
    dash = {"domain": titles, "range": [dashes(list(groups), reference)[list(groups).index(t)] for t in titles]}
    spec: Spec = {
        "width": WIDTH, "height": 300, "params": [*params, {"name": "measure", "value": "mean over clients"}],
        "data": {"values": rows}, "transform": [*keep, {"filter": "datum.measure === measure"}],
        "encoding": {"x": _x_rounds(), "color": _colour(titles, shades)},
        "layer": [
            *([_band(stroke)] if bands else []),
            {"mark": {"type": "line", "point": len({r["round"] for r in rows}) == 1, "tooltip": True},
             "encoding": {"y": _y("test accuracy (%)"),
                          "strokeDash": {"field": "series", "type": "nominal", "scale": dash,
                                         "legend": {"title": None}}}},
        ],
    }  # fmt: skip
    caption = "How fast each method gets there, in order of the final accuracy."
    caption += " The band is ± one standard deviation over seeds." if bands else ""
    return Figure("accuracy-over-rounds", fact, caption, spec, {t: shades[t] for t in titles})


def _band(colour: Spec) -> Spec:
    return {
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"y": _y("test accuracy (%)", "low"), "y2": {"field": "high"}, "color": colour},
    }


def _one_over_rounds(run: Run, reference: str, local: float | None) -> Figure:
    lines = _thinned(evaluated(run.rounds))
    rows = []
    for line in lines:
        mean, std = line.get("accuracy"), line.get("std") or 0.0
        if mean is not None:
            rows.append({"round": line["round"], "series": "mean over clients", "value": _percent(mean),
                         "low": _percent(max(mean - std, 0.0)), "high": _percent(min(mean + std, 1.0))})  # fmt: skip
        if line.get("worst_decile") is not None:
            rows.append({"round": line["round"], "series": "worst 10 %", "value": _percent(line["worst_decile"])})
    shades = {"mean over clients": PALETTE[0], "worst 10 %": PALETTE[1]}
    if local is not None and lines:
        shades[f"{reference}, final"] = REFERENCE
        rows += [{"round": lines[i]["round"], "series": f"{reference}, final", "value": _percent(local)}
                 for i in sorted({0, len(lines) - 1})]  # fmt: skip
    accuracy, worst = run.final.get("accuracy"), run.final.get("worst_decile")
    fact = "no round was evaluated" if accuracy is None else f"{100 * accuracy:.1f} % on average"
    if accuracy is not None and worst is not None:
        fact += f", {100 * worst:.1f} % for the worst tenth of clients"
    params, keep = _hidden()
    colour = _colour(list(shades), shades)
    spec: Spec = {
        "width": WIDTH, "height": 300, "params": params, "data": {"values": rows}, "transform": keep,
        "encoding": {"x": _x_rounds(), "color": colour},
        "layer": [
            {**_band({**colour, "legend": None}), "transform": [{"filter": "isValid(datum.low)"}]},
            {"mark": {"type": "line", "point": len(lines) == 1, "tooltip": True},
             "encoding": {"y": _y("test accuracy (%)")}},
        ],
    }  # fmt: skip
    caption = "The band is ± one standard deviation over clients."
    return Figure("accuracy-over-rounds", f"{run.title}: {fact}", caption, spec, shades)


def _over_seeds(title: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """By round, mean and standard deviation over the seeds that were evaluated there, in per cent."""
    rows = []
    for measure, key in (("mean over clients", "accuracy"), ("worst 10 % of clients", "worst_decile")):
        values: dict[int, list[float | None]] = {}
        for run in runs:
            for line in evaluated(run.rounds):
                values.setdefault(int(line["round"]), []).append(line.get(key))
        for r in _thinned(sorted(values)):
            found = spread(values[r])
            if found is not None:
                row = {"round": r, "series": title, "measure": measure, "value": _percent(found.mean)}
                std = found.std or 0.0
                rows.append({**row, "low": _percent(found.mean - std), "high": _percent(found.mean + std)})
    return rows


def _thinned(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _percent(value: float) -> float:
    return round(100 * value, 2)


def final_accuracies(groups: Groups, reference: str = "Local") -> Figure:
    """One row per method in order of its final accuracy: a dot per seed, the mean with ± one standard deviation, and
    the reference's mean as a dashed line."""
    found = {title: spread([run.final.get("accuracy") for run in runs]) for title, runs in groups.items()}
    known = {title: value for title, value in found.items() if value is not None}
    order = sorted(known, key=lambda title: -known[title].mean)
    means, seeds = [], []
    for title in order:
        value, std = known[title], known[title].std
        text = f"{100 * value.mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
        means.append({"series": title, "value": _percent(value.mean), "text": text,
                      "low": _percent(value.mean - (std or 0)), "high": _percent(value.mean + (std or 0))})  # fmt: skip
        seeds += [{"series": title, "value": _percent(v)} for v in value.values if std is not None]
    shades = colours(list(groups), reference)
    y = {"field": "series", "type": "nominal", "sort": order, "title": None}
    x = {**_y("final test accuracy, mean over clients (%)"), "scale": {"zero": False, "padding": 16}}
    colour = _colour(list(groups), shades, legend=False)
    layer: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour}},
        {"mark": {"type": "circle", "size": 110, "opacity": 1, "tooltip": True}, "encoding": {"x": x, "color": colour}},
        {"mark": {"type": "text", "align": "left", "dx": 10, "dy": -8},
         "encoding": {"x": x, "text": {"field": "text"}}},
    ]  # fmt: skip
    if seeds:
        layer.append({"data": {"values": seeds}, "mark": {"type": "circle", "size": 18, "opacity": 0.6, "yOffset": 8},
                      "encoding": {"x": x, "color": colour}})  # fmt: skip
    if reference in known:
        line = {"mark": {"type": "rule", "strokeDash": [4, 2], "color": REFERENCE},
                "encoding": {"x": {"datum": _percent(known[reference].mean)}, "y": None}}  # fmt: skip
        layer.insert(0, line)
    spec = {
        "width": WIDTH, "height": {"step": 30}, "data": {"values": means}, "encoding": {"y": y}, "layer": layer,
    }  # fmt: skip
    caption = "Mean accuracy over clients at the end" + ("; small dots are seeds" if seeds else "")
    caption += f"; the dashed line is {reference}." if reference in known else "."
    return Figure("final-accuracies", _ranking(order, {t: known[t].mean for t in order}, reference), caption, spec)


def _ranking(order: Sequence[str], means: Mapping[str, float], reference: str) -> str:
    if not order:
        return "No method has a final accuracy"
    fact = f"{order[0]} is highest with {100 * means[order[0]]:.1f} %"
    others = [title for title in order if title != reference]
    if reference in means and others:
        above = sum(means[title] > means[reference] for title in others)
        fact += f"; {above} of {len(others)} {'is' if above == 1 else 'are'} above {reference}"
    return fact


def gains(comparisons: Mapping[str, Sequence[Against]], reference: str = "Local") -> Figure:
    """One row per method, one dot per client (and seed) at its gain over the reference; rows by their mean gain, which
    a tick marks."""
    rows = {title: list(seeds) for title, seeds in comparisons.items() if seeds}
    order = sorted(rows, key=lambda title: -statistics.fmean(a.mean for a in rows[title]))
    scatter = np.random.default_rng(0)  # vertical jitter only, so that equal gains stay visible
    dots: list[dict[str, Any]] = []
    for title in order:
        found = [(c, g, a.tolerance) for a in rows[title] for c, g in a.gains.items()]
        if len(found) * len(order) > MOST_DOTS:
            merged = Counter((round(200 * g) / 2, _kind(g, tolerance)) for _, g, tolerance in found)
            dots += [{"series": title, "gain": g, "kind": k, "clients": n, "y": 0.0} for (g, k), n in merged.items()]
            continue
        jitter = scatter.uniform(-1, 1, len(found))
        dots += [{"series": title, "gain": _percent(g), "kind": _kind(g, t), "client": c, "clients": 1,
                  "y": round(float(y), 2)} for (c, g, t), y in zip(found, jitter, strict=True)]  # fmt: skip
    means = [{"series": t, "gain": _percent(statistics.fmean(a.mean for a in rows[t]))} for t in order]
    y = {"field": "series", "type": "nominal", "sort": order, "title": None}
    x = {"field": "gain", "type": "quantitative", "title": f"gain over {reference} per client (points)"}
    kinds = {"domain": ["helped", "harmed", "unchanged"], "range": [HELPED, HARMED, UNCHANGED]}
    size: Spec = {"field": "clients", "type": "quantitative", "legend": None, "scale": {"range": [24, 400]}}
    many = any(dot["clients"] > 1 for dot in dots)
    spec: Spec = {
        "width": WIDTH, "height": {"step": 44}, "data": {"values": dots}, "encoding": {"y": y},
        "layer": [
            {"mark": {"type": "rule", "color": REFERENCE}, "encoding": {"x": {"datum": 0}, "y": None}},
            {"mark": {"type": "circle", "opacity": 0.65, "tooltip": True, **({} if many else {"size": 36})},
             "encoding": {"x": x, "yOffset": {"field": "y", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}},
                          "color": {"field": "kind", "type": "nominal", "scale": kinds, "title": None},
                          **({"size": size} if many else {})}},
            {"data": {"values": means}, "mark": {"type": "tick", "thickness": 2, "bandSize": 34, "color": REFERENCE},
             "encoding": {"x": x}},
        ],
    }  # fmt: skip
    what = "The size of a dot is the number of clients" if many else "Each dot is a client"
    caption = f"{what}; left of zero it would have been better off with {reference}. The tick is the mean."
    return Figure("gains", _harm_fact(rows, reference), caption, spec)


def _kind(gain: float, tolerance: float) -> str:
    return "helped" if gain > tolerance else "harmed" if gain < -tolerance else "unchanged"


def _harm_fact(rows: Mapping[str, Sequence[Against]], reference: str) -> str:
    if not rows:
        return f"No method was compared with {reference}"
    if len(rows) == 1:
        ((title, seeds),) = rows.items()
        total = sum(len(a.gains) for a in seeds)
        helped, harmed = sum(a.helped for a in seeds), sum(a.harmed for a in seeds)
        return f"{title}: {helped} of {total} clients gain over {reference}, {harmed} lose"
    shares = {t: sum(a.harmed for a in seeds) / sum(len(a.gains) for a in seeds) for t, seeds in rows.items()}
    least = min(shares, key=lambda title: shares[title])
    if shares[least] > 0:
        return f"{least} harms the fewest clients: {100 * shares[least]:.0f} % lose to {reference}"
    clean = [title for title in rows if shares[title] == 0]
    return f"{clean[0] if len(clean) == 1 else f'{len(clean)} of {len(rows)} methods'}: no client loses to {reference}"


def distribution(groups: Groups, reference: str = "Local") -> Figure:
    """Every method's final accuracies by client in order: the whole distribution, not only its mean."""
    rows = []
    for title, runs in groups.items():
        found = sorted(a for run in runs for a in run.by_client.values())
        ranks = _thinned(range(len(found)))
        rows += [{"series": title, "share": _percent((i + 0.5) / len(found)), "value": _percent(found[i])}
                 for i in ranks]  # fmt: skip
    shades = colours(list(groups), reference)
    params, keep = _hidden()
    dash = {"domain": list(groups), "range": dashes(list(groups), reference)}
    spec: Spec = {
        "width": WIDTH, "height": 280, "params": params, "data": {"values": rows}, "transform": keep,
        "mark": {"type": "line", "point": {"size": 22} if len(rows) < 600 else False, "tooltip": True},
        "encoding": {
            "x": {"field": "share", "type": "quantitative", "title": "clients, worst first (%)",
                  "scale": {"domain": [0, 100]}, "axis": {"grid": False}},
            "y": _y("final test accuracy of the client (%)"), "color": _colour(list(groups), shades),
            "strokeDash": {"field": "series", "type": "nominal", "scale": dash, "legend": {"title": None}},
        },
    }  # fmt: skip
    low = {t: min((a for run in runs for a in run.by_client.values()), default=None) for t, runs in groups.items()}
    known = {t: v for t, v in low.items() if v is not None}
    best = max(known, key=lambda t: known[t]) if known else None
    fact = "No client was tested" if best is None else f"The worst client has {100 * known[best]:.1f} % with {best}"
    caption = "Clients in order of their accuracy. A line that lies higher on the left serves its worst clients better."
    return Figure("distribution", fact, caption, spec, shades if len(groups) > 1 else None)
