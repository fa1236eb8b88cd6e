"""The distribution of accuracy over clients: all of them in order, worst first."""

from __future__ import annotations

from fedkin.report import figures
from fedkin.report.charts import Spec
from fedkin.report.figures import WIDTH, Figure, Groups, coloured, dashed, percent, thinned, x_axis, y_axis
from fedkin.report.headline import headline


def distribution(groups: Groups) -> Figure:
    """Return every method's final accuracies by client in order: the whole distribution, not only its mean."""
    rows = []
    shown = figures.prominent(groups)
    for title, runs in sorted(groups.items(), key=lambda one: one[0] in shown):  # grey lines below the others
        found = sorted(a for run in runs for a in run.by_client.values())
        ranks = thinned(range(len(found)))
        rows += [{"series": title, "share": percent((i + 0.5) / len(found)), "value": percent(found[i])}
                 for i in ranks]  # fmt: skip
    muted = figures.muted(shown)
    spec: Spec = {
        "width": WIDTH, "height": 280, "data": {"values": rows},
        "mark": {"type": "line", "point": {"size": 22} if len(rows) < 600 else False, "tooltip": True},
        "encoding": {
            "x": {**x_axis("share", "clients, worst first (%)", grid=False), "scale": {"domain": [0, 100]}},
            "y": y_axis("final test accuracy of the client (%)"),
            "color": coloured(groups),
            "strokeDash": dashed(groups),
            "opacity": {"condition": {"test": muted, "value": 0.4}, "value": 1},
            "strokeWidth": {"condition": {"test": muted, "value": 1}, "value": 2},
        },
    }  # fmt: skip
    low = {t: min((a for run in runs for a in run.by_client.values()), default=None) for t, runs in groups.items()}
    known = {t: v for t, v in low.items() if v is not None}
    best = max(known, key=lambda t: known[t]) if known else None
    fact = "No client was tested" if best is None else f"With {best} the worst client has {100 * known[best]:.1f} %"
    if len(known) > 1 and len(set(known.values())) == 1:
        fact = f"The worst client has {100 * known[best]:.1f} % with every method" if best is not None else fact
    elif len(known) > 1:
        fact += ", the most of all methods"
    caption = f"Clients in order of their accuracy ({headline(groups).rounds})"
    caption += ", those of all seeds together" if any(len(runs) > 1 for runs in groups.values()) else ""
    caption += ". A line that lies higher on the left serves its worst clients better."
    caption += figures.others(groups)
    return Figure("distribution", fact, caption, spec)
