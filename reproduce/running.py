"""Measurement of missing cells, one after another, until the time is over."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.core import DataError, FedkinError, PartitionError, RunFolderError
from fedkin.core.errors import DiskFullError, FolderBusyError
from fedkin.data import Federation, federation_of
from fedkin.experiment.run import run_settings
from fedkin.record.files import read_commit
from fedkin.record.lines import RoundLine
from fedkin.server import RoundReport
from fedkin.storage.lock import held
from reproduce import shared_samples
from reproduce.cells import Cell, in_order, to_run
from reproduce.results import RESULTS, append, file_of, line_of, load
from reproduce.tables import HERE, Paper

RUNS = HERE.parent / "runs" / "reproduce"


class OutOfTime(Exception):
    """The time is over; the run's folder has all rounds up to this one."""


@dataclass(frozen=True)
class Plan:
    """Settings of a measurement.

    Attributes:
        until: time to stop, as of ``clock``; the round in progress is finished.
        root: folder of the data sets; None: the library's default places.
        keep: whether run folders are kept when their line is written.
        say: called with each message.
    """

    until: float
    root: Path | None = None
    engine: str = "workers@n=1"
    keep: bool = False
    runs: Path = RUNS
    results: Path = RESULTS
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


@dataclass
class Outcome:
    """Numbers of cells by result."""

    made: int = 0
    failed: int = 0
    without_data: int = 0
    stopped: bool = False


def wanted_of(papers: Sequence[Paper]) -> dict[str, set[str]]:
    """Return the figures that the tables of each paper show, by its name: a run may serve several of them."""
    return {
        paper.name: {m for table in paper.tables for column in table.columns for m in table.metrics_of(column)}
        for paper in papers
    }


def make(cells: Sequence[Cell], plan: Plan, wanted: dict[str, set[str]]) -> Outcome:
    """Measure the cells that have no line yet, in order.

    A cell that another process is working on is skipped. A failing cell is reported and skipped until the next call.
    """
    outcome, store = Outcome(), _Federations()
    lacking: set[str] = set()
    done = load(plan.results)
    for cell in in_order(cells):
        if cell.digest in done:
            continue
        if plan.clock() >= plan.until:
            outcome.stopped = True
            break
        if cell.settings.data.data in lacking:
            outcome.without_data += 1
            continue
        with held(plan.runs / "locks" / cell.digest) as got:
            done = load(plan.results) if got else done
            if not got or cell.digest in done:  # another process is working on it, or has finished it
                continue
            try:
                _one(cell, plan, store, wanted[cell.table.paper])
                outcome.made += 1
            except OutOfTime:
                outcome.stopped = True
                break
            except FedkinError as e:
                missing = isinstance(e, DataError) and not isinstance(e, PartitionError)
                outcome.without_data += missing
                outcome.failed += not missing
                lacking |= {cell.settings.data.data} if missing else set()
                plan.say(f"{cell.path}: {e}")
    return outcome


class _Federations:
    """The federation that was read last: cells of one column and seed follow one another."""

    def __init__(self) -> None:
        self._key: tuple[Any, int] | None = None
        self._last: Federation | None = None

    def get(self, settings: Any) -> Federation:
        key = (settings.data, settings.run.seed)
        if self._last is None or key != self._key:
            self._last = None  # two may not fit into memory
            self._last, self._key = federation_of(settings.data, settings.run.seed), key
        return self._last


def folder_of(cell: Cell, runs: Path = RUNS) -> Path:
    """Return the folder of a cell's run while it is not done."""
    return runs / f"{cell.path.replace('/', '-')}-{cell.scale.name}-{cell.digest[:8]}"


def _one(cell: Cell, plan: Plan, store: _Federations, wanted: set[str]) -> None:
    """Run or resume one cell and append its line."""
    settings = to_run(cell.settings, plan.root, plan.engine)
    engine = None
    if shared_samples.gains(settings):
        settings, engine = to_run(cell.settings, plan.root, "loop"), shared_samples.SharedLogits()
    folder = folder_of(cell, plan.runs)

    def on_round(report: RoundReport, line: RoundLine) -> None:
        if plan.clock() >= plan.until and report.round < settings.run.rounds:
            raise OutOfTime

    begun = (folder / "config.toml").is_file()
    plan.say(f"{cell.path} ({cell.scale.name}) {'continues' if begun else 'starts'}")
    if not read_commit(folder).ended:
        federation = store.get(settings)
        try:
            run_settings(settings, federation, out=folder, resume=begun, on_round=on_round, engine=engine)
        except (
            RunFolderError
        ) as e:  # started with data at another place or by another version: its rounds cannot be used
            if not begun or isinstance(e, (FolderBusyError, DiskFullError)):
                raise
            plan.say(f"{cell.path}: started again, {e}")
            shutil.rmtree(folder)
            run_settings(settings, federation, out=folder, on_round=on_round, engine=engine)
    line = line_of(cell, folder, wanted)
    append(file_of(cell.table, plan.results), line)
    figures = line["final"]
    plan.say(f"{cell.path}: {100 * figures['accuracy']:.2f} % in {line['seconds']:.0f} s")
    if not plan.keep:
        shutil.rmtree(folder)
