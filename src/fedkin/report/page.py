"""One HTML file that shows a run, or a comparison of runs: data, charts and script inside, nothing loaded."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedkin.core.errors import ConfigError
from fedkin.evaluate import Choice, verdict
from fedkin.report import charts, client_table, markup, page_data, references, tables
from fedkin.report.first import NAMED
from fedkin.report.folder import Run, by_title, read_run
from fedkin.report.headline import headline, rounds_of
from fedkin.report.page_data import PageData
from fedkin.storage.files import write_atomic

_NAMED = 12


def write_page(
    folder: Path | str, local: Run | Path | str | None = None, command: str | None = None, tolerance: float = 0.0
) -> Path:
    """Write ``report.html`` and ``overview.png`` into a run folder.

    Args:
        folder: run folder; ``summary.json`` must exist.
        local: run of the reference on the same federation and seed (Local), or its folder: adds the verdict, the gains
            and a line in the figure.
        command: command that repeats the run. Default: ``command`` of ``summary.json``, omitted if there is none.
        tolerance: gains up to this size, a fraction, are drawn as unchanged.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: the folder or its summary is missing, or a file is damaged.
    """
    run = read_run(folder)
    report, reference = one_run(run, local, tolerance)
    return run_page(folder, run, report, reference, command)


def run_page(folder: Path | str, run: Run, report: PageData, reference: str, command: str | None = None) -> Path:
    """Do as `write_page`, where ``report`` and ``reference`` are known already, from `one_run`."""
    found = report.findings.get(reference, {}).get(run.title)
    said = [] if found is None else [verdict(run.title, found, reference, names=report.names)]
    sentence = said[0] if said and report.first.fair else _plain_headline(run, report.first)
    body = markup.note(report.first.sentence)
    body += "" if report.first.fair else markup.verdicts({"By accuracy": said})
    body += markup.note(references.what_local_is(run)) if found is not None and reference == references.LOCAL else ""
    body += _losing(report, reference) + markup.table(tables.final_table(run, report.first), "final")
    return _write(Path(folder), report, sentence, body, command or _written_command(run), reference)


def one_run(run: Run, local: Run | Path | str | None = None, tolerance: float = 0.0) -> tuple[PageData, str]:
    """Return the content of the page of a run, and the display name of its reference."""
    base = local if isinstance(local, Run) or local is None else read_run(local)
    reference = "Local" if base is None else base.title
    bases = {} if base is None else {reference: {run.seed: base}}
    return page_data.made({run.title: [run]}, bases, reference, tolerance, base), reference


def write_comparison(
    folder: Path | str,
    runs: Iterable[Run | Path | str],
    command: str | None = None,
    reference: str = "Local",
    tolerance: float = 0.0,
) -> Path:
    """Write ``report.html`` and ``overview.png`` for several runs into ``folder`` (made if it is missing).

    Args:
        folder: folder to write to.
        runs: runs or run folders; runs of equal title are seeds of one method.
        command: command that repeats the comparison; omitted if None.
        reference: title of the method that gains are relative to.
        tolerance: gains up to this size, a fraction, are drawn as unchanged.

    Returns:
        The path of the page.

    Raises:
        ConfigError: no run was given.
        RunFolderError: a folder is missing or damaged, or two runs have the same title and seed.
    """
    return comparison_page(folder, several_runs(runs, reference, tolerance), command, reference, tolerance)


def comparison_page(
    folder: Path | str, report: PageData, command: str | None, reference: str, tolerance: float = 0.0
) -> Path:
    """Do as `write_comparison`, where the report is known already, from `several_runs`."""
    findings = report.findings.get(reference, {})
    rows = tables.comparison_rows(report.runs, reference, tolerance, findings)
    verdicts = {title: verdict(title, found, reference, names=report.names) for title, found in findings.items()}
    sentence, more = _comparison_headline(rows, verdicts, reference, report.first.metric)
    best_first = [row.title for row in sorted(rows, key=lambda row: -_mean(row))]
    head = "Against" if report.first.fair else "Accuracy against"
    lists = {f"{head} {reference}": more}
    for other in references.others(reference):
        second = report.findings.get(other, {})
        titles = [t for t in best_first if t in second and t != reference]
        lists[f"{head} {other}"] = [verdict(t, second[t], other, names=report.names) for t in titles]
    grid = tables.comparison_table(rows, reference, headline(report.runs, report.first))
    body = markup.note(report.first.sentence) + markup.verdicts(lists)
    body += markup.note(references.which_is_which(report.runs))
    body += markup.table(grid, "comparison") + _losing(report, reference)
    return _write(Path(folder), report, sentence, body, command, reference)


def several_runs(runs: Iterable[Run | Path | str], reference: str = "Local", tolerance: float = 0.0) -> PageData:
    """Return the content of the page of a comparison.

    Raises:
        ConfigError: no run was given.
        RunFolderError: a folder is missing or damaged, or two runs have the same title and seed.
    """
    read = [run if isinstance(run, Run) else read_run(run) for run in runs]
    if not read:
        raise ConfigError("a comparison needs at least one run, got none")
    groups = by_title(read)
    compared_with = (reference, *references.others(reference))
    bases = {t: {run.seed: run for run in groups[t]} for t in compared_with if t in groups}
    return page_data.made(groups, bases, reference, tolerance)


def _plain_headline(run: Run, first: Choice) -> str:
    accuracy, worst = run.final.get("accuracy"), run.final.get("worst_decile")
    if accuracy is None:
        return f"{run.title}: no round was evaluated"
    if not first.fair:
        value = run.final[first.metric] or 0.0
        return f"{run.title}: {100 * value:.1f} % mean {NAMED[first.metric]} over clients"
    tail = "" if worst is None else f", {100 * worst:.1f} % for the worst tenth of them"
    rounds, last = rounds_of([run]), run.last.get("accuracy")
    alone = "" if last is None or rounds == f"round {run.last['round']}" else f"; {100 * last:.1f} % in the last one"
    return f"{run.title}: {100 * accuracy:.1f} % mean accuracy over clients{tail} ({rounds}{alone})"


def _highest(rows: Sequence[tables.Row], metric: str) -> str:
    """Return the page's first sentence where accuracy is not the headline."""
    means = {row.title: s.mean for row in rows if (s := row.metrics.get(metric)) is not None}
    highest = max(means, key=lambda title: means[title])
    return f"{highest} has the highest mean {NAMED[metric]}, {100 * means[highest]:.1f} %"


