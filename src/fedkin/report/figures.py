"""Common parts of a report's figures: a chart with its texts, colours and dashes of methods, axes, thinning.

Accuracies are given as fractions and drawn in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.report.charts import PALETTE, Spec
from fedkin.report.folder import Run

Groups = Mapping[str, Sequence[Run]]
REFERENCE = "#8c8c8c"
WIDTH = 640
MOST_POINTS = 200
"""Maximum number of points of a line."""


@dataclass(frozen=True)
class Figure:
    """A chart with its texts.

    Attributes:
        name: name of its file, and its id in the page.
        fact: its message in one sentence, used as title.
        caption: explanation of how it is read.
        spec: the chart, its data inside, without a title.
        series: names that the page's reader can show and hide, with their colours; empty: there is nothing to hide.
    """

    name: str
    fact: str
    caption: str
    spec: Spec
    series: Mapping[str, str] | None = None

    @property
    def titled(self) -> Spec:
        """Return the chart with the fact as its title, for use by itself."""
        return {**self.spec, "title": {"text": self.fact, "limit": WIDTH}}


def colours(titles: Sequence[str], reference: str = "Local") -> dict[str, str]:
    """Return a colour for each method, in order; the reference is grey. After six colours repeat, with other dashes."""
    others = [t for t in titles if t != reference]
    return {t: REFERENCE if t == reference else PALETTE[others.index(t) % len(PALETTE)] for t in titles}


def dashes(titles: Sequence[str], reference: str = "Local") -> dict[str, list[int]]:
    """Return a dash for each method, so that no two look the same; the reference has a separate one."""
    kinds = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]
    others = [t for t in titles if t != reference]
    return {t: [4, 2] if t == reference else kinds[others.index(t) // len(PALETTE) % 4] for t in titles}


def coloured(shades: Mapping[str, str], *, legend: bool = True) -> Spec:
    """Return the channel of a series' colour."""
    scale = {"domain": list(shades), "range": list(shades.values())}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": {"title": None} if legend else None}


def dashed(titles: Sequence[str], reference: str) -> Spec:
    """Return the channel of a series' dash."""
    kinds = dashes(titles, reference)
    scale = {"domain": list(kinds), "range": list(kinds.values())}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": {"title": None}}


def x_axis(field: str, title: str, **axis: Any) -> Spec:
    """Return a horizontal axis of numbers whose labels do not overlap."""
    ticks = {"tickCount": {"expr": "max(2, floor(width / 70))"}, **axis}
    return {"field": field, "type": "quantitative", "title": title, "axis": ticks}


def x_rounds() -> Spec:
    """Return the axis of rounds."""
    return {**x_axis("round", "round", tickMinStep=1, grid=False), "scale": {"zero": False, "nice": False}}


def y_axis(title: str, field: str = "value") -> Spec:
    """Return a vertical axis of numbers that need not begin at zero."""
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}}


def y_methods(order: Sequence[str]) -> Spec:
    """Return a row for each method."""
    return {"field": "series", "type": "nominal", "sort": list(order), "title": None}


def hidden() -> tuple[list[Spec], list[Spec]]:
    """Return a parameter with the names that are hidden, and the filter that removes them."""
    return [{"name": "hidden", "value": []}], [{"filter": "indexof(hidden, datum.series) < 0"}]


def thinned(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Return at most ``most`` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def percent(value: float) -> float:
    """Return a fraction in per cent, to two digits."""
    return round(100 * value, 2)
