"""Relations between clients as clusters: membership over rounds, and the clusters' sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedkin.evaluate import adjusted_rand
from fedkin.record.lines import RelationLine, RoundLine
from fedkin.report.charts import Datum, chart
from fedkin.report.figures import Figure, cut_axis, padded, scale, thinned
from fedkin.report.palette import SLOTS
from fedkin.report.wording import say

MOST_COLUMNS = 120
"""Maximum number of rounds in which cluster membership is shown."""
MOST_MEMBERS = 200
"""Maximum number of clients for a map of membership; for more only the sizes of clusters are shown."""


@dataclass(frozen=True)
class Clusters:
    """Cluster membership: the clusters that the server used, ``labels`` int ``[K, T]``, -1 where not known, in
    ``rounds [T]``; ``count``: number of clusters at the end, including empty ones."""

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


def cluster_table(lines: Iterable[RelationLine], rounds: Iterable[RoundLine] = ()) -> Clusters:
    """Return the ``clusters`` lines of ``relations.jsonl`` as a table; ``rounds.jsonl`` has their number."""
    by_round = {line.round: np.array(line.clusters, dtype=np.int32) for line in lines if line.clusters}
    columns = sorted(by_round)
    k = max((len(labels) for labels in by_round.values()), default=0)
    table = np.full((k, len(columns)), -1, dtype=np.int32)
    for column, r in enumerate(columns):
        table[: len(by_round[r]), column] = by_round[r]
    return Clusters(columns, table, max((len(line.cluster_sizes) for line in rounds), default=0))


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


def letters(membership: Clusters, mostly: Sequence[int]) -> dict[int, int]:
    """Return the index of each cluster's letter: by the number of clients that are usually in it, largest first;
    ``mostly``: each client's usual cluster, as from `usual`."""
    sizes = Counter(int(c) for c in mostly if c >= 0)
    return {name: n for n, name in enumerate(sorted(membership.names, key=lambda c: (-sizes[c], c)))}


