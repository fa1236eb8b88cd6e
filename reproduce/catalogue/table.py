"""The tables of docs/results/catalogue.md and the goals of docs/results/no-harm.md: all methods and their safe forms.

    fedkin compare reproduce/catalogue/digits.toml --out runs/digits
    fedkin compare reproduce/catalogue/fashion.toml --data PATH/fashion-mnist --out runs/fashion
    fedkin compare reproduce/catalogue/writers.toml --data PATH/mnist --out runs/writers
    fedkin compare reproduce/catalogue/heart.toml --data PATH/heart-disease --out runs/heart
    fedkin compare reproduce/catalogue/har.toml --data PATH/uci-har/uci-har.npz --out runs/har
    python reproduce/catalogue/table.py runs/digits runs/fashion runs/writers runs/heart runs/har

prints one table per folder as Markdown: that of `fedkin compare`, with the figures of each method's safe form next to
its own and seconds in place of megabytes; below it the methods that are below Local, and those equal to Local or
FedAvg to the last digit. At the end the goals of safe forms, one row per folder. An interrupted comparison goes on with
`fedkin resume runs/digits`; the tables take what is finished.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedkin.functional.safe_share import passes
from fedkin.methods import METHODS, get_title
from fedkin.report.first import first_of
from fedkin.report.folder import Run, by_title, read_run
from fedkin.report.headline import headline
from fedkin.report.rows import Row, comparison_rows
from fedkin.report.tables import DASH, Grid, comparison_table, to_markdown

SAFE = ("safe: gain", "safe: harmed", "safe: worst 10 %")
GOALS = (
    "| federation | methods | seeds | gain: method | better of it and Local | safe | below by > 1 point: method | safe "
    "| surely below: method | safe | of | worst client: method | safe |"
)


def runs_of(folder: Path) -> list[Run]:
    """Return the finished runs of a comparison, in the order of the catalogue; safe forms are at the end."""
    found = [read_run(p) for p in sorted(folder.iterdir()) if (p / "summary.json").is_file()]
    order = {get_title(name): i for i, name in enumerate(METHODS)}
    return sorted(found, key=lambda run: (order.get(run.title, len(order)), run.title, run.seed))


def pairs_of(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the row of each method's safe form by the method's title."""
    return {title.split("-safe")[0]: row for title, row in rows.items() if "-safe" in title}


def seconds(runs: list[Run]) -> float:
    """Return the wall seconds of a run, rounds and evaluations: the least over seeds, as other work only adds some."""
    totals: list[float] = []
    for run in runs:
        assert run.folder is not None
        lines = [json.loads(text) for text in (run.folder / "timing.jsonl").read_text().splitlines()]
        totals.append(sum(line["round_s"] + line["evaluation_s"] for line in lines))
    return min(totals)


def table(runs: Sequence[Run]) -> Grid:
    """Return the table of `fedkin compare` for the methods, with their safe forms' figures; MB becomes seconds."""
    every = by_title(runs)
    safe = pairs_of({row.title: row for row in comparison_rows(every)})
    groups = {title: each for title, each in every.items() if "-safe" not in title}
    rows = comparison_rows(groups)
    grid = comparison_table(rows, extra=headline(groups, first_of(groups)))
    compared = comparison_table([safe.get(row.title, row) for row in rows])
    gain, harmed, worst = (compared.columns.index(name) for name in ("gain", "harmed", "worst 10 %"))
    cells = []
    for row, line, theirs in zip(rows, grid.rows, compared.rows, strict=True):
        form = [theirs[i] for i in (gain, harmed, worst)] if row.title in safe else [DASH] * 3
        cells.append((*line[:-1], *form, _short(seconds(groups[row.title]))))
    note = grid.note.replace(
        "MB: sent up and down in training", "s: seconds of one run, evaluation included, the least over seeds"
    )
    note += "; safe: the method's safe form (likely)"
    return replace(grid, columns=(*grid.columns[:-1], *SAFE, "s"), rows=tuple(cells), note=note)


def _short(taken: float) -> str:
    return f"{taken:.1f}" if taken < 10 else f"{taken:.0f}"


