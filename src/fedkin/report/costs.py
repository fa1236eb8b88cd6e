"""Figures of what a run is good at and what it costs: kinds of classes, bytes, seconds."""

from __future__ import annotations

from typing import Any

from fedkin.evaluate import spread
from fedkin.report.charts import PALETTE, Spec
from fedkin.report.figures import WIDTH, Figure, Groups, _colour, _hidden, _percent, _thinned, _y, colours
from fedkin.report.folder import Run

KINDS = {"few": "few", "medium": "medium", "many": "many", "unseen": "unseen"}
PARTS = {"exchange_s": "clients and messages", "server_s": "server", "evaluation_s": "evaluation"}


def classes(groups: Groups, reference: str = "Local") -> Figure | None:
    """Accuracy on classes of which a client has few, medium or many training samples; None if no run says it."""
    rows: list[dict[str, Any]] = []
    for title, runs in groups.items():
        for key, name in KINDS.items():
            found = spread([run.final.get(key) for run in runs])
            if found is not None:
                rows.append({"series": title, "kind": name, "value": _percent(found.mean)})
    if not rows:
        return None
    shades = colours(list(groups), reference)
    spec: Spec = {
        "width": WIDTH, "height": 260, "data": {"values": rows},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "kind", "type": "nominal", "sort": list(KINDS), "title": "the client's training samples of "
                  "the class", "axis": {"labelAngle": 0}},
            "xOffset": {"field": "series", "sort": list(groups)},
            "y": {**_y("test accuracy (%)"), "scale": {"domain": [0, 100]}},
            "color": _colour(list(groups), shades),
        },
    }  # fmt: skip
    few = {row["series"]: row["value"] for row in rows if row["kind"] == "few"}
    best = max(few, key=lambda t: few[t]) if few else None
    fact = "Accuracy by how many samples of a class a client has"
    if best is not None:
        fact = f"{best}: {few[best]:.1f} % on classes of which a client has few samples"
        fact += ", the highest" if len(few) > 1 else ""
    caption = "Few is 1 to 29 training samples of the class at that client, many more than 80, unseen none."
    return Figure("classes", fact, caption, spec)


def over_bytes(groups: Groups, reference: str = "Local") -> Figure | None:
    """Accuracy against megabytes sent so far, of each method's first seed; None if nothing was counted."""
    rows: list[dict[str, Any]] = []
    for title, runs in groups.items():
        spent, points = 0, []
        for line in runs[0].rounds:
            spent += int(line.get("bytes_up") or 0) + int(line.get("bytes_down") or 0)
            if line.get("evaluated", True) and line.get("accuracy") is not None:
                points.append({"series": title, "mb": round(spent / 1e6, 3), "value": _percent(line["accuracy"]),
                               "round": line["round"]})  # fmt: skip
        rows += _thinned(points, 100)
    if not any(row["mb"] > 0 for row in rows):
        return None
    shades = colours(list(groups), reference)
    params, keep = _hidden()
    spec: Spec = {
        "width": WIDTH, "height": 260, "params": params, "data": {"values": rows}, "transform": keep,
        "mark": {"type": "line", "tooltip": True, "point": len(rows) < 3},
        "encoding": {
            "x": {"field": "mb", "type": "quantitative", "title": "megabytes sent up and down so far"},
            "y": _y("test accuracy, mean over clients (%)"), "color": _colour(list(groups), shades),
        },
    }  # fmt: skip
    total = {t: runs[0].bytes or 0 for t, runs in groups.items()}
    most = max(total, key=lambda t: total[t])
    fact = f"{most} sends {'the most: ' if len(total) > 1 else ''}{total[most] / 1e6:,.0f} MB"
    caption = "What a byte buys: the higher a line lies on the left, the sooner its accuracy is there."
    return Figure("bytes", fact, caption, spec, shades if len(groups) > 1 else None)


def seconds(groups: Groups) -> Figure | None:
    """Seconds of each method by part, the mean over its seeds; None if no run folder has a timing."""
    found = {title: [taken for run in runs if (taken := spent(run))] for title, runs in groups.items()}
    rows: list[dict[str, Any]] = [
        {"series": title, "part": name, "seconds": round(sum(run[key] for run in runs) / len(runs), 3)}
            for title, runs in found.items() if runs for key, name in PARTS.items()]  # fmt: skip
    if not rows:
        return None
    spec: Spec = {
        "width": WIDTH, "height": {"step": 26}, "data": {"values": rows}, "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "y": {"field": "series", "type": "nominal", "sort": list(groups), "title": None},
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds on the machine that ran it"},
            "color": {"field": "part", "type": "nominal", "title": None,
                      "scale": {"domain": list(PARTS.values()), "range": list(PALETTE[:3])}},
        },
    }  # fmt: skip
    total = {t: sum(row["seconds"] for row in rows if row["series"] == t) for t in groups}
    slowest = max(total, key=lambda t: total[t])
    fact = f"{slowest} takes {'the longest: ' if len(total) > 1 else ''}{total[slowest]:,.1f} s"
    caption = "Wall-clock time of all rounds; it belongs to the machine, unlike all other figures of this page."
    return Figure("time", fact, caption, spec)


def spent(run: Run) -> dict[str, float]:
    """Seconds of all rounds by part; empty if the run has no timing."""
    lines = list(run.timing)
    return {key: sum(float(line.get(key) or 0) for line in lines) for key in PARTS} if lines else {}
