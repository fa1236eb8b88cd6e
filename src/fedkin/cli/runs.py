"""``fedkin runs``: the runs of a folder, with their state."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import tyro
from tyro.conf import Positional

from fedkin.cli import screen
from fedkin.cli.flags import options
from fedkin.core.errors import typed
from fedkin.experiment.listing import ListedRun, listed, planned_runs, whole_of
from fedkin.report.tables import DASH, Grid
from fedkin.report.wording import page
from fedkin.storage import lock
from fedkin.storage.files import write_atomic


@dataclass(frozen=True, kw_only=True)
class RunsFlags:
    """List runs with method, data, rounds, accuracy and state."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that holds run folders, comparisons among them."""
    json: bool = False
    """Write the list as JSON, and nothing else, to standard output."""
    html: Path | None = None
    """Also write them into this file as a page, with links to the reports."""


def runs_command(args: list[str]) -> int:
    """Run ``fedkin runs [FOLDER] [--json] [--html FILE]``."""
    flags = options(RunsFlags, args, "fedkin runs")
    result = listed(flags.folder)
    if flags.html is not None:
        _write_page(flags.html, result, flags.folder)
    if flags.json:
        screen.write(json.dumps([{**asdict(run), "folder": str(run.folder)} for run in result], indent=2))
    elif not result:
        screen.say(f"no runs in {flags.folder}; fedkin run METHOD makes one")
    else:
        screen.table(_table(result, flags.folder))
        if waiting := _unfinished(result):
            screen.say(f"\n{len(waiting)} interrupted; continue with, for example: fedkin resume {typed(waiting[0])}")
    return 0


def _unfinished(runs: list[ListedRun]) -> list[Path]:
    """Return what ``fedkin resume`` goes on with, each once: interrupted runs, of several together their common folder.

    A comparison or a sweep of which runs have not begun is among them, unless a process is at work on it.
    """
    result = dict.fromkeys(whole_of(run.folder) or run.folder for run in runs if run.state == "interrupted")
    wholes = Counter(whole for run in runs if (whole := whole_of(run.folder)) is not None)
    short = [whole for whole, count in wholes.items() if count < (planned_runs(whole) or 0)]
    result |= dict.fromkeys(short)
    return [place for place in result if lock.owner(place / lock.NAME) is None]


def _write_page(path: Path, runs: list[ListedRun], folder: Path) -> None:
    """Write the list as a page; a run of a comparison has the comparison's report."""
    grid, links = _table(runs, folder), []
    for run in runs:
        places = (place / "report.html" for place in (run.folder, whole_of(run.folder)) if place is not None)
        report = next((one for one in places if one.is_file()), None)
        links.append(report and quote(os.path.relpath(report, path.parent).replace(os.sep, "/")))
    write_atomic(path, page("index.html", grid=grid, links=links).encode())
    screen.note(f"page: {path}")


def _table(runs: list[ListedRun], folder: Path) -> Grid:
    rows = tuple(
        (
            str(run.folder.relative_to(folder)) if run.folder != folder else str(folder),
            run.method,
            Path(run.data).name,
            run.state,
            DASH if run.seed is None else str(run.seed),
            f"{run.done} of {DASH if run.planned is None else run.planned}",
            _figure(run),
        )
        for run in runs
    )
    columns = ("folder", "method", "data", "state", "seed", "rounds", "accuracy %")
    note = "accuracy: mean over clients; of runs that have not ended, in the last evaluated round"
    if any(run.validation is not None for run in runs):
        note += "; val.: validation accuracy, by which a sweep chooses (its test figures are not looked at)"
    return Grid(f"Runs in {folder}", columns, rows, note=note, words=4)


def _figure(run: ListedRun) -> str:
    if run.validation is not None:
        return f"{100 * run.validation:.1f} val."
    return DASH if run.accuracy is None else f"{100 * run.accuracy:.1f}"
