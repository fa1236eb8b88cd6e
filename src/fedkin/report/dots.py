"""The chart of the first screen: each client's gain as a mark, a row for each method."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.evaluate import spread
from fedkin.report.charts import Spec, chart
from fedkin.report.figures import Figure, Groups, percent, quoted
from fedkin.report.standings import ClientGain, Standing
from fedkin.report.wording import against, cut, fitted, named, signed

ROW = 38
"""Height of a row in pixels; the rows of the table next to the chart have the same."""
ONE_ROW = 96
"""Height of the only row of a page with one method."""
MOST_DOTS = 200
"""With more clients than this a row has bins instead of dots."""
MOST_MARKS = 6000
"""Maximum number of dots of a chart; with more, all rows have bins."""
NAMES = 120
"""Width of the names of methods, in pixels."""
_SIZE = 13
"""Font size of the names."""
_FEW = 60
_WIDTH = 420
WORDS = {1: "higher", 0: "equal", -1: "lower"}
"""The word for each kind of gain, which is what was measured."""
_BINS = 48
_POINTS = "datum.value > 0 ? '+' + datum.value : datum.value < 0 ? '−' + -datum.value : '0'"


def gains(
    order: Sequence[str],
    found: Mapping[str, Standing],
    reference: str,
    roles: Mapping[str, str],
    names: Sequence[str] = (),
    *,
    first: bool = True,
) -> Figure:
    """Return one row per method, one mark per client (and seed) at its gain over the reference.

    Args:
        order: all methods, best first, including the reference.
        found: method -> its standing.
        reference: title of the reference.
        roles: role of each method, as from `fedkin.record.result.Result.role`.
        names: names of the clients, by number.
    """
    every = [one.gain for s in found.values() for one in s.gains]
    low, high = _domain([100 * g for g in every])
    most = max((len(s.gains) for s in found.values()), default=0)
    binned = max((s.clients for s in found.values()), default=0) > MOST_DOTS or len(every) > MOST_MARKS
    rows: list[dict[str, Any]] = []
    for title in order:
        if title not in found:
            if title == reference:
                rows.append({"method": title, "part": "reference"})
            continue
        standing = found[title]
        rows.append({"method": title, "part": "mean", "gain": percent(standing.difference.mean)})
        draw = _bins if binned else _dots
        rows += draw(title, standing.gains, len(standing.seeds), low, high, most, names)
    fact = "; ".join(
        f"{named(t, roles[t])}: {_range(s, 1)} higher, {_range(s, -1)} lower, mean {signed(s.difference.mean)}"
        for t, s in found.items()
    )
    over = against(reference, roles[reference])
    caption = f"Gain of each client over {over}, in points, in the last round." + (
        " A bin holds clients." if binned else "")  # fmt: skip
    spec = _spec(
        rows, [t for t in order if t in found or t == reference], reference, over, roles, (low, high), binned, most
    )
    name = "gains" if first else "gains-over-" + re.sub(r"[^a-z0-9]+", "-", reference.lower()).strip("-")
    return Figure(name, fact or f"No method was compared with {over}", caption, spec)


def accuracies(order: Sequence[str], groups: Groups, roles: Mapping[str, str], names: Sequence[str] = ()) -> Figure:
    """Return one row per method, one mark per client (and seed) at its final accuracy: of runs without a reference.

    Args:
        order: all methods, best first.
        groups: title -> its runs.
        roles: role of each method.
        names: names of the clients, by number.
    """
    found = {}
    for title in order:
        seeds = [[ClientGain(run.seed, c, a, a, 0, 0) for c, a in run.single().items()] for run in groups[title]]
        if any(seeds):
            found[title] = seeds
    every = [one.value for seeds in found.values() for seed in seeds for one in seed]
    low, high = (0, 100) if not every else (max(0, 10 * math.floor(min(every) * 10 - 0.5)), 100)
    most = max((sum(map(len, seeds)) for seeds in found.values()), default=0)
    binned = most > MOST_DOTS or len(every) > MOST_MARKS
    rows: list[dict[str, Any]] = []
    for title, seeds in found.items():
        mean = spread([run.final.accuracy for run in groups[title]])
        rows += [{"method": title, "part": "mean", "gain": percent(mean.mean)}] if mean else []
        draw = _bins if binned else _dots
        rows += draw(title, [one for seed in seeds for one in seed], len(seeds), low, high, most, names)
    spec = _spec(rows, [t for t in order if t in found], "", "", roles, (low, high), binned, most)
    means = [f"{named(row['method'], roles[row['method']])}, mean {row['gain']:.1f}%"
             for row in rows if row["part"] == "mean"]  # fmt: skip
    said = f"Accuracy of each client: {'; '.join(means)}" if found else "No client was tested"
    caption = "Accuracy of each client in the last round. The line is the final mean."
    return Figure("client-accuracies", said, caption, spec)


def _range(standing: Standing, kind: int) -> str:
    counts = standing.counts(kind)
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _domain(points: Sequence[float]) -> tuple[int, int]:
    """Return the ends of the axis, multiples of five points."""
    low, high = min([-10.0, *points]), max([10.0, *points])
    return 5 * math.floor((low - 1) / 5), 5 * math.ceil((high + 1) / 5)


def _dots(
    title: str, found: Sequence[ClientGain], seeds: int, low: int, high: int, most: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    step, apart = (4.9, 9.8) if most <= _FEW else (2.6, 5.0)
    scale = _WIDTH / (high - low)
    level = [one for one in found if one.kind == 0 and abs(one.gain) < 0.001]
    gap = min(6.0, (ROW - 6) / max(1, len(level)))
    placed = [(one, (j - (len(level) - 1) / 2) * gap) for j, one in enumerate(level)]
    moved = sorted((one for one in found if one.kind or abs(one.gain) >= 0.001), key=lambda one: one.gain)
    placed += zip(moved, _dodged([100 * one.gain * scale for one in moved], step, apart), strict=True)
    return [
        {"method": title, "part": "client", "client": names[one.client] if one.client < len(names) else str(one.client),
         "id": one.client, **({"seed": one.seed} if seeds > 1 else {}), "gain": percent(one.gain),
         "value": percent(one.value), "kind": WORDS[one.kind], "clear": "yes" if one.clear else "no",
         "dy": round(dy, 1)}
        for one, dy in placed
    ]  # fmt: skip


def _dodged(places: Sequence[float], step: float, apart: float) -> list[float]:
    """Return a vertical offset for each mark, from left to right, such that they do not overlap where possible."""
    free = [0.0]
    for n in range(1, int((ROW / 2 - 5) / step) + 1):
        free += [n * step, -n * step]
    found: list[tuple[float, float]] = []
    for x in places:
        near = [(a, b) for a, b in found[-60:] if x - a < apart]
        room = {dy: min((math.hypot(x - a, dy - b) for a, b in near), default=math.inf) for dy in free}
        found.append((x, next((dy for dy in free if room[dy] >= apart - 0.01), max(free, key=lambda dy: room[dy]))))
    return [dy for _, dy in found]


def _bins(
    title: str, found: Sequence[ClientGain], seeds: int, low: int, high: int, most: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the clients by bins of their gain: lower ones below the line, others above it."""
    width = (high - low) / _BINS
    counts = Counter((min(_BINS - 1, math.floor((100 * one.gain - low) / width)), one.kind) for one in found)
    top = max(counts.values())
    rows = []
    for (at, kind), n in sorted(counts.items()):
        tall = max(2.0, (ROW / 2 - 2) * math.sqrt(n / top))
        middle = low + (at + 0.5) * width
        rows.append({"method": title, "part": "client", "gain": round(middle, 2), "clients": n,
                      "kind": WORDS[kind], "tall": round(tall, 1),
                      "dy": round(tall / 2 if kind < 0 else -tall / 2, 1)})  # fmt: skip
    return rows


