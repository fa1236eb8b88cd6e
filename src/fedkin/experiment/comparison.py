"""The result of a comparison: its runs, and the table, figures and page that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedkin.core import ConfigError
from fedkin.core.errors import counted, nearest
from fedkin.record.figures import GROUPED, METRICS, span
from fedkin.record.lines import FinalFigures
from fedkin.record.result import Result
from fedkin.report import charts, tables
from fedkin.report.content import Content, content_of
from fedkin.report.page import document
from fedkin.report.tuning import Tuned
from fedkin.storage.files import write_atomic

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 8  # methods in the text of a result


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """Result of a comparison, shown as a table in a notebook; iteration yields its runs.

    Attributes:
        runs: the runs, seed by seed in the order of the methods.
        reference: display name of the method that the others are compared with; by default training alone.
        tuned: how the methods were tuned; empty if they were not.
        private: whether the runs had a privacy option.
    """

    runs: Sequence[Result]
    reference: str = ""
    tuned: Sequence[Tuned] = ()
    private: bool = False

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    def __repr__(self) -> str:
        counts = (len(self.content.rows), len({run.seed for run in self}), max(len(run.rounds) for run in self))
        sizes = map(counted, counts, ("method", "seed", "round"))
        means = [f"{row.title} {row.accuracy.mean:.3f}" for row in self.content.rows if row.accuracy is not None]
        shown = ", ".join(means[:_SHOWN]) + (f" and {len(means) - _SHOWN} more" if len(means) > _SHOWN else "")
        return f"ComparisonResult({', '.join(sizes)}, {self.runs[0].data},\n  accuracy: {shown})"

    def _repr_html_(self) -> str:
        return tables.to_html(self.table())

    @cached_property
    def content(self) -> Content:
        """The content of the page."""
        return content_of(self.runs, self.reference, tuned=self.tuned, private=self.private)

    def table(self) -> tables.Grid:
        """Return the table that ``fedkin compare`` prints; ``print`` shows it as text, a notebook as a table."""
        return self.content.table

    def to_frame(self, kind: Literal["runs", "clients", "rounds"] = "runs") -> DataFrame:
        """Return a pandas DataFrame.

        "runs" has a row for each method and seed, with the columns ``method``, ``seed`` and those of
        `fedkin.record.lines.FinalFigures`; "clients" and "rounds" are the frames of all runs in one
        (`fedkin.Result.to_frame`).

        Raises:
            ConfigError: another kind.
        """
        import pandas

        if kind == "runs":
            return pandas.DataFrame([{"method": run.title, "seed": run.seed, **_row(run.final)} for run in self])
        return pandas.concat([run.to_frame(kind) for run in self], ignore_index=True)

    def figure(self, path: Path | str, name: str = "final-accuracies") -> Path:
        """Write a figure of the page as ``.svg`` or ``.png``, and return its path.

        Names are "final-accuracies", "accuracy-over-rounds", "gains", "distribution" and others of the page.

        Raises:
            ConfigError: there is no such figure, with the names of all, or another kind of file.
        """
        path, drawn = Path(path), {one.name: one for result in self.content.figures.values() for one in result}
        if name not in drawn:
            raise ConfigError(f"there is no figure {name!r}{nearest(name, drawn)}")
        if path.suffix not in (".svg", ".png"):
            raise ConfigError(f"a figure is a file that ends in .svg or .png, got {str(path)!r}")
        spec = drawn[name].titled
        write_atomic(path, charts.png(spec) if path.suffix == ".png" else charts.svg(spec).encode())
        return path

    def report(self, path: Path | str) -> Path:
        """Write the page of the comparison, one HTML file that loads nothing, and return its path."""
        write_atomic(Path(path), document(self.content).encode())
        return Path(path)


def _row(figures: FinalFigures) -> dict[str, float | str | None]:
    shown = {name: figures.of(name) for name in (*METRICS, *GROUPED)}
    shown |= {f"accuracy_{view}": value for view, value in figures.views.items()}
    return {**shown, "rounds": span(figures.rounds)}
