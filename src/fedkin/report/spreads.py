"""Figures of the distribution of accuracy over clients: all of them in order, and the gain of each."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.evaluate import Against, Conclusion, harmed_text
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
    y_axis,
    y_methods,
)
from fedkin.report.headline import headline
from fedkin.report.references import FULL, LOCAL

ABOVE, BELOW, EQUAL = PALETTE[0], PALETTE[1], REFERENCE
MOST_DOTS = 4000
"""With more dots than this in one figure, dots of similar value become one whose size is their number."""


def gains(
    comparisons: Mapping[str, Sequence[Against]],
    findings: Mapping[str, Conclusion] | None = None,
    reference: str = "Local",
    shades: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
) -> Figure:
    """Return one row per method, one dot per client (and seed) at its gain over the reference; rows by their mean gain,
    which a tick marks.

    Args:
        comparisons: method -> one comparison per seed.
        findings: method -> joint conclusion, for the fact.
        reference: title of the reference.
        shades: the methods' colours; with them the page's reader can hide methods.
        names: names of the clients, by number, for tooltips.
    """
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
        dots += [{"series": title, "gain": percent(g), "kind": _kind(g, t),
                  "client": names[c] if c < len(names) else str(c), "clients": 1,
                  "y": round(float(y), 2)} for (c, g, t), y in zip(found, jitter, strict=True)]  # fmt: skip
    means = [{"series": t, "gain": percent(statistics.fmean(a.mean for a in rows[t])), "y": 0.0} for t in order]
    many = any(dot["clients"] > 1 for dot in dots)
    what = "The size of a dot is the number of clients" if many else "Each dot is a client"
    what += " in one seed" if any(len(seeds) > 1 for seeds in rows.values()) else ""
    caption = f"{what}; left of zero its accuracy was higher with {reference}, chance included. The tick is the mean."
    spec = _gains_spec(dots, means, order, reference, many)
    series = None if shades is None else {t: shades[t] for t in order}
    return Figure("gains", _harm_fact(rows, findings or {}, reference), caption, spec, series)


def _gains_spec(
    dots: list[dict[str, Any]], means: list[dict[str, Any]], order: Sequence[str], reference: str, many: bool
) -> Spec:
    x = {**x_axis("gain", f"gain over {reference} per client (points)"), "scale": {"padding": 12}}
    offset = {"field": "y", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}}
    kinds = {"domain": ["above", "below", "equal"], "range": [ABOVE, BELOW, EQUAL]}
    size: Spec = {"field": "clients", "type": "quantitative", "legend": None, "scale": {"range": [24, 400]}}
    tips = [("series", "method"), ("clients", "clients") if many else ("client", "client"), ("gain", "gain, points")]
    tooltip = [{"field": field, "title": title} for field, title in tips]
    params, keep = hidden()
    return {
        "width": WIDTH, "height": {"step": 44}, "params": params, "data": {"values": dots}, "transform": keep,
        "encoding": {"y": y_methods(order)},
        "layer": [
            {"mark": {"type": "rule", "color": REFERENCE}, "encoding": {"x": {"datum": 0}, "y": None}},
            {"mark": {"type": "circle", "opacity": 0.65, **({} if many else {"size": 36})},
             "encoding": {"x": x, "yOffset": offset, "tooltip": tooltip,
                          "color": {"field": "kind", "type": "nominal", "scale": kinds, "title": None,
                                    "legend": {"orient": "top"}},
                          **({"size": size} if many else {})}},
            {"data": {"values": means}, "transform": keep,
             "mark": {"type": "point", "shape": "stroke", "angle": 90, "size": 700, "strokeWidth": 2.5,
                      "color": REFERENCE},
             "encoding": {"x": x, "yOffset": offset, "tooltip": [{"field": "gain", "title": "mean gain, points"}]}},
        ],
    }  # fmt: skip


def _kind(gain: float, tolerance: float) -> str:
    return "above" if gain > tolerance else "below" if gain < -tolerance else "equal"


def _harm_fact(rows: Mapping[str, Sequence[Against]], findings: Mapping[str, Conclusion], reference: str) -> str:
    """Return the range for harmed clients of the method with the lowest upper end, if known; else the highest gain."""
    if not rows:
        return f"No method was compared with {reference}"
    methods = [t for t in rows if t not in (LOCAL, FULL)] or list(
        rows
    )  # training alone harms few clients by construction
    upper = {t: h.high / h.of for t in methods if t in findings and (h := findings[t].harmed) is not None}
    if upper:
        least = min(upper, key=lambda title: upper[title])
        found = findings[least]
        level = 0.0 if found.harmed is None else found.harmed.level
        rank = ", the lowest upper end of all methods" if len(upper) > 1 else ""
        return f"{least}: {harmed_text(found)} compared with {reference} ({100 * level:g} %){rank}"
    means = {title: statistics.fmean(a.mean for a in rows[title]) for title in methods}
    most = max(means, key=lambda title: means[title])
    rank = ", the most of all methods" if len(means) > 1 else ""
    return f"{most}: {100 * means[most]:+.1f} points over {reference} on average{rank}"


def distribution(groups: Groups, reference: str = "Local") -> Figure:
    """Return every method's final accuracies by client in order: the whole distribution, not only its mean."""
    rows = []
    for title, runs in groups.items():
        found = sorted(a for run in runs for a in run.by_client.values())
        ranks = thinned(range(len(found)))
        rows += [{"series": title, "share": percent((i + 0.5) / len(found)), "value": percent(found[i])}
                 for i in ranks]  # fmt: skip
    shades = colours(list(groups), reference)
    params, keep = hidden()
    spec: Spec = {
        "width": WIDTH, "height": 280, "params": params, "data": {"values": rows}, "transform": keep,
        "mark": {"type": "line", "point": {"size": 22} if len(rows) < 600 else False, "tooltip": True},
        "encoding": {
            "x": {**x_axis("share", "clients, worst first (%)", grid=False), "scale": {"domain": [0, 100]}},
            "y": y_axis("final test accuracy of the client (%)"), "color": coloured(shades),
            "strokeDash": dashed(list(groups), reference),
        },
    }  # fmt: skip
    low = {t: min((a for run in runs for a in run.by_client.values()), default=None) for t, runs in groups.items()}
    known = {t: v for t, v in low.items() if v is not None}
    best = max(known, key=lambda t: known[t]) if known else None
    fact = "No client was tested" if best is None else f"With {best} the worst client has {100 * known[best]:.1f} %"
    fact += ", the most of all methods" if len(known) > 1 else ""
    caption = f"Clients in order of their accuracy ({headline(groups).rounds})"
    caption += ", those of all seeds together" if any(len(runs) > 1 for runs in groups.values()) else ""
    caption += ". A line that lies higher on the left serves its worst clients better."
    return Figure("distribution", fact, caption, spec, shades if len(groups) > 1 else None)
