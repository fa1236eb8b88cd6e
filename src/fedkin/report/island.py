"""All that a page shows, as plain data: figures, tables, warnings. The page, its script and the command line use it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.core.errors import DataError
from fedkin.evaluate import Against, Choice, against
from fedkin.evaluate import warnings as careful
from fedkin.report import accuracy, costs, references, spreads
from fedkin.report.figures import Figure, colours
from fedkin.report.first import first_of
from fedkin.report.folder import Run
from fedkin.report.parts import Part, parts_of


@dataclass(frozen=True)
class Report:
    """What a page says.

    Attributes:
        runs: all runs by method.
        figures: of all runs together, by the section they stand in.
        parts: what single clients did, run by run.
        compared: reference -> method -> one comparison per seed.
        first: which figure comes first.
        warnings: what a careful colleague would say.
    """

    runs: Mapping[str, Sequence[Run]]
    figures: dict[str, list[Figure]]
    parts: list[Part]
    compared: dict[str, dict[str, list[Against]]]
    first: Choice
    warnings: list[careful.Warning] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Are there several seeds of a method?"""
        return max(len(runs) for runs in self.runs.values()) > 1


def same_clients(groups: Mapping[str, Sequence[Run]]) -> bool:
    """Is a client of one run the client of that number in every other? Only names tell: seeds deal the others anew."""
    names = {run.names for runs in groups.values() for run in runs}
    return len(names) == 1 and bool(next(iter(names)))


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
    by_seed = {name: _compared(name, seeds, groups, tolerance) for name, seeds in bases.items()}
    compared = {name: {t: list(found.values()) for t, found in methods.items()} for name, methods in by_seed.items()}
    same, first_figure = same_clients(groups), first_of(groups)
    parts = parts_of(groups, by_seed, same)
    several = len(groups) > 1 or len(next(iter(groups.values()))) > 1
    final = None if local is None else local.final.get("accuracy")
    names = next(iter(groups.values()))[0].names if same else ()
    shades = colours(list(groups), reference) if len(groups) > 1 else None
    first = compared.get(reference)
    found: dict[str, list[Figure | None]] = {
        "accuracy": [accuracy.final_accuracies(groups, reference, first_figure) if several else None,
                     accuracy.over_rounds(groups, reference, final, first_figure)],
        "clients": [spreads.distribution(groups, reference),
                    spreads.gains(first, reference, shades, names) if first else None],
        "classes": [costs.classes(groups, reference)],
        "cost": [costs.over_bytes(groups, reference), costs.seconds(groups, reference)],
    }  # fmt: skip
    figures = {name: [one for one in drawn if one is not None] for name, drawn in found.items()}
    return Report(groups, figures, parts, compared, first_figure, _warnings(groups, parts, compared))


def _compared(
    name: str, seeds: Mapping[int, Mapping[int, float]], groups: Mapping[str, Sequence[Run]], tolerance: float
) -> dict[str, dict[int, Against]]:
    """Every method that shares a seed and a client with the reference, by method and seed."""
    found: dict[str, dict[int, Against]] = {}
    for title, runs in groups.items():
        for run in runs:
            if title != name and run.seed in seeds:
                with contextlib.suppress(DataError):  # no client in common: nothing to compare
                    one = against(seeds[run.seed], run.by_client, tolerance)
                    found.setdefault(title, {})[run.seed] = one
    return found


def _warnings(
    groups: Mapping[str, Sequence[Run]], parts: Sequence[Part], compared: Mapping[str, Mapping[str, Sequence[Against]]]
) -> list[careful.Warning]:
    """All warnings; those of one method name it where there are several."""
    found: list[careful.Warning] = []
    for title, runs in groups.items():
        for reference, methods in compared.items():
            alone = {title, reference} == {references.LOCAL, references.FULL}  # equal where all rounds are, no collapse
            if title in methods and not alone and all(a.identical for a in methods[title]):
                found += careful.collapsed(title, methods[title][0], reference)
        by_seed = {p.run.seed: _own(p, next(iter(compared), "")) for p in parts if p.run.title == title and not p.joint}
        prefix = f"{title}: " if len(groups) > 1 else ""
        found += [careful.Warning(w.kind, prefix + w.text) for w in _of_seeds(by_seed, [run.seed for run in runs])]
    notes = dict.fromkeys(note for runs in groups.values() for run in runs for note in run.summary.get("notes") or ())
    return [*careful.data(notes), *_joined(found), *careful.seeds(max(len(runs) for runs in groups.values()))]


def _own(part: Part, reference: str) -> list[careful.Warning]:
    """The warnings of one run; those of its gains are of gains over the reference."""
    run, p = part.run, part.people
    gains = part.gains.get(reference)
    found = [] if gains is None else careful.small_tests(p.final, p.n_test, gains)
    found += careful.constant(run.final.get("accuracy"), run.final.get("majority"))
    found += careful.course(run.rounds) + careful.participation(run.rounds, p.count, run.names)
    how = run.summary.get("config", {}).get("run", {})
    found += careful.cohorts(run.rounds, how["participation"]) if "participation" in how else []
    return found + careful.clusters(p.usual_cluster or [])


def _of_seeds(by_seed: Mapping[int, Sequence[careful.Warning]], seeds: Sequence[int]) -> list[careful.Warning]:
    """Each kind of warning once, in the words of the first seed that has it; and which seeds those are, if not all."""
    kinds: dict[str, dict[int, str]] = {}
    for seed, warned in by_seed.items():
        for w in warned:
            kinds.setdefault(w.kind, {})[seed] = w.text
    found = []
    for kind, texts in kinds.items():
        first, text = next(iter(texts.items()))
        alike = len(set(texts.values())) == 1
        if not alike or len(texts) < len(seeds):
            said = f"seed{'s' if alike and len(texts) > 1 else ''} {', '.join(map(str, texts)) if alike else first}"
            others = "" if alike else f"; much the same in {', '.join(str(s) for s in texts if s != first)}"
            text = f"{text.removesuffix('.')} ({said}{others})."
        found.append(careful.Warning(kind, text))
    return found


def _joined(found: Sequence[careful.Warning]) -> list[careful.Warning]:
    """Warnings that say the same of several methods, once."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for w in found:
        title, colon, text = w.text.partition(": ")
        by_text.setdefault((w.kind, text if colon else w.text), []).append(title if colon else "")
    return [careful.Warning(kind, f"{', '.join(titles)}: {text}" if titles[0] else text)
            for (kind, text), titles in by_text.items()]  # fmt: skip
