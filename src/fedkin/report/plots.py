"""Pictures of accuracy: over rounds, per client against Local, per method.

Every function returns a fresh matplotlib figure (see ``style``); accuracies come as fractions, drawn in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedkin.evaluate import Against, against, spread
from fedkin.evaluate.rounds import evaluated
from fedkin.report import style
from fedkin.report.folder import Run

Groups = Mapping[str, Sequence[Run]]
MOST_BANDS = 8
"""With more methods than this in one figure the bands would hide the lines, so there are none."""


def accuracy_over_rounds(run: Run, local: float | None = None, reference: str = "Local") -> Figure:
    """One run: mean accuracy over clients by round, in a band from the worst decile to mean + one standard deviation.

    Args:
        run: needs its evaluated rounds.
        local: final accuracy of the reference, a fraction, drawn as a dashed line.
        reference: its display name.
    """
    lines = evaluated(run.rounds)
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    mean = style.percents([line.get("accuracy") for line in lines])
    low = style.percents([line.get("worst_decile") for line in lines])
    high = np.minimum(mean + np.nan_to_num(style.percents([line.get("std") for line in lines])), 100.0)
    figure = style.new_figure()
    axes = figure.add_subplot()
    colour = style.PALETTE[0]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, label="worst decile to mean + 1 std")
    axes.plot(x, mean, color=colour, linewidth=2, label="mean over clients", marker="o" if len(x) == 1 else "")
    if local is not None:
        axes.axhline(
            100 * local, color=style.REFERENCE, linestyle=(0, (4, 2)), label=style.plain(f"{reference}, final")
        )
    axes.set(xlabel="round", ylabel="test accuracy of clients (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.quiet(axes)
    accuracy = run.final.get("accuracy")
    worst = run.final.get("worst_decile")
    fact = "no evaluated round" if accuracy is None else f"{100 * accuracy:.1f} % on average"
    if accuracy is not None and worst is not None:
        fact += f", {100 * worst:.1f} % for the worst tenth of clients"
    style.headline(figure, f"{run.title}: {fact}")
    if len(x):
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def accuracy_of_methods(groups: Groups, reference: str = "Local") -> Figure:
    """Several methods in one figure: mean over seeds of the mean accuracy, in a band of ± one standard deviation
    (no bands for more than ``MOST_BANDS`` methods).

    ``groups`` is title -> its runs (seeds), as from :func:`fedkin.report.folder.by_title`. The legend stands in the
    order of the final accuracy.
    """
    figure = style.new_figure(8.2, max(4.2, 0.24 * len(groups) + 1.2))
    axes = figure.add_subplot()
    looks = style.styles(groups, reference)
    seeds = max((len(runs) for runs in groups.values()), default=0)
    bands = seeds > 1 and len(groups) <= MOST_BANDS
    drawn: list[tuple[float, str, Line2D]] = []
    for title, runs in groups.items():
        x, mean, std = _over_seeds(runs)
        if not len(x):
            continue
        look = looks[title]
        if bands:
            axes.fill_between(x, mean - std, mean + std, color=look.colour, alpha=0.15, linewidth=0)
        marker = "o" if len(x) == 1 else ""
        (line,) = axes.plot(x, mean, color=look.colour, linestyle=look.dash, linewidth=1.8, marker=marker)
        line.set_label(style.plain(title))
        final = spread([run.final.get("accuracy") for run in runs])
        drawn.append((-1.0 if final is None else final.mean, title, line))
    axes.set(xlabel="round", ylabel="test accuracy, mean over clients (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.quiet(axes)
    over = f" (mean{' ± std' if bands else ''} over {seeds} seeds)" if seeds > 1 else ""
    if drawn:
        drawn.sort(key=lambda item: -item[0])
        style.headline(figure, f"{drawn[0][1]} ends highest{over}")
        axes.legend(
            handles=[line for _, _, line in drawn],
            frameon=False,
            fontsize=9,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )
    return figure


def _over_seeds(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, mean and standard deviation over the seeds evaluated there (0 for one), in per cent."""
    values: dict[int, list[float | None]] = {}
    for run in runs:
        for line in evaluated(run.rounds):
            values.setdefault(int(line["round"]), []).append(line.get("accuracy"))
    x = sorted(values)
    spreads = [spread(values[r]) for r in x]
    mean = style.percents([None if s is None else s.mean for s in spreads])
    std = style.percents([0.0 if s is None or s.std is None else s.std for s in spreads])
    return np.array(x, dtype=np.float64), mean, std


