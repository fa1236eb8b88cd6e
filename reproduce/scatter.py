"""A figure per table: the paper's figures against measured ones."""

from __future__ import annotations

from typing import Any

from fedkin.report.charts import Spec
from fedkin.report.figures import end_labels
from reproduce.figures import Measured, shown
from reproduce.tables import Column, Table

SIDE = 260
"""Width and height of a chart's axes in pixels."""


def scatter(table: Table, lines: Measured, seeds: int) -> Spec | None:
    """Return one chart per column with the diagonal of equality; None without a cell that has both figures."""
    charts = []
    for column in table.columns.values():
        if points := _points(table, column, lines, seeds):
            charts.append(_chart(column.title, points))
    return {"concat": charts, "columns": 2 if len(charts) in (2, 4) else 3} if charts else None


def _points(table: Table, column: Column, lines: Measured, seeds: int) -> list[dict[str, Any]]:
    metric = table.metrics_of(column.key)[0]
    found = []
    for key, numbers in table.numbers.get(metric, {}).items():
        ours = shown(lines.get((key, column.key), {}), metric, seeds, table.decimals).mean
        if column.key in numbers and ours is not None:
            found.append({"row": table.rows[key].title, "paper": numbers[column.key][0], "ours": ours})
    return found


def _chart(title: str, points: list[dict[str, Any]]) -> Spec:
    """Return a chart whose axes have the same scale, with the names of the points in a column at its right."""
    values = [point[name] for point in points for name in ("paper", "ours")]
    pad = max(0.5, 0.08 * (max(values) - min(values)))
    low, high = min(values) - pad, max(values) + pad
    down = sorted(points, key=lambda point: (-point["ours"], -point["paper"]))
    labels = end_labels([point["ours"] for point in down], low, high, SIDE)
    scale = {"domain": [low, high], "nice": False, "zero": False}
    x = {"field": "paper", "type": "quantitative", "scale": scale, "title": "paper"}
    y = {"field": "ours", "type": "quantitative", "scale": scale, "title": "measured"}
    both = {"x": x, "y": y}
    leader = {**both, "x2": {"value": SIDE + 6}, "y2": {"field": "label"}}
    name = {"x": {"value": SIDE + 9}, "y": {**y, "field": "label"}, "text": {"field": "row"}}
    equal = {"values": [{"paper": end, "ours": end} for end in (low, high)]}
    return {
        "title": {"text": title, "fontSize": 12},
        "width": SIDE,
        "height": SIDE,
        "data": {"values": [{**point, "label": label} for point, label in zip(down, labels, strict=True)]},
        "layer": [
            {"data": equal, "mark": {"type": "line", "strokeDash": [4, 3], "color": "#8c8c8c"}, "encoding": both},
            {"mark": {"type": "rule", "color": "#8c8c8c", "strokeWidth": 0.5, "opacity": 0.6}, "encoding": leader},
            {"mark": {"type": "point", "filled": True, "color": "var(--m1)"}, "encoding": both},
            {"mark": {"type": "text", "align": "left", "fontSize": 10}, "encoding": name},
        ],
    }
