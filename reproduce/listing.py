"""The list of tables: measured cells, missing cells, and the time that these take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduce.cells import Cell, cells_of, in_order
from reproduce.results import Line
from reproduce.tables import Paper, Table


@dataclass(frozen=True)
class State:
    """A table at one scale.

    Attributes:
        cells: number of its runs, including those that other tables share.
        left: expected seconds of the missing runs, one after another.
        guessed: whether a part of ``left`` is a guess, for lack of measured cells.
    """

    table: Table
    scale: str
    cells: int
    done: int
    left: float
    guessed: bool


def state_of(table: Table, scale: str, done: Mapping[str, Line]) -> State:
    """Return the state of a table; shared cells count for each of the tables."""
    cells = in_order(list(cells_of(table, scale)))
    missing = [cell for cell in cells if cell.digest not in done]
    expected = [seconds_of(cell, [c for c in cells if c.digest in done], done) for cell in missing]
    return State(
        table, scale, len(cells), len(cells) - len(missing), sum(s for s, _ in expected), any(g for _, g in expected)
    )


def seconds_of(cell: Cell, there: Sequence[Cell], done: Mapping[str, Line]) -> tuple[float, bool]:
    """Return the expected seconds of a cell: as measured for its row and column, else its column, its row, its table.

    Returns:
        Seconds, and whether they are the table's guess because nothing was measured.
    """
    for same in (
        [c for c in there if (c.row.key, c.column.key) == (cell.row.key, cell.column.key)],
        [c for c in there if c.column.key == cell.column.key],
        [c for c in there if c.row.key == cell.row.key],
        there,
    ):
        if same:
            # the median: the seconds of a suspended run include the hours of its pause
            return statistics.median(done[c.digest]["seconds"] for c in same), False
    return cell.scale.guess, True


def listing(papers: Sequence[Paper], done: Mapping[str, Line]) -> str:
    """Return the list of all tables, as text."""
    lines = [f"{'table':<16} {'scale':<6} {'done':>11}  {'left':>9}  title"]
    for paper in papers:
        for table in paper.tables:
            if table.left_out is not None:
                lines.append(f"{table.path:<16} {'-':<6} {'-':>11}  {'-':>9}  {table.title}: {table.left_out}")
            for scale in table.scales:
                state = state_of(table, scale, done)
                count, time = f"{state.done} of {state.cells}", _time(state)
                shown = "" if scale == table.shown else " (not among the cells of a plain run)"
                lines.append(f"{table.path:<16} {scale:<6} {count:>11}  {time:>9}  {table.title}{shown}")
    lines.append("left: hours of one process after another; ~ where no cell was measured yet and it is a guess.")
    lines.append("Cells that several tables share are counted in each of them, and made once.")
    return "\n".join(lines)


def _time(state: State) -> str:
    """Return hours, with a mark on guesses."""
    return f"{'~' if state.guessed else ''}{state.left / 3600:.1f} h" if state.done < state.cells else "-"
