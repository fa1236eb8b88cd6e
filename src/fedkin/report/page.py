"""One HTML file that shows a run, or a comparison of runs: data, charts and script inside, nothing loaded."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fedkin.core.errors import EngineError
from fedkin.display import printable_parts
from fedkin.report import charts, client_data, curves, templates
from fedkin.report.content import Content
from fedkin.report.figures import Figure, dashes, prominent, shades, shapes
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room

SCRIPTS = ("tools.js", "charts.js", "clients.js", "drawer.js", "relations.js", "page.js")
"""Scripts in the order of their dependencies; the page contains them as one."""
_log = logging.getLogger("fedkin.report")


def write_page(folder: Path | str, content: Content, command: str = "") -> Path:
    """Write ``report.html`` and ``overview.png`` into a folder, made if it is missing.

    A run is whole without them, so a warning says what could not be drawn.

    Args:
        folder: folder to write to.
        content: as from `fedkin.report.content.content_of`.
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
    page = templates.page("report.html", page=content, command=command or content.command)
    data = f'<script type="application/json" id="data">{_data(content)}</script>'
    own = "\n".join(map(templates.asset, SCRIPTS))
    # a script must not end its element early
    inline = (code.replace("</script", "<\\/script") for code in (charts.script(), own))
    scripts = (f'<script type="module">{code}</script>' for code in inline)
    return "\n".join([page, data, *scripts]) + "\n</body>\n</html>\n"


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
