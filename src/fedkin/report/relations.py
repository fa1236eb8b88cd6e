"""Who learned from whom: weights over rounds as small matrices, cluster membership over rounds, and both as figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedkin.core.errors import DataError
from fedkin.evaluate import adjusted_rand
from fedkin.report.charts import PALETTE, Spec
from fedkin.report.figures import Figure, _thinned

Line = Mapping[str, Any]
Rows = dict[int, dict[int, float]]
SIDE = 100
"""A map has no more rows than this: of more clients, neighbours in its order share a row."""
MOST_COLUMNS = 120
"""Cluster membership is shown in no more rounds than this."""
MOST_MEMBERS = 200
"""Of more clients than this only the sizes of clusters are shown."""
UNKNOWN = 255


def mean_weights(lines: Iterable[Line], size: int | None = None) -> np.ndarray:
    """Mean over rounds of the ``weights`` lines, float64 ``[K, K]``: row i says whom client i learned from.

    A row is averaged over the rounds in which it is there; a client that never has one gets a row of NaN.
    ``size`` is K; by default the largest id + 1.
    """
    rows = mean_rows(lines)
    k = max(size or 0, _clients(rows))
    weights = np.full((k, k), np.nan)
    for i, row in rows.items():
        weights[i] = 0.0
        for j, weight in row.items():
            weights[i, j] = weight
    return weights


def mean_rows(lines: Iterable[Line]) -> Rows:
    """The same as weights that are not zero, by client and by whom it learned from."""
    sums: dict[int, dict[int, float]] = {}
    seen: dict[int, int] = {}
    for line in lines:
        if line.get("kind") != "weights":
            continue
        for key, row in line["rows"].items():
            i = int(key)
            seen[i] = seen.get(i, 0) + 1
            into = sums.setdefault(i, {})
            for j, weight in row.items():
                into[int(j)] = into.get(int(j), 0.0) + float(weight or 0.0)
    return {i: {j: total / seen[i] for j, total in row.items()} for i, row in sums.items()}


def _clients(rows: Rows) -> int:
    """The largest id in them, plus 1."""
    return 1 + max([*rows, *(j for row in rows.values() for j in row)], default=-1)


@dataclass(frozen=True)
class Frames:
    """Weights over rounds, small enough for a page.

    Attributes:
        order: the clients as they lie along the map, ``[K]``.
        labels: of its rows and columns, ``[S]``; S is K, or `SIDE` where neighbours share a row.
        rounds: the first and the last round of each frame, ``[F]``; a frame is their mean.
        cells: uint8 ``[F, S, S]``: 0 is ``low``, 254 is ``high`` or more, 255 unknown.
        low, high: the ends of the colours.
        drowned: own weights are beyond ``high``: they would hide the rest.
        mean: the mean of all rounds, uint8 ``[S, S]``.
    """

    order: list[int]
    labels: list[str]
    rounds: list[tuple[int, int]]
    cells: np.ndarray
    low: float
    high: float
    drowned: bool
    mean: np.ndarray


def frames(lines: Iterable[Line], order: Sequence[int], rounds: Sequence[int], most: int) -> Frames | None:
    """The ``weights`` lines as at most ``most`` frames; None if there is none.

    Args:
        lines: the lines of ``relations.jsonl``.
        order: all clients in the order of the map, ``[K]``.
        rounds: all rounds of the run.
        most: rounds in excess are averaged with their neighbours.
    """
    k, side = len(order), min(len(order), SIDE)
    place = np.empty(k, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(k) * side // max(k, 1)
    shared = min(most, max(len(rounds), 1))
    frame_of = {r: n * shared // len(rounds) for n, r in enumerate(rounds)}
    sums, seen = np.zeros((shared, side, side)), np.zeros((shared, side))
    spans: dict[int, tuple[int, int]] = {}
    for line in lines:
        if line.get("kind") != "weights" or line["round"] not in frame_of or not line["rows"]:
            continue
        r = int(line["round"])
        f = frame_of[r]
        spans[f] = (min(r, spans.get(f, (r, r))[0]), max(r, spans.get(f, (r, r))[1]))
        for key, row in line["rows"].items():
            i = place[int(key)]
            seen[f, i] += 1
            if row:
                to = place[np.array(list(row), dtype=np.int64)]
                np.add.at(sums[f, i], to, np.array([w or 0.0 for w in row.values()], dtype=np.float64))
    if not spans:
        return None
    kept = sorted(spans)
    with np.errstate(invalid="ignore"):
        each = sums[kept] / seen[kept][:, :, None]
        mean = sums.sum(0) / seen.sum(0)[:, None]
    low, high, drowned = _ends(each)
    cells = _quantised(each, low, high)
    return Frames(list(order), _labels(order, side), [spans[f] for f in kept], cells, low, high, drowned,
                  _quantised(mean, low, high))  # fmt: skip


def _ends(each: np.ndarray) -> tuple[float, float, bool]:
    """The ends of the colours; where a weight on oneself would drown the rest, the largest on another client."""
    off = each[:, ~np.eye(each.shape[1], dtype=bool)]
    known, others = each[np.isfinite(each)], off[np.isfinite(off)]
    top = float(known.max(initial=0.0))
    other = float(others.max(initial=0.0))
    drowned = 0 < 2 * other < top
    return min(0.0, float(known.min(initial=0.0))), (other if drowned else top) or 1.0, drowned


def _quantised(weights: np.ndarray, low: float, high: float) -> np.ndarray:
    steps = np.clip(np.nan_to_num((weights - low) / (high - low), nan=0.0), 0.0, 1.0) * (UNKNOWN - 1)
    return np.where(np.isfinite(weights), np.rint(steps), UNKNOWN).astype(np.uint8)


def _labels(order: Sequence[int], side: int) -> list[str]:
    if side == len(order):
        return [str(i) for i in order]
    size = len(order) / side
    return [f"{b + 1} (about {size:.0f} clients)" for b in range(side)]


def ordered(k: int, groups: Sequence[int] | None, last: Sequence[int] | None = None) -> list[int]:
    """Clients by their true group, else by their last cluster, else by number."""
    by = groups if groups is not None else last
    return [int(i) for i in (np.argsort(_pad(by, k), kind="stable") if by is not None else np.arange(k))]


def weights_figure(title: str, found: Frames, fact: str) -> Figure:
    """A map of the mean over all rounds; the page changes the data to single rounds."""
    values = cells(found, found.mean)
    end = " (own weight is off the scale)" if found.drowned else ""
    labels = len(found.labels) <= 30
    axis: Spec = {"labels": labels, "ticks": False, "domain": False, "labelAngle": 0, "labelOverlap": True}
    scale = {"domain": found.labels, "paddingInner": 0, "paddingOuter": 0}
    spec: Spec = {
        "width": 460, "height": 460, "data": {"name": "cells", "values": values},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "from", "type": "nominal", "title": "learned from client", "scale": scale, "axis": axis},
            "y": {"field": "client", "type": "nominal", "title": "client", "scale": scale, "axis": axis},
            "color": {"field": "weight", "type": "quantitative", "title": f"weight{end}",
                      "legend": {"orient": "bottom", "gradientLength": 240, "titleLimit": 400},
                      "scale": {"scheme": "viridis", "domain": [found.low, found.high], "clamp": True}},
        },
    }  # fmt: skip
    shared = "" if len(found.order) == len(found.labels) else " There are many clients: neighbours share a row."
    caption = (
        "Row: a client; column: whom it learned from; bright is much weight, empty is unknown. In the order of true "
        f"groups where they are known, else of the last clusters.{shared}"
    )
    return Figure("weights", fact, caption, spec)


def cells(found: Frames, matrix: np.ndarray) -> list[dict[str, Any]]:
    """A matrix of `Frames` as rows of a chart's data; unknown ones are left out."""
    step = (found.high - found.low) / (UNKNOWN - 1)
    return [
        {"client": found.labels[i], "from": found.labels[j], "weight": round(found.low + step * int(matrix[i, j]), 5)}
        for i, j in np.argwhere(matrix != UNKNOWN).tolist()
    ]


