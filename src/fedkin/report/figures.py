"""Common parts of a report's figures: a chart with its texts, colours of methods, axes, names and order of clients.

Accuracies are given as fractions and drawn in per cent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.display import printable_parts
from fedkin.evaluate import Spread, spread
from fedkin.record.result import Result
from fedkin.report.charts import Spec
from fedkin.report.headline import ALONE, COMPARED
from fedkin.report.palette import SHAPES, SLOTS, slots
from fedkin.report.wording import cut

Groups = Mapping[str, Sequence[Result]]
MOST_SHOWN = 8
"""Of more methods than there are colours, the number that is shown first, next to the references."""
WIDTH = 640
MOST_POINTS = 200
"""Maximum number of points of a line."""
ROW = 16
"""Pixels from one label at the ends of lines to the next."""


@dataclass(frozen=True)
class Figure:
    """A chart with its texts: the name of its file and id in the page, its message in one sentence as title, how it is
    read, and the specification with its data, without a title."""

    name: str
    fact: str
    caption: str
    spec: Spec

    @property
    def titled(self) -> Spec:
        """Return the chart with the fact as its title, for use by itself."""
        return {**self.spec, "title": {"text": self.fact, "limit": WIDTH}}


def best_first(groups: Groups, metric: str = "accuracy") -> list[str]:
    """Return the methods by a final figure, highest first; those that were not evaluated last."""
    means = final_means(groups, metric)
    return sorted(groups, key=lambda title: -means.get(title, -1.0))


def final_spreads(groups: Groups, metric: str = "accuracy") -> dict[str, Spread]:
    """Return a final figure of each method over its seeds, a fraction; methods that were not evaluated are left out."""
    each = {title: spread([run.final.of(metric) for run in runs]) for title, runs in groups.items()}
    return {title: value for title, value in each.items() if value is not None}


def final_means(groups: Groups, metric: str = "accuracy") -> dict[str, float]:
    """Return the means of `final_spreads`."""
    return {title: value.mean for title, value in final_spreads(groups, metric).items()}


def leader(values: Mapping[str, float], *, apart: float = 0.0, times: float = 1.0) -> str:
    """Return the name with the largest value, for a title; "" where the second is so close that it says nothing.

    Args:
        values: name -> its value, as it is shown.
        apart, times: least difference and least ratio to the second largest value.
    """
    first, *rest = sorted(values, key=lambda name: -values[name]) or [""]
    near = rest and (values[first] - values[rest[0]] < apart or values[first] < times * values[rest[0]])
    return "" if near else first


def prominent(groups: Groups) -> list[str]:
    """Return the methods that have colours, best first: all of up to twelve, else the best eight and the references."""
    order, plain = best_first(groups), grey(groups)
    coloured = [t for t in order if t not in plain]
    if len(coloured) <= SLOTS:
        return order
    return [t for t in order if t in coloured[:MOST_SHOWN] or groups[t][0].role in COMPARED]


def grey(groups: Groups) -> list[str]:
    """Return the methods that are grey lines, outside the colours: training alone."""
    return [t for t, runs in groups.items() if runs[0].role in ALONE]


def muted(shown: Sequence[str]) -> str:
    """Return the test of a chart for lines of other methods than these, which are pale."""
    return f"indexof({quoted(list(shown))}, datum.series) < 0"


def others(groups: Groups) -> str:
    """Return the end of a caption: the number of methods whose lines are thin and grey."""
    rest = len(groups) - len(prominent(groups))
    return f" Thin and grey: {rest} other methods." if rest else ""


def _slots(groups: Groups) -> dict[str, int]:
    return slots({t: groups[t][0].role for t in prominent(groups)})  # in whatever order a figure has its methods


def shades(groups: Groups) -> dict[str, str]:
    """Return the colour token of each method: grey for training alone and for those that are not prominent."""
    own = _slots(groups)
    return {title: f"var(--m{own[title]})" if title in own else "var(--same)" for title in groups}


def shapes(groups: Groups) -> dict[str, tuple[str, bool]]:
    """Return the shape of each method, and whether it is filled; a dash for those without a colour."""
    own = _slots(groups)
    return {t: (SHAPES[(own[t] - 1) % 6], own[t] <= 6) if t in own else ("stroke", True) for t in groups}


def dashes(groups: Groups) -> dict[str, list[int]]:
    """Return a dash for each method: solid lines, but for the two kinds of training alone."""
    kinds = {"alone": [4, 3], "alone-full": [2, 2]}
    return {t: kinds.get(runs[0].role, [1, 0]) for t, runs in groups.items()}


def channels(groups: Groups, titles: Sequence[str], field: str = "series") -> dict[str, Spec]:
    """Return the channels of the methods' colour, dash, shape and filling, without legends."""
    colour, shape, dash = shades(groups), shapes(groups), dashes(groups)
    each = {"colour": [colour[t] for t in titles], "dash": [dash[t] for t in titles],
            "shape": [shape[t][0] for t in titles],
            "fill": [colour[t] if shape[t][1] else "var(--surface)" for t in titles]}  # fmt: skip
    return {name: {"field": field, "type": "nominal", "legend": None,
                   "scale": {"domain": list(titles), "range": values}} for name, values in each.items()}  # fmt: skip


def scale(values: Mapping[str, object]) -> Spec:
    """Return a scale with a value for each name."""
    return {"domain": list(values), "range": list(values.values())}


