"""Results of single clients on a page, run by run, and their packing for its script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from fedkin.record.result import Result
from fedkin.report import charts, client_table, clusters, figures, weights
from fedkin.report.client_table import ClientTable
from fedkin.report.figures import Figure
from fedkin.report.relations import Relations, relations_of
from fedkin.report.standings import ClientGain, Standing

CELLS = 1_500_000
"""Maximum bytes of the weights over rounds of all runs of a page, before they are encoded."""
POINTS = 300_000
"""Maximum number of accuracies over rounds of all clients of all runs of a page."""
ROWS = 20_000
"""Maximum number of rows in all tables of clients of a page; with more, only the first seeds are included."""

Gains = Mapping[str, Mapping[int, ClientGain]]
"""Reference -> gain by client."""


@dataclass(frozen=True)
class Part:
    """The part of one run on a page: its clients and their relations; or the mean over a method's seeds.

    Attributes:
        run: the run; of the mean the first.
        joint: it is the mean over all seeds.
        relations: who learned from whom.
        labels: the map of training samples by class; None where they are not known.
        table: columns of the table of clients, and the details of each.
        people: its clients.
        counts: training samples by row of the map and class ``[S, C]``.
        note: remark where not everything is shown.
    """

    run: Result
    joint: bool
    relations: Relations
    labels: Figure | None
    table: dict[str, Any]
    people: ClientTable
    counts: np.ndarray | None = None
    note: str = ""

    @property
    def figures(self) -> list[Figure]:
        """All charts of the part."""
        return [*self.relations.figures, *([] if self.labels is None else [self.labels])]


def parts_of(
    groups: Mapping[str, Sequence[Result]], standings: Mapping[str, Mapping[str, Standing]], same: bool
) -> list[Part]:
    """Return a part for every run that the page has room for, and one for the mean over each method's seeds.

    Args:
        groups: title -> its runs, as from `fedkin.record.result.by_title`.
        standings: reference -> method -> the gain of every client.
        same: whether a client number means the same client in all seeds, so that there are means over seeds.
    """
    read = {title: [client_table.client_table_of(run) for run in runs] for title, runs in groups.items()}
    most = max(p.count for seeds in read.values() for p in seeds)
    seeds = max(1, ROWS // max(1, min(most, client_table.MOST_ROWS) * len(groups)))
    shown = {title: list(runs[:seeds]) for title, runs in groups.items()}
    joint = {title for title, runs in shown.items() if same and len(runs) > 1}
    weighted = sum((len(runs) + (title in joint)) * _has_weights(runs[0]) for title, runs in shown.items())
    cells = CELLS // max(1, weighted)
    points = min(client_table.MOST_POINTS, POINTS // (sum(map(len, shown.values())) + len(joint)))
    found = []
    for title, runs in shown.items():
        note = _left_out(len(groups[title]), len(runs))
        each = [{name: {one.client: one for one in seed} for name, methods in standings.items() if title in methods
                 for seed in methods[title].seeds if seed[0].seed == run.seed} for run in runs]  # fmt: skip
        found += [_part(run, p, g, cells, points, note) for run, p, g in zip(runs, read[title], each, strict=False)]
        if title in joint:
            found.append(_mean(runs, read[title][: len(runs)], each, cells, points, note))
    return found


def _left_out(seeds: int, shown: int) -> str:
    if shown == seeds:
        return ""
    few = "only the first is" if shown == 1 else f"only the first {shown} are"
    return f"Of {seeds} seeds {few} shown here, so that the page stays small."


def _has_weights(run: Result) -> bool:
    return any(line.weights for line in run.relations)


def _part(run: Result, p: ClientTable, gains: Gains, cells: int, points: int, note: str) -> Part:
    first = {i: one.gain for i, one in next(iter(gains.values()), {}).items()}
    relations, rows = relations_of(run, p, first, cells, run.relations)
    labelled = client_table.labels_figure(p, relations.order, _rows_of(relations, p), run.classes)
    counts = None if labelled is None else client_table.histogram(p, relations.order, len(_rows_of(relations, p)))
    table = client_table.table(run, p, gains, rows, points)
    return Part(run, False, relations, labelled, table, p, counts, note)


def _rows_of(relations: Relations, p: ClientTable) -> list[str]:
    """Return labels of the rows of a map, of which there are at most `figures.SIDE`."""
    return relations.names if len(relations.names) <= figures.SIDE else figures.along(relations.order, relations.names)


def _mean(
    runs: Sequence[Result],
    seeds: Sequence[ClientTable],
    each: Sequence[Gains],
    cells: int,
    points: int,
    note: str,
) -> Part:
    """Return the mean over seeds. Clusters have none: their numbers differ in meaning between seeds."""
    run = runs[0]
    together = replace(max(seeds, key=lambda p: p.count), labels=client_table.mean_labels(seeds))
    references = dict.fromkeys(name for g in each for name in g)
    by_reference = {name: [g[name] for g in each if name in g] for name in references}
    first = next(iter(by_reference.values()), [])
    mean = client_table.mean_by_client([{i: one.gain for i, one in seed.items()} for seed in first])
    lines = list(chain.from_iterable(one.relations for one in runs))
    relations, rows = relations_of(run, together, mean, cells, lines, len(runs))
    labelled = client_table.labels_figure(together, relations.order, _rows_of(relations, together), run.classes)
    count = len(_rows_of(relations, together))
    counts = None if labelled is None else client_table.histogram(together, relations.order, count)
    table = client_table.over_seeds(run, seeds, by_reference, rows, points)
    return Part(run, True, relations, labelled, table, together, counts, note)


class Shared:
    """Values that several parts have in common, stored in the page once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[str, int] = {}

    def put(self, value: Any) -> int | None:
        """Return the position of a value in `values`; None for None."""
        if value is None:
            return None
        key = repr(value)
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
        return self._known[key]


