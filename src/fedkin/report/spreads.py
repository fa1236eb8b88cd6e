"""The distribution of accuracy over clients: all of them in order, worst first."""

from __future__ import annotations

from fedkin.report import figures
from fedkin.report.charts import chart
from fedkin.report.figures import Figure, Groups, channels, coloured, percent, thinned
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
    spec = chart("distribution", rows=rows, points={"size": 22} if len(rows) < 600 else False,
                 muted=figures.muted(shown), colour=coloured(groups),
                 dash=channels(groups, list(groups))["dash"])  # fmt: skip
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
