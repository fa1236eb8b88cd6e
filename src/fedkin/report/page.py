"""One HTML file that shows a run, or a comparison of runs: data, charts and script inside, nothing loaded."""

from __future__ import annotations

import html
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedkin.core.errors import ConfigError, EngineError, RunFolderError
from fedkin.evaluate import Against
from fedkin.report import charts, client_table, markup, page_data, references, tables
from fedkin.report.figures import Figure
from fedkin.report.first import NAMED
from fedkin.report.folder import Run, by_title, read_run
from fedkin.report.headline import headline
from fedkin.report.page_data import PageData
from fedkin.report.result import Scene
from fedkin.report.tuning import tuning_note, tuning_table
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room

_NAMED = 12
_log = logging.getLogger("fedkin.report")


def write_page(folder: Path | str, local: Run | Path | str | None = None, command: str | None = None) -> Path:
    """Write ``report.html`` and ``overview.png`` into a run folder.

    Args:
        folder: run folder; ``summary.json`` must exist.
        local: run of the reference on the same federation and seed (Local), or its folder: adds the verdict, the gains
            and a line in the figure.
        command: command that repeats the run. Default: ``command`` of ``summary.json``, omitted if there is none.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: the folder or its summary is missing, or a file is damaged.
    """
    run = read_run(folder)
    report, reference = one_run(run, local)
    return run_page(folder, run, report, reference, command)


def run_page(folder: Path | str, run: Run, report: PageData, reference: str, command: str | None = None) -> Path:
    """Do as `write_page`, where ``report`` and ``reference`` are known already, from `one_run`."""
    said = [text for text in [report.sentence(run.title, reference)] if text is not None]
    body = markup.verdicts({f"{NAMED[report.first.metric].capitalize()} against {reference}": said})
    body += markup.note(references.what_local_is(run)) if said and reference == references.LOCAL else ""
    body += _losing(report, reference) + markup.table(tables.final_table(run, report.first), "final")
    order = [] if run.final.get("accuracy") is None else [run.title]
    return _write(Path(folder), Scene(report, reference, order, ()), body, command or _written_command(run))


def one_run(run: Run, local: Run | Path | str | None = None) -> tuple[PageData, str]:
    """Return the content of the page of a run, and the display name of its reference.

    Raises:
        RunFolderError: the reference is a run of the same method, of another seed or on other data.
    """
    base = local if isinstance(local, Run) or local is None else replace(read_run(local), at_best=run.at_best)
    if base is not None:
        _require_comparable(run, base)
    reference = "Local" if base is None else base.title
    bases = {} if base is None else {reference: {run.seed: base}}
    return page_data.made({run.title: [run]}, bases, reference, base), reference


def _require_comparable(run: Run, base: Run) -> None:
    where = base.folder or base.title
    if run.title == base.title:
        raise RunFolderError(f"{where} is a run of {base.title} as well; name a run of another method, such as Local")
    if run.seed != base.seed:
        raise RunFolderError(
            f"{where} has seed {base.seed} and the run has seed {run.seed}; gains need the same data and seed"
        )
    mine, other = run.test_parts, base.test_parts
    if (both := mine.keys() & other.keys()) and not any(mine[i] == other[i] for i in both):
        raise RunFolderError(f"{where} was tested on other samples than the run; gains need the same data and seed")


def write_comparison(
    folder: Path | str,
    runs: Iterable[Run | Path | str],
    command: str | None = None,
    reference: str = "Local",
) -> Path:
    """Write ``report.html`` and ``overview.png`` for several runs into ``folder`` (made if it is missing).

    Args:
        folder: folder to write to.
        runs: runs or run folders; runs of equal title are seeds of one method.
        command: command that repeats the comparison; omitted if None.
        reference: title of the method that gains are relative to.

    Returns:
        The path of the page.

    Raises:
        ConfigError: no run was given.
        RunFolderError: a folder is missing or damaged, or two runs have the same title and seed.
    """
    return comparison_page(folder, several_runs(runs, reference), command, reference)


