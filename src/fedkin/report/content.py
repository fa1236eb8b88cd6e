"""The content of a page: a run is a comparison of one method with one seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

from fedkin.core.errors import ConfigError, counted
from fedkin.core.settings import DataSettings
from fedkin.evaluate import Against, Choice, Conclusion, Spread, details, judge_all, spread, verdict
from fedkin.evaluate import warnings as careful
from fedkin.record.result import Result, by_title
from fedkin.report import client_table, costs, curves, dots, tables, wording
from fedkin.report.client_data import Part, parts_of
from fedkin.report.figures import Figure, best_first, final_means, prominent, shades, shapes
from fedkin.report.headline import (
    ALONE,
    COMPARED,
    NAMED,
    Headline,
    ended_early,
    ending,
    first_of,
    headline,
    rounds_of,
    unlearned,
    what_alone_is,
    which_is_which,
)
from fedkin.report.standings import Row, Standing, comparison_rows, comparisons, same_clients, standing, test_share
from fedkin.report.tuning import Tuned, tuning_note, tuning_table, tuning_warnings

_NAMED = 12  # clients in a list
_SETTINGS = {"Data": ("data",), "Model and training": ("model", "training"), "Run": ("run",), "Method": ("method",)}
_MOST_SETTINGS = 12
_HEADS = {
    "small tests": "small test parts", "rising": "still rising", "unsteady": "unlike seeds",
    "constant": "no better than a constant", "never": "clients without training", "refused": "refused uploads",
    "abandoned": "abandoned rounds", "one cluster": "one group for nearly all", "data": "remark on the data",
    "end of range": "tuned to the end of a range", "tuning failed": "not tuned: all trials failed",
    "privacy of tuning": "privacy without tuning",
}  # fmt: skip
_WITH_METHODS = ("rising", "unsteady", "diverged", "one cluster", "end of range", "tuning failed")


@dataclass(frozen=True)
class Caveat:
    """A warning to read before trusting the results, of a kind as of `fedkin.evaluate.warnings.Warning`, its text
    without its methods, and the titles of these, none where it concerns all."""

    kind: str
    body: str
    methods: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The caveat in one or two sentences."""
        return f"{', '.join(self.methods)}: {self.body}" if self.methods else self.body

    @property
    def head(self) -> str:
        """Two to four words for it, with its methods where they matter."""
        if self.kind == "collapse":
            return self.methods[0].removesuffix(" for every client")
        head = _HEADS.get(self.kind, self.kind)
        if self.kind not in _WITH_METHODS or not self.methods:
            return head
        few = len(self.methods) <= 2
        who = wording.listed(self.methods) if few else f"{self.methods[0]} and {len(self.methods) - 1} more"
        return f"{who} {head}"


@dataclass(frozen=True)
class Choices:
    """The settings of a method, those of its first seed: by heading, and all as lines ``a.b = value``."""

    seeds: Sequence[int]
    columns: Mapping[str, Sequence[tuple[str, str]]]
    lines: Sequence[str]


