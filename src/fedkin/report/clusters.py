"""Relations between clients as clusters: membership over rounds, and the clusters' sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedkin.core.errors import DataError
from fedkin.evaluate import adjusted_rand
from fedkin.report.charts import PALETTE, Spec
from fedkin.report.figures import Figure, thinned, x_rounds
from fedkin.report.naming import padded

Line = Mapping[str, Any]
MOST_COLUMNS = 120
"""Maximum number of rounds in which cluster membership is shown."""
MOST_MEMBERS = 200
"""Maximum number of clients for a map of membership; for more only the sizes of clusters are shown."""


@dataclass(frozen=True)
class Clusters:
    """Cluster membership over rounds.

    Attributes:
        rounds: rounds of the columns, ``[T]``.
        labels: int ``[K, T]``, -1 where not known: the clusters that the server used.
        count: number of clusters at the end, including empty ones; 0 in folders of older versions.
    """

    rounds: list[int]
    labels: np.ndarray
    count: int = 0

    @property
    def names(self) -> list[int]:
        """All clusters that ever existed, including empty ones."""
        return sorted({*range(self.count), *np.unique(self.labels[self.labels >= 0]).tolist()})

    @property
    def columns(self) -> list[int]:
        """The columns that are drawn."""
        return thinned(range(len(self.rounds)), MOST_COLUMNS)


def cluster_table(lines: Iterable[Line], rounds: Iterable[Line] = ()) -> Clusters:
    """Return the ``clusters`` lines of ``relations.jsonl`` as a table; ``rounds.jsonl`` has their number."""
    by_round = {
        int(line["round"]): np.array([-1 if label is None else label for label in line["labels"]], dtype=np.int32)
        for line in lines
        if line.get("kind") == "clusters"
    }
    columns = sorted(by_round)
    k = max((len(labels) for labels in by_round.values()), default=0)
    table = np.full((k, len(columns)), -1, dtype=np.int32)
    for column, r in enumerate(columns):
        table[: len(by_round[r]), column] = by_round[r]
    return Clusters(columns, table, max((len(line.get("cluster_sizes") or ()) for line in rounds), default=0))


def last_known(labels: np.ndarray) -> np.ndarray:
    """Return each client's last known label, ``[K]``; -1 if there is none."""
    result = np.full(len(labels), -1)
    for column in labels.T:
        result = np.where(column >= 0, column, result)
    return result


def usual(labels: np.ndarray) -> np.ndarray:
    """Return each client's most frequent cluster in the last fifth of the columns of ``labels [K, T]``, ``[K]``.

    Of equally frequent clusters the one of the later round counts; a client without a cluster there has its last known
    one, -1 if it never had any. A single round, including the last one, is not representative where clients move often.
    """
    fifth = labels[:, labels.shape[1] - -(-labels.shape[1] // 5) :]
    result = last_known(labels)
    most = np.zeros(len(labels), dtype=np.int64)
    latest = np.full(len(labels), -1)
    for name in np.unique(fifth[fifth >= 0]):
        held = fifth == name
        often = held.sum(1)
        last = np.where(held.any(1), fifth.shape[1] - 1 - held[:, ::-1].argmax(1), -1)
        better = (often > most) | ((often == most) & (last > latest))
        result, most, latest = (np.where(better, a, b) for a, b in ((name, result), (often, most), (last, latest)))
    return result


def cluster_figures(
    title: str,
    found: Clusters,
    order: Sequence[int],
    names: Sequence[str],
    groups: Sequence[int] | None = None,
) -> list[Figure]:
    """Return the cluster of every client in every round (if they are few enough), and the clusters' sizes.

    Args:
        title: display name of the method.
        found: the clusters.
        order: clients in the order of the map.
        names: names of the clients, ``[K]``.
        groups: true groups ``[K]``, for the adjusted Rand index.

    Raises:
        DataError: there are no clients or no rounds.
    """
    rounds, labels, columns = found.rounds, found.labels, found.columns
    if labels.size == 0:
        raise DataError(f"expected labels [K, T] of at least one client and round, got {list(labels.shape)}")
    many = len(found.names) > len(PALETTE)
    scale = {"domain": found.names, **({"scheme": "turbo"} if many else {"range": PALETTE[: len(found.names)]})}
    colour = {"field": "cluster", "type": "nominal", "scale": scale,
              "legend": {"orient": "bottom"} if len(found.names) <= 12 else None}  # fmt: skip
    made = []
    if len(labels) <= MOST_MEMBERS:
        clients = [names[i] for i in order]
        spec: Spec = {
            "width": 600, "height": max(120, min(460, 20 * len(labels))), "data": {"values": members(found, names)},
            "mark": {"type": "rect", "tooltip": True},
            "encoding": {"x": {"field": "round", "type": "ordinal", "axis": {"labelOverlap": True, "labelAngle": 0}},
                         "y": {"field": "client", "type": "nominal", "title": "client",
                               "scale": {"domain": clients, "paddingInner": 0},
                               "axis": {"labels": len(clients) <= 40, "ticks": False, "labelLimit": 130}},
                         "color": colour},
        }  # fmt: skip
        thin = f" {len(columns)} of {len(rounds)} rounds are shown." if len(columns) < len(rounds) else ""
        caption = f"Row: a client, coloured by its cluster; a change of colour is a move, empty is unknown.{thin}"
        made.append(Figure("clusters", f"{title}: {clusters_fact(rounds, labels, groups)}", caption, spec))
    sizes = [{"round": rounds[c], "cluster": n, "clients": int((labels[:, c] == n).sum())}
             for c in columns if (labels[:, c] >= 0).any() for n in found.names]  # fmt: skip
    spec = {
        "width": 600, "height": 180, "data": {"values": sizes},
        "mark": {"type": "line", "interpolate": "step", "tooltip": True},
        "encoding": {"x": x_rounds(), "color": colour,
                     "y": {"field": "clients", "type": "quantitative", "title": "clients in the cluster",
                           "axis": {"tickMinStep": 1}}},
    }  # fmt: skip
    return [*made, Figure("cluster-sizes", "Sizes of the clusters", "How many clients each cluster holds.", spec)]


def members(found: Clusters, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row of a chart's data for each client and drawn round in which its cluster is known."""
    return [{"round": found.rounds[c], "client": names[i], "cluster": int(found.labels[i, c])}
            for c in found.columns for i in range(len(found.labels)) if found.labels[i, c] >= 0]  # fmt: skip


def clusters_fact(rounds: Sequence[int], labels: np.ndarray, groups: Sequence[int] | None = None) -> str:
    """Return a sentence: number of clusters, the last move, and the adjusted Rand index with the true groups."""
    k, last = len(labels), last_known(labels)
    if not (last >= 0).any():
        return "no cluster is known"
    count = len(np.unique(last[last >= 0]))
    fact = f"{k} client{'' if k == 1 else 's'} end in {count} cluster{'' if count == 1 else 's'}"
    moved = _last_move(rounds, labels)
    fact += "; no client ever moves" if moved is None else f"; the last move is in round {moved}"
    if groups is not None:
        index = adjusted_rand(torch.as_tensor(last), torch.as_tensor(padded(groups, k)))
        fact += "" if index is None else f"; ARI {index:.2f}"
    return fact


def _last_move(rounds: Sequence[int], labels: np.ndarray) -> int | None:
    """Return the last round in which a client is in another known cluster than before."""
    before, moved = np.full(len(labels), -1), None
    for column, r in enumerate(rounds):
        now = labels[:, column]
        if ((now >= 0) & (before >= 0) & (now != before)).any():
            moved = r
        before = np.where(now >= 0, now, before)
    return moved
