"""A progress bar with round, accuracy and time left, in a terminal or a notebook."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from fedkin.core.errors import counted
from fedkin.data.image_files import listening
from fedkin.record.lines import STAGES, RoundLine
from fedkin.report.tables import Screen


class Bar:
    """A progress bar; silent without ``progress``. ``show`` is called after each change."""

    def __init__(self, progress: Progress | None, task: TaskID, show: Callable[[], None]) -> None:
        self._progress, self._task, self._show, self._accuracy = progress, task, show, ""

    def read(self, text: str) -> None:
        """Show what is being read, before the first round; "" when that is done."""
        if self._progress is not None:
            self._progress.update(self._task, accuracy=text)
            self._show()

    def at(self, line: RoundLine, what: str | None = None, before: int = 0) -> None:
        """Advance to the round in ``line``, after ``before`` rounds of former runs."""
        if self._progress is None:
            return
        if line.accuracy is not None:
            self._accuracy = f"accuracy {100 * line.accuracy:.1f} %"
        refused = len(line.unused(*STAGES))
        note = f"  {counted(refused, 'upload')} refused" if refused else ""
        changes: dict[str, Any] = {} if what is None else {"description": what}
        done = before + line.round
        self._progress.update(self._task, completed=done, accuracy=self._accuracy + note, **changes)
        self._show()


def live(console: Console) -> bool:
    """Return whether a console is a notebook or a terminal; FORCE_COLOR makes a file neither."""
    return console.is_jupyter or (console.is_terminal and console.file.isatty())


@contextmanager
def bar(total: int, what: str, *, quiet: bool, console: Console | None = None) -> Iterator[Bar]:
    """Yield a bar of ``total`` rounds, silent unless the console is a notebook or a terminal; it also shows long reads.

    The console is standard error by default.
    """
    console = console or Screen(stderr=True)
    if quiet or not live(console):
        yield Bar(None, TaskID(0), lambda: None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),  # folders may have brackets in their names
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}", markup=False),  # or the name of a file that is read
        TimeElapsedColumn(),
        TextColumn("left"),
        Remaining(),
    )
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(what, total=total, accuracy="")
    with nullcontext() if console.is_jupyter else progress:
        shown = Bar(progress, task, _in_notebook(progress) if console.is_jupyter else lambda: None)
        with listening(shown.read):
            yield shown


def _in_notebook(progress: Progress) -> Callable[[], None]:
    """Return a function that shows the bar below the cell, in place of its last picture, at most ten times a second.

    The live display of rich needs ipywidgets there, which a notebook may lack.
    """
    handle: Any = importlib.import_module("IPython.display").display("", display_id=True)
    last = 0.0

    def show() -> None:
        nonlocal last
        if progress.finished or time.monotonic() - last >= 0.1:
            handle.update(progress.make_tasks_table(progress.tasks))
            last = time.monotonic()

    return show
