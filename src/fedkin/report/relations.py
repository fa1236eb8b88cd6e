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
        p: its clients.
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
    if p.count <= circle.MOST_NODES:
        places = _places(run, p, gains, order, names, lettered)
        shared = clusters.together(membership, order)
        drawn.append(circle.figure(run.title, places, *circle.strongest(shared, mutual=True), arrows=False))
        if p.count <= MOST_CELLS:
            drawn.append(clusters.together_figure(run.title, shared, in_order, [place.group for place in places]))
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
        places = _places(run, p, gains, frames.order, figures.called(p.count, run.names), None)
    else:
        places = circle.places(frames.labels, [-1] * len(frames.labels), harmed=[False] * len(frames.labels))
    scale = (frames.high - frames.low) / (weights.UNKNOWN - 1)
    mean = np.where(frames.mean == weights.UNKNOWN, np.nan, frames.low + scale * frames.mean.astype(float))
    drawn = [weights.weights_figure(frames, f"{title}: {fact}", order_text),
             circle.figure(title, places, *circle.strongest(mean, mutual=False), arrows=True)]  # fmt: skip
    learned = tight(fact)
    says = f"{learned[0].upper()}{learned[1:]}. A link runs from the client that taught to the client that learned. "
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
) -> list[circle.CirclePlace]:
    """Return the clients on the circle: in the order and the colours of their true groups, where these are known."""
    true = None if run.groups is None else figures.padded(run.groups, p.count).tolist()
    groups = true or lettered or [-1] * p.count
    harmed = {i for _, i in sorted((g, i) for i, g in gains.items() if g < -NOTICEABLE)[: circle.MOST_HARMED]}
    rings = None if true is None or lettered is None else [lettered[i] for i in order]
    return circle.places(
        [names[i] for i in order], [groups[i] for i in order], rings,
        [max(1, sum(p.labels.get(i) or (1,))) for i in order], [i in harmed for i in order],
    )  # fmt: skip
