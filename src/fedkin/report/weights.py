"""Relations between clients: weights over rounds as small matrices, and as a map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.record.lines import RelationLine
from fedkin.report.charts import Datum, chart
from fedkin.report.figures import Figure, cut_axis, padded, places

Rows = dict[int, dict[int, float]]
"""Weights by client and by the client that it learned from."""
UNKNOWN = 255


def mean_rows(lines: Iterable[RelationLine]) -> Rows:
    """Return the mean over rounds of the ``weights`` lines, by client and by the client that it learned from.

    A row is averaged over the rounds in which it exists; a client without any has none.
    """
    sums: dict[int, dict[int, float]] = {}
    seen: dict[int, int] = {}
    for line in lines:
        for i, row in line.weights.items():
            seen[i] = seen.get(i, 0) + 1
            into = sums.setdefault(i, {})
            for j, weight in row.items():
                into[j] = into.get(j, 0.0) + weight
    return {i: {j: total / seen[i] for j, total in row.items()} for i, row in sums.items()}


@dataclass(frozen=True)
class Frames:
    """Weights over rounds, small enough for a page.

    Attributes:
        order: clients in the order of the map, ``[K]``.
        labels: labels of its rows and columns, ``[S]``; S is K, or less where neighbours share a row.
        rounds: the first and the last round of each frame, ``[F]``; a frame is their mean.
        cells: uint8 ``[F, S, S]``: 0 is ``low``, 254 is ``high`` or more, 255 unknown.
        low, high: ends of the colour scale.
        drowned: weights of clients on themselves are beyond ``high``: they would hide the rest.
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


