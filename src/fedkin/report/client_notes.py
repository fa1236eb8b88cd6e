"""Figures of the numbers that a method notes on each client, such as the share of a safe form."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedkin.record.figures import final_by_client
from fedkin.record.result import Result
from fedkin.report import naming
from fedkin.report.charts import Spec, chart
from fedkin.report.figures import Figure

MOST_DOTS = 400
"""Maximum number of clients with a dot each; of more, a bar shows the number of clients with similar values."""
PLACES = 40
"""Number of steps between the smallest and the largest value, to which dots are moved so that they can be stacked."""


def note_figures(title: str, runs: Sequence[Result]) -> list[Figure]:
    """Return a figure for each number that the method notes on its clients; none where the first line has none.

    Args:
        title: display name of the method, which begins the fact.
        runs: a run, or runs with the same clients, over which values are averaged.
    """
    first = next(iter(runs[0].clients), None)
    notes = [] if first is None else [f"note_{name}" for name in first.notes]
    said = title if len(runs) == 1 else f"{title}, mean over {len(runs)} seeds"
    place = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    return [_figure(said, place, field, found, runs[0].names) for field in notes if (found := values(runs, field))]


def values(runs: Sequence[Result], field: str) -> dict[int, float]:
    """Return a client's mean of a field of ``clients.jsonl`` over the last evaluated rounds and the runs, by client."""
    each = [final_by_client(run.clients, run.total, field, run.chosen) for run in runs]
    listed = {i: [by[i] for by in each if i in by] for i in sorted({i for by in each for i in by})}
    return {i: math.fsum(found) / len(found) for i, found in listed.items()}


def _figure(title: str, place: str, field: str, found: dict[int, float], known: Sequence[str]) -> Figure:
    label, listed = field.removeprefix("note_"), list(found.values())
    low, high = min(listed), max(listed)
    spread = f"{label} from {low:.3g} to {high:.3g}, mean {math.fsum(listed) / len(listed):.2g}"
    fact = f"{title}: {spread}; {listed.count(low)} of {len(listed)} clients at {low:.3g}"
    rows, most = _stacked(found, naming.called(max(found) + 1, known))
    if len(found) > MOST_DOTS:
        what, mark, tips = "A bar is the number of clients", {"type": "bar", "width": 8}, ("place", "clients")
        y: Spec = {"field": "clients", "type": "quantitative", "title": "clients"}
    else:
        what, mark, tips = "Each dot is a client", {"type": "circle", "size": 70}, ("client", "value")
        y = {"field": "row", "type": "quantitative", "axis": None, "scale": {"domain": [0, most + 1]}}
    spec = chart("notes", rows=rows, mark=mark, y=y, domain=[min(0.0, low), max(1.0, high)],
                 height=max(60, min(240, 14 * (most + 1))), title=f"{label} of the client",
                 tips=[{"field": name, "title": name} for name in tips])  # fmt: skip
    caption = f"{what} at its {label}, averaged over the last evaluated rounds; similar values are stacked."
    return Figure(f"notes-{label}-{place}", fact, caption, spec)


def _stacked(found: dict[int, float], names: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the chart's data, and the largest number of clients at one place."""
    low, high = min(found.values()), max(found.values())
    step = (high - low) / PLACES or 1.0
    at = {i: round(low + step * round((value - low) / step), 6) for i, value in found.items()}
    count: Counter[float] = Counter()
    rows: list[dict[str, Any]] = []
    for i, place in at.items():
        count[place] += 1
        rows.append({"client": names[i], "value": round(found[i], 4), "place": place, "row": count[place]})
    if len(found) > MOST_DOTS:
        rows = [{"place": place, "clients": n} for place, n in sorted(count.items())]
    return rows, max(count.values())
