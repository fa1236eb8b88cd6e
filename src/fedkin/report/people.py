"""What a page says of single clients: a row each, accuracy over rounds, labels, whom it learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.evaluate.intervals import half_width
from fedkin.evaluate.rounds import final_by_client
from fedkin.report import relations
from fedkin.report.charts import Spec
from fedkin.report.figures import Figure, _thinned
from fedkin.report.folder import Run

MOST_ROWS = 1000
"""Of more clients a page's table shows the worst and the best so many halves."""
MOST_POINTS = 60_000
"""Accuracies over rounds of all clients of a run in one page, at most."""
PARTNERS = 10


@dataclass(frozen=True)
class People:
    """What a run's lines say of its clients.

    Attributes:
        count: K.
        final: final accuracy by client, a fraction.
        n_test: test samples by client.
        labels: training samples by class, by client; empty in folders of older versions.
        rounds: evaluated rounds ``[T]``; accuracy: float32 ``[K, T]``, NaN where a client was not evaluated.
        took: rounds whose upload was used, by client; refused: rounds in which it was refused.
        clusters: rounds and labels ``[K, T]`` of the lines of clusters.
    """

    count: int
    final: dict[int, float]
    n_test: dict[int, int]
    labels: dict[int, list[int]]
    rounds: list[int]
    accuracy: np.ndarray
    took: Counter[int]
    refused: Counter[int]
    clusters: tuple[list[int], np.ndarray]

    @property
    def last_cluster(self) -> list[int] | None:
        """Each client's last known cluster ``[K]``, -1 unknown; None if the run has no clusters."""
        labels = self.clusters[1]
        return relations.last_known(labels).tolist() if labels.size else None


def people_of(run: Run) -> People:
    """Reads the lines of a run once, into arrays."""
    evaluated = [int(line["round"]) for line in run.rounds if line.get("evaluated", True)]
    n_test: dict[int, int] = {}
    labels: dict[int, list[int]] = {}
    points: dict[int, dict[int, float]] = {}
    for line in run.clients:
        i = int(line["client"])
        n_test[i] = int(line.get("n_test") or 0)
        if "labels" in line:
            labels[i] = [int(n) for n in line["labels"]]
        if line.get("accuracy") is not None:
            points.setdefault(int(line["round"]), {})[i] = float(line["accuracy"])
    rounds = sorted({*evaluated, *points})
    took = Counter(int(i) for line in run.rounds for i in line.get("answered") or ())
    refused = Counter(int(i) for line in run.rounds for i in line.get("refused") or ())
    clusters = relations.cluster_table(run.relations)
    told = run.summary.get("clients")
    count = int(told.get("count") or 0) if isinstance(told, dict) else 0
    count = max([count, len(clusters[1]), *(i + 1 for i in (*n_test, *took, *refused))])
    accuracy = np.full((count, len(rounds)), np.nan, dtype=np.float32)
    for column, r in enumerate(rounds):
        for i, value in points.get(r, {}).items():
            accuracy[i, column] = value
    final = final_by_client(
        {"round": r, "client": i, "accuracy": v} for r in rounds for i, v in points.get(r, {}).items()
    )
    return People(count, final, n_test, labels, rounds, accuracy, took, refused, clusters)


