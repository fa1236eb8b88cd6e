"""Clients on a circle in the order of their groups, with links from clients that teach to those that learn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.report.charts import Spec, chart
from fedkin.report.figures import Figure
from fedkin.report.palette import SLOTS
from fedkin.report.wording import cut

LINKS = 2
"""Maximum number of links per client that are drawn."""
MOST_LABELS = 60
"""With more clients only those that are harmed most have a label."""
MOST_HARMED = 20
"""Maximum number of labels of harmed clients."""
MOST_NODES = 200
"""Maximum number of clients that are drawn as a circle."""
_PULL = 0.35
_BEFORE = 0.14
_GAP = 0.9
_HORIZONTAL = 3


@dataclass(frozen=True)
class CirclePlace:
    """A client on the circle.

    Attributes:
        name: its name; label: the name that is drawn, "" for none.
        x, y: its place; the radius is 1.
        group: index of its group, -1 for none; ring: index of the group found, where true groups are known, else -1.
        samples: its number of training samples, 1 where not known.
        dense: there are many clients: even short labels point outwards.
    """

    name: str
    label: str
    x: float
    y: float
    group: int
    ring: int
    samples: int
    dense: bool = False

    def row(self, number: int) -> dict[str, Any]:
        """Return a row of the chart's data."""
        turn = math.degrees(math.atan2(-self.y, self.x))
        left = abs(turn) > 90
        flat = len(self.label) <= _HORIZONTAL and not self.dense
        return {
            "n": number, "client": self.name, "label": self.label, "x": round(self.x, 4), "y": round(self.y, 4),
            "lx": round(1.12 * self.x, 4), "ly": round(1.12 * self.y, 4), "group": self.group, "ring": self.ring,
            "samples": self.samples, "turn": 0 if flat else round(turn - 180 if left else turn, 1),
            "side": "middle" if flat else "left" if left else "right",
        }  # fmt: skip


def places(
    names: Sequence[str],
    groups: Sequence[int],
    rings: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    harmed: Sequence[bool] | None = None,
) -> list[CirclePlace]:
    """Return the clients, in the order given, on a circle from the top clockwise, with a gap between groups.

    Args:
        names: names of the clients.
        groups: index of each client's group, -1 for none.
        rings: index of the group found; None: the groups are those found.
        samples: training samples.
        harmed: which clients are harmed: of many clients only these have a label.
    """
    k = len(names)
    breaks = [i for i in range(1, k) if groups[i] != groups[i - 1]]
    gap = 0.0 if not breaks else 0.35 if len(breaks) > 5 else _GAP
    step = 2 * math.pi / max(1.0, k + gap * (len(breaks) + bool(breaks)))
    angle, found = math.pi / 2 - gap * step / 2, []
    for i, name in enumerate(names):
        angle -= gap * step * (i in breaks)
        shown = k <= MOST_LABELS or (harmed is not None and harmed[i])
        ring, count = -1 if rings is None else rings[i], 1 if samples is None else samples[i]
        label = cut(name) if shown else ""
        place = CirclePlace(name, label, math.cos(angle), math.sin(angle), groups[i], ring, count, k > MOST_LABELS)
        found.append(place)
        angle -= step
    return found


def strongest(matrix: np.ndarray, *, mutual: bool) -> tuple[list[tuple[int, int, float]], int]:
    """Return the strongest links of each client, at most two, as (learner, teacher, weight), and the number of all.

    Args:
        matrix: weight by learner and teacher ``[K, K]``, NaN where unknown.
        mutual: the matrix is symmetric, and a pair is one link.
    """
    known = np.nan_to_num(np.asarray(matrix, dtype=float))
    np.fill_diagonal(known, 0.0)
    k = len(known)
    pairs = [(int(i), int(j)) for i, j in np.argwhere(known > 0)]
    near = {(i, j): min(abs(i - j), k - abs(i - j)) for i, j in pairs}
    pairs.sort(key=lambda p: (-known[p], near[p], p))
    count: Counter[int] = Counter()
    kept: list[tuple[int, int]] = []
    for i, j in pairs:
        count[i] += 1
        if count[i] <= LINKS and not (mutual and (j, i) in kept):
            kept.append((i, j))
    return [(i, j, float(known[i, j])) for i, j in kept], len(pairs) // (2 if mutual else 1)


def links(pairs: Sequence[tuple[int, int, float]], nodes: Sequence[CirclePlace]) -> list[dict[str, Any]]:
    """Return three points for each link: from the teacher over a point near the middle to the learner."""
    rows = []
    for d, (learner, teacher, weight) in enumerate(pairs):
        a, b = nodes[teacher], nodes[learner]
        middle = ((a.x + b.x) / 2 * _PULL, (a.y + b.y) / 2 * _PULL)
        group = b.group if a.group == b.group else -1
        rows += [{"d": d, "o": o, "x": round(x, 4), "y": round(y, 4), "w": round(weight, 4), "group": group,
                  "from": a.name, "client": b.name}
                 for o, (x, y) in enumerate(((a.x, a.y), middle, (b.x, b.y)))]  # fmt: skip
        way = (b.x - middle[0], b.y - middle[1])
        rows[-1] |= {"hx": round(b.x - _BEFORE * way[0], 4), "hy": round(b.y - _BEFORE * way[1], 4),
                     "turn": round(math.degrees(math.atan2(-way[1], way[0])), 1)}  # fmt: skip
    return rows


def figure(
    title: str, nodes: Sequence[CirclePlace], pairs: Sequence[tuple[int, int, float]], total: int, arrows: bool
) -> Figure:
    """Return the circle with the strongest links.

    Args:
        title: display name of the method.
        nodes: the clients.
        pairs: links as from `strongest`; total: the number of all links.
        arrows: links have a direction.
    """
    rows = [place.row(n) for n, place in enumerate(nodes)]
    every = total <= len(pairs)
    fact = f"{title}: {total} links" if every else f"{title}: each client's strongest links, {len(pairs)} of {total}"
    caption = "A link joins clients that shared a model; its strength is their share of the rounds."
    if arrows:
        caption = "A link runs from the client that taught to the one that learned; its width is the weight."
    radius = 1.2 if all(len(place.label) <= _HORIZONTAL for place in nodes) else 1.75
    return Figure("circle", fact, caption, _spec(rows, links(pairs, nodes), radius, len(nodes), arrows))


def _spec(nodes: list[dict[str, Any]], drawn: list[dict[str, Any]], radius: float, count: int, arrows: bool) -> Spec:
    groups = list(range(-1, SLOTS))

    def colours(none: str) -> Spec:
        return {"domain": groups, "range": [none, *(f"var(--g{n + 1})" for n in range(SLOTS))]}

    return chart("circle", nodes=nodes, links=drawn, ends=[-radius, radius], arrows=arrows,
                 link_colours=colours("var(--gain)" if arrows else "var(--same)"),
                 fills=colours("var(--ink-2)"), rings=colours("var(--surface)"),
                 sizes=[50, 420] if count <= 40 else [20, 120] if count <= 100 else [8, 50])  # fmt: skip
