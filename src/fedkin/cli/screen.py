"""Output on the terminal while a command works: a progress bar, and tables at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from fedkin.data.progress import heard
from fedkin.report.tables import Grid, to_rich

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


class Bar:
    """A progress bar with round, accuracy and time left; silent if it is quiet."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task, self._accuracy = progress, task, ""

    def read(self, text: str) -> None:
        """Show what is being read, before the first round; "" when that is done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, accuracy=text)

    def at(self, line: dict[str, Any], what: str | None = None, before: int = 0) -> None:
        """Advance to the round in ``line``, after ``before`` rounds of former runs."""
        if self._progress is None or self._task is None:
            return
        if line.get("accuracy") is not None:
            self._accuracy = f"accuracy {100 * line['accuracy']:.1f} %"
        refused = len(line["refused"])
        note = f"  [yellow]{refused} uploads refused[/]" if refused else ""
        changes: dict[str, Any] = {} if what is None else {"description": what}
        done = before + line["round"]
        self._progress.update(self._task, completed=done, accuracy=self._accuracy + note, **changes)


@contextmanager
def bar(total: int, what: str, *, quiet: bool) -> Iterator[Bar]:
    """Yield a bar of ``total`` rounds on standard error, silent if that is not a terminal; it also shows long reads."""
    if quiet or not err.is_terminal:
        yield Bar(None, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        Remaining(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        shown = Bar(progress, progress.add_task(what, total=total, accuracy=""))
        with heard(shown.read):
            yield shown


def table(grid: Grid) -> None:
    """Print a table on standard output; its columns are narrower where they would not fit otherwise."""
    out.print()
    out.print(to_rich(grid, out.width))


def say(text: str) -> None:
    """Print a line on standard output, not wrapped at the width of the window."""
    out.print(text, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line on standard error."""
    err.print(text, markup=False)


def write(text: str) -> None:
    """Print text on standard output as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
