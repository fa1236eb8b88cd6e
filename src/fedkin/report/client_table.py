"""Single clients on a page: a row each, accuracy over rounds, labels, and the clients that they learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from fedkin.evaluate.paired import half_width
from fedkin.record.lines import STAGES
from fedkin.record.result import Result
from fedkin.report.charts import Datum, chart
from fedkin.report.clusters import Clusters, cluster_table, usual
from fedkin.report.figures import Figure, called, cut_axis, places, thinned
from fedkin.report.headline import majority
from fedkin.report.standings import ClientGain
from fedkin.report.weights import Rows
from fedkin.report.wording import ranged

MOST_ROWS = 1000
"""Maximum number of clients in a page's table; of more, half are the worst and half the best."""
MOST_POINTS = 60_000
"""Maximum number of accuracies over rounds of all clients of a run in one page."""
FEWEST_POINTS = 12
"""Maximum number of accuracies over rounds that are kept of a client."""
PARTNERS = 10
MAJORITY = "majority %"
"""The column with the accuracy of always predicting the client's most frequent training class."""


@dataclass(frozen=True)
class ClientTable:
    """Content of a run's lines about its clients.

    Attributes:
        count: K.
        final: accuracy in the last evaluated round by client, a fraction.
        n_test: number of test samples by client.
        labels: training samples by class, by client; empty in runs with privacy.
        majority: accuracy of always predicting the client's most frequent training class, by client, a fraction; empty
            where training counts are not known.
        rounds: evaluated rounds ``[T]``; accuracy: float32 ``[K, T]``, NaN where a client was not evaluated.
        took: number of rounds whose upload was used, by client; refused: rounds in which it was refused.
        clusters: membership over rounds.
    """

    count: int
    final: dict[int, float]
    n_test: dict[int, int]
    labels: dict[int, list[int]]
    majority: dict[int, float]
    rounds: list[int]
    accuracy: np.ndarray
    took: Counter[int]
    refused: Counter[int]
    clusters: Clusters

    @property
    def usual_cluster(self) -> list[int] | None:
        """The most frequent cluster of each client towards the end ``[K]``, -1 unknown; None if the run has none."""
        labels = self.clusters.labels
        return usual(labels).tolist() if labels.size else None


def client_table_of(run: Result) -> ClientTable:
    """Read the lines of a run once, into arrays."""
    evaluated = [line.round for line in run.rounds if line.figures is not None]
    n_test: dict[int, int] = {}
    labels: dict[int, list[int]] = {}
    constant: dict[int, float] = {}
    points: dict[int, dict[int, float]] = {}
    for line in run.clients:
        i = line.client
        n_test[i] = line.n_test
        if (result := majority(line)) is not None:
            constant[i] = result[0] / result[1]
        if line.labels:
            labels[i] = list(line.labels)
        if line.accuracy is not None:
            points.setdefault(line.round, {})[i] = line.accuracy
    rounds = sorted({*evaluated, *points})
    took = Counter(i for line in run.rounds for i in line.answered)
    refused = Counter(i for line in run.rounds for i in {one.client for one in line.unused(*STAGES)})
    clusters = cluster_table(run.relations, run.rounds)
    count = max([run.run.clients, len(clusters.labels), *(i + 1 for i in (*n_test, *took, *refused))])
    accuracy = np.full((count, len(rounds)), np.nan, dtype=np.float32)
    for column, r in enumerate(rounds):
        for i, value in points.get(r, {}).items():
            accuracy[i, column] = value
    final = run.single()
    return ClientTable(count, final, n_test, labels, constant, rounds, accuracy, took, refused, clusters)


