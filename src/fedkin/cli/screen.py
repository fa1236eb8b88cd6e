"""Output while a command works: a progress bar or a line per finished run, and tables at the end."""

from __future__ import annotations

import sys
import textwrap
import time
from contextlib import AbstractContextManager
from dataclasses import replace

from rich.console import Console

from fedkin.core.errors import counted
from fedkin.experiment import progress
from fedkin.record.result import Result
from fedkin.report.tables import Grid, Screen, to_rich

out, err = Screen(), Screen(stderr=True)


class RunLog:
    """One line per finished run on standard error, where no live bar is shown: for the log of a job.

    Args:
        quiet: write nothing.
        runs: number of runs of the command.
    """

    def __init__(self, *, quiet: bool, runs: int = 1) -> None:
        self._on, self._runs, self._since = not (quiet or live()), runs, time.monotonic()

    def finished(self, what: str, run: Result, number: int = 1, metric: str = "accuracy") -> None:
        """Write the line of a run: method and seed, rounds, the final figure, and seconds since the line before it."""
        if not self._on:
            return
        before, self._since = self._since, time.monotonic()
        value, lost = run.final.of(metric), run.diverged
        name = metric if metric == "accuracy" else f"{metric} accuracy"
        rounds_done = counted(run.total, "round")
        parts = [what, rounds_done, "not evaluated" if value is None else f"{name} {100 * value:.1f} %"]
        parts += [] if lost is None else [f"diverged from round {lost} on"]
        place = f"{number} of {self._runs}: " if self._runs > 1 else ""
        note(f"{place}{', '.join(parts)}, {self._since - before:.1f} s")


def live() -> bool:
    """Return whether standard error is a terminal or a notebook."""
    return progress.live(err)


def bar(total: int, what: str, *, quiet: bool) -> AbstractContextManager[progress.Bar]:
    """Return a context with a bar of ``total`` rounds on standard error, see `fedkin.experiment.progress.bar`."""
    return progress.bar(total, what, quiet=quiet, console=err)


def table(grid: Grid) -> None:
    """Print a table on standard output; its columns are narrower where they would not fit otherwise.

    Title and note take the width of the window, since a narrow table would wrap them into many short lines.
    """
    out.print()
    if grid.title:
        paragraph(grid.title, "bold")
    out.print(to_rich(replace(grid, title="", note=""), out.width), crop=False)
    if grid.note:
        paragraph(grid.note, "dim")


def say(text: str) -> None:
    """Print a line on standard output, not wrapped at the width of the window: a command in it can be copied."""
    out.print(text, soft_wrap=True)


def paragraph(text: str, style: str = "") -> None:
    """Print sentences on standard output, wrapped between words: paths and names are never broken."""
    out.print(_wrapped(text, out), soft_wrap=True, style=style)


def note(text: str, command: str = "") -> None:
    """Print sentences on standard error, wrapped between words, and after them a command, which is never broken."""
    whole = command.replace(" ", "\0")
    err.print(_wrapped(f"{text} {whole}" if command else text, err), soft_wrap=True)


def _wrapped(text: str, console: Console) -> str:
    """Return a text with line ends where a word would go beyond a console's width; ``\\0`` is a space within a word."""
    lines = (textwrap.fill(line, console.width, break_long_words=False, break_on_hyphens=False)
             for line in text.split("\n"))  # fmt: skip
    return "\n".join(lines).replace("\0", " ")


def write(text: str) -> None:
    """Print text on standard output as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
