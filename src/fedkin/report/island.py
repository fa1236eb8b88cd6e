"""All that a page shows, as plain data: figures, tables, warnings. The page, its script and the command line use it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkin.core.errors import DataError
from fedkin.evaluate import Against, against
from fedkin.evaluate import warnings as careful
from fedkin.report import costs, figures, people, relations
from fedkin.report.figures import Figure
from fedkin.report.folder import Run

CELLS = 1_500_000
"""Bytes that the weights over rounds of all runs of a page may take before they are encoded."""


@dataclass(frozen=True)
class Part:
    """One run's own part of a page: its clients and who learned from whom.

    Attributes:
        run: the run; of several seeds the first.
        figures: maps and sizes of clusters, labels.
        frames: weights over rounds, if the run has any.
        table: the columns of the table of clients and what opening one shows.
        people: its clients.
    """

    run: Run
    figures: list[Figure]
    frames: relations.Frames | None
    table: dict[str, Any]
    people: people.People

    def island(self) -> dict[str, Any]:
        """For the page's script."""
        f = self.frames
        frames = None if f is None else {
            "labels": f.labels, "rounds": f.rounds, "low": f.low, "high": f.high, "side": len(f.labels),
            "cells": base64.b64encode(f.cells.tobytes()).decode("ascii"),
            "mean": base64.b64encode(f.mean.tobytes()).decode("ascii"),
        }  # fmt: skip
        drawn = [entry(x) for x in self.figures]
        for one in drawn:
            if one["id"] == "weights":  # the script makes these from the frames
                one["spec"] = {**one["spec"], "data": {"name": "cells"}}
        return {"title": self.run.title, "seed": self.run.seed, "figures": drawn, "frames": frames, **self.table}


@dataclass(frozen=True)
class Report:
    """What a page says.

    Attributes:
        figures: of all runs together, by the section they stand in.
        parts: of each method's first seed.
        compared: reference -> method -> one comparison per seed.
        warnings: what a careful colleague would say.
        runs: all runs by method.
    """

    runs: Mapping[str, Sequence[Run]]
    figures: dict[str, list[Figure]]
    parts: list[Part]
    compared: dict[str, dict[str, list[Against]]]
    warnings: list[careful.Warning] = field(default_factory=list)

    def names(self, title: str) -> tuple[str, ...]:
        """What the clients of a method's runs are called."""
        return self.runs[title][0].names


def entry(figure: Figure) -> dict[str, Any]:
    """A figure for the page's script."""
    return {
        "id": figure.name,
        "fact": figure.fact,
        "caption": figure.caption,
        "spec": figure.spec,
        "series": figure.series,
    }


def made(
    groups: Mapping[str, Sequence[Run]],
    bases: Mapping[str, Mapping[int, Mapping[int, float]]],
    reference: str = "Local",
    tolerance: float = 0.0,
    local: Run | None = None,
) -> Report:
    """Everything of a page.

    Args:
        groups: title -> its runs, as from :func:`fedkin.report.folder.by_title`.
        bases: what gains are counted from: title -> seed -> final accuracy by client.
        reference: the first of them.
        tolerance: gains up to this size, a fraction, count as unchanged.
        local: of one run: the reference's run, which is not among the groups.
    """
    compared = {name: _compared(name, seeds, groups, tolerance) for name, seeds in bases.items()}
    room = CELLS // max(1, sum(_has_weights(runs[0]) for runs in groups.values()))
    parts = [_part(runs[0], {name: one[title][0].gains for name, one in compared.items() if title in one}, room)
             for title, runs in groups.items()]  # fmt: skip
    several = len(groups) > 1 or len(next(iter(groups.values()))) > 1
    final = None if local is None else local.final.get("accuracy")
    found: dict[str, list[Figure | None]] = {
        "accuracy": [figures.final_accuracies(groups, reference) if several else None,
                     figures.over_rounds(groups, reference, final)],
        "clients": [figures.distribution(groups, reference),
                    figures.gains(first, reference) if (first := compared.get(reference)) else None],
        "classes": [costs.classes(groups, reference)],
        "cost": [costs.over_bytes(groups, reference), costs.seconds(groups)],
    }  # fmt: skip
    shown = {name: [one for one in drawn if one is not None] for name, drawn in found.items()}
    return Report(groups, shown, parts, compared, _warnings(groups, parts, compared))


def _compared(
    name: str, seeds: Mapping[int, Mapping[int, float]], groups: Mapping[str, Sequence[Run]], tolerance: float
) -> dict[str, list[Against]]:
    """Every method that shares a seed and a client with the reference, seed by seed."""
    found: dict[str, list[Against]] = {}
    for title, runs in groups.items():
        for run in runs:
            if title != name and run.seed in seeds:
                try:
                    found.setdefault(title, []).append(against(seeds[run.seed], run.by_client, tolerance))
                except DataError:  # no client in common: nothing to compare
                    if not found[title]:
                        del found[title]
    return found


def _has_weights(run: Run) -> bool:
    return any(line.get("kind") == "weights" for line in run.relations)


def _part(run: Run, gains: Mapping[str, Mapping[int, float]], room: int) -> Part:
    p = people.people_of(run)
    order = relations.ordered(p.count, run.groups, p.last_cluster)
    side = max(1, min(p.count, relations.SIDE))
    all_rounds = [int(line["round"]) for line in run.rounds]
    frames = relations.frames(run.relations, order, all_rounds, max(2, room // side**2)) if order else None
    drawn, rows = [], {}
    if frames is not None:
        rows = relations.mean_rows(run.relations)
        fact = relations.weights_fact(rows, run.groups)
        drawn.append(relations.weights_figure(run.title, frames, f"{run.title}: {fact}"))
    rounds, labels = p.clusters
    if labels.size:
        drawn += relations.cluster_figures(run.title, rounds, labels, order, run.groups)
    histogram = people.labels_figure(p, order) if order else None
    return Part(run, [*drawn, *([histogram] if histogram else [])], frames, people.table(run, p, gains, rows), p)


def _warnings(
    groups: Mapping[str, Sequence[Run]], parts: Sequence[Part], compared: Mapping[str, Mapping[str, Sequence[Against]]]
) -> list[careful.Warning]:
    """All warnings; those of one method name it where there are several."""
    found: list[careful.Warning] = []
    for part in parts:
        run, p = part.run, part.people
        own: list[careful.Warning] = []
        for reference, methods in compared.items():
            if run.title not in methods:
                continue
            first = methods[run.title][0]
            found += careful.collapsed(run.title, first, reference)
            own += careful.small_tests(p.final, p.n_test, first.gains) if reference == next(iter(compared)) else []
        own += careful.course(run.rounds) + careful.participation(run.rounds, p.count, run.names)
        own += careful.clusters(p.last_cluster or [])
        prefix = f"{run.title}: " if len(groups) > 1 else ""
        found += [careful.Warning(w.kind, prefix + w.text) for w in own]
    return [*_joined(found), *careful.seeds(max(len(runs) for runs in groups.values()))]


def _joined(found: Sequence[careful.Warning]) -> list[careful.Warning]:
    """Warnings that say the same of several methods, once."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for w in found:
        title, colon, text = w.text.partition(": ")
        by_text.setdefault((w.kind, text if colon else w.text), []).append(title if colon else "")
    return [careful.Warning(kind, f"{', '.join(titles)}: {text}" if titles[0] else text)
            for (kind, text), titles in by_text.items()]  # fmt: skip