def coloured(groups: Groups, *, legend: bool = True) -> Spec:
    """Return the channel of a series' colour; of many series the legend has those that are not grey."""
    own, plain = shades(groups), grey(groups)
    known = [t for t, shade in own.items() if shade != "var(--same)" or t in plain or len(own) <= SLOTS + 2]
    titled = {"title": None, "values": known, "symbolOpacity": 1}
    return {"field": "series", "type": "nominal", "scale": scale(own), "legend": titled if legend else None}


def quoted(value: Any) -> str:
    """Return names as an expression of Vega; they are the same there as in the data of a chart that is drawn."""
    return json.dumps(printable_parts(value))


def tip_title(text: str) -> str:
    """Return a text as the title of a field in a tooltip; Vega-Lite makes it a string of an expression."""
    return quoted(text)[1:-1].replace(r"\"", '"')


def axis_ends(finals: Sequence[float], drawn: Sequence[float]) -> tuple[int, int]:
    """Return the ends of an axis in per cent, multiples of ten: the final figures are in its upper part."""
    if not finals:
        return 0, 100
    high = min(100, 10 * math.ceil((max(*finals, *drawn) + 1) / 10))
    return max(0, min(10 * math.floor((min(finals) - 25) / 10), high - 40)), high


def end_labels(lasts: Mapping[str, float], low: float, high: float, height: float) -> list[tuple[str, float]]:
    """Return the lines, the highest first, and the places of their labels on the axis, a line of text apart.

    Args:
        low, high: ends of the axis; height: its length in pixels.
    """
    order = sorted(lasts, key=lambda name: -lasts[name])
    scale = height / (high - low)
    blocks: list[list[float]] = []  # wanted places of labels that have to stand together

    def top(block: Sequence[float]) -> float:
        middle = sum(block) / len(block) - ROW * (len(block) - 1) / 2
        return min(max(4.0, middle), height - 4 - ROW * (len(block) - 1))

    for name in order:
        blocks.append([(high - max(lasts[name], low)) * scale])
        while len(blocks) > 1 and top(blocks[-1]) < top(blocks[-2]) + ROW * len(blocks[-2]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    at = [round(high - (top(block) + ROW * i) / scale, 2) for block in blocks for i in range(len(block))]
    return list(zip(order, at, strict=True))


def y_methods(order: Sequence[str]) -> Spec:
    """Return a row for each method."""
    # on a phone the names are shorter
    narrow = f"containerSize()[0] < 480 ? {_cuts(order, 14)}[datum.value] : {_cuts(order, 28)}[datum.value]"
    return {"field": "series", "type": "nominal", "sort": list(order), "title": None,
            "axis": {"labelExpr": narrow, "labelLimit": 180}}  # fmt: skip


def _cuts(names: Sequence[str], most: int) -> str:
    """Return an expression of names, each cut in its middle, by full name."""
    return f"({quoted({name: cut(name, most) for name in names})})"


def cut_axis(names: Sequence[str], most: int = 20) -> Spec:
    """Return the part of an axis that cuts long names in their middle, where they differ less than at their ends."""
    return {"labelExpr": f"{_cuts(names, most)}[datum.value]"} if any(len(name) > most for name in names) else {}


def thinned(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Return at most ``most`` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def percent(value: float) -> float:
    """Return a fraction in per cent, to two digits."""
    return round(100 * value, 2)


SIDE = 100
"""Maximum number of rows of a map: with more clients, neighbours in its order share a row."""


def different(names: Sequence[str]) -> list[str]:
    """Return the names; repeated ones get their position, so that each stands for one row or column."""
    taken: set[str] = set()
    labels = []
    for i, name in enumerate(names):
        labels.append(f"{name} ({i})" if name in taken else name)
        taken.add(labels[-1])
    return labels


def called(count: int, names: Sequence[str]) -> list[str]:
    """Return names of a number of clients or classes, all different; the number where one has no name."""
    return different([names[i] if i < len(names) and names[i] else str(i) for i in range(count)])


def along(order: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return labels of a map's rows ``[S]``, S at most `SIDE`: clients in order, or the number that shares a row."""
    side = min(len(order), SIDE)
    if side == len(order):
        return [names[i] for i in order]
    size = len(order) / side
    return [f"{b + 1} (about {size:.0f} clients)" for b in range(side)]


def places(order: Sequence[int]) -> np.ndarray:
    """Return the row of the map of each client, int64 ``[K]``."""
    k = len(order)
    place = np.empty(k, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(k) * min(k, SIDE) // max(k, 1)
    return place


def ordered(k: int, groups: Sequence[int] | None, usual: Sequence[int] | None = None) -> tuple[list[int], str]:
    """Return clients by true group, else by usual cluster, else by number; and the sentence on their order."""
    by, said = (groups, "true groups") if groups is not None else (usual, "the clusters of the last fifth of the run")
    if by is None:
        return list(range(k)), "In the order of their numbers."
    return [int(i) for i in np.argsort(padded(by, k), kind="stable")], f"In the order of {said}."


def padded(groups: Sequence[int] | None, k: int) -> np.ndarray:
    """Return groups as int ``[K]``, -1 where unknown."""
    result = np.full(k, -1)
    given = list(groups or [])[:k]
    result[: len(given)] = given
    return result