def shown(p: ClientTable, gains: Mapping[int, float]) -> list[int]:
    """Return the clients that have a row: all, or of very many the worst and the best, by gain, else by accuracy."""
    if p.count <= MOST_ROWS:
        return list(range(p.count))
    order = sorted(range(p.count), key=lambda i: (gains.get(i, p.final.get(i, 0.0)), i))
    return sorted([*order[: MOST_ROWS // 2], *order[-(MOST_ROWS // 2) :]])


def table(
    run: Result,
    seeds: Sequence[ClientTable],
    gains: Mapping[str, Sequence[Mapping[int, ClientGain]]],
    rows: Rows,
    most: int = MOST_POINTS,
) -> Datum:
    """Return the columns of the table of clients and their details, as plain values for the page.

    Accuracies and gains are in per cent and points, in the last evaluated round; ± is half of the interval due to the
    size of the test part, p the exact p-value of a difference. Of several seeds with the same clients they are means,
    with the lowest and the highest.

    Args:
        run: the run, of several seeds one of them: its names and groups are those of all.
        gains: reference -> for each seed, gain by client.
        rows: weights of the clients that each learned from, as from `fedkin.report.weights.mean_rows`, of all seeds.
        most: maximum number of accuracies over rounds of all clients together.
    """
    several, widest = len(seeds) > 1, max(seeds, key=lambda p: p.count)
    mean_gains = {name: mean_gain(each) for name, each in gains.items()}
    ids = shown(widest, next(iter(mean_gains.values()), {}))
    columns, labels = _who(run, ids), mean_labels(seeds)
    if not several and (mostly := widest.usual_cluster) is not None:
        columns["cluster"] = [mostly[i] if i < len(mostly) and mostly[i] >= 0 else None for i in ids]
    if labels:
        columns["training samples"] = [sum(labels[i]) if i in labels else None for i in ids]
    columns["test samples"] = [_mean([p.n_test.get(i) for p in seeds], 1) for i in ids]
    if labels and not several:
        columns["classes"] = [sum(n > 0 for n in labels[i]) if i in labels else None for i in ids]
    finals = [[p.final[i] for p in seeds if i in p.final] for i in ids]
    columns["accuracy %"] = [_points(_mean(each)) for each in finals]
    if several:
        columns["lowest %"] = [_points(min(each, default=None)) for each in finals]
        columns["highest %"] = [_points(max(each, default=None)) for each in finals]
    else:
        tests = [widest.n_test.get(i) for i in ids]
        columns["± at 95 %"] = [_points(half_width(each[0], n)) if each and n else None
                                for each, n in zip(finals, tests, strict=True)]  # fmt: skip
    if any(p.majority for p in seeds):
        columns[MAJORITY] = [_points(_mean([p.majority.get(i) for p in seeds])) for i in ids]
    for reference, by in mean_gains.items():
        columns[f"gain over {reference}"] = [_points(by.get(i)) for i in ids]
        ones = [[seed[i] for seed in gains[reference] if i in seed] for i in ids]
        if several:
            columns[f"seeds above {reference}"] = [
                f"{sum(one.kind > 0 for one in each)} of {len(each)}" if each else None for each in ones
            ]
        else:
            p_values = [each[0].p if each else None for each in ones]
            columns[f"p over {reference}"] = [None if p is None else round(p, 4) for p in p_values]
        columns[f"clear over {reference}"] = [any(one.clear for one in each) for each in ones]
    columns["rounds taken part"] = [_mean([p.took.get(i, 0) for p in seeds], 1) for i in ids]
    if widest.refused and not several:
        columns["refused"] = [widest.refused.get(i, 0) for i in ids]
    rounds = sorted(set.intersection(*(set(p.rounds) for p in seeds)))
    points = max(FEWEST_POINTS, min(200, most // (3 if several else 1) // max(len(ids), 1)))
    kept = thinned(rounds, points)
    stack = np.full((len(seeds), widest.count, len(kept)), np.nan)
    for s, p in enumerate(seeds):
        stack[s, : p.count] = p.accuracy[:, [p.rounds.index(r) for r in kept]]
    stack = stack[:, ids]
    known = np.isfinite(stack).any(axis=0)
    filled = np.where(known, stack, 0.0)  # columns with nothing but NaN would raise a warning
    low, mean, high = (np.where(known, f(filled, axis=0), np.nan) for f in (np.nanmin, np.nanmean, np.nanmax))
    return {
        "columns": columns, "of": widest.count, "rounds": kept, "allRounds": len(rounds), "series": _thousandths(mean),
        **({"low": _thousandths(low), "high": _thousandths(high)} if several else {}), "partners": _partners(rows, ids),
        "labels": [labels.get(i) for i in ids] if labels else None,
        # names of clients that are not in the page's table; none, for their numbers, where they are very many
        "names": called(widest.count, run.names) if widest.count <= MOST_ROWS else None,
    }  # fmt: skip


def mean_labels(seeds: Sequence[ClientTable]) -> dict[int, list[int]]:
    """Return training samples by class, by client: the mean over seeds, rounded."""
    result: dict[int, list[list[int]]] = {}
    for p in seeds:
        for i, row in p.labels.items():
            result.setdefault(i, []).append(row)
    return {i: [round(sum(n) / len(n)) for n in zip_longest(*rows, fillvalue=0)] for i, rows in result.items()}


def mean_by_client(seeds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean over the seeds that have the client."""
    return {i: float(np.mean([s[i] for s in seeds if i in s])) for i in sorted(set().union(*seeds))}


def mean_gain(seeds: Sequence[Mapping[int, ClientGain]]) -> dict[int, float]:
    """Return the mean gain by client over the seeds that have the client."""
    return mean_by_client([{i: one.gain for i, one in seed.items()} for seed in seeds])


def _who(run: Result, ids: Sequence[int]) -> dict[str, list[Any]]:
    """Return the columns that identify a client."""
    names, groups = run.names, run.groups
    columns: dict[str, list[Any]] = {}
    if names:
        columns["name"] = [names[i] if i < len(names) else "" for i in ids]
    columns["client"] = list(ids)
    if groups:
        columns["group"] = [groups[i] if i < len(groups) and groups[i] >= 0 else None for i in ids]
    return columns


def _thousandths(accuracy: np.ndarray) -> list[list[int | None]]:
    return [[None if np.isnan(v) else round(float(v) * 1000) for v in row] for row in accuracy]


def _partners(rows: Rows, ids: Sequence[int]) -> list[list[list[float]] | None] | None:
    """Return the largest weights of each client on others, on average: ``[[client, weight], ...]``."""
    if not rows:
        return None
    result: list[list[list[float]] | None] = []
    for i in ids:
        row = sorted(((w, j) for j, w in rows[i].items() if w), reverse=True)[:PARTNERS] if i in rows else None
        result.append(None if row is None else [[j, round(w, 4)] for w, j in row])
    return result


def _points(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def _mean(values: Sequence[float | None], digits: int = 6) -> float | None:
    known = [v for v in values if v is not None]
    return round(sum(known) / len(known), digits) if len(known) > 1 else next(iter(known), None)


def labels_figure(
    p: ClientTable, order: Sequence[int], clients: Sequence[str], classes: Sequence[str]
) -> tuple[Figure | None, np.ndarray | None]:
    """Return training samples by class of every client, in the order of the map, as a figure and as int64 ``[S, C]``;
    None for folders without them.

    Args:
        order: clients in the order of the map, ``[K]``.
        clients: labels of its rows, ``[S]``.
        classes: names of the classes, as far as they have any.
    """
    if not p.labels or not order:
        return None, None
    counts = np.zeros((len(clients), max(map(len, p.labels.values()))), dtype=np.int64)
    place = places(order)
    for i, row in p.labels.items():
        counts[place[i], : len(row)] += row
    names = called(counts.shape[1], classes)
    values = [{"client": clients[i], "class": names[c], "samples": int(counts[i, c])}
              for i, c in np.argwhere(counts > 0).tolist()]  # fmt: skip
    slanted = len(names) > 4 and max(map(len, names)) > 3
    axis = {"labels": len(clients) <= 40, "ticks": False, "labelLimit": 130, **cut_axis(clients)}
    spec = chart("labels", rows=values, classes=names, clients=list(clients), axis=axis,
                 height=90 + min(520, 22 * len(clients)), angle=-45 if slanted else 0)  # fmt: skip
    share = ranged([sum(n > 0 for n in row) for row in p.labels.values()])
    fact = f"A client has samples of {share} of {len(names)} classes"
    caption = "Row: a client, in the same order as above; an empty cell: no sample of the class."
    return Figure("labels", fact, caption, spec), counts
