"""Pages of runs, as their text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedkin.record.result import Result
from fedkin.report.content import content_of
from fedkin.report.page import write_page


def run_page(folder: Path, base: Path | None = None, command: str = "") -> str:
    """The page of a run, next to a reference."""
    content = content_of([Result.finished_in(folder)], base=None if base is None else Result.finished_in(base))
    return write_page(folder, content, command).read_text(encoding="utf-8")


def comparison_page(folder: Path, runs: Iterable[Result], command: str = "") -> str:
    """The page of several runs."""
    return write_page(folder, content_of(runs), command).read_text(encoding="utf-8")