def weights_fact(rows: Rows, groups: Sequence[int] | None = None) -> str:
    """What the title of a map says; ``rows`` as from `mean_rows`."""
    if not rows:
        return "nobody said whom it learned from"
    k = _clients(rows)
    known = None if groups is None else _pad(groups, k)
    own = [max(0.0, row.get(i, 0.0)) for i, row in rows.items()]
    others = [{j: w for j, w in row.items() if j != i and w > 0} for i, row in rows.items()]
    total = sum(sum(row.values()) for row in others)
    if total <= 0:
        return "no client learned from another"
    if known is not None and (known >= 0).any():
        sizes = {int(g): int((known == g).sum()) for g in np.unique(known[known >= 0])}
        same = sum(w for i, row in zip(rows, others, strict=True) for j, w in row.items() if 0 <= known[i] == known[j])
        pairs = sum(sizes[int(known[i])] - 1 for i in rows if known[i] >= 0) / (len(rows) * (k - 1))
        return f"{100 * same / total:.0f} % of weight on others is in the own group (chance: {100 * pairs:.0f} %)"
    squares = [sum(w * w for w in row.values()) / sum(row.values()) ** 2 for row in others if row]
    partners = sum(1 / square for square in squares) / len(squares)
    share = sum(own) / (sum(own) + total)
    return f"a client learns from about {partners:.1f} others; own weight {100 * share:.0f} %"


def _pad(groups: Sequence[int] | None, k: int) -> np.ndarray:
    """Groups as int ``[K]``, -1 where unknown."""
    result = np.full(k, -1)
    given = list(groups or [])[:k]
    result[: len(given)] = given
    return result


