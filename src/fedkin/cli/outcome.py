"""Shared endings of commands: the place of a new folder, and the output of a comparison."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import screen
from fedkin.data import SOURCES, Dataset, Federation
from fedkin.data.sites import DEFAULT_CLIENTS
from fedkin.evaluate import verdict
from fedkin.experiment.compare import Comparison
from fedkin.experiment.settings import DataSettings, OnData, digest
from fedkin.inspection import glance
from fedkin.methods import get_title
from fedkin.report import references, tables
from fedkin.report.folder import Run
from fedkin.report.headline import Headline, headline
from fedkin.report.page import comparison_page, several_runs
from fedkin.report.page_data import PageData
from fedkin.report.publication_tables import Origin, write_tables


def new_folder(name: str) -> Path:
    """Return a place for a run without a name: ``runs/NAME-TIME``."""
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = stem, 1
    while folder.exists():
        n += 1
        folder = stem.with_name(f"{stem.name}-{n}")
    return folder


def tell_clients(data: DataSettings) -> None:
    """Report on standard error how a user's data were assigned to clients, unless a setting determines it."""
    if not data.open or not Path(data.data).exists():
        return
    chosen = data.chosen()
    if chosen == "natural":
        screen.note("clients: as given by the data (partition natural); --partition chooses another")
    elif chosen == "dirichlet":
        screen.note(
            f"clients: {DEFAULT_CLIENTS} made up, among which all samples are distributed (partition dirichlet), since "
            "these data name none; --client-column COLUMN, or one file or folder for each client, names them"
        )


def tell_findings(data: DataSettings, config: Path) -> OnData:
    """Return a callback that reports the errors and warnings of a quick inspection, as one line on standard error;
    silent for built-in data.

    Args:
        data: settings of the run's data.
        config: place of the run's config, which `fedkin inspect` accepts.
    """

    def tell(found: Dataset | Federation, federation: Federation) -> None:
        findings = () if data.data in SOURCES else glance(found, federation)
        codes = list(dict.fromkeys(f.code for f in findings if f.severity != "note"))
        if codes:
            counts = [f"{n} {kind}{'' if n == 1 else 's'}" for kind in ("error", "warning")
                      if (n := sum(f.severity == kind for f in findings))]  # fmt: skip
            screen.note(
                f"inspect: {', '.join(counts)} in what was read ({', '.join(codes)}); all of them: "
                f"fedkin inspect {shlex.quote(str(config))}"
            )

    return tell


@dataclass(frozen=True)
class Outcome:
    """Results of a comparison.

    Attributes:
        table: table for the screen.
        verdicts: a sentence for every method but the reference; where that is Local, followed by one for the same
            method against Local (full).
        which: how Local and Local (full) differ; empty where they were not both run.
        report: content of the page; ``reference`` is the title of the reference method.
        page: path of the page.
        lead: the rounds of the figures, and the runs that diverged.
    """

    table: tables.Grid
    verdicts: tuple[str, ...]
    which: str
    report: PageData
    reference: str
    page: Path
    lead: Headline


def write_outcome(plan: Comparison, folder: Path, runs: Sequence[Run], decimals: int) -> Outcome:
    """Write the tables and the page of a comparison into its folder."""
    reference, command = get_title(plan.baseline), f"fedkin compare {folder / 'compare.toml'}"
    report = several_runs(runs, reference)
    groups, findings = report.runs, report.findings
    rows = tables.comparison_rows(groups, reference, findings=findings.get(reference))
    lead = headline(groups, report.first)
    verdicts = tuple(text for row in rows for text in _verdicts(row.title, report, reference))
    which = references.which_is_which(groups)
    origin = Origin(command, tuple((run.title, run.seed, digest(run.summary["config"])) for run in runs))
    text = "".join(f"- {sentence}\n" for sentence in verdicts) + (f"\n{which}\n" if which else "")
    write_tables(folder, rows, origin, reference, decimals, text, lead)
    page = comparison_page(folder, report, command, reference)
    return Outcome(tables.comparison_table(rows, reference, lead), verdicts, which, report, reference, page, lead)


def _verdicts(title: str, report: PageData, reference: str) -> list[str]:
    """Return verdicts on a method against the reference and, where that is Local, against Local (full)."""
    if title == reference:
        return []
    against = (reference, references.FULL) if reference == references.LOCAL else (reference,)
    found = {name: report.findings.get(name, {}).get(title) for name in against}
    return [verdict(title, one, name, names=report.names) for name, one in found.items() if one is not None]


def tell_warnings(report: PageData) -> None:
    """Print the caveats of the page, which are to be read before the results."""
    if report.warnings:
        screen.say("\nCaveats:\n" + "\n".join(f"- {warning.text}" for warning in report.warnings))