def shown(p: People, gains: Mapping[int, float]) -> list[int]:
    """The clients that have a row: all, or of very many the worst and the best, by gain, else by accuracy."""
    if p.count <= MOST_ROWS:
        return list(range(p.count))
    order = sorted(range(p.count), key=lambda i: (gains.get(i, p.final.get(i, 0.0)), i))
    return sorted([*order[: MOST_ROWS // 2], *order[-(MOST_ROWS // 2) :]])


def table(
    run: Run, p: People, gains: Mapping[str, Mapping[int, float]], rows: relations.Rows | None = None
) -> dict[str, Any]:
    """The columns of the table of clients and what opening one shows, as plain values for the page.

    Accuracies and gains are in per cent and points; ± is half of the interval that the size of the test part leaves.

    Args:
        run: the run.
        p: its clients.
        gains: reference -> gain by client, a fraction.
        rows: whom each learned from, as from `relations.mean_rows`; read from the run if they are not given.
    """
    rows = relations.mean_rows(run.relations) if rows is None else rows
    ids = shown(p, next(iter(gains.values()), {}))
    names, groups, last = run.names, run.groups, p.last_cluster
    columns: dict[str, list[Any]] = {"client": ids}
    if names:
        columns["name"] = [names[i] if i < len(names) else "" for i in ids]
    if groups:
        columns["group"] = [groups[i] if i < len(groups) and groups[i] >= 0 else None for i in ids]
    if last is not None:
        columns["cluster"] = [last[i] if i < len(last) and last[i] >= 0 else None for i in ids]
    if p.labels:
        columns["training samples"] = [sum(p.labels[i]) if i in p.labels else None for i in ids]
    columns["test samples"] = [p.n_test.get(i) for i in ids]
    if p.labels:
        columns["classes"] = [sum(n > 0 for n in p.labels[i]) if i in p.labels else None for i in ids]
    columns["accuracy %"] = [_points(p.final.get(i)) for i in ids]
    columns["± at 95 %"] = [
        _points(half_width(p.final[i], p.n_test[i])) if i in p.final and p.n_test.get(i) else None for i in ids
    ]
    for reference, by in gains.items():
        columns[f"gain over {reference}"] = [_points(by.get(i)) for i in ids]
    columns["rounds taken part"] = [p.took.get(i, 0) for i in ids]
    if p.refused:
        columns["refused"] = [p.refused.get(i, 0) for i in ids]
    kept = _thinned(range(len(p.rounds)), max(2, min(200, MOST_POINTS // max(len(ids), 1))))
    series = [[None if np.isnan(v) else round(float(v) * 1000) for v in p.accuracy[i, kept]] for i in ids]
    return {
        "columns": columns, "of": p.count, "rounds": [p.rounds[t] for t in kept], "allRounds": len(p.rounds),
        "series": series, "labels": [p.labels.get(i) for i in ids] if p.labels else None,
        "partners": _partners(rows, ids),
    }  # fmt: skip


def _partners(rows: relations.Rows, ids: Sequence[int]) -> list[list[list[float]] | None] | None:
    """For each client those it learned from most, with the mean weight: ``[[client, weight], ...]``."""
    if not rows:
        return None
    found: list[list[list[float]] | None] = []
    for i in ids:
        row = sorted(((w, j) for j, w in rows[i].items() if w), reverse=True)[:PARTNERS] if i in rows else None
        found.append(None if row is None else [[j, round(w, 4)] for w, j in row])
    return found


def _points(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def labels_figure(p: People, order: Sequence[int]) -> Figure | None:
    """Training samples by class of every client, in the order of the map; None in folders that do not say them."""
    if not p.labels:
        return None
    side = min(len(order), relations.SIDE)
    width = max(len(row) for row in p.labels.values())
    names = relations._labels(order, side)
    sums = np.zeros((side, width))
    for place, i in enumerate(order):
        row = p.labels.get(i, [])
        sums[place * side // len(order), : len(row)] += row
    values = [{"client": names[i], "class": c, "samples": int(sums[i, c])} for i, c in np.argwhere(sums > 0).tolist()]
    spec: Spec = {
        "width": 460, "height": max(120, min(520, 16 * side)), "data": {"values": values},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "class", "type": "ordinal", "scale": {"domain": list(range(width)), "paddingInner": 0},
                  "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": {"field": "client", "type": "nominal", "title": "client",
                  "scale": {"domain": names, "paddingInner": 0}, "axis": {"labels": side <= 40, "ticks": False}},
            "color": {"field": "samples", "type": "quantitative", "title": "training samples",
                      "scale": {"scheme": "viridis", "type": "sqrt"},
                      "legend": {"orient": "bottom", "gradientLength": 240}},
        },
    }  # fmt: skip
    classes = [sum(n > 0 for n in row) for row in p.labels.values()]
    low, high = min(classes), max(classes)
    share = f"{low}" if low == high else f"{low} to {high}"
    fact = f"A client has samples of {share} of {width} classes"
    return Figure("labels", fact, "Row: a client, in the same order as above; empty is no sample of the class.", spec)
