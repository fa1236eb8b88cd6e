"""The content of a table: rows, columns, scales, the paper's numbers and its claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECTIONS = ("data", "model", "training", "run", "method")
Sections = Mapping[str, Mapping[str, Any]]
Number = tuple[float, float | None]
"""A figure that a paper prints and its standard deviation, if it prints one."""


@dataclass(frozen=True)
class Row:
    """A method, or a variant of one.

    Attributes:
        key: name in files and on the command line.
        method: name of the method.
        preset: preset of the method that the row starts from.
        sections: its own settings; those of the method are under its name, as in ``[method.NAME]``.
        later: added to the table's priority.
    """

    key: str
    title: str
    method: str
    preset: str | None = None
    sections: Sections = field(default_factory=dict)
    later: int = 0


@dataclass(frozen=True)
class Column:
    """A setting at which all rows are run, or another figure of the same runs.

    Attributes:
        metric: figure that is shown; None: those of the table.
    """

    key: str
    title: str
    metric: str | None = None
    sections: Sections = field(default_factory=dict)
    later: int = 0


@dataclass(frozen=True)
class Scale:
    """One size in which a table can be measured.

    Attributes:
        text: description of the scaling.
        guess: expected seconds of a cell until one was measured.
        columns, rows: columns and rows at this scale; None: all.
        by_column: further settings of single columns.
    """

    name: str
    text: str
    guess: float
    seeds: tuple[int, ...]
    sections: Sections = field(default_factory=dict)
    by_column: Mapping[str, Sections] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    rows: tuple[str, ...] | None = None
    later: int = 0


@dataclass(frozen=True)
class Claim:
    """A claim of a paper on a table, as comparisons of rows.

    Attributes:
        pairs: pairs of rows of which the first is claimed to be above the second.
        columns: columns of the claim; None: all.
        by: claimed minimum difference in points.
        within: claimed maximum difference in points, in either direction; None: no such bound.
        pooled: the claim concerns the mean over columns, not each of them.
        metric: figure of the claim; None: the first of the column.
        question: it is our own question and not a claim of the paper; the answer is the difference, not a verdict.
        reason: why the claim does not hold here and which experiment shows it, without a full stop at the end.
    """

    text: str
    pairs: tuple[tuple[str, str], ...]
    columns: tuple[str, ...] | None = None
    by: float = 0.0
    within: float | None = None
    pooled: bool = False
    metric: str | None = None
    question: bool = False
    reason: str | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows of the claim."""
        return tuple(dict.fromkeys(key for pair in self.pairs for key in pair))


@dataclass(frozen=True, eq=False)  # compared as an object: cells are kept for each
class Table:
    """One table of a paper.

    Attributes:
        metrics: figures that are kept of each cell; the page shows the first one.
        shown: scale that is measured and shown unless another is given.
        numbers: metric -> row -> column -> the printed figure.
        left_out: reason why there are no cells, if there are none.
        unmeasured: reason why cells are not measured, without a full stop at the end; shown for claims without any.
        decimals: decimal places of the figures on the page.
    """

    paper: str
    name: str
    title: str
    text: str
    priority: int
    metrics: tuple[str, ...]
    shown: str
    sections: Sections
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]
    scales: Mapping[str, Scale]
    numbers: Mapping[str, Mapping[str, Mapping[str, Number]]]
    claims: tuple[Claim, ...] = ()
    left_out: str | None = None
    unmeasured: str | None = None
    decimals: int = 2

    @property
    def path(self) -> str:
        """Name of the table on the command line."""
        return f"{self.paper}/{self.name}"

    def metrics_of(self, column: str) -> tuple[str, ...]:
        """Return the figures that are shown of a column."""
        own = self.columns[column].metric
        return self.metrics if own is None else (own,)


@dataclass(frozen=True)
class Paper:
    """A paper, or another source of published tables, with its tables in their order on the page.

    Attributes:
        text: the protocol, and what the paper does not give.
        remarks: what does not agree in the paper.
        summary: what was found, with figures as ``{TABLE/ROW/COLUMN}`` and ``{TABLE/ROW/COLUMN:printed}``.
    """

    name: str
    title: str
    cite: str
    text: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()
    summary: str = ""