def cluster_table(lines: Iterable[Line]) -> tuple[list[int], np.ndarray]:
    """The ``clusters`` lines as rounds ``[T]`` and labels int ``[K, T]``, -1 where not known."""
    by_round = {
        int(line["round"]): np.array([-1 if label is None else label for label in line["labels"]], dtype=np.int32)
        for line in lines
        if line.get("kind") == "clusters"
    }
    rounds = sorted(by_round)
    k = max((len(labels) for labels in by_round.values()), default=0)
    table = np.full((k, len(rounds)), -1, dtype=np.int32)
    for column, r in enumerate(rounds):
        table[: len(by_round[r]), column] = by_round[r]
    return rounds, table


def last_known(labels: np.ndarray) -> np.ndarray:
    """Each client's last label that is known, ``[K]``; -1 if none is."""
    result = np.full(len(labels), -1)
    for column in labels.T:
        result = np.where(column >= 0, column, result)
    return result


def cluster_figures(
    title: str, rounds: Sequence[int], labels: np.ndarray, order: Sequence[int], groups: Sequence[int] | None = None
) -> list[Figure]:
    """Cluster of every client in every round (where they are few enough), and the clusters' sizes.

    Args:
        title: the method's display name.
        rounds: round of each column, ``[T]``.
        labels: int ``[K, T]``, -1 where not known (left empty).
        order: the clients, in the order of the map.
        groups: true groups ``[K]``, for the adjusted Rand index.

    Raises:
        DataError: there is no client or no round.
    """
    if labels.size == 0:
        raise DataError(f"expected labels [K, T] of at least one client and round, got {list(labels.shape)}")
    fact = f"{title}: {clusters_fact(rounds, labels, groups)}"
    columns = _thinned(range(len(rounds)), MOST_COLUMNS)
    names = [int(n) for n in np.unique(labels[labels >= 0])]
    palette = [PALETTE[i % len(PALETTE)] for i in range(len(names))]
    scale = {"domain": names, "range": palette} if len(names) <= len(PALETTE) else {"scheme": "turbo", "domain": names}
    colour = {"field": "cluster", "type": "nominal", "scale": scale,
              "legend": {} if len(names) <= 12 else None}  # fmt: skip
    x = {"field": "round", "type": "ordinal", "axis": {"labelOverlap": True, "labelAngle": 0}}
    made = []
    if len(labels) <= MOST_MEMBERS:
        values = [{"round": rounds[c], "client": str(i), "cluster": int(labels[i, c])}
                  for c in columns for i in order if i < len(labels) and labels[i, c] >= 0]  # fmt: skip
        clients = [str(i) for i in order]
        spec: Spec = {
            "width": 600, "height": max(160, min(460, 14 * len(labels))), "data": {"values": values},
            "mark": {"type": "rect", "tooltip": True},
            "encoding": {"x": x, "color": colour,
                         "y": {"field": "client", "type": "nominal", "title": "client",
                               "scale": {"domain": clients, "paddingInner": 0},
                               "axis": {"labels": len(clients) <= 40, "ticks": False}}},
        }  # fmt: skip
        thin = f" {len(columns)} of {len(rounds)} rounds are shown." if len(columns) < len(rounds) else ""
        caption = f"Row: a client, coloured by its cluster; a change of colour is a move, empty is unknown.{thin}"
        made.append(Figure("clusters", fact, caption, spec))
    sizes = [{"round": rounds[c], "cluster": n, "clients": int((labels[:, c] == n).sum())}
             for c in columns for n in names]  # fmt: skip
    spec = {
        "width": 600, "height": 180, "data": {"values": sizes},
        "mark": {"type": "line", "interpolate": "step", "tooltip": True},
        "encoding": {"x": {**x, "type": "quantitative", "axis": {"grid": False, "tickMinStep": 1}}, "color": colour,
                     "y": {"field": "clients", "type": "quantitative", "title": "clients in the cluster"}},
    }  # fmt: skip
    return [*made, Figure("cluster-sizes", "Sizes of the clusters", "How many clients each cluster holds.", spec)]


def clusters_fact(rounds: Sequence[int], labels: np.ndarray, groups: Sequence[int] | None = None) -> str:
    """How many clusters, the last move, and the adjusted Rand index with the true groups."""
    k, last = len(labels), last_known(labels)
    if not (last >= 0).any():
        return "no cluster is known"
    count = len(np.unique(last[last >= 0]))
    fact = f"{k} client{'' if k == 1 else 's'} end in {count} cluster{'' if count == 1 else 's'}"
    moved = _last_move(rounds, labels)
    fact += "; nobody ever moves" if moved is None else f"; the last move is in round {moved}"
    if groups is not None:
        index = adjusted_rand(torch.as_tensor(last), torch.as_tensor(_pad(groups, k)))
        fact += "" if index is None else f"; ARI {index:.2f}"
    return fact


def _last_move(rounds: Sequence[int], labels: np.ndarray) -> int | None:
    """The last round in which a client is in another known cluster than before."""
    before, moved = np.full(len(labels), -1), None
    for column, r in enumerate(rounds):
        now = labels[:, column]
        if ((now >= 0) & (before >= 0) & (now != before)).any():
            moved = r
        before = np.where(now >= 0, now, before)
    return moved