def frames(
    lines: Iterable[RelationLine], order: Sequence[int], labels: Sequence[str], rounds: Sequence[int], most: int
) -> Frames | None:
    """Return the ``weights`` lines as at most ``most`` frames; None if there are none.

    Args:
        order: all clients in the order of the map, ``[K]``.
        most: maximum number of frames; more rounds are averaged with their neighbours.
    """
    side, place = len(labels), places(order)
    shared = min(most, max(len(rounds), 1))
    frame_of = {r: n * shared // len(rounds) for n, r in enumerate(rounds)}
    sums, seen = np.zeros((shared, side, side)), np.zeros((shared, side))
    spans: dict[int, tuple[int, int]] = {}
    for line in lines:
        r = line.round
        if r not in frame_of or not line.weights:
            continue
        f = frame_of[r]
        spans[f] = (min(r, spans.get(f, (r, r))[0]), max(r, spans.get(f, (r, r))[1]))
        for key, row in line.weights.items():
            i = place[key]
            seen[f, i] += 1
            if row:
                to = place[np.array(list(row), dtype=np.int64)]
                np.add.at(sums[f, i], to, np.array(list(row.values()), dtype=np.float64))
    if not spans:
        return None
    kept = sorted(spans)
    with np.errstate(invalid="ignore"):
        each = sums[kept] / seen[kept][:, :, None]
        mean = sums.sum(0) / seen.sum(0)[:, None]
    low, high, drowned = _ends(each)
    cells = _quantised(each, low, high)
    return Frames(list(order), list(labels), [spans[f] for f in kept], cells, low, high, drowned,
                  _quantised(mean, low, high))  # fmt: skip


def _ends(each: np.ndarray) -> tuple[float, float, bool]:
    """Return the ends of the colour scale; where weights on oneself would hide the rest, the largest on others."""
    off = each[:, ~np.eye(each.shape[1], dtype=bool)]
    known, others = each[np.isfinite(each)], off[np.isfinite(off)]
    top = float(known.max(initial=0.0))
    other = float(others.max(initial=0.0))
    drowned = 0 < 2 * other < top
    return min(0.0, float(known.min(initial=0.0))), (other if drowned else top) or 1.0, drowned


def _quantised(weights: np.ndarray, low: float, high: float) -> np.ndarray:
    steps = np.clip(np.nan_to_num((weights - low) / (high - low), nan=0.0), 0.0, 1.0) * (UNKNOWN - 1)
    return np.where(np.isfinite(weights), np.rint(steps), UNKNOWN).astype(np.uint8)


def weights_figure(result: Frames, fact: str, order_text: str = "") -> Figure:
    """Return a map of the mean over all rounds; the page replaces the data by single rounds.

    Args:
        order_text: sentence on the order of the clients.
    """
    labels, count, shared = result.labels, len(result.labels), len(result.order) > len(result.labels)
    axis = {"ticks": False, "domain": False, "labelOverlap": True, "labelLimit": 120,
            "values": labels[:: 1 if count < 40 else 5 if count < 100 else 10],
            **({"labelExpr": "split(datum.label, ' (about')[0]"} if shared else cut_axis(labels, 18))}  # fmt: skip
    spec = chart("weights", cells=cells(result, result.mean), names=labels, axis=axis,
                 angle=-90 if max(map(len, labels), default=0) > 3 else 0, gap=0.06 if count < 40 else 0,
                 top=_top(result), low=result.low,
                 title="weight (own weight is off the scale)" if result.drowned else "weight")  # fmt: skip
    caption = (
        "Row: a client that learns; column: a client it learns from; strong: much weight; grey: its own. "
        f"{order_text}{' There are many clients: neighbours share a row.' if shared else ''}{_thinning(result)}"
    )
    return Figure("weights", fact, caption.rstrip(), spec)


def _top(result: Frames) -> float:
    """Return the largest mean weight on another client: the end of the scale while the mean over rounds is shown."""
    mean = np.where(result.mean == UNKNOWN, 0, result.mean).astype(float)
    if len(mean) > 1:
        np.fill_diagonal(mean, 0)
    return round(result.low + (result.high - result.low) * float(mean.max(initial=0)) / (UNKNOWN - 1), 5) or result.high


def _thinning(result: Frames) -> str:
    """Return the remark where a step of the slider covers several rounds."""
    widest = max(last - first + 1 for first, last in result.rounds)
    if widest == 1:
        return ""
    return f" A step of the slider is the mean of up to {widest} rounds, so that the page stays small."


def cells(result: Frames, matrix: np.ndarray) -> list[Datum]:
    """Return a matrix of `Frames` as rows of a chart's data; unknown cells are omitted."""
    step = (result.high - result.low) / (UNKNOWN - 1)
    return [
        {
            "client": result.labels[i],
            "from": result.labels[j],
            "weight": round(result.low + step * int(matrix[i, j]), 5),
        }
        for i, j in np.argwhere(matrix != UNKNOWN).tolist()
    ]


def weights_fact(rows: Rows, groups: Sequence[int] | None = None) -> str:
    """Return the title of a map; ``rows`` as from `mean_rows`."""
    if not rows:
        return "no client said whom it learned from"
    k = 1 + max([*rows, *(j for row in rows.values() for j in row)])
    known = None if groups is None else padded(groups, k)
    own = [max(0.0, row.get(i, 0.0)) for i, row in rows.items()]
    others = [{j: w for j, w in row.items() if j != i and w > 0} for i, row in rows.items()]
    total = sum(sum(row.values()) for row in others)
    if total <= 0:
        return "no client learned from another"
    if known is not None and (known >= 0).any():
        sizes = {int(g): int((known == g).sum()) for g in np.unique(known[known >= 0])}
        same = sum(w for i, row in zip(rows, others, strict=True) for j, w in row.items() if 0 <= known[i] == known[j])
        pairs = sum(sizes[int(known[i])] - 1 for i in rows if known[i] >= 0) / (len(rows) * (k - 1))
        return f"{100 * same / total:.0f}% of weight on others is in the own group (chance: {100 * pairs:.0f}%)"
    squares = [sum(w * w for w in row.values()) / sum(row.values()) ** 2 for row in others if row]
    partners = sum(1 / square for square in squares) / len(squares)
    share = sum(own) / (sum(own) + total)
    return f"a client learns from about {partners:.1f} others; own weight {100 * share:.0f}%"
