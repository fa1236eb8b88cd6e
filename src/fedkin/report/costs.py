"""Figures of final results and costs: all clients in order, groups of classes, bytes, seconds, notes on clients."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fedkin.record.figures import final_by_client
from fedkin.record.result import Result
from fedkin.report import figures
from fedkin.report.charts import Datum, Spec, chart
from fedkin.report.figures import ROW, Figure, Groups, channels, coloured, leader, percent, thinned, y_methods
from fedkin.report.headline import headline
from fedkin.report.wording import cut, short_mb

NOTHING = 0.001
"""A method that sends less than this fraction of the largest traffic has no line over bytes."""
MORE = 1.1
"""A title names the method with the largest cost where it is this many times the second largest."""
KINDS = ("few", "medium", "many", "unseen")
_KIND_SHADES = {"few": "var(--loss)", "medium": "var(--same)", "many": "var(--ink)", "unseen": "var(--gain)"}
_KIND_SHAPES = {"few": "triangle-down", "medium": "circle", "many": "square", "unseen": "cross"}
PARTS = {"exchange": "clients and messages", "server": "server", "evaluation": "evaluation"}


def classes(groups: Groups) -> Figure | None:
    """Return accuracy on classes of which a client has few, medium or many training samples; None if no run has it."""
    means = {kind: figures.final_means(groups, kind) for kind in KINDS}
    rows = [{"series": title, "kind": kind, "value": percent(means[kind][title])}
            for title in groups for kind in KINDS if title in means[kind]]  # fmt: skip
    if not rows:
        return None
    shown = [kind for kind in KINDS if means[kind]]
    spec = chart("classes", rows=rows, methods=y_methods(list(groups)),
                 colours=figures.scale({kind: _KIND_SHADES[kind] for kind in shown}),
                 shapes=figures.scale({kind: _KIND_SHAPES[kind] for kind in shown}))  # fmt: skip
    few = {title: percent(mean) for title, mean in means["few"].items()}
    fact = "Accuracy by how many samples of a class a client has"
    if best := leader(few, apart=1.0):
        fact = f"{best}: {few[best]:.1f} % on classes of which a client has few samples"
        fact += ", the highest" if len(few) > 1 else ""
    caption = (
        "Few is 1 to 29 training samples of the class at that client, medium 30 to 80, many more than 80, unseen none."
    )
    return Figure("classes", fact, caption, spec)


def over_bytes(groups: Groups) -> Figure | None:
    """Return accuracy against megabytes sent so far, of each method's first seed; None if nothing was counted.

    A method with negligible traffic (training alone) is a horizontal line at its final accuracy. The name of every
    method is at the right, at the height of the end of its line.
    """
    lines = {title: _by_bytes(title, runs[0]) for title, runs in groups.items()}
    sent = {title: line[-1]["mb"] for title, line in lines.items() if line}
    most = max(sent.values(), default=0.0)
    if not most:
        return None
    silent = [title for title, mb in sent.items() if mb < NOTHING * most]
    for title in silent:
        level = groups[title][0].final.accuracy or lines[title][-1]["value"] / 100
        lines[title] = [{"series": title, "mb": mb, "value": percent(level)} for mb in (0.0, most)]
    front = _front({title: (mb, lines[title][-1]["value"]) for title, mb in sent.items()})
    total = {t: runs[0].bytes for t, runs in groups.items()}
    fact = f"Accuracy over traffic: up to {short_mb(max(total.values()) / 1e6)} MB"
    if busiest := leader(total, times=MORE):
        fact = f"{busiest} sends {'the most: ' if len(total) > 1 else ''}{short_mb(total[busiest] / 1e6)} MB"
    caption = "What a byte buys: the higher a line lies on the left, the sooner its accuracy is there."
    caption += " Bold: no other method ends with a higher accuracy for as few bytes." if len(sent) > 1 else ""
    if silent:
        verb, whose = ("sends", "its") if len(silent) == 1 else ("send", "their")
        caption += f" {' and '.join(silent)} {verb} next to nothing: level, at {whose} final accuracy."
    evaluation = {t: sum(line.bytes_evaluation for line in runs[0].rounds) for t, runs in groups.items()}
    if most_of := max(evaluation.values()):
        caption += f" Evaluations, which are not part of it, sent up to {short_mb(most_of / 1e6)} MB more"
        caption += f" ({max(evaluation, key=lambda t: evaluation[t])})." if len(evaluation) > 1 else "."
    caption += " Of several seeds, the first." if any(len(runs) > 1 for runs in groups.values()) else ""
    last = {title: line[-1] for title, line in lines.items() if line}
    low, high = figures.axis_ends([row["value"] for row in last.values()],
                                  [row["value"] for line in lines.values() for row in line])  # fmt: skip
    caption += f" The axis starts at {low}%." if low else ""
    height = max(260, ROW * len(last))
    ends = [{**last[t], "name": cut(t, 22), "short": cut(t, 14), "front": t in front and len(sent) > 1, "label": label}
            for t, label in figures.end_labels({t: row["value"] for t, row in last.items()}, low, high, height)
            ]  # fmt: skip
    shown = figures.prominent(groups)
    spec = chart("bytes",
                 rows=[row for t in sorted(lines, key=lambda t: t in shown) for row in lines[t]],
                 ends=ends, domain=[low, high], height=height,
                 short=all(len(line) < 3 for line in lines.values()), muted=figures.muted(shown),
                 colour=coloured(groups, legend=False), dash=channels(groups, list(groups))["dash"])  # fmt: skip
    return Figure("bytes", fact, caption, spec)


def _front(ends: Mapping[str, tuple[float, float]]) -> set[str]:
    """Return the methods with a higher accuracy than all that sent as little or less; ``ends``: megabytes, accuracy."""
    return {t for t, (mb, value) in ends.items()
            if not any(other <= mb and best >= value and (other, best) != (mb, value)
                       for other, best in ends.values())}  # fmt: skip


def _by_bytes(title: str, run: Result) -> list[Datum]:
    """Return points of a line: accuracy in per cent against megabytes."""
    sent, points = 0, []
    for line in run.rounds:
        sent += line.bytes
        if line.accuracy is not None:
            points.append({"series": title, "mb": round(sent / 1e6, 3), "value": percent(line.accuracy),
                           "round": line.round})  # fmt: skip
    return thinned(points, 100)


def seconds(groups: Groups) -> Figure | None:
    """Return seconds of each method by part, the mean over its seeds; None if no run folder has a timing."""
    timed = {title: [seconds for run in runs if (seconds := spent(run))] for title, runs in groups.items()}
    rows: list[Datum] = [
        {"series": title, "part": name, "seconds": round(sum(run[key] for run in runs) / len(runs), 3)}
            for title, runs in timed.items() if runs for key, name in PARTS.items()]  # fmt: skip
    if not rows:
        return None
    spec = chart("time", rows=rows, methods=y_methods(list(groups)))
    total = {t: sum(row["seconds"] for row in rows if row["series"] == t) for t in groups}
    fact = f"Time of all rounds: up to {max(total.values()):,.1f} s"
    if slowest := leader(total, times=MORE):
        fact = f"{slowest} takes {'the longest: ' if len(total) > 1 else ''}{total[slowest]:,.1f} s"
    caption = "Wall-clock time of all rounds; it belongs to the machine, unlike all other figures of this page."
    return Figure("time", fact, caption, spec)


def spent(run: Result) -> dict[str, float]:
    """Return seconds of all rounds by part; empty if the run has no timing."""
    lines = list(run.timing)
    return {key: sum(getattr(line, key) for line in lines) for key in PARTS} if lines else {}


def distribution(groups: Groups) -> Figure:
    """Return every method's final accuracies by client in order: the whole distribution, not only its mean."""
    rows = []
    shown = figures.prominent(groups)
    for title, runs in sorted(groups.items(), key=lambda one: one[0] in shown):  # grey lines below the others
        values = sorted(a for run in runs for a in run.by_client.values())
        rows += [{"series": title, "share": percent((i + 0.5) / len(values)), "value": percent(values[i])}
                 for i in thinned(range(len(values)))]  # fmt: skip
    spec = chart("distribution", rows=rows, points={"size": 22} if len(rows) < 600 else False,
                 muted=figures.muted(shown), colour=coloured(groups),
                 dash=channels(groups, list(groups))["dash"])  # fmt: skip
    tested = {t: [a for run in runs for a in run.by_client.values()] for t, runs in groups.items()}
    worst = {t: min(values) for t, values in tested.items() if values}
    fact = "No client was tested"
    if best := max(worst, key=lambda t: worst[t], default=""):
        fact = f"With {best} the worst client has {100 * worst[best]:.1f} %"
        fact += ", the most of all methods" if len(worst) > 1 else ""
        if len(worst) > 1 and len(set(worst.values())) == 1:
            fact = f"The worst client has {100 * worst[best]:.1f} % with every method"
    caption = f"Clients in order of their accuracy ({headline(groups).rounds})"
    caption += ", those of all seeds together" if any(len(runs) > 1 for runs in groups.values()) else ""
    caption += ". A line that lies higher on the left serves its worst clients better."
    caption += figures.others(groups)
    return Figure("distribution", fact, caption, spec)


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
    name = title if len(runs) == 1 else f"{title}, mean over {len(runs)} seeds"
    place = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    return [_figure(name, place, field, each, runs[0].names) for field in notes if (each := values(runs, field))]