def gain_per_client(
    title: str,
    local: Mapping[int, float],
    method: Mapping[int, float],
    tolerance: float = 0.0,
    reference: str = "Local",
) -> Figure:
    """Who gains over Local: every client's final accuracy against Local's, and the gains in order.

    ``local`` and ``method`` are client id -> final accuracy (fractions); ``tolerance`` as in
    :func:`fedkin.evaluate.against`, whose errors are raised.
    """
    result = against(local, method, tolerance)
    order = sorted(result.gains, key=lambda client: (result.gains[client], client))
    gains = style.percents([result.gains[client] for client in order])
    colours = [_colour(g, 100 * tolerance) for g in gains]
    size = 26 if len(order) <= 60 else 12
    figure = style.new_figure(9.6, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    x, y = style.percents([local[c] for c in order]), style.percents([method[c] for c in order])
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    pad = max(1.0, 0.05 * (high - low))
    ends = [low - pad, high + pad]
    left.plot(ends, ends, color=style.REFERENCE, linewidth=1, linestyle=(0, (4, 2)))
    left.scatter(x, y, c=colours, s=size, alpha=0.85, linewidths=0)
    left.set(xlim=ends, ylim=ends, aspect="equal", xlabel=style.plain(f"accuracy with {reference} (%)"))
    left.set_ylabel(style.plain(f"accuracy with {title} (%)"))
    style.quiet(left)
    rank = np.arange(len(order))
    right.vlines(rank, 0, gains, colors=colours, linewidth=2 if len(order) <= 60 else 1, alpha=0.6)
    right.scatter(rank, gains, c=colours, s=size, linewidths=0, zorder=3)
    right.axhline(0, color=style.REFERENCE, linewidth=1)
    right.set_ylabel(style.plain(f"gain over {reference} (points)"))
    if len(order) <= 40:
        right.set_xticks(rank, [str(c) for c in order], rotation=90 if len(order) > 12 else 0)
        right.set_xlabel("client, in order of its gain")
    else:
        right.set_xlabel(f"{len(order)} clients, in order of their gain")
    style.quiet(right)
    right.legend(handles=_legend(result), frameon=False, fontsize=9, loc="upper left")
    fact = f"{result.helped} of {len(order)} clients gain over {reference}, {result.harmed} lose"
    style.headline(figure, f"{title}: {fact}")
    return figure


def _colour(gain: float, tolerance: float) -> str:
    return style.HELPED if gain > tolerance else style.HARMED if gain < -tolerance else style.UNCHANGED


def _legend(result: Against) -> list[Line2D]:
    parts = [("helped", result.helped, style.HELPED), ("harmed", result.harmed, style.HARMED)]
    parts += [("unchanged", result.unchanged, style.UNCHANGED)] if result.unchanged else []
    return [
        Line2D([], [], marker="o", linestyle="", color=colour, markersize=5, label=f"{name} ({count})")
        for name, count, colour in parts
    ]


def gains_of_methods(comparisons: Mapping[str, Sequence[Against]], reference: str = "Local") -> Figure:
    """All methods at once: one row per method, one dot per client (and seed) at its gain over the reference.

    ``comparisons`` is title -> one :class:`fedkin.evaluate.Against` per seed; rows stand in order of the mean gain,
    which a black tick marks.
    """
    rows = {title: list(seeds) for title, seeds in comparisons.items() if seeds}
    order = sorted(rows, key=lambda title: float(np.mean([a.mean for a in rows[title]])))
    figure = style.new_figure(7.6, max(2.4, 0.42 * len(order) + 1.3))
    axes = figure.add_subplot()
    scatter = np.random.default_rng(0)  # vertical jitter only, so that equal gains stay visible
    for row, title in enumerate(order):
        gains = style.percents([g for a in rows[title] for g in a.gains.values()])
        tolerance = 100 * max(a.tolerance for a in rows[title])
        y = row + scatter.uniform(-0.22, 0.22, len(gains))
        colours = [_colour(g, tolerance) for g in gains]
        axes.scatter(gains, y, c=colours, s=14, alpha=0.6, linewidths=0, label=style.plain(title))
        mean = 100 * float(np.mean([a.mean for a in rows[title]]))
        axes.plot([mean, mean], [row - 0.34, row + 0.34], color="black", linewidth=2)
    axes.axvline(0, color=style.REFERENCE, linewidth=1)
    axes.set_yticks(range(len(order)), [style.plain(title) for title in order])
    axes.set(ylim=(-0.6, max(len(order), 1) - 0.4), xlabel=style.plain(f"gain over {reference} per client (points)"))
    style.quiet(axes, grid="x")
    style.headline(figure, _harm_fact(rows, reference))
    return figure


def _harm_fact(rows: Mapping[str, Sequence[Against]], reference: str) -> str:
    if not rows:
        return f"No method was compared with {reference}"
    shares = {t: sum(a.harmed for a in seeds) / sum(len(a.gains) for a in seeds) for t, seeds in rows.items()}
    least = min(shares, key=lambda title: shares[title])
    if shares[least] == 0:
        clean = [title for title in rows if shares[title] == 0]
        return (
            f"{clean[0] if len(clean) == 1 else f'{len(clean)} of {len(rows)} methods'}: no client loses to {reference}"
        )
    return f"{least} harms the fewest clients: {100 * shares[least]:.0f} % lose to {reference}"


def final_accuracies(groups: Groups, reference: str = "Local") -> Figure:
    """One row per method in order of its final accuracy: a dot per seed, the mean with ± one standard deviation, and
    the reference's mean as a dashed line."""
    finals = {title: spread([run.final.get("accuracy") for run in runs]) for title, runs in groups.items()}
    known = {title: value for title, value in finals.items() if value is not None}
    order = sorted(known, key=lambda title: known[title].mean)
    figure = style.new_figure(7.6, max(2.4, 0.36 * len(order) + 1.3))
    axes = figure.add_subplot()
    looks = style.styles(groups, reference)
    base = known.get(reference)
    if base is not None:
        axes.axvline(100 * base.mean, color=style.REFERENCE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    for row, title in enumerate(order):
        value, colour = known[title], looks[title].colour
        if value.std is not None:
            under = [row - 0.22] * len(value.values)
            axes.scatter(style.percents(value.values), under, s=14, c=colour, alpha=0.6, linewidths=0)
        error = None if value.std is None else 100 * value.std
        axes.errorbar(100 * value.mean, row, xerr=error, fmt="o", color=colour, markersize=7, capsize=3, linewidth=1.6)
        text = f"{100 * value.mean:.1f}" + ("" if error is None else f" ± {error:.1f}")
        axes.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=style.INK)
    axes.set_yticks(range(len(order)), [style.plain(title) for title in order])
    axes.set(ylim=(-0.6, max(len(order), 1) - 0.4), xlabel="final test accuracy, mean over clients (%)")
    style.quiet(axes, grid="x")
    style.headline(figure, _ranking(order, {title: known[title].mean for title in order}, reference))
    return figure


def _ranking(order: Sequence[str], means: Mapping[str, float], reference: str) -> str:
    if not order:
        return "No method has a final accuracy"
    top = order[-1]
    fact = f"{top} is highest with {100 * means[top]:.1f} %"
    others = [title for title in order if title != reference]
    if reference in means and others:
        above = sum(means[title] > means[reference] for title in others)
        fact += f"; {above} of {len(others)} {'is' if above == 1 else 'are'} above {reference}"
    return fact
