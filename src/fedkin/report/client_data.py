"""Results of single clients on a page, run by run, and their packing for its script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from fedkin.record.result import Result
from fedkin.report import client_table, clusters, figures
from fedkin.report.charts import Datum, Spec
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
    table: Datum
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
    parts = []
    for title, runs in shown.items():
        note = _left_out(len(groups[title]), len(runs))
        each = [{name: {one.client: one for one in seed} for name, methods in standings.items() if title in methods
                 for seed in methods[title].seeds if seed[0].seed == run.seed} for run in runs]  # fmt: skip
        seen = list(zip(runs, read[title], each, strict=False))
        parts += [_part([run], [p], [gains], cells, points, note) for run, p, gains in seen]
        if title in joint:
            parts.append(_part(runs, read[title][: len(runs)], each, cells, points, note))
    return parts


def _left_out(seeds: int, shown: int) -> str:
    if shown == seeds:
        return ""
    few = "only the first is" if shown == 1 else f"only the first {shown} are"
    return f"Of {seeds} seeds {few} shown here, so that the page stays small."


def _has_weights(run: Result) -> bool:
    return any(line.weights for line in run.relations)


def _part(
    runs: Sequence[Result],
    seeds: Sequence[ClientTable],
    each: Sequence[Mapping[str, Mapping[int, ClientGain]]],
    cells: int,
    points: int,
    note: str,
) -> Part:
    """Return the part of a run, or the mean over seeds; clusters have none: their numbers differ between seeds.

    ``each``: for each seed, reference -> gain by client.
    """
    run, several = runs[0], len(runs) > 1
    people = max(seeds, key=lambda p: p.count)
    people = replace(people, labels=client_table.mean_labels(seeds)) if several else people
    references = dict.fromkeys(name for gains in each for name in gains)
    by_reference = {name: [gains[name] for gains in each if name in gains] for name in references}
    gains = client_table.mean_gain(next(iter(by_reference.values()), []))
    lines = list(chain.from_iterable(one.relations for one in runs)) if several else run.relations
    relations, rows = relations_of(run, people, gains, cells, lines, len(runs))
    names = relations.names
    names = names if len(names) <= figures.SIDE else figures.along(relations.order, names)
    labels, counts = client_table.labels_figure(people, relations.order, names, run.classes)
    table = client_table.table(run, seeds, by_reference, rows, points)
    return Part(run, several, relations, labels, table, people, counts, note)


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


def packed(part: Part, shared: Shared) -> Datum:
    """Return a part for the page's script, which fills in the data of maps."""
    table = {**part.table, **{key: shared.put(part.table[key]) for key in ("labels", "names")}}
    relations, frames = part.relations, part.relations.frames
    return {
        "title": part.run.title, "seed": None if part.joint else part.run.seed, "note": part.note,
        "figures": {one.name: {**entry(one), "spec": shared.put(_emptied(one))} for one in part.figures},
        "relations": {"kind": relations.kind, "fact": relations.fact, "says": relations.says,
                      "letters": relations.letters, "order": shared.put(relations.order),
                      "names": shared.put(relations.names)},
        "frames": frames and {"rounds": frames.rounds, "low": frames.low, "high": frames.high,
                              "side": len(frames.labels), "cells": _encoded(frames.cells),
                              "mean": _encoded(frames.mean)},
        "clusters": _packed_clusters(part),
        "counts": shared.put(None if part.counts is None else part.counts.tolist()), **table,
    }  # fmt: skip


def _emptied(figure: Figure) -> Spec:
    """Return a chart without the data that the page's script fills in, so that runs can share it."""
    name = _FILLED.get(figure.name)
    if name is None:
        return figure.spec
    if "data" in figure.spec:
        return {**figure.spec, "data": {"name": name, "values": []}}
    layers = [{**one, "data": {"name": name, "values": []}} if one.get("data", {}).get("name") == name
              and "values" in one["data"] else one for one in figure.spec["layer"]]  # fmt: skip
    return {**figure.spec, "layer": layers}


def _packed_clusters(part: Part) -> Datum | None:
    """Return the cluster of every client in the drawn rounds, as positions in the list; 65535 is unknown."""
    membership = part.people.clusters
    if part.joint or part.relations.kind != "clusters" or part.people.count > clusters.MOST_MEMBERS:
        return None
    names, columns = membership.names, membership.columns
    cells = np.searchsorted(names, membership.labels[:, columns]).astype("<u2")
    cells[membership.labels[:, columns] < 0] = 65535
    return {"rounds": [membership.rounds[c] for c in columns], "clusters": names, "cells": _encoded(cells)}


def _encoded(cells: np.ndarray) -> str:
    return base64.b64encode(cells.tobytes()).decode("ascii")


def entry(figure: Figure) -> Datum:
    """Return a figure for the page's script."""
    return {"id": figure.name, "fact": figure.fact, "caption": figure.caption, "spec": figure.spec}