def equal_rows(runs: Sequence[Run], reference: str) -> list[str]:
    """Return the methods whose clients' final accuracies are the reference's to the last digit, in all common seeds."""
    theirs = {run.seed: run.by_client for run in runs if run.title == reference}
    same: dict[str, bool] = {}
    for run in runs:
        if run.title != reference and "-safe" not in run.title and run.seed in theirs:
            same[run.title] = same.get(run.title, True) and run.by_client == theirs[run.seed]
    return [title for title, equal in same.items() if equal]


# ---- goals of safe forms --------------------------------------------------------------------------------------------
def goals(name: str, runs: Sequence[Run]) -> str:
    """Return a federation's row under `GOALS`: means and sums over methods with a safe form, seeds and clients."""
    rows = {row.title: row for row in comparison_rows(by_title(runs))}
    pairs = [(rows[title], form) for title, form in pairs_of(rows).items() if title in rows]
    gains = [(p.gain.mean, s.gain.mean) for p, s in pairs if p.gain is not None and s.gain is not None]
    if not gains:
        return f"| {name} | 0 |" + f" {DASH} |" * 11
    better = fmean(max(p, 0.0) for p, _ in gains)
    shown = [f"{100 * v:+.1f}" for v in (fmean(p for p, _ in gains), better, fmean(s for _, s in gains))]
    (below, sure, of, worst), safe = (_losses([pair[i] for pair in pairs]) for i in (0, 1))
    cells = [*shown, below, safe[0], sure, safe[1], of, f"{100 * worst:.0f}", f"{100 * safe[3]:.0f}"]
    seeds = max(p.seeds for p, _ in pairs)
    return f"| {name} | {len(pairs)} | {seeds} | {' | '.join(map(str, cells))} |"


def behind(runs: Sequence[Run], by: float = 0.003) -> list[str]:
    """Return the methods whose safe form gains less than the better of the method and Local, by more than ``by``."""
    rows = {row.title: row for row in comparison_rows(by_title(runs))}
    found = []
    for title, form in pairs_of(rows).items():
        plain = rows[title].gain if title in rows else None
        if plain is not None and form.gain is not None and form.gain.mean < max(plain.mean, 0.0) - by:
            found.append(title)
    return found


def _losses(rows: Sequence[Row]) -> tuple[int, int, int, float]:
    """Return the results of single clients that are below Local, surely below, all, and the worst gain, a mean.

    Below: by more than a point in the last rounds, chance included. Surely: a sign test on the test samples of the last
    round finds a loss at 5 %, so that up to one in twenty of those without any loss is among them.
    """
    seeds = [a for row in rows for a in row.against]
    nets = [changed.net for a in seeds for changed in a.changed.values()]
    sure = sum(passes(int((net < 0).sum()), int((net > 0).sum()), 0.05) for net in nets)
    below = sum(gain < -0.01 for a in seeds for gain in a.gains.values())
    return below, sure, sum(len(a.gains) for a in seeds), fmean(min(a.gains.values()) for a in seeds)


def main() -> None:
    """Print the tables of the folders that are given."""
    folders = [Path(a) for a in sys.argv[1:]]
    if not folders:
        raise SystemExit(__doc__)
    found = {folder.name: runs_of(folder) for folder in folders}
    for name, runs in found.items():
        groups = {title: each for title, each in by_title(runs).items() if "-safe" not in title}
        below = [row.title for row in comparison_rows(groups) if row.gain is not None and row.gain.mean < 0]
        print(f"### {name}\n\n{to_markdown(table(runs))}\n")
        print(f"Below Local in the mean: {', '.join(below) or 'none'}.")
        print(f"Safe form more than 0.3 points behind the better of the two: {', '.join(behind(runs)) or 'none'}.")
        for reference in ("Local", "FedAvg"):
            same = [title for title in equal_rows(runs, reference) if title != reference]
            print(f"Equal to {reference} to the last digit: {', '.join(same) or 'none'}.")
        print()
    print(GOALS, "| --- |" + " --: |" * 12, *(goals(name, runs) for name, runs in found.items()), sep="\n")


if __name__ == "__main__":
    main()
