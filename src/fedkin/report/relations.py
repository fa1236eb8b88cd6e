"""Who learned from whom in a run, as the charts of the page: circle, matrix, groups over rounds, and two sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedkin.record.lines import RelationLine
from fedkin.record.result import Result
from fedkin.report import circle, clusters, figures, weights
from fedkin.report.client_table import ClientTable
from fedkin.report.figures import Figure
from fedkin.report.standings import NOTICEABLE
from fedkin.report.templates import say
from fedkin.report.wording import tight

MOST_CELLS = 100
"""With more clients there is no matrix of those that shared a model."""


@dataclass(frozen=True)
class Relations:
    """Who learned from whom.

    Attributes:
        kind: "weights", "clusters", or "" where a method has neither.
        fact, says: the heading and the sentences below it.
        order: clients in the order of the charts; names: labels of their rows.
        figures: the charts, with the mean over all rounds.
        frames: weights over rounds.
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
        p: its clients.
        gains: gain by client, a fraction: of many clients only the harmed ones have a label.
        room: maximum number of bytes of the weights over rounds.
        lines: lines of ``relations.jsonl``, passed over several times.
        seeds: number of seeds that the lines are of: clusters have no mean over seeds.
    """
    found = p.clusters
    mostly = None if seeds > 1 else p.usual_cluster
    index = clusters.letters(found, mostly) if mostly is not None else {}
    lettered = None if mostly is None else [index.get(c, -1) for c in mostly]
    order, said = figures.ordered(p.count, run.groups, lettered)
    names = figures.called(p.count, run.names)
    labels = figures.along(order, names)
    each = sorted({line.round for line in lines})
    most = max(2, room // max(1, len(labels)) ** 2)
    frames = weights.frames(lines, order, labels, each, most) if order and each else None
    if frames is not None:
        rows = weights.mean_rows(lines)
        return _weighted(run, p, gains, frames, rows, said, seeds), rows
    if not found.labels.size or seeds > 1:
        return _none(run, order, labels, seeds > 1 and bool(found.labels.size)), {}
    places = _places(run, p, gains, order, names, lettered)
    groups = [place.group for place in places] if places else [lettered[i] for i in order] if lettered else []
    drawn = clusters.cluster_figures(run.title, found, order, names, run.groups)
    if p.count <= circle.MOST_NODES:
        shared = clusters.together(found, order)
        pairs, total = circle.strongest(shared, mutual=True)
        drawn.append(circle.figure(run.title, places, pairs, total, arrows=False))
        if p.count <= MOST_CELLS:
            drawn.append(clusters.together_figure(run.title, shared, [names[i] for i in order], groups))
    fact = clusters.groups_fact(run.title, found, mostly or [])
    says = clusters.groups_says(found, run.groups)
    return Relations("clusters", fact, says, order, [names[i] for i in order], drawn,
                     letters=[index[c] for c in found.names]), {}  # fmt: skip


def _weighted(
    run: Result,
    p: ClientTable,
    gains: Mapping[int, float],
    frames: weights.Frames,
    rows: weights.Rows,
    said: str,
    seeds: int,
) -> Relations:
    title = run.title if seeds == 1 else f"{run.title}, mean over {seeds} seeds"
    drawn = [weights.weights_figure(frames, f"{title}: {weights.weights_fact(rows, run.groups)}", said)]
    if len(frames.labels) == len(frames.order):
        places = _places(run, p, gains, frames.order, figures.called(p.count, run.names), None)
    else:
        places = circle.places(frames.labels, [-1] * len(frames.labels), harmed=[False] * len(frames.labels))
    scale = (frames.high - frames.low) / (weights.UNKNOWN - 1)
    mean = np.where(frames.mean == weights.UNKNOWN, np.nan, frames.low + scale * frames.mean.astype(float))
    pairs, total = circle.strongest(mean, mutual=False)
    drawn.append(circle.figure(title, places, pairs, total, arrows=True))
    learned = tight(weights.weights_fact(rows, run.groups))
    says = f"{learned[0].upper()}{learned[1:]}. A link runs from the client that taught to the client that learned. "
    says += "Only clients that took part have links."
    return Relations("weights", f"{title} gave each client a mix of the others", says, frames.order, frames.labels,
                     drawn, frames)  # fmt: skip


def _none(run: Result, order: list[int], names: list[str], clustered: bool) -> Relations:
    facts = run.title, run.role, clustered
    return Relations("", say("no_relations_fact", *facts), say("no_relations", *facts), order, names)


def _places(
    run: Result,
    p: ClientTable,
    gains: Mapping[int, float],
    order: Sequence[int],
    names: Sequence[str],
    lettered: Sequence[int] | None,
) -> list[circle.CirclePlace]:
    """Return the clients on the circle: in the order and the colours of their true groups, where these are known."""
    if p.count > circle.MOST_NODES:
        return []
    k = p.count
    found = [-1] * k if lettered is None else list(lettered)
    true = None if run.groups is None else figures.padded(run.groups, k).tolist()
    groups = found if true is None else true
    worst = sorted((g, i) for i, g in gains.items() if g < -NOTICEABLE)[: circle.MOST_HARMED]
    harmed = {i for _, i in worst}
    rings = None if true is None or lettered is None else [found[i] for i in order]
    return circle.places(
        [names[i] for i in order], [groups[i] for i in order], rings,
        [max(1, sum(p.labels.get(i) or (1,))) for i in order], [i in harmed for i in order],
    )  # fmt: skip
