"""What commands share in the end: where a new folder lies, and what is written of a comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import screen
from fedkin.comparison import Plan
from fedkin.config import DataSettings, digest
from fedkin.data.sites import DEFAULT_CLIENTS
from fedkin.evaluate import verdict
from fedkin.methods import get_title
from fedkin.report import tables
from fedkin.report.folder import Run
from fedkin.report.island import Report
from fedkin.report.page import comparison_page, several_runs
from fedkin.report.papers import Origin, write_tables


def new_folder(name: str) -> Path:
    """A place for a run that nobody named: ``runs/NAME-TIME``."""
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = stem, 1
    while folder.exists():
        n += 1
        folder = stem.with_name(f"{stem.name}-{n}")
    return folder


def tell_clients(data: DataSettings) -> None:
    """Says on standard error who the clients of somebody's own data are, where that was not said by any setting."""
    if not data.open or not Path(data.data).exists():
        return
    chosen = data.chosen()
    if chosen == "natural":
        screen.note("clients: those that the data bring (partition natural); --partition chooses another")
    elif chosen == "dirichlet":
        screen.note(
            f"clients: {DEFAULT_CLIENTS} made up, to whom all samples are dealt (partition dirichlet), since these "
            "data name none; --client-column COLUMN, or one file or folder for each client, names them"
        )


@dataclass(frozen=True)
class Outcome:
    """What came out of a comparison.

    Attributes:
        table: on the screen.
        verdicts: one sentence for every method but the reference.
        report: all that the page says; ``reference`` is the title of the method that it is set against.
        page: where it was written.
    """

    table: tables.Grid
    verdicts: tuple[str, ...]
    report: Report
    reference: str
    page: Path


def write_outcome(plan: Plan, folder: Path, runs: Sequence[Run], decimals: int) -> Outcome:
    """Writes the tables and the page of a comparison into its folder."""
    reference, command = get_title(plan.against), f"fedkin compare {folder / 'compare.toml'}"
    report = several_runs(runs, reference)
    findings = report.findings.get(reference, {})
    rows = tables.comparison_rows(report.runs, reference, findings=findings)
    verdicts = tuple(verdict(title, found, reference) for title, found in findings.items())
    origin = Origin(command, tuple((run.title, run.seed, digest(run.summary["config"])) for run in runs))
    write_tables(folder, rows, origin, reference, decimals, "".join(f"- {text}\n" for text in verdicts))
    page = comparison_page(folder, report, command, reference)
    return Outcome(tables.comparison_table(rows, reference), verdicts, report, reference, page)


def tell_warnings(report: Report) -> None:
    """What a careful colleague would say before anyone believes the figures, as on the page."""
    if report.warnings:
        screen.say("\nBefore you believe it:\n" + "\n".join(f"- {warning.text}" for warning in report.warnings))
