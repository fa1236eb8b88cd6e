"""Clients on a circle in the order of their groups, with links from clients that teach to those that learn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkin.report.charts import Datum, Spec, chart
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

Link = tuple[int, int, float]
"""Learner, teacher, weight."""


@dataclass(frozen=True)
class CirclePlace:
    """A client on the circle, whose radius is 1: its place, the index of its group, -1 for none, and its datum."""

    name: str
    x: float
    y: float
    group: int
    datum: Datum


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
        rings: index of the cluster by the method, where the groups are the true ones.
        samples: training samples.
        harmed: which clients are harmed: of many clients only these have a label.
    """
    k = len(names)
    breaks = [i for i in range(1, k) if groups[i] != groups[i - 1]]
    gap = 0.0 if not breaks else 0.35 if len(breaks) > 5 else _GAP
    step = 2 * math.pi / max(1.0, k + gap * (len(breaks) + bool(breaks)))
    angle, placed = math.pi / 2 - gap * step / 2, []
    for i, name in enumerate(names):
        angle -= gap * step * (i in breaks)
        label = cut(name) if k <= MOST_LABELS or (harmed is not None and harmed[i]) else ""
        x, y = math.cos(angle), math.sin(angle)
        turn = math.degrees(math.atan2(-y, x))
        left, flat = abs(turn) > 90, len(label) <= _HORIZONTAL and k <= MOST_LABELS
        placed.append(CirclePlace(name, x, y, groups[i], {
            "n": i, "client": name, "label": label, "x": round(x, 4), "y": round(y, 4),
            "lx": round(1.12 * x, 4), "ly": round(1.12 * y, 4), "group": groups[i],
            "ring": -1 if rings is None else rings[i], "samples": 1 if samples is None else samples[i],
            "turn": 0 if flat else round(turn - 180 if left else turn, 1),
            "side": "middle" if flat else "left" if left else "right",
        }))  # fmt: skip
        angle -= step
    return placed


def strongest(matrix: np.ndarray, *, mutual: bool) -> tuple[list[Link], int]:
    """Return the strongest links of each client, at most two, and the number of all.

    Args:
        matrix: weight by learner and teacher ``[K, K]``, NaN where unknown.
        mutual: the matrix is symmetric, and a pair is one link.
    """
    known = np.nan_to_num(np.asarray(matrix, dtype=float))
    np.fill_diagonal(known, 0.0)
    k = len(known)
    pairs = [(int(i), int(j)) for i, j in np.argwhere(known > 0)]
    pairs.sort(key=lambda p: (-known[p], min(abs(p[0] - p[1]), k - abs(p[0] - p[1])), p))
    count: Counter[int] = Counter()
    kept: list[tuple[int, int]] = []
    for i, j in pairs:
        count[i] += 1
        if count[i] <= LINKS and not (mutual and (j, i) in kept):
            kept.append((i, j))
    return [(i, j, float(known[i, j])) for i, j in kept], len(pairs) // (2 if mutual else 1)


def links(pairs: Sequence[Link], nodes: Sequence[CirclePlace]) -> list[Datum]:
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


def figure(title: str, nodes: Sequence[CirclePlace], pairs: Sequence[Link], total: int, arrows: bool) -> Figure:
    """Return the circle with the strongest links of a method.

    Args:
        title: display name of the method.
        nodes: the clients.
        pairs: links as from `strongest`; total: the number of all links.
        arrows: links have a direction.
    """
    every = total <= len(pairs)
    fact = f"{title}: {total} links" if every else f"{title}: each client's strongest links, {len(pairs)} of {total}"
    caption = "A link joins clients that shared a model; its strength is their share of the rounds."
    if arrows:
        caption = "A link runs from the client that taught to the one that learned; its width is the weight."
    rows, count = [place.datum for place in nodes], len(nodes)
    radius = 1.2 if all(len(row["label"]) <= _HORIZONTAL for row in rows) else 1.75
    spec = chart("circle", nodes=rows, links=links(pairs, nodes), ends=[-radius, radius], arrows=arrows,
                 link_colours=_colours("gain" if arrows else "same"), fills=_colours("ink-2"),
                 rings=_colours("surface"),
                 sizes=[50, 420] if count <= 40 else [20, 120] if count <= 100 else [8, 50])  # fmt: skip
    return Figure("circle", fact, caption, spec)


def _colours(none: str) -> Spec:
    return {"domain": list(range(-1, SLOTS)), "range": [f"var(--{none})", *(f"var(--g{n + 1})" for n in range(SLOTS))]}
