"""``fedkin report``: the page of a run or a comparison again, and its figures and tables as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from fedkin.cli import screen
from fedkin.cli.flags import read
from fedkin.cli.outcome import write_outcome
from fedkin.comparison import plan_from, run_name
from fedkin.config import read_toml
from fedkin.core import RunFolderError
from fedkin.methods import get_title
from fedkin.report import export, island
from fedkin.report.folder import read_run
from fedkin.report.page import one_run, several_runs, write_page


@dataclass(frozen=True)
class ReportFlags:
    """Writes the page, picture and tables of a finished run or comparison again, from the files in its folder."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """A run folder, or the folder of a comparison."""
    figures: Path | None = None
    """Also writes every figure as SVG and every table as CSV into this folder."""
    local: Path | None = None
    """Of a run: the folder of its reference (Local, on the same data and seed), to say what was gained. A run of a
    comparison finds its own."""
    decimals: int = 1
    """Of a comparison: digits behind the point in table.md and table.tex."""
    quiet: bool = False
    """Says nothing."""


def report_command(args: list[str]) -> int:
    """``fedkin report FOLDER [flags]``."""
    flags = read(ReportFlags, args, "fedkin report", "the folder of a run or a comparison")
    folder = flags.folder
    if (folder / "compare.toml").is_file():
        report, page, reference = _comparison(flags)
    else:
        local = flags.local or _beside(folder)
        page = write_page(folder, local)
        report, reference = one_run(read_run(folder), local)
    if not flags.quiet:
        screen.say(f"Pictures and tables: {page}")
    if flags.figures is not None:
        paths = export.write_files(flags.figures, report, reference)
        if not flags.quiet:
            screen.say(f"{len(paths)} figures and tables: {flags.figures}")
    return 0


def _comparison(flags: ReportFlags) -> tuple[island.Report, Path, str]:
    if flags.local is not None:
        raise RunFolderError(
            f"{flags.folder} is a comparison, which has its own Local; leave out --local {flags.local}"
        )
    file = flags.folder / "compare.toml"
    plan = plan_from(read_toml(file), str(file))
    places = [flags.folder / run_name(name, seed) for name, seed in plan.runs()]
    done = [place for place in places if (place / "summary.json").is_file()]
    if not done:
        raise RunFolderError(f"{flags.folder} holds no finished run; go on with: fedkin resume {flags.folder}")
    if len(done) < len(places):
        screen.note(f"{len(done)} of {len(places)} runs are finished; the others with: fedkin resume {flags.folder}")
    runs = [read_run(place) for place in done]
    page, reference = write_outcome(plan, flags.folder, runs, flags.decimals).page, get_title(plan.against)
    return several_runs(runs, reference), page, reference


def _beside(folder: Path) -> Path | None:
    """The Local of the same seed, where the run is one of a comparison."""
    if not (folder.parent / "compare.toml").is_file() or "-seed" not in folder.name:
        return None
    local = folder.parent / f"local-seed{folder.name.rpartition('-seed')[2]}"
    return local if local != folder and (local / "summary.json").is_file() else None
