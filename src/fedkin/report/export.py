"""Every figure of a report as an SVG file and as PDF files for papers, every table as a CSV file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkin.report import charts
from fedkin.report.client_data import Part
from fedkin.report.content import Content
from fedkin.report.tables import cells
from fedkin.storage.files import write_atomic

COLUMNS = {"one-column": (3.3, 220), "two-columns": (6.9, 560)}
"""Widths of figures in papers: inches of the page, and pixels of the plot at most."""


def write_files(folder: Path | str, report: Content) -> list[Path]:
    """Write figures and tables into a folder, which is made if it is missing; files of the same names are replaced.

    Args:
        folder: folder to write to.
        report: as from :func:`fedkin.report.content.content_of`.

    Returns:
        The paths, figures first.
    """
    folder = Path(folder)
    paths = []
    drawn = [(one.name, one) for list_ in report.figures.values() for one in list_]
    names = _names([_called(report, part) for part in report.parts])
    several = len(report.parts) > 1
    for name, part in zip(names, report.parts, strict=True):
        drawn += [(f"{one.name}-{name}" if several else one.name, one) for one in part.figures]
    for given, figure in drawn:
        name = re.sub(r"[^\w+.-]+", "-", given)  # a name may have come from the lines of a run
        drawings = {f"{name}.svg": charts.svg(figure.spec).encode("utf-8")}
        drawings |= {f"{name}-{columns}.pdf": charts.pdf(figure.spec, *size) for columns, size in COLUMNS.items()}
        for file, drawing in drawings.items():
            paths.append(folder / file)
            write_atomic(paths[-1], drawing)
    grids = {"comparison" if several else "final": report.table} | ({"tuning": report.tuning} if report.tuned else {})
    paths += [_csv(folder / f"{name}.csv", grid.columns, grid.rows) for name, grid in grids.items()]
    for name, part in zip(names, report.parts, strict=True):
        columns: dict[str, list[Any]] = part.table["columns"]
        rows = zip(*columns.values(), strict=True)
        paths.append(_csv(folder / (f"clients-{name}.csv" if several else "clients.csv"), list(columns), rows))
    return paths


def _called(report: Content, part: Part) -> str:
    """Return the prefix of a part's files: the method, and the seed where there are several."""
    title = part.run.title
    if len(report.runs[title]) == 1:
        return title
    return f"{title} mean" if part.joint else f"{title} seed{part.run.seed}"


def _csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(cells(columns))
    writer.writerows(map(cells, rows))
    write_atomic(path, text.getvalue().encode(errors="backslashreplace"))
    return path


def _names(titles: Sequence[str]) -> list[str]:
    """Return titles as parts of file names, all different."""
    names: list[str] = []
    for title in titles:
        base = name = re.sub(r"[^a-z0-9+]+", "-", title.lower()).strip("-") or "run"
        number = len(names)
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names
