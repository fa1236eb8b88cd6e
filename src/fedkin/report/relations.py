"""Pictures of who learned from whom: a map of weights, or cluster membership over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from fedkin.core.errors import DataError
from fedkin.evaluate import adjusted_rand
from fedkin.report import style

Line = Mapping[str, Any]
MOST = 1000
"""A map of who learned from whom shows no more clients than this: it has a dot for every pair."""


def mean_weights(lines: Iterable[Line], size: int | None = None) -> np.ndarray:
    """Mean over rounds of the ``weights`` lines, float64 ``[K, K]``: row i says whom client i learned from.

    A row is averaged over the rounds in which it is there; a client that never has one gets a row of NaN.
    ``size`` is K; by default the largest id + 1.
    """
    rows = _rows(lines)
    k = max(size or 0, _clients(rows))
    weights = np.full((k, k), np.nan)
    for i, row in rows.items():
        weights[i] = 0.0
        for j, weight in row.items():
            weights[i, j] = weight
    return weights


def _rows(lines: Iterable[Line]) -> dict[int, dict[int, float]]:
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


def _clients(rows: Mapping[int, Mapping[int, float]]) -> int:
    """The largest id in them, plus 1."""
    return 1 + max([*rows, *(j for row in rows.values() for j in row)], default=-1)


def too_many(lines: Iterable[Line]) -> bool:
    """Whether the ``weights`` lines name a client that no map of `MOST` clients has."""
    return any(
        max([int(i), *map(int, row)]) >= MOST
        for line in lines
        if line.get("kind") == "weights"
        for i, row in line["rows"].items()
    )


def weights_fact(lines: Iterable[Line], groups: Sequence[int] | None = None) -> str:
    """What the title of a map says, of more clients than a map can show; memory grows with the lines."""
    rows = _rows(lines)
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


def weights_map(weights: np.ndarray, groups: Sequence[int] | None = None, title: str = "") -> Figure:
    """Heat map of ``weights [K, K]`` (NaN rows: never said), clients ordered by ``groups`` [K] where they are known.

    Where a client's weight on itself would drown the rest, the colours end at the largest weight on another client.

    Raises:
        DataError: there is no client.
    """
    k = len(weights)
    if k == 0:
        raise DataError("expected weights [K, K] of at least one client, got none: the run recorded no weights")
    known = _pad(groups, k)
    order = np.argsort(known, kind="stable") if groups is not None else np.arange(k)
    image = np.ma.masked_invalid(weights[np.ix_(order, order)])
    figure = style.new_figure(7.0, 5.8)
    axes = figure.add_subplot()
    colours = _colormap("viridis", UNKNOWN=style.UNKNOWN)
    off = weights[~np.eye(k, dtype=bool)]
    top = float(np.nanmax(weights)) if np.isfinite(weights).any() else 1.0
    others = float(np.nanmax(off)) if np.isfinite(off).any() else 0.0
    drowned = others > 0 and top > 2 * others
    drawn = axes.imshow(
        image, cmap=colours, vmin=min(0.0, float(image.min()) if image.count() else 0.0),
        vmax=(others if drowned else top) or 1.0, interpolation="nearest",
    )  # fmt: skip
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, extend="max" if drowned else "neither")
    bar.set_label("weight, mean over rounds" + (" (own weight is off the scale)" if drowned else ""), size=9)
    bar.ax.tick_params(labelsize=8)
    axes.set(xlabel="learned from client", ylabel="client")
    _client_ticks(axes, order, known if groups is not None else None)
    style.quiet(axes, grid=None)
    style.headline(figure, _prefix(title) + _weights_fact(weights, known if groups is not None else None))
    return figure


def _colormap(name: str, **special: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=special["UNKNOWN"])


def _pad(groups: Sequence[int] | None, k: int) -> np.ndarray:
    """Groups as int ``[K]``, -1 where unknown."""
    result = np.full(k, -1)
    given = list(groups or [])[:k]
    result[: len(given)] = given
    return result


def _blocks(order: np.ndarray, groups: np.ndarray) -> tuple[list[int], list[float], list[str]]:
    """Groups as they lie along the order: where one ends and the next begins, their middles and names."""
    k = len(order)
    edges = [i for i in range(1, k) if groups[order[i]] != groups[order[i - 1]]]
    ends = [0, *edges, k] if k else []
    middles = [(a + b - 1) / 2 for a, b in pairwise(ends)]
    names = ["?" if groups[order[a]] < 0 else f"group {groups[order[a]]}" for a in ends[:-1]]
    return edges, middles, names


def _client_ticks(axes: Axes, order: np.ndarray, groups: np.ndarray | None) -> None:
    """The groups, with a line between them, where they are known; otherwise ids while they can be read."""
    edges, middles, names = ([], [], []) if groups is None else _blocks(order, groups)
    for edge in edges:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    if 1 < len(names) <= 25:
        axes.set_xticks(middles, names, rotation=90 if len(names) > 5 else 0)
        axes.set_yticks(middles, names)
        axes.set(xlabel="learned from clients of", ylabel="client of")
    elif len(order) <= 30:
        axes.set_xticks(range(len(order)), [str(i) for i in order], rotation=90 if len(order) > 15 else 0)
        axes.set_yticks(range(len(order)), [str(i) for i in order])


def _weights_fact(weights: np.ndarray, groups: np.ndarray | None) -> str:
    rows = weights[np.isfinite(weights).all(1)]
    ids = np.flatnonzero(np.isfinite(weights).all(1))
    if not len(rows):
        return "nobody said whom it learned from"
    others = np.clip(rows, 0.0, None)
    others[np.arange(len(ids)), ids] = 0.0
    total = others.sum()
    if total <= 0:
        return "no client learned from another"
    if groups is not None and (groups >= 0).any():
        same = (groups[ids][:, None] == groups[None, :]) & (groups[None, :] >= 0)
        same[np.arange(len(ids)), ids] = False
        pairs = same.sum() / (len(ids) * (weights.shape[0] - 1))
        share = (others * same).sum() / total
        return f"{100 * share:.0f} % of weight on others is in the own group (chance: {100 * pairs:.0f} %)"
    taken = others[others.sum(1) > 0]
    shares = taken / taken.sum(1, keepdims=True)
    partners = float((1.0 / (shares**2).sum(1)).mean())
    own = float(1.0 - total / np.clip(rows, 0.0, None).sum())
    return f"a client learns from about {partners:.1f} others; own weight {100 * own:.0f} %"


def cluster_table(lines: Iterable[Line]) -> tuple[list[int], np.ndarray]:
    """The ``clusters`` lines as rounds ``[T]`` and labels int ``[K, T]``, -1 where not known."""
    by_round = {int(line["round"]): line["labels"] for line in lines if line.get("kind") == "clusters"}
    rounds = sorted(by_round)
    k = max((len(labels) for labels in by_round.values()), default=0)
    table = np.full((k, len(rounds)), -1)
    for column, r in enumerate(rounds):
        table[: len(by_round[r]), column] = [-1 if label is None else int(label) for label in by_round[r]]
    return rounds, table


def cluster_map(
    rounds: Sequence[int], labels: np.ndarray, groups: Sequence[int] | None = None, title: str = ""
) -> Figure:
    """Cluster of every client in every round (an image ``[K, T]``), and the clusters' sizes below it.

    Args:
        rounds: round of each column, ``[T]``.
        labels: int ``[K, T]``, -1 where not known (grey).
        groups: true groups ``[K]``; clients are ordered by them, otherwise by their last cluster.
        title: the method's display name.

    Raises:
        DataError: there is no client or no round.
    """
    k, width = labels.shape
    if labels.size == 0:
        raise DataError(f"expected labels [K, T] of at least one client and round, got {[k, width]}")
    known = _pad(groups, k)
    last = _last_known(labels)
    order = np.lexsort((np.arange(k), last, known if groups is not None else last))
    names = [int(n) for n in np.unique(labels[labels >= 0])]
    palette = _cluster_colours(len(names))
    index = np.searchsorted(names, labels) if names else np.zeros_like(labels)
    image = np.ma.masked_array(index, labels < 0)[order]
    figure = style.new_figure(7.4, 6.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1))
    upper.imshow(
        image, cmap=ListedColormap(palette).with_extremes(bad=style.UNKNOWN), vmin=-0.5,
        vmax=max(len(names), 1) - 0.5, interpolation="nearest", aspect="auto",
    )  # fmt: skip
    _member_ticks(upper, order, known if groups is not None else None)
    style.quiet(upper, grid=None)
    for number, name in enumerate(names):
        sizes = (labels == name).sum(0)
        colour = palette[number]
        lower.plot(range(width), sizes, color=colour, linewidth=1.8, drawstyle="steps-mid", label=f"cluster {name}")
    lower.set(xlabel="round", ylabel="clients in cluster")
    lower.set_ylim(bottom=0)
    ticks = sorted({round(i) for i in np.linspace(0, width - 1, min(width, 8))}) if width else []
    lower.set_xticks(ticks, [str(rounds[i]) for i in ticks])
    style.quiet(lower)
    if 0 < len(names) <= 10:
        lower.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    style.headline(figure, _prefix(title) + _clusters_fact(rounds, labels, last, known if groups is not None else None))
    return figure


def _last_known(labels: np.ndarray) -> np.ndarray:
    """Each client's last label that is known, ``[K]``; -1 if none is."""
    result = np.full(len(labels), -1)
    for column in labels.T:
        result = np.where(column >= 0, column, result)
    return result


