"""Who learned from whom in a run, as the charts of the page: circle, matrix, groups over rounds, and two sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedkin.record.lines import RelationLine
from fedkin.record.result import Result
from fedkin.report import clusters, figures, weights
from fedkin.report.charts import Datum, Spec, chart
from fedkin.report.client_table import ClientTable
from fedkin.report.figures import Figure
from fedkin.report.palette import SLOTS
from fedkin.report.standings import NOTICEABLE
from fedkin.report.wording import cut, say

LINKS = 2
"""Maximum number of links per client that are drawn."""
MOST_LABELS = 60
"""With more clients only those that are harmed most have a label."""
MOST_HARMED = 20
"""Maximum number of labels of harmed clients."""
MOST_NODES = 200
"""Maximum number of clients that are drawn as a """
_PULL = 0.35
_BEFORE = 0.14
_GAP = 0.9
_HORIZONTAL = 3
MOST_CELLS = 100
"""With more clients there is no matrix of those that shared a model."""


@dataclass(frozen=True)
class Relations:
    """Who learned from whom.

    Attributes:
        kind: "weights", "clusters", or "" where a method has neither.
        fact, says: the heading and the sentences below it.
        order: clients in the order of the charts; names: labels of their rows.
        figures: the charts, with the mean over all rounds; frames: weights over rounds.
        letters: index of the letter of each cluster, in the order of the clusters' numbers.
    """

    kind: str
    fact: str
    says: str
    order: list[int]
    names: list[str]
    figures: list[Figure] = field(default_factory=list)
    frames: weights.Frames | None = None
    letters: list[int] = field(default_factory=list)


def relations_of(
    run: Result,
    p: ClientTable,
    gains: Mapping[int, float],
    room: int,
    lines: Iterable[RelationLine] = (),
    seeds: int = 1,
) -> tuple[Relations, weights.Rows]:
    """Return the relations of a run, and its mean weights.

    Args:
        run: the run; of several the first.
        gains: gain by client, a fraction: of many clients only the harmed ones have a label.
        room: maximum number of bytes of the weights over rounds.
        lines: lines of ``relations.jsonl``, passed over several times.
        seeds: number of seeds that the lines are of: clusters have no mean over seeds.
    """
    membership = p.clusters
    mostly = None if seeds > 1 else p.usual_cluster
    index = clusters.letters(membership, mostly) if mostly is not None else {}
    lettered = None if mostly is None else [index.get(c, -1) for c in mostly]
    order, order_text = figures.ordered(p.count, run.groups, lettered)
    names = figures.called(p.count, run.names)
    labels = figures.along(order, names)
    each = sorted({line.round for line in lines})
    most = max(2, room // max(1, len(labels)) ** 2)
    frames = weights.frames(lines, order, labels, each, most) if order and each else None
    if frames is not None:
        rows = weights.mean_rows(lines)
        return _weighted(run, p, gains, frames, rows, order_text, seeds), rows
    if mostly is None:
        facts = run.title, run.role, bool(membership.labels.size)
        return Relations("", say("no_relations_fact", *facts), say("no_relations", *facts), order, labels), {}
    drawn = clusters.cluster_figures(run.title, membership, order, names, run.groups)
    in_order = [names[i] for i in order]
    if p.count <= MOST_NODES:
        nodes = _places(run, p, gains, order, names, lettered)
        shared = clusters.together(membership, order)
        drawn.append(circle_figure(run.title, nodes, *strongest(shared, mutual=True), arrows=False))
        if p.count <= MOST_CELLS:
            drawn.append(clusters.together_figure(run.title, shared, in_order, [node.group for node in nodes]))
    fact, says = clusters.groups_fact(run.title, mostly), clusters.groups_says(membership, run.groups)
    return Relations("clusters", fact, says, order, in_order, drawn,
                     letters=[index[c] for c in membership.names]), {}  # fmt: skip


def _weighted(
    run: Result,
    p: ClientTable,
    gains: Mapping[int, float],
    frames: weights.Frames,
    rows: weights.Rows,
    order_text: str,
    seeds: int,
) -> Relations:
    title = run.title if seeds == 1 else f"{run.title}, mean over {seeds} seeds"
    fact = weights.weights_fact(rows, run.groups)
    if len(frames.labels) == len(frames.order):
        nodes = _places(run, p, gains, frames.order, figures.called(p.count, run.names), None)
    else:
        nodes = places(frames.labels, [-1] * len(frames.labels), harmed=[False] * len(frames.labels))
    scale = (frames.high - frames.low) / (weights.UNKNOWN - 1)
    mean = np.where(frames.mean == weights.UNKNOWN, np.nan, frames.low + scale * frames.mean.astype(float))
    drawn = [weights.weights_figure(frames, f"{title}: {fact}", order_text),
             circle_figure(title, nodes, *strongest(mean, mutual=False), arrows=True)]  # fmt: skip
    says = f"{fact[0].upper()}{fact[1:]}. A link runs from the client that taught to the client that learned. "
    says += "Only clients that took part have links."
    return Relations("weights", f"{title} gave each client a mix of the others", says, frames.order, frames.labels,
                     drawn, frames)  # fmt: skip


def _places(
    run: Result,
    p: ClientTable,
    gains: Mapping[int, float],
    order: Sequence[int],
    names: Sequence[str],
    lettered: Sequence[int] | None,
) -> list[CirclePlace]:
    """Return the clients on the circle: in the order and the colours of their true groups, where these are known."""
    true = None if run.groups is None else figures.padded(run.groups, p.count).tolist()
    groups = true or lettered or [-1] * p.count
    harmed = {i for _, i in sorted((g, i) for i, g in gains.items() if g < -NOTICEABLE)[:MOST_HARMED]}
    rings = None if true is None or lettered is None else [lettered[i] for i in order]
    return places(
        [names[i] for i in order], [groups[i] for i in order], rings,
        [max(1, sum(p.labels.get(i) or (1,))) for i in order], [i in harmed for i in order],
    )  # fmt: skip


# ---- clients on a circle
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
        groups: index of each client's group, -1 for none.
        rings: index of the cluster by the method, where the groups are the true ones.
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


def circle_figure(title: str, nodes: Sequence[CirclePlace], pairs: Sequence[Link], total: int, arrows: bool) -> Figure:
    """Return the circle with the strongest links of a method.

    Args:
        pairs: links as from `strongest`; total: the number of all links.
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
