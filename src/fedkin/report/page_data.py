"""The content of a page as plain data: figures, tables, warnings; for the page, its script and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.core.robust import Aggregation
from fedkin.evaluate import Against, Choice, Conclusion, details, judge_all, verdict
from fedkin.evaluate import warnings as careful
from fedkin.report import accuracy, client_notes, costs, curves, dots, references, spreads
from fedkin.report.client_data import Part, parts_of
from fedkin.report.figures import Figure, best_first
from fedkin.report.first import NAMED, first_of, unlearned
from fedkin.report.folder import Run
from fedkin.report.headline import ended_early
from fedkin.report.rows import comparisons, same_clients, test_share
from fedkin.report.standings import Standing, standing
from fedkin.report.tuning import Tuned


@dataclass(frozen=True)
class PageData:
    """The content of a page.

    Attributes:
        runs: all runs by method.
        figures: figures of all runs together, by their section.
        parts: results of single clients, run by run.
        compared: reference -> method -> one comparison per seed.
        findings: reference -> method -> conclusions from its comparisons together.
        standings: reference -> method -> the gain of every client, with the verdict.
        first: the headline metric.
        unlearned: the headline and its reason where no method is clearly above its constant answer.
        same: whether a client number means the same client in every seed; None if that is not known.
        warnings: caveats to read before trusting the results.
        tuned: how the methods were tuned; empty if they were not.
    """

    runs: Mapping[str, Sequence[Run]]
    figures: dict[str, list[Figure]]
    parts: list[Part]
    compared: dict[str, dict[str, list[Against]]]
    findings: dict[str, dict[str, Conclusion]]
    standings: dict[str, dict[str, Standing]]
    first: Choice
    unlearned: tuple[str, str] | None = None
    same: bool | None = None
    warnings: list[careful.Warning] = field(default_factory=list)
    tuned: Sequence[Tuned] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by number, where they are the same in all seeds; else empty."""
        return _names(self.runs, self.same)

    @property
    def several(self) -> bool:
        """Whether there are several seeds of a method."""
        return max(len(runs) for runs in self.runs.values()) > 1

    def verdict(self, title: str, reference: str) -> str | None:
        """Return the line on a method against a reference; None if they were not compared."""
        found = self.findings.get(reference, {}).get(title)
        if found is None:
            return None
        lost = any(run.diverged is not None for run in self.runs[title])
        line = verdict(title, found, reference)
        return f"{line}{'; its training diverged' if lost else ''}"

    def sentence(self, title: str, reference: str) -> str | None:
        """Return `verdict` with its details: how many clients are harmed, and who clearly moves against the mean."""
        line = self.verdict(title, reference)
        return None if line is None else line + details(self.findings[reference][title], self.names)


def made(
    groups: Mapping[str, Sequence[Run]],
    bases: Mapping[str, Mapping[int, Run]],
    reference: str = "Local",
    local: Run | None = None,
) -> PageData:
    """Return the content of a page.

    Args:
        groups: title -> its runs, as from :func:`fedkin.report.folder.by_title`.
        bases: runs that gains are relative to: title -> seed -> run.
        reference: the first of them.
        local: of one run: the reference's run, which is not among the groups.
    """
    same, first_figure = same_clients(groups), first_of(groups)
    metric = first_figure.metric
    by_seed = {
        name: {t: c for t, runs in groups.items() if t != name and (c := comparisons(seeds, runs, metric))}
        for name, seeds in bases.items()
    }
    compared = {name: {t: list(found.values()) for t, found in methods.items()} for name, methods in by_seed.items()}
    findings = {name: judge_all(methods, same, test_share(groups)) for name, methods in compared.items()}
    standings = {name: {t: standing(t, name, groups[t], seeds, findings[name][t], metric)
                        for t, seeds in methods.items()} for name, methods in by_seed.items()}  # fmt: skip
    parts = parts_of(groups, standings, bool(same))
    several = len(groups) > 1 or len(next(iter(groups.values()))) > 1
    final = None if local is None else local.final.get("accuracy")
    learned = unlearned(groups, first_figure, same)
    names, order = _names(groups, same), best_first(groups, first_figure.metric)
    ranked = {title: groups[title] for title in order}
    one = next(iter(groups.values()))[0]
    found: dict[str, list[Figure | None]] = {
        "gains": [
            dots.gains([*order, *({name} - set(order))], methods, name, names, first=name == reference)
            for name, methods in standings.items()
            if methods
        ]
        or [dots.accuracies(order, groups, names)],
        "rounds": list(curves.over_rounds(groups, first_figure))
        if several
        else [accuracy.one_over_rounds(one, reference, final, first_figure.fair)],
        "traffic": [curves.traffic(groups, reference)] if len(groups) > 1 else [],
        "more": [
            accuracy.final_accuracies(groups, reference, first_figure) if several else None,
            spreads.distribution(ranked),
            costs.classes(ranked),
            costs.over_bytes(ranked),
            costs.seconds(ranked),
            *_noted(groups, same),
        ],
    }
    figures = {name: [one for one in drawn if one is not None] for name, drawn in found.items()}
    warnings = _warnings(groups, parts, by_seed, first_figure)
    return PageData(groups, figures, parts, compared, findings, standings, first_figure, learned, same, warnings)