def _cluster_colours(count: int) -> list[Any]:
    if count <= len(style.PALETTE):
        return list(style.PALETTE[: max(count, 1)])
    from matplotlib import colormaps

    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def _member_ticks(axes: Axes, order: np.ndarray, groups: np.ndarray | None) -> None:
    k = len(order)
    axes.set_ylabel("client")
    axes.tick_params(labelbottom=False)
    if groups is not None:
        edges, middles, names = _blocks(order, groups)
        for edge in edges:
            axes.axhline(edge - 0.5, color="white", linewidth=2)
        axes.set_yticks(middles, names)
        axes.set_ylabel("clients of true")
    elif k <= 30:
        axes.set_yticks(range(k), [str(i) for i in order])
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{k} clients, in order of their last cluster")


def _clusters_fact(rounds: Sequence[int], labels: np.ndarray, last: np.ndarray, groups: np.ndarray | None) -> str:
    k = len(labels)
    if not (last >= 0).any():
        return "no cluster is known"
    count = len(np.unique(last[last >= 0]))
    fact = f"{k} client{'' if k == 1 else 's'} end in {count} cluster{'' if count == 1 else 's'}"
    moved = _last_move(rounds, labels)
    fact += "; nobody ever moves" if moved is None else f"; the last move is in round {moved}"
    if groups is not None:
        index = adjusted_rand(torch.as_tensor(last), torch.as_tensor(groups))
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


def _prefix(title: str) -> str:
    return f"{title}: " if title else ""