def _comparison_headline(
    rows: Sequence[tables.Row], verdicts: Mapping[str, str], reference: str, metric: str
) -> tuple[str, list[str]]:
    """Return the page's first sentence, and one verdict per other method, best first. Verdicts concern accuracy: where
    another metric is the headline, the sentence concerns that one and all verdicts follow."""
    known = sorted((row for row in rows if row.accuracy is not None), key=lambda row: -_mean(row))
    if not known:
        return "No run was evaluated", []
    order = [row.title for row in known if row.title in verdicts]
    if metric != "accuracy":
        return _highest(rows, metric), [verdicts[title] for title in order]
    if not verdicts:
        why = (
            f"no clients in common with {reference}"
            if any(r.title == reference for r in rows)
            else f"no {reference} run"
        )
        first = f"{known[0].title} has the highest mean accuracy, {100 * _mean(known[0]):.1f} %"
        return f"{first} ({why} to compare with)", []
    if known[0].title in (reference, references.LOCAL, references.FULL):  # training alone: no federation is better
        return f"No method is above {known[0].title} on average", [verdicts[title] for title in order]
    if known[0].title not in verdicts:
        return f"{known[0].title} has the highest mean accuracy, but no seed in common with {reference}", [
            verdicts[title] for title in order
        ]
    return verdicts[known[0].title], [verdicts[title] for title in order[1:]]


def _mean(row: tables.Row) -> float:
    return -1.0 if row.accuracy is None else row.accuracy.mean


def _losing(report: PageData, reference: str) -> str:
    """Return the clients that clearly lose, by name, worst first; empty where single test samples are not known."""
    lines = []
    for title, found in report.findings.get(reference, {}).items():
        gains = client_table.mean_by_client([one.gains for one in report.compared[reference][title]])
        if found.losing:
            losers = sorted((gains[c], c) for c in found.losing)
            lines.append(f"{title}: {_losers(losers, report.runs[title][0].names)}")
    if not lines:
        return ""
    seed = " (mean over seeds)" if report.several else ""
    who = f"Clearly worse off than with {html.escape(reference)}{seed}"
    return f"<details><summary>{who}</summary>\n{markup.listed(lines)}</details>"


def _losers(losers: Sequence[tuple[float, int]], names: Sequence[str]) -> str:
    said = [f"{names[c] if c < len(names) else f'client {c}'} ({100 * g:+.1f})" for g, c in losers[:_NAMED]]
    return ", ".join(said) + (f" and {len(losers) - _NAMED} more" if len(losers) > _NAMED else "")


def _written_command(run: Run) -> str | None:
    command = run.summary.get("command")
    return command if isinstance(command, str) and command else None


def _write(folder: Path, report: PageData, sentence: str, body: str, command: str | None, reference: str) -> Path:
    text = markup.document(report, sentence, body, command, reference)
    write_atomic(folder / "report.html", text.encode("utf-8"))
    write_atomic(folder / "overview.png", charts.png(report.figures["accuracy"][0].titled))
    return folder / "report.html"