_FILLED = {"weights": "cells", "clusters": "cells", "labels": "cells", "matrix": "cells", "circle": "links"}
"""The data set of a chart that the page's script fills in."""


def packed(part: Part, shared: Shared) -> dict[str, Any]:
    """Return a part for the page's script, which fills in the data of maps."""
    table = {**part.table, **{key: shared.put(part.table[key]) for key in ("labels", "names")}}
    found = part.relations
    return {
        "title": part.run.title, "seed": None if part.joint else part.run.seed, "note": part.note,
        "figures": {one.name: {**entry(one), "spec": shared.put(_emptied(one))} for one in part.figures},
        "relations": {"kind": found.kind, "fact": found.fact, "says": found.says, "letters": found.letters,
                      "order": shared.put(found.order), "names": shared.put(found.names)},
        "frames": _packed_frames(found.frames), "clusters": _packed_clusters(part),
        "counts": shared.put(None if part.counts is None else part.counts.tolist()), **table,
    }  # fmt: skip


def _emptied(figure: Figure) -> charts.Spec:
    """Return a chart without the data that the page's script fills in, so that runs can share it."""
    name = _FILLED.get(figure.name)
    if name is None:
        return figure.spec
    if "data" in figure.spec:
        return {**figure.spec, "data": {"name": name, "values": []}}
    layers = [{**one, "data": {"name": name, "values": []}} if one.get("data", {}).get("name") == name
              and "values" in one["data"] else one for one in figure.spec["layer"]]  # fmt: skip
    return {**figure.spec, "layer": layers}


def _packed_frames(f: weights.Frames | None) -> dict[str, Any] | None:
    if f is None:
        return None
    return {
        "rounds": f.rounds, "low": f.low, "high": f.high, "side": len(f.labels),
        "cells": _encoded(f.cells), "mean": _encoded(f.mean),
    }  # fmt: skip


def _packed_clusters(part: Part) -> dict[str, Any] | None:
    """Return the cluster of every client in the drawn rounds, as positions in the list; 65535 is unknown."""
    found = part.people.clusters
    if part.joint or part.relations.kind != "clusters" or part.people.count > clusters.MOST_MEMBERS:
        return None
    names, columns = found.names, found.columns
    cells = np.searchsorted(names, found.labels[:, columns]).astype("<u2")
    cells[found.labels[:, columns] < 0] = 65535
    return {"rounds": [found.rounds[c] for c in columns], "clusters": names, "cells": _encoded(cells)}


def _encoded(cells: np.ndarray) -> str:
    return base64.b64encode(cells.tobytes()).decode("ascii")


def entry(figure: Figure) -> dict[str, Any]:
    """Return a figure for the page's script."""
    return {
        "id": figure.name,
        "fact": figure.fact,
        "caption": figure.caption,
        "spec": figure.spec,
    }
