"""What was found on a paper, in a few sentences, with figures that are filled in from the measured cells."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedkin.core import ConfigError
from reproduce.figures import digits_of, measured, shown
from reproduce.results import Line
from reproduce.tables import Paper

PLACE = re.compile(r"\{([\w-]+)/([\w.-]+)/([\w.-]+)(:printed)?\}")
"""``{TABLE/ROW/COLUMN}`` in a summary: the mean over seeds of the column's first figure; with ``:printed`` at its end
the number of the paper."""


def summary(paper: Paper, done: Mapping[str, Line]) -> str:
    """Return the paper's summary with its figures; those that are not measured are dashes.

    A figure is that of the paper's own scale if it is measured there, otherwise of the table's default scale.

    Raises:
        ConfigError: the summary names a table, a row or a column that does not exist, or a number that is not printed.
    """
    return PLACE.sub(lambda place: _figure(paper, done, *place.groups()), paper.summary.strip())


def _figure(paper: Paper, done: Mapping[str, Line], name: str, row: str, column: str, printed: str | None) -> str:
    table = next((t for t in paper.tables if t.name == name), None)
    if table is None or row not in table.rows or column not in table.columns:
        raise ConfigError(f"the summary of {paper.name} names {name}/{row}/{column}; its tables have no such cell")
    metric = table.metrics_of(column)[0]
    if printed:
        number = table.numbers.get(metric, {}).get(row, {}).get(column)
        if number is None:
            raise ConfigError(f"the summary of {paper.name} names the printed {name}/{row}/{column}; there is none")
        return f"{number[0]:.{digits_of(metric, table.decimals)}f}"
    for scale in dict.fromkeys(("paper", table.shown)):
        lines = measured(table, scale, done).get((row, column)) if scale in table.scales else None
        if lines:
            mean = shown(lines, metric, len(lines), table.decimals).mean
            return "–" if mean is None else f"{mean:.{digits_of(metric, 1)}f}"
    return "–"
