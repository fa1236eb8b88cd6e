"""One HTML file that shows a run or a comparison, its data, charts and script inside; figures and tables as files."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkin.core.errors import EngineError
from fedkin.display import printable_parts
from fedkin.report import charts, client_data, curves
from fedkin.report.client_data import Part
from fedkin.report.content import Content
from fedkin.report.figures import Figure, dashes, prominent, shades, shapes
from fedkin.report.tables import cells
from fedkin.report.wording import asset, page
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room

SCRIPTS = ("tools.js", "charts.js", "clients.js", "drawer.js", "relations.js", "page.js")
"""Scripts in the order of their dependencies; the page contains them as one."""
COLUMNS = {"one-column": (3.3, 220), "two-columns": (6.9, 560)}
"""Widths of figures in papers: inches of the page, and pixels of the plot at most."""
_log = logging.getLogger("fedkin.report")


def write_page(folder: Path | str, content: Content, command: str = "") -> Path:
    """Write ``report.html`` and ``overview.png`` into a folder, made if it is missing.

    A run is whole without them, so a warning says what could not be drawn.

    Args:
        command: command that repeats the runs; by default that of the only run, omitted if there is none.

    Returns:
        The path of the page.
    """
    folder = Path(folder)
    try:
        text = document(content, command)
        with room(folder, "fedkin report"):
            write_atomic(folder / "report.html", text.encode("utf-8"))
            write_atomic(folder / "overview.png", charts.png(_overview(content).titled))
    except EngineError as e:
        _log.warning("%s", e)
    return folder / "report.html"


def document(content: Content, command: str = "") -> str:
    """Return the whole page."""
    html = page("report.html", page=content, command=command or content.command)
    data = f'<script type="application/json" id="data">{_data(content)}</script>'
    own = "\n".join(map(asset, SCRIPTS))
    # a script must not end its element early
    inline = (code.replace("</script", "<\\/script") for code in (charts.script(), own))
    scripts = (f'<script type="module">{code}</script>' for code in inline)
    return "\n".join([html, data, *scripts]) + "\n</body>\n</html>\n"


def _data(content: Content) -> str:
    """Return the data of the page, as JSON that may stand in a script element."""
    shared, runs = client_data.Shared(), content.runs
    colour, kinds, dash = shades(runs), shapes(runs), dashes(runs)
    data = {
        "figures": {name: [client_data.entry(one) for one in drawn] for name, drawn in content.figures.items()},
        "parts": [client_data.packed(part, shared) for part in content.parts],
        "shared": shared.values,
        "classes": content.all_runs[0].classes,
        "methods": {t: {"name": content.named(t), "colour": colour[t], "shape": kinds[t][0], "filled": kinds[t][1],
                        "dash": dash[t]} for t in runs},
        "order": [*content.order, *(t for t in runs if t not in content.order)],
        "shown": prominent(runs),
        "course": curves.course(runs),
        "first": content.chosen,
        "reference": content.reference,
        "alone": next((t for t, role in content.roles.items() if role == "alone"), None),
        "solo": [t for t in content.roles if content.alone(t)],
        "joint": any(part.joint for part in content.parts),
        "config": {"light": charts.config(), "dark": charts.config(dark=True)},
    }  # fmt: skip
    text = json.dumps(printable_parts(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _overview(content: Content) -> Figure:
    """Return the chart of the picture: final accuracies, or the accuracy over rounds of one run."""
    final = [one for one in content.figures["more"] if one.name == "final-accuracies"]
    return (final or content.figures["rounds"])[0]


def write_files(folder: Path | str, report: Content) -> list[Path]:
    """Write figures and tables into a folder, which is made if it is missing; files of the same names are replaced.

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