def comparison_page(folder: Path | str, report: PageData, command: str | None, reference: str) -> Path:
    """Do as `write_comparison`, where the report is known already, from `several_runs`."""
    findings = report.findings.get(reference, {})
    rows = tables.comparison_rows(report.runs, reference, findings, report.first.metric)
    order = _order(rows, report.first.metric)
    lists, metric = {}, NAMED[report.first.metric].capitalize()
    for other in (reference, *references.others(reference)):
        texts = [report.sentence(title, other) for title in order if title != reference]
        lists[f"{metric} against {other}"] = [text for text in texts if text is not None]
    grid = tables.comparison_table(rows, reference, headline(report.runs, report.first, tuning_note(report.tuned)))
    body = markup.verdicts(lists) + markup.note(references.which_is_which(report.runs))
    body += markup.table(grid, "comparison")
    body += markup.table(tuning_table(report.tuned), "tuning") if report.tuned else ""
    body += _losing(report, reference)
    tied = [row.title for row in rows if row.tied and order and row.title != order[0]]
    return _write(Path(folder), Scene(report, reference, order, [t for t in order if t in tied]), body, command)


def several_runs(runs: Iterable[Run | Path | str], reference: str = "Local") -> PageData:
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
    return page_data.made(groups, bases, reference)


def _order(rows: Sequence[tables.Row], metric: str) -> list[str]:
    """Return the methods that were evaluated, highest headline metric first."""
    means = {row.title: found.mean for row in rows if (found := row.metrics.get(metric)) is not None}
    return sorted(means, key=lambda title: -means[title])


def _losing(report: PageData, reference: str) -> str:
    """Return the clients that clearly lose, by name, worst first; empty where single test samples are not known."""
    lines = []
    for title, found in report.findings.get(reference, {}).items():
        if found.losing:
            gains = client_table.mean_by_client([_last_gains(one) for one in report.compared[reference][title]])
            losers = sorted((gains[c], c) for c in found.losing)
            lines.append(f"{title}: {_losers(losers, report.runs[title][0].names)}")
    if not lines:
        return ""
    seed = ", mean over seeds" if report.several else ""
    who = f"Clearly worse off than with {html.escape(reference)} (points in the last round{seed})"
    return f"<details><summary>{who}</summary>\n{markup.listed(lines)}</details>"


def _last_gains(compared: Against) -> dict[int, float]:
    """Return each client's gain in the last round, by which the clients that clearly lose are found."""
    return {client: float(one.net.mean()) for client, one in compared.changed.items()}


def _losers(losers: Sequence[tuple[float, int]], names: Sequence[str]) -> str:
    said = [f"{names[c] if c < len(names) else f'client {c}'} ({100 * g:+z.1f})" for g, c in losers[:_NAMED]]
    return ", ".join(said) + (f" and {len(losers) - _NAMED} more" if len(losers) > _NAMED else "")


def _written_command(run: Run) -> str | None:
    command = run.summary.get("command")
    return command if isinstance(command, str) and command else None


def _write(folder: Path, scene: Scene, body: str, command: str | None) -> Path:
    """Write page and picture. A run is whole without them, so a warning says what was not drawn."""
    try:
        text = markup.document(scene, body, command)
        with room(folder, "fedkin report"):
            write_atomic(folder / "report.html", text.encode("utf-8"))
            write_atomic(folder / "overview.png", charts.png(_overview(scene.report).titled))
    except EngineError as e:
        _log.warning("%s", e)
    return folder / "report.html"


def _overview(report: PageData) -> Figure:
    """Return the chart of the picture: final accuracies, or the accuracy over rounds of one run."""
    final = [one for one in report.figures["more"] if one.name == "final-accuracies"]
    return (final or report.figures["rounds"])[0]