def _spec(
    rows: list[dict[str, Any]],
    order: Sequence[str],
    reference: str,
    over: str,
    roles: Mapping[str, str],
    ends: tuple[int, int],
    binned: bool,
    most: int,
) -> Spec:
    one = len(order) == 1 or (len(order) == 2 and reference in order)
    shown = [t for t in order if t != reference] if one else list(order)
    low, high = ends
    step = ONE_ROW if one else ROW
    cuts = {t: fitted(named(t, roles[t]), (NAMES - 8) / _SIZE) for t in shown}
    room = -low / (high - low)
    marks = _marks(binned, most, rows, step / 2)
    return chart(
        "gains",
        rows=rows,
        shown=shown,
        method=shown[0] if shown else "",
        over=over,
        low=low,
        ends=list(ends),
        step=step,
        tall=step - 6,
        names=f"({quoted(cuts)})[datum.value]",
        ticks=list(range(math.ceil(low / 10) * 10, high + 1, 10)),
        labels=_POINTS if over else "datum.value + '%'",
        mark=marks["mark"],
        marks=marks["marks"],
        # below the axis at either side of zero: short texts where the long ones do not fit
        worse=_fitting("← worse", f"← better off with {_plain(over)}", room, 90),
        better=_fitting("better, points →", "better off with the method, points →", 1 - room, 4),
    )


def _fitting(short: str, said: str, room: float, more: int) -> str:
    """Return an expression for the longer text where a fraction of the width and some pixels have room for it."""
    return f"width * {room:.3f} + {more} < {6.2 * len(said):.0f} ? '{short}' : '{said}'"


def _plain(text: str) -> str:
    """Return a name that can stand in an expression between quotes."""
    return "".join(c for c in cut(text) if c.isalnum() or c in " -+()")


def _marks(binned: bool, most: int, rows: Sequence[Mapping[str, Any]], half: float) -> Spec:
    """Return the marks of clients: disc, ring and triangle, filled where clear by themselves; or bins."""
    if binned:
        return chart("gains-bins", half=[-half, half])
    several, big = any("seed" in row for row in rows), most <= _FEW
    higher, equal, lower = (58, 22, 70) if big else (20, 12, 26)
    if not any(row.get("kind") == WORDS[1] for row in rows):
        equal = lower = higher
    return chart("gains-clients", half=[-half, half], several=several, opacity=0.6 if several else 1,
                 stroke=1.5 if big else 1, higher=higher, equal=equal, lower=lower)  # fmt: skip
