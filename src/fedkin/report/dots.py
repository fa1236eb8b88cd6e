"""The chart of the first screen: each client's gain as a mark, a row for each method."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fedkin.report.charts import Datum, Spec, chart
from fedkin.report.figures import Figure, Groups, final_means, percent, quoted
from fedkin.report.standings import ClientGain, Standing
from fedkin.report.wording import against, cut, fitted, named, ranged, signed

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
    standings: Mapping[str, Standing],
    reference: str,
    roles: Mapping[str, str],
    names: Sequence[str] = (),
    *,
    first: bool = True,
) -> Figure:
    """Return one row per method, one mark per client (and seed) at its gain over the reference.

    Args:
        order: all methods, best first, including the reference.
        first: it is the page's first reference: the figure is "gains".
    """
    every = [one.gain for s in standings.values() for one in s.gains]
    # multiples of five points
    low, high = 5 * math.floor((100 * min([-0.1, *every]) - 1) / 5), 5 * math.ceil((100 * max([0.1, *every]) + 1) / 5)
    binned = max((s.clients for s in standings.values()), default=0) > MOST_DOTS or len(every) > MOST_MARKS
    shown = [title for title in order if title in standings or title == reference]
    over = against(reference, roles[reference])
    by_method = {t: ([*standings[t].seeds], standings[t].difference.mean) if t in standings else None for t in shown}
    spec = _chart(by_method, reference, over, roles, (low, high), binned, names)
    fact = "; ".join(
        f"{named(t, roles[t])}: {ranged(s.counts(1))} higher, {ranged(s.counts(-1))} lower, "
        f"mean {signed(s.difference.mean)}"
        for t, s in standings.items()
    )
    caption = f"Gain of each client over {over}, in points, in the last round." + " A bin holds clients." * binned
    name = "gains" if first else "gains-over-" + re.sub(r"[^a-z0-9]+", "-", reference.lower()).strip("-")
    return Figure(name, fact or f"No method was compared with {over}", caption, spec)


def accuracies(order: Sequence[str], groups: Groups, roles: Mapping[str, str], names: Sequence[str] = ()) -> Figure:
    """Return one row per method, one mark per client (and seed) at its final accuracy: of runs without a reference."""
    seeds = {t: [[ClientGain(run.seed, c, a, a, 0, 0) for c, a in run.single().items()] for run in groups[t]]
             for t in order}  # fmt: skip
    seeds = {title: each for title, each in seeds.items() if any(each)}
    means = {t: mean for t, mean in final_means(groups).items() if t in seeds}
    every = [one.value for each in seeds.values() for seed in each for one in seed]
    low, high = (0, 100) if not every else (max(0, 10 * math.floor(min(every) * 10 - 0.5)), 100)
    most = max((sum(map(len, each)) for each in seeds.values()), default=0)
    binned = most > MOST_DOTS or len(every) > MOST_MARKS
    spec = _chart({t: (each, means.get(t)) for t, each in seeds.items()}, "", "", roles, (low, high), binned, names)
    shown = "; ".join(f"{named(t, roles[t])}, mean {percent(means[t]):.1f}%" for t in seeds if t in means)
    fact = f"Accuracy of each client: {shown}" if seeds else "No client was tested"
    caption = "Accuracy of each client in the last round. The line is the final mean."
    return Figure("client-accuracies", fact, caption, spec)


def _chart(
    methods: Mapping[str, tuple[Sequence[Sequence[ClientGain]], float | None] | None],
    reference: str,
    over: str,
    roles: Mapping[str, str],
    ends: tuple[int, int],
    binned: bool,
    names: Sequence[str],
) -> Spec:
    """Return the chart.

    Args:
        methods: title -> the gains by seed, and their mean; None for the reference.
        reference: its title; over: as it is named in a sentence; "" if there is none.
    """
    low, high = ends
    most = max((sum(map(len, one[0])) for one in methods.values() if one), default=0)
    rows: list[Datum] = []
    for title, one in methods.items():
        if one is None:
            rows.append({"method": title, "part": "reference"})
            continue
        seeds, mean = one
        rows += [] if mean is None else [{"method": title, "part": "mean", "gain": percent(mean)}]
        every = [gain for seed in seeds for gain in seed]
        drawn = _bins(every, low, high) if binned else _dots(every, len(seeds) > 1, _WIDTH / (high - low), most, names)
        rows += [{"method": title, "part": "client", **row} for row in drawn]
    single = len(methods) == 1 or (len(methods) == 2 and reference in methods)
    shown = [t for t in methods if t != reference] if single else list(methods)
    step = ONE_ROW if single else ROW
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


def _dots(gains: Sequence[ClientGain], several: bool, scale: float, most: int, names: Sequence[str]) -> list[Datum]:
    """Return a mark for each client; ``several``: of several seeds, ``scale``: pixels of a point."""
    step, apart = (4.9, 9.8) if most <= _FEW else (2.6, 5.0)
    level = [one for one in gains if one.kind == 0 and abs(one.gain) < 0.001]
    gap = min(6.0, (ROW - 6) / max(1, len(level)))
    placed = [(one, (j - (len(level) - 1) / 2) * gap) for j, one in enumerate(level)]
    moved = sorted((one for one in gains if one.kind or abs(one.gain) >= 0.001), key=lambda one: one.gain)
    placed += zip(moved, _dodged([100 * one.gain * scale for one in moved], step, apart), strict=True)
    return [
        {"client": names[one.client] if one.client < len(names) else str(one.client), "id": one.client,
         **({"seed": one.seed} if several else {}), "gain": percent(one.gain), "value": percent(one.value),
         "kind": WORDS[one.kind], "clear": "yes" if one.clear else "no", "dy": round(dy, 1)}
        for one, dy in placed
    ]  # fmt: skip


def _dodged(places: Sequence[float], step: float, apart: float) -> list[float]:
    """Return a vertical offset for each mark, from left to right, such that they do not overlap where possible."""
    free = [0.0]
    for n in range(1, int((ROW / 2 - 5) / step) + 1):
        free += [n * step, -n * step]
    marks: list[tuple[float, float]] = []
    for x in places:
        near = [(a, b) for a, b in marks[-60:] if x - a < apart]
        room = {dy: min((math.hypot(x - a, dy - b) for a, b in near), default=math.inf) for dy in free}
        marks.append((x, next((dy for dy in free if room[dy] >= apart - 0.01), max(free, key=lambda dy: room[dy]))))
    return [dy for _, dy in marks]


def _bins(gains: Sequence[ClientGain], low: int, high: int) -> list[Datum]:
    """Return the clients by bins of their gain: lower ones below the line, others above it."""
    width = (high - low) / _BINS
    counts = Counter((min(_BINS - 1, math.floor((100 * one.gain - low) / width)), one.kind) for one in gains)
    top = max(counts.values())
    rows = []
    for (at, kind), n in sorted(counts.items()):
        tall = max(2.0, (ROW / 2 - 2) * math.sqrt(n / top))
        rows.append({"gain": round(low + (at + 0.5) * width, 2), "clients": n, "kind": WORDS[kind],
                     "tall": round(tall, 1), "dy": round(tall / 2 if kind < 0 else -tall / 2, 1)})  # fmt: skip
    return rows


def _fitting(short: str, long: str, room: float, more: int) -> str:
    """Return an expression for the longer text where a fraction of the width and some pixels have room for it."""
    return f"width * {room:.3f} + {more} < {6.2 * len(long):.0f} ? '{short}' : '{long}'"


def _plain(text: str) -> str:
    """Return a name that can stand in an expression between quotes."""
    return "".join(c for c in cut(text) if c.isalnum() or c in " -+()")


def _marks(binned: bool, most: int, rows: Sequence[Datum], half: float) -> Spec:
    """Return the marks of clients: disc, ring and triangle, filled where clear by themselves; or bins."""
    if binned:
        return chart("gains-bins", half=[-half, half])
    several, big = any("seed" in row for row in rows), most <= _FEW
    higher, equal, lower = (58, 22, 70) if big else (20, 12, 26)
    if not any(row.get("kind") == WORDS[1] for row in rows):
        equal = lower = higher
    return chart("gains-clients", half=[-half, half], several=several, opacity=0.6 if several else 1,
                 stroke=1.5 if big else 1, higher=higher, equal=equal, lower=lower)  # fmt: skip