@dataclass(frozen=True)
class Content:
    """The content of a page; its templates ask for what they show.

    Attributes:
        runs: all runs by method, the reference among them where it is shown.
        reference: title of the method that gains are relative to; "" if there is none.
        roles: role of every method and reference, "" for most.
        figures: figures of all runs together, by their section.
        parts: results of single clients, run by run.
        compared: reference -> method -> one comparison per seed.
        findings: reference -> method -> conclusions from its comparisons together.
        standings: reference -> method -> the gain of every client, with the verdict.
        first: the headline metric.
        unlearned: the headline and its reason where no method is clearly above its constant answer.
        same: whether a client number means the same client in every seed; None if that is not known.
        caveats: what to read before trusting the results.
        tuned: how the methods were tuned; empty if they were not.
    """

    runs: Mapping[str, Sequence[Result]]
    reference: str
    roles: Mapping[str, str]
    figures: Mapping[str, Sequence[Figure]]
    parts: Sequence[Part]
    compared: Mapping[str, Mapping[str, Sequence[Against]]]
    findings: Mapping[str, Mapping[str, Conclusion]]
    standings: Mapping[str, Mapping[str, Standing]]
    first: Choice
    unlearned: tuple[str, str] | None
    same: bool | None
    caveats: Sequence[Caveat]
    tuned: Sequence[Tuned] = ()

    # ---- all methods together
    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.all_runs) > 1

    @property
    def all_runs(self) -> list[Result]:
        """The runs of all methods."""
        return [run for runs in self.runs.values() for run in runs]

    @property
    def seeds(self) -> int:
        """Number of seeds of the page."""
        return max(map(len, self.runs.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by number, where they are the same in all seeds; else empty."""
        return self.all_runs[0].names if self.same else ()

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return NAMED[self.first.metric]

    @property
    def what(self) -> list[str]:
        """What was run: kind, data, clients, rounds, seeds."""
        clients = max(*map(self.clients, self.runs), *(run.run.clients for run in self.all_runs))
        seeds, rounds = len({run.seed for run in self.all_runs}), {run.total for run in self.all_runs}
        name = Path(str(self.all_runs[0].table("data").get("data") or "")).name
        kind = "Comparison" if len(self.runs) > 1 else "Run"
        same_rounds = [f"{n} round{'s' * (n != 1)}" for n in rounds if len(rounds) == 1]
        parts = [kind, name, counted(clients, "client"), *same_rounds]
        return [*filter(None, parts), f"{seeds} seeds" if seeds > 1 else "one seed"]

    @property
    def at_best(self) -> bool:
        """Whether figures are of the best round on validation data."""
        return any(run.at_best for run in self.all_runs)

    @cached_property
    def rows(self) -> list[Row]:
        """The methods in numbers."""
        return comparison_rows(self.runs, self.reference, self.findings.get(self.reference), self.first.metric)

    @cached_property
    def lead(self) -> Headline:
        """The rounds of the figures, and the runs that diverged."""
        return headline(self.runs, self.first, tuning_note(self.tuned))

    @cached_property
    def order(self) -> list[str]:
        """The methods that were evaluated, highest headline metric first."""
        return sorted(self._means, key=lambda title: -self._means[title])

    @cached_property
    def _means(self) -> dict[str, float]:
        return final_means(self.runs, self.first.metric)

    @cached_property
    def tied(self) -> list[str]:
        """Methods that are not clearly below the best."""
        tied = {row.title for row in self.rows if row.tied}
        return [title for title in self.order[1:] if title in tied]

    @property
    def tied_names(self) -> list[str]:
        """The same, as they are named on the page."""
        return [self.named(t) if self.role(t) == "alone" else t for t in self.tied]

    @cached_property
    def chosen(self) -> str:
        """The method that the page starts with: the best that is not training alone."""
        others = [t for t in self.order if t != self.reference and not self.alone(t)]
        return next(iter([*others, *self.order, *self.runs]))

    @property
    def shown(self) -> list[str]:
        """Methods of the board's table that are shown at first."""
        return [t for t in prominent(self.runs) if t in self.order]

    @property
    def table(self) -> tables.Grid:
        """The complete table."""
        if not self.several:
            return tables.final_table(self.all_runs[0], self.first)
        return tables.comparison_table(self.rows, self.lead)

    @property
    def tuning(self) -> tables.Grid:
        """The table of what was chosen for each method."""
        return tuning_table(self.tuned)

    @property
    def command(self) -> str:
        """The command that repeats the only run; "" if it is not known, and for several."""
        return "" if self.several else self.all_runs[0].run.command

    # ---- roles
    def role(self, title: str) -> str:
        """Return the role of a method."""
        return self.roles.get(title, "")

    def alone(self, title: str) -> bool:
        """Return whether a method is training alone."""
        return self.role(title) in ALONE

    @property
    def average(self) -> str:
        """Title of the plain average of all models; "" if it is not among the methods."""
        return next((title for title, role in self.roles.items() if role == "average"), "")

    def named(self, title: str) -> str:
        """Return the name of a method on the page."""
        return wording.named(title, self.role(title))

    def against(self, reference: str) -> str:
        """Return a reference in a sentence."""
        return wording.against(reference, self.role(reference))

    # ---- one method
    def standing(self, title: str, reference: str | None = None) -> Standing | None:
        """Return a method against a reference; None if they were not compared."""
        return self.standings.get(self.reference if reference is None else reference, {}).get(title)

    def final(self, title: str, metric: str = "accuracy") -> Spread | None:
        """Return a final figure of a method over its seeds."""
        return spread([run.final.of(metric) for run in self.runs[title]])

    def megabytes(self, title: str) -> float:
        """Return the megabytes sent by a method, the mean over its seeds."""
        return mean([run.bytes / 1e6 for run in self.runs[title]])

    @property
    def most_megabytes(self) -> float:
        """The largest of all methods."""
        return max(map(self.megabytes, self.runs))

    def diverged(self, title: str) -> Mapping[int, int]:
        """Return the round from which on training of a method diverged, by seed; empty if it did not."""
        return self.lead.diverged.get(title, {})

    def clients(self, title: str) -> int:
        """Return the number of a method's clients, the largest of a seed."""
        return max(len(run.by_client) for run in self.runs[title])

    def tested_seeds(self, title: str) -> int:
        """Return the number of a method's seeds of which clients were tested."""
        return sum(bool(run.by_client) for run in self.runs[title])

    def rounds(self, title: str | None = None) -> str:
        """Return the averaged rounds of the final figures, of one method or of all."""
        return rounds_of(self.all_runs if title is None else self.runs[title])

    def ended_early(self, title: str) -> str:
        """Return the rounds after which a method's runs ended early; "" if none did."""
        early = ended_early(self.runs[title])
        return ending(early) if early else ""

    def rank(self, title: str) -> tuple[int, bool]:
        """Return the rank of a method by the headline metric, and whether others share it, as equal means do."""
        means = list(self._means.values())
        return 1 + sum(one > self._means[title] for one in means), means.count(self._means[title]) > 1

    def none_above(self, title: str) -> bool:
        """Return whether this is the chosen method, and none is above the reference or training alone."""
        top = self.order[0]
        if title != self.chosen or top == title or not (self.alone(top) or top == self.reference):
            return False
        return not any(other.difference.mean > 0 for t in self.order if (other := self.standing(t, top)))

    def lowest(self, title: str) -> tuple[float, str] | None:
        """Return the headline metric of the worst client in the last round, the mean over seeds, and the client's name
        in the only seed."""
        return self._lowest([seed for run in self.runs[title] if (seed := run.single(self.first.metric))])

    def lowest_before(self, title: str) -> tuple[float, str] | None:
        """Return the same of the reference, over the clients and seeds that both have."""
        result = self.standing(title)
        if result is None:
            return None
        return self._lowest([{one.client: one.value - one.gain for one in seed} for seed in result.seeds])

    def _lowest(self, seeds: Sequence[Mapping[int, float]]) -> tuple[float, str] | None:
        if not seeds:
            return None
        client = min(seeds[0], key=lambda c: (seeds[0][c], c))
        name = self.names[client] if client < len(self.names) else f"client {client}"
        return sum(min(seed.values()) for seed in seeds) / len(seeds), "" if len(seeds) > 1 else name

    @cached_property
    def low(self) -> float:
        """The lower end of the scale of accuracies, and of the page's first figure, in the pictures."""
        lows = [min(run.by_client.values(), default=1.0) for run in self.all_runs]
        lows += self._means.values()
        return min(0.9, int(10 * max(0.0, min(lows, default=0.0) - 0.05)) / 10)

    def colour(self, title: str) -> str:
        """Return the colour of a method."""
        return shades(self.runs)[title]

    def shape(self, title: str) -> tuple[str, bool]:
        """Return the shape of a method, and whether it is filled."""
        return shapes(self.runs)[title]

    # ---- the board
    @property
    def boards(self) -> Mapping[str, Mapping[str, Standing]]:
        """The comparisons with each reference; with none, under "", where nothing was compared."""
        return {name: result for name, result in self.standings.items() if result} or {"": {}}

    def single_row(self, number: int) -> bool:
        """Return whether a board has one row."""
        return bool(self.figures["gains"][number].spec["height"]["step"] == dots.ONE_ROW)

    def ends(self, reference: str) -> tuple[float, float]:
        """Return the ends of the scale of a board's intervals."""
        result = [one.difference for one in self.standings.get(reference, {}).values()]
        shown = [v for one in result for v in (one.low, one.mean, one.high) if v is not None]
        return min([-0.05, *shown]), max([0.05, *shown])

    # ---- sentences below the board
    def verdict(self, title: str, reference: str) -> str | None:
        """Return the line on a method against a reference; None if they were not compared."""
        result = self.findings.get(reference, {}).get(title)
        if result is None:
            return None
        alone = self.role(title) == "safe" and self.alone(reference)
        end = "; its training diverged" if self.diverged(title) else ""
        return verdict(title, result, reference, stays_alone=alone) + end

    def sentence(self, title: str, reference: str) -> str | None:
        """Return `verdict` with its details: how many clients are harmed, and who clearly moves against the mean."""
        line = self.verdict(title, reference)
        return None if line is None else line + details(self.findings[reference][title], self.names)

    @property
    def sentences(self) -> dict[str, list[str]]:
        """All verdicts by reference."""
        titles = [title for title in self.order if title != self.reference]
        each = {name: [*filter(None, (self.sentence(title, name) for title in titles))] for name in self.findings}
        return {name: texts for name, texts in each.items() if texts}

    @property
    def which_is_which(self) -> str:
        """How often clients train under the kinds of training alone; "" where that needs no words."""
        if self.several:
            return which_is_which(self.runs)
        alone = self.role(self.reference) == "alone" and self.sentences
        return what_alone_is(self.all_runs[0], self.reference) if alone else ""

    @property
    def losing(self) -> list[str]:
        """The clients that clearly lose, by method, worst first; empty where single test samples are not known."""
        lines = []
        for title, conclusion in self.findings.get(self.reference, {}).items():
            if conclusion.losing:
                seeds, names = self.compared[self.reference][title], self.runs[title][0].names
                gains = client_table.mean_by_client([{c: float(one.net.mean()) for c, one in seed.changed.items()}
                                                     for seed in seeds])  # fmt: skip
                losers = sorted((gains[c], c) for c in conclusion.losing)
                shown = [f"{names[c] if c < len(names) else f'client {c}'} ({100 * g:+z.1f})"
                         for g, c in losers[:_NAMED]]  # fmt: skip
                more = f" and {len(losers) - _NAMED} more" if len(losers) > _NAMED else ""
                lines.append(f"{title}: {', '.join(shown)}{more}")
        return lines

    # ---- settings
    @property
    def settings(self) -> dict[str, Choices]:
        """The settings of every method that has any."""
        settings = {}
        for title, runs in self.runs.items():
            if runs[0].config:
                columns = {title if head == "Method" else head: _chosen(runs[0], keys)
                           for head, keys in _SETTINGS.items()}  # fmt: skip
                shown = {head: rows for head, rows in columns.items() if rows}
                settings[title] = Choices([run.seed for run in runs], shown, _flat(runs[0].config))
        return settings


def _chosen(run: Result, keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return settings of some tables that are not off."""
    rows = [(name.replace("_", " "), value) for key in keys for name, value in run.table(key).items()
            if value is not None and value is not False and not isinstance(value, Mapping)]  # fmt: skip
    return [(name, "yes" if value is True else value if isinstance(value, str) else _json(value))
            for name, value in rows[:_MOST_SETTINGS]]  # fmt: skip


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _flat(value: object, name: str = "") -> list[str]:
    """Return nested settings as lines ``a.b = value``."""
    if not isinstance(value, Mapping) or not value:
        return [f"{name} = {_json(value)}"]
    return [line for key, one in value.items() for line in _flat(one, f"{name}.{key}" if name else key)]


def content_of(
    runs: Iterable[Result],
    reference: str = "",
    base: Result | None = None,
    tuned: Sequence[Tuned] = (),
    private: bool = False,
) -> Content:
    """Return the content of the page of one run or of several.

    Args:
        runs: the runs; those of equal title are seeds of one method.
        reference: title of the method that gains are relative to; by default that of ``base``, else of the run whose
            role is training alone.
        base: for one run: the run of a reference on the same federation and seed, which has no row of its own.
        tuned: how the methods were tuned; private: whether the runs had a privacy option.

    Raises:
        ConfigError: no run was given.
        RunFolderError: two runs have the same title and seed.
    """
    groups = by_title(runs)
    if not groups:
        raise ConfigError("a comparison needs at least one run, got none")
    roles = {title: seeds[0].role for title, seeds in groups.items()}
    if base is not None:
        roles |= {base.title: base.role}
    reference = reference or next((title for title, role in roles.items() if role == "alone"), "")
    others = [title for role in COMPARED for title in groups if roles[title] == role]
    bases = {title: {run.seed: run for run in groups[title]} for title in (reference, *others) if title in groups}
    if base is not None:
        reference, bases = base.title, {base.title: {base.seed: base}}
    same, first = same_clients(groups), first_of(groups)
    by_seed = {
        name: {t: c for t, runs in groups.items() if t != name and (c := comparisons(seeds, runs, first.metric))}
        for name, seeds in bases.items()
    }
    compared = {name: {t: list(result.values()) for t, result in methods.items()} for name, methods in by_seed.items()}
    findings = {name: judge_all(methods, same, test_share(groups)) for name, methods in compared.items()}
    standings = {name: {t: standing(t, name, groups[t], seeds, findings[name][t], first.metric)
                        for t, seeds in methods.items()} for name, methods in by_seed.items()}  # fmt: skip
    parts = parts_of(groups, standings, bool(same))
    caveats = _caveats(groups, roles, parts, by_seed, first)
    caveats += [Caveat(*warning) for warning in tuning_warnings(tuned, private, first.fair)]
    return Content(groups, reference, roles, _figures(groups, standings, reference, roles, first, same, base), parts,
                   compared, findings, standings, first, unlearned(groups, first, same), same, caveats,
                   tuned)  # fmt: skip


def _figures(
    groups: Mapping[str, Sequence[Result]],
    standings: Mapping[str, Mapping[str, Standing]],
    reference: str,
    roles: Mapping[str, str],
    first: Choice,
    same: bool | None,
    base: Result | None,
) -> dict[str, list[Figure]]:
    order, seeds = best_first(groups, first.metric), next(iter(groups.values()))
    ranked, names = {title: groups[title] for title in order}, seeds[0].names if same else ()
    several = len(groups) > 1 or len(seeds) > 1
    gains = [dots.gains([*order, *({name} - set(order))], result, name, roles, names, first=name == reference)
             for name, result in standings.items() if result]  # fmt: skip
    level = None if base is None else base.final.accuracy
    noted = {title: list(runs) if same else list(runs[:1]) for title, runs in groups.items()}
    drawn: dict[str, list[Figure | None]] = {
        "gains": [*gains] or [dots.accuracies(order, groups, roles, names)],
        "rounds": [
            *(
                curves.over_rounds(groups, first)
                if several
                else [curves.one_over_rounds(seeds[0], reference, level, first.fair)]
            )
        ],
        "traffic": [curves.traffic(groups, reference)] if len(groups) > 1 else [],
        "more": [
            curves.final_accuracies(groups, reference, first) if several else None,
            costs.distribution(ranked),
            costs.classes(ranked),
            costs.over_bytes(ranked),
            costs.seconds(ranked),
            # numbers that methods note on clients; of the first seed where other seeds have other clients
            *(one for title, runs in noted.items() for one in costs.note_figures(title, runs)),
        ],
    }
    return {name: [one for one in charts if one is not None] for name, charts in drawn.items()}


# ---- caveats
def _caveats(
    groups: Mapping[str, Sequence[Result]],
    roles: Mapping[str, str],
    parts: Sequence[Part],
    compared: Mapping[str, Mapping[str, Mapping[int, Against]]],
    first: Choice,
) -> list[Caveat]:
    """Return all caveats; those of one method name it where there are several, those with the same text appear once."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for title, runs in groups.items():
        for reference, methods in compared.items():
            each = list(methods.get(title, {}).values())
            # whatever training alone equals is what collapsed
            if each and roles[title] not in ALONE and all(a.collapsed for a in each):
                for w in careful.collapsed(each[0], roles[reference], roles[title] == "safe"):
                    by_text.setdefault((w.kind, w.text), []).append(f"{title} equals {reference} for every client")
        base = next(iter(compared.values()), {}).get(title, {})
        by_seed = {p.run.seed: _own(p, base.get(p.run.seed), first)
                   for p in parts if p.run.title == title and not p.joint}  # fmt: skip
        for w in _of_seeds(by_seed, len(runs)) + careful.unsteady([r.final.accuracy for r in runs]):
            by_text.setdefault((w.kind, w.text), []).extend([title] if len(groups) > 1 else [])
    notes = dict.fromkeys(note for runs in groups.values() for run in runs for note in run.run.notes)
    caveats = [Caveat(kind, text, tuple(methods)) for (kind, text), methods in by_text.items()]
    seeds = careful.seeds(max(len(runs) for runs in groups.values()))
    return [*(Caveat(w.kind, w.text) for w in careful.data(notes)), *caveats, *(Caveat(w.kind, w.text) for w in seeds)]


def _drift(plant: str | None) -> int | None:
    """Return the round from which clients' data drift; None if they do not."""
    planted = DataSettings(plant=plant).planted
    return None if planted is None else planted[1].drift


def _own(part: Part, compared: Against | None, first: Choice) -> list[careful.Warning]:
    """Return the warnings of one run; those on gains concern gains over the reference, which it is compared with."""
    run, p, how = part.run, part.people, part.run.table("run")
    constant = "majority" if first.fair else "majority_balanced"
    return [
        *([] if compared is None else careful.small_tests(p.n_test, compared.changed)),
        *careful.constant(run.final.of(first.metric), run.final.of(constant), NAMED[first.metric]),
        *careful.course(run.rounds, bool(ended_early([run]))),
        *careful.participation(run.rounds, p.count, run.names),
        *careful.drift(run.rounds, _drift(run.settings.data.plant)),
        *(careful.cohorts(run.rounds, run.settings.run.participation) if "participation" in how else []),
        *careful.clusters(p.usual_cluster or []),
    ]


def _of_seeds(by_seed: Mapping[int, Sequence[careful.Warning]], seeds: int) -> list[careful.Warning]:
    """Return each kind of warning once, in the words of the first seed that has it, with the seeds if not all."""
    kinds: dict[str, dict[int, str]] = {}
    for seed, warned in by_seed.items():
        for w in warned:
            kinds.setdefault(w.kind, {})[seed] = w.text
    merged = []
    for kind, texts in kinds.items():
        (first, text), *rest = texts.items()
        alike = len(set(texts.values())) == 1
        if not alike or len(texts) < seeds:
            where = ", ".join(map(str, texts)) if alike else f"{first}; also in {', '.join(str(s) for s, _ in rest)}"
            text = f"{text.removesuffix('.')} (seed{'s' if alike and rest else ''} {where})."
        merged.append(careful.Warning(kind, text))
    return merged