def letter(index: int) -> str:
    """Return the letter of a group: A, B, ... Z, AA, ..."""
    return (letter(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def groups_fact(title: str, mostly: Sequence[int]) -> str:
    """Return the sentence on the groups that a method made; ``mostly``: each client's usual cluster."""
    return say("groups_fact", title, sorted(Counter(int(c) for c in mostly if c >= 0).values(), reverse=True))


def groups_says(membership: Clusters, groups: Sequence[int] | None) -> str:
    """Return sentences on the beginning and the end of the groups, and on the true groups."""
    labels, rounds, k = membership.labels, membership.rounds, len(membership.labels)
    known = [t for t in range(len(rounds)) if (labels[:, t] >= 0).any()]
    before, now = (labels[:, -2], labels[:, -1]) if len(rounds) > 1 else (labels[:, 0], labels[:, 0])
    last = int(((now >= 0) & (before >= 0) & (now != before)).sum())
    index = _agreement(usual(labels), groups)
    return say("groups_says", k, known and known[0] > 0 and rounds[known[0] - 1], last, _last_move(rounds, labels),
               known and int((labels < 0).all(axis=1).sum()), groups is not None, index)  # fmt: skip


def together(membership: Clusters, order: Sequence[int]) -> np.ndarray:
    """Return in which share of the rounds with known groups two clients shared one, ``[K, K]`` in the given order."""
    labels = membership.labels[list(order)]
    known = [t for t in range(labels.shape[1]) if (labels[:, t] >= 0).any()]
    total = np.zeros((len(labels), len(labels)))
    for t in known:
        column = labels[:, t]
        total += (column[:, None] == column[None, :]) & (column >= 0)[:, None]
    return total / max(1, len(known))


def together_figure(title: str, matrix: np.ndarray, names: Sequence[str], groups: Sequence[int]) -> Figure:
    """Return the matrix of clients that shared a model, by the share of rounds.

    Args:
        names: names of the clients, in the same order; groups: index of each client's group.
    """
    values = [{"client": names[i], "from": names[j], "share": round(float(matrix[i, j]), 3),
               "group": -2 if i == j else groups[i] if groups[i] == groups[j] else -1}
              for i, j in np.argwhere(matrix > 0).tolist()]  # fmt: skip
    axis = {"ticks": False, "domain": False, "labelLimit": 120, "labelOverlap": True, **cut_axis(names, 18),
            "values": list(names)[:: 1 if len(names) < 40 else 5 if len(names) < 100 else 10]}  # fmt: skip
    shades = ["var(--line-2)", "var(--same)", *(f"var(--g{n + 1})" for n in range(SLOTS))]
    spec = chart("matrix", cells=values, names=list(names), axis=axis,
                 angle=-90 if max(map(len, names), default=0) > 3 else 0,
                 colours={"domain": list(range(-2, SLOTS)), "range": shades})  # fmt: skip
    caption = "Row and column: two clients; strong where they often shared a model, in colour within a group."
    return Figure("matrix", f"{title}: clients that shared a model", caption, spec)


def cluster_figures(
    title: str, membership: Clusters, order: Sequence[int], names: Sequence[str], groups: Sequence[int] | None = None
) -> list[Figure]:
    """Return the cluster of every client in every round (if they are few enough), and the clusters' sizes.

    Args:
        order: clients in the order of the map.
        names: names of the clients, ``[K]``.
        groups: true groups ``[K]``, for the adjusted Rand index.
    """
    rounds, labels, columns = membership.rounds, membership.labels, membership.columns
    index = letters(membership, usual(labels).tolist())
    by_letter = sorted(membership.names, key=index.__getitem__)
    colour = {"field": "group", "type": "nominal",
              "scale": scale({letter(n): f"var(--g{n % SLOTS + 1})" for n in range(len(by_letter))}),
              "legend": {"orient": "bottom"} if len(by_letter) <= 12 else None}  # fmt: skip
    made = []
    if len(labels) <= MOST_MEMBERS:
        clients = [names[i] for i in order]
        axis = {"labels": len(clients) <= 40, "ticks": False, "labelLimit": 130, **cut_axis(clients)}
        spec = chart("clusters", rows=members(membership, names), clients=clients, axis=axis, colour=colour,
                     height=max(120, min(460, 20 * len(labels))))  # fmt: skip
        thin = f" {len(columns)} of {len(rounds)} rounds are shown." if len(columns) < len(rounds) else ""
        caption = f"Row: a client, coloured by its group; a change of colour is a move, empty is unknown.{thin}"
        made.append(Figure("clusters", f"{title}: {clusters_fact(rounds, labels, groups)}", caption, spec))
    sizes = [{"round": rounds[c], "group": letter(index[n]), "clients": count}
             for c in columns for n in by_letter if (count := int((labels[:, c] == n).sum()))]  # fmt: skip
    most = max(int((labels >= 0).sum(axis=0).max()), 1)
    spec = chart("cluster-sizes", rows=sizes, drawn=[rounds[c] for c in columns], sizes=[0, most], colour=colour)
    return [*made, Figure("cluster-sizes", "Sizes of the groups over rounds", "How many clients each group has.", spec)]


def members(membership: Clusters, names: Sequence[str]) -> list[Datum]:
    """Return a row of a chart's data for each client and drawn round in which its group is known."""
    labels = membership.labels
    index = letters(membership, usual(labels).tolist())
    return [{"round": membership.rounds[c], "client": names[i], "group": letter(index[int(labels[i, c])])}
            for c in membership.columns for i in range(len(labels)) if labels[i, c] >= 0]  # fmt: skip


def clusters_fact(rounds: Sequence[int], labels: np.ndarray, groups: Sequence[int] | None = None) -> str:
    """Return a sentence: number of clusters, the last move, and the adjusted Rand index with the true groups."""
    k, last = len(labels), last_known(labels)
    index = _agreement(last, groups)
    return say("clusters_fact", k, len(np.unique(last[last >= 0])), _last_move(rounds, labels), index)


def _agreement(labels: np.ndarray, groups: Sequence[int] | None) -> float | None:
    """Return the adjusted Rand index of labels ``[K]`` with the true groups; None where these are not known."""
    known = None if groups is None else torch.as_tensor(padded(groups, len(labels)))
    return None if known is None else adjusted_rand(torch.as_tensor(labels), known)


def _last_move(rounds: Sequence[int], labels: np.ndarray) -> int | None:
    """Return the last round in which a client is in another known cluster than before."""
    before, moved = np.full(len(labels), -1), None
    for column, r in enumerate(rounds):
        now = labels[:, column]
        if ((now >= 0) & (before >= 0) & (now != before)).any():
            moved = r
        before = np.where(now >= 0, now, before)
    return moved
