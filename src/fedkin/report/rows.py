"""A comparison in numbers: one row per method, before anything is rounded or laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.evaluate import GROUPED, METRICS, Against, Difference, Spread, against, difference, spread
from fedkin.report.folder import Run

Figures = Mapping[int, Mapping[int, float]]
"""Seed -> client -> final accuracy."""


@dataclass(frozen=True)
class Row:
    """A method in a comparison; fractions, over its seeds.

    Attributes:
        against: one comparison with the reference for each seed that both ran; ``difference``: what they say together.
        metrics: every metric that a run of it has.
        rank: mean over the seeds that all methods ran of its place by accuracy, from 1; equals share a place.
        best: it has the highest accuracy or is not clearly below it, and another is.
    """

    title: str
    seeds: int
    accuracy: Spread | None
    worst_decile: Spread | None
    macro_f1: Spread | None
    megabytes: Spread | None
    against: tuple[Against, ...] = ()
    difference: Difference | None = None
    metrics: Mapping[str, Spread] = field(default_factory=dict)
    rank: float | None = None
    best: bool = False

    @property
    def gain(self) -> Spread | None:
        """Mean gain over the reference, a fraction, over the seeds that both ran."""
        return spread([a.mean for a in self.against])


def comparison_rows(groups: Mapping[str, Sequence[Run]], reference: str = "Local", tolerance: float = 0.0) -> list[Row]:
    """One row per method, with what intervals say, in the order of ``groups`` (title -> seeds, as from ``by_title``).

    A run is compared with the reference's run of the *same seed*, since seeds split the data differently; seeds that
    the reference did not run have no part in gain and harm.
    """
    figures = {title: {run.seed: run.by_client for run in runs} for title, runs in groups.items()}
    ranks, top = _ranks(groups), _top(groups, figures)
    rows = []
    for title, runs in groups.items():
        finals = [run.final for run in runs]
        metrics = {name: s for name in (*METRICS, *GROUPED) if (s := spread([f.get(name) for f in finals])) is not None}
        pairs = _pairs(figures.get(reference, {}), figures[title]) if title != reference else []
        compared = tuple(against(a, b, tolerance) for a, b in pairs)
        rows.append(
            Row(
                title=title,
                seeds=len(runs),
                accuracy=metrics.get("accuracy"),
                worst_decile=metrics.get("worst_decile"),
                macro_f1=metrics.get("macro_f1"),
                megabytes=spread([None if run.bytes is None else run.bytes / 1e6 for run in runs]),
                against=compared,
                difference=difference([a.gains for a in compared]) if compared else None,
                metrics=metrics,
                rank=ranks.get(title),
                best=title in top,
            )
        )
    return rows


def _pairs(first: Figures, second: Figures) -> list[tuple[Mapping[int, float], Mapping[int, float]]]:
    """The figures of both by seed, for the seeds that both ran, where they share a client."""
    return [(first[s], second[s]) for s in second if s in first and first[s].keys() & second[s].keys()]


def _ranks(groups: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Mean rank by accuracy over the seeds that all methods ran; none where there is no such seed."""
    found = {t: {r.seed: a for r in runs if (a := r.final.get("accuracy")) is not None} for t, runs in groups.items()}
    common = set.intersection(*(set(seeds) for seeds in found.values())) if found else set()
    ranks: dict[str, list[float]] = {title: [] for title in found} if common else {}
    for seed in common:
        values = [seeds[seed] for seeds in found.values()]
        for title in ranks:
            own = found[title][seed]
            ranks[title].append(0.5 + sum(v > own for v in values) + sum(v == own for v in values) / 2)
    return {title: sum(places) / len(places) for title, places in ranks.items()}


def _top(groups: Mapping[str, Sequence[Run]], figures: Mapping[str, Figures]) -> set[str]:
    """The method of the highest accuracy and all not clearly below it; nobody if that is everybody."""
    means = {t: s.mean for t, runs in groups.items() if (s := spread([r.final.get("accuracy") for r in runs]))}
    if not means:
        return set()
    highest = max(means, key=lambda t: means[t])
    below = set()
    for title in means:
        pairs = _pairs(figures[highest], figures[title])
        if pairs and title != highest and difference([against(a, b).gains for a, b in pairs]).word == "worse":
            below.add(title)
    return means.keys() - below if below else set()