def values(runs: Sequence[Result], field: str) -> dict[int, float]:
    """Return a client's mean of a field of ``clients.jsonl`` over the last evaluated rounds and the runs, by client."""
    each = [final_by_client(run.clients, run.total, field, run.chosen) for run in runs]
    listed = {i: [by[i] for by in each if i in by] for i in sorted({i for by in each for i in by})}
    return {i: math.fsum(of_client) / len(of_client) for i, of_client in listed.items()}


def _figure(title: str, place: str, field: str, noted: dict[int, float], names: Sequence[str]) -> Figure:
    label, listed = field.removeprefix("note_"), list(noted.values())
    low, high = min(listed), max(listed)
    values_from = f"{label} from {low:.3g} to {high:.3g}, mean {math.fsum(listed) / len(listed):.2g}"
    fact = f"{title}: {values_from}; {listed.count(low)} of {len(listed)} clients at {low:.3g}"
    rows, most = _stacked(noted, figures.called(max(noted) + 1, names))
    if len(noted) > MOST_DOTS:
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


def _stacked(noted: dict[int, float], names: Sequence[str]) -> tuple[list[Datum], int]:
    """Return the rows of the chart's data, and the largest number of clients at one place."""
    low, high = min(noted.values()), max(noted.values())
    step = (high - low) / PLACES or 1.0
    count: Counter[float] = Counter()
    rows: list[Datum] = []
    for i, value in noted.items():
        place = round(low + step * round((value - low) / step), 6)
        count[place] += 1
        rows.append({"client": names[i], "value": round(value, 4), "place": place, "row": count[place]})
    if len(noted) > MOST_DOTS:
        rows = [{"place": place, "clients": n} for place, n in sorted(count.items())]
    return rows, max(count.values())