def _names(groups: Mapping[str, Sequence[Run]], same: bool | None) -> tuple[str, ...]:
    return next(iter(groups.values()))[0].names if same else ()


def _noted(groups: Mapping[str, Sequence[Run]], same: bool | None) -> list[Figure]:
    """Return the numbers that methods note on clients; of the first seed where other seeds have other clients."""
    shown = {title: list(runs) if same else list(runs[:1]) for title, runs in groups.items()}
    return [one for title, runs in shown.items() for one in client_notes.note_figures(title, runs)]


def _warnings(
    groups: Mapping[str, Sequence[Run]],
    parts: Sequence[Part],
    compared: Mapping[str, Mapping[str, Mapping[int, Against]]],
    headline: Choice,
) -> list[careful.Warning]:
    """Return all warnings; those of one method name it where there are several."""
    found: list[careful.Warning] = []
    for title, runs in groups.items():
        for reference, methods in compared.items():
            alone = title in (references.LOCAL, references.FULL)  # whatever they equal is what collapsed
            each = list(methods.get(title, {}).values())
            if each and not alone and all(a.collapsed for a in each):
                found += careful.collapsed(title, each[0], reference)
        own = [p for p in parts if p.run.title == title and not p.joint]
        base = next(iter(compared.values()), {}).get(title, {})
        by_seed = {p.run.seed: _own(p, base.get(p.run.seed), headline) for p in own}
        prefix = f"{title}: " if len(groups) > 1 else ""
        warned = _of_seeds(by_seed, [r.seed for r in runs]) + careful.unsteady([r.final.get("accuracy") for r in runs])
        found += [careful.Warning(w.kind, prefix + w.text) for w in warned]
    notes = dict.fromkeys(note for runs in groups.values() for run in runs for note in run.summary.get("notes") or ())
    return [*careful.data(notes), *_joined(found), *careful.seeds(max(len(runs) for runs in groups.values()))]


def _own(part: Part, compared: Against | None, headline: Choice) -> list[careful.Warning]:
    """Return the warnings of one run; those on gains concern gains over the reference, which it is compared with."""
    run, p = part.run, part.people
    found = [] if compared is None else careful.small_tests(p.n_test, compared.changed)
    constant = "majority" if headline.fair else "majority_balanced"
    found += careful.constant(run.final.get(headline.metric), run.final.get(constant), NAMED[headline.metric])
    found += careful.course(run.rounds, bool(ended_early([run])))
    found += careful.participation(run.rounds, p.count, run.names)
    config = run.summary.get("config", {})
    found += careful.protection(*Aggregation.unread(config.get("aggregation", {})))
    found += careful.drift(run.rounds, config.get("data", {}).get("drift_round"))
    how = config.get("run", {})
    found += careful.cohorts(run.rounds, how["participation"]) if "participation" in how else []
    return found + careful.clusters(p.usual_cluster or [])


def _of_seeds(by_seed: Mapping[int, Sequence[careful.Warning]], seeds: Sequence[int]) -> list[careful.Warning]:
    """Return each kind of warning once, in the words of the first seed that has it, with the seeds if not all."""
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
            others = "" if alike else f"; also in {', '.join(str(s) for s in texts if s != first)}"
            text = f"{text.removesuffix('.')} ({said}{others})."
        found.append(careful.Warning(kind, text))
    return found


def _joined(found: Sequence[careful.Warning]) -> list[careful.Warning]:
    """Return warnings with the same text for several methods once."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for w in found:
        title, colon, text = w.text.partition(": ")
        by_text.setdefault((w.kind, text if colon else w.text), []).append(title if colon else "")
    return [careful.Warning(kind, f"{', '.join(titles)}: {text}" if titles[0] else text)
            for (kind, text), titles in by_text.items()]  # fmt: skip
