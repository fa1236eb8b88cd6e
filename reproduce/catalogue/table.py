"""The figures behind docs/results/catalogue.md and the goals in docs/results/no-harm.md: all methods and safe forms.

    fedkin compare reproduce/catalogue/digits.toml --out runs/digits
    fedkin compare reproduce/catalogue/fashion.toml --data PATH/fashion-mnist --out runs/fashion
    fedkin compare reproduce/catalogue/writers.toml --data PATH/mnist --out runs/writers
    fedkin compare reproduce/catalogue/heart.toml --data PATH/heart-disease --out runs/heart
    fedkin compare reproduce/catalogue/har.toml --data PATH/uci-har/uci-har.npz --out runs/har
    python reproduce/catalogue/table.py runs/digits runs/fashion runs/writers runs/heart runs/har
    python docs/generate.py

The second to last command writes the rows of these federations in `results.csv`: the table of `fedkin compare`, with
the figures of each method's safe form beside its own and seconds in place of megabytes; and their rows in `goals.csv`.
It prints which safe forms are behind, and the methods equal to Local or FedAvg to the last digit. An interrupted
comparison goes on with `fedkin resume runs/digits`; the tables take what is finished.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedkin.functional.safe_share import passes
from fedkin.methods import METHODS, get_title
from fedkin.record.files import read_commit
from fedkin.record.result import Result, by_title
from fedkin.report.headline import first_of, headline
from fedkin.report.standings import Row, comparison_rows
from fedkin.report.tables import DASH, comparison_table

HERE = Path(__file__).parent
RESULTS, GOALS = HERE / "results.csv", HERE / "goals.csv"
NAMES = {"digits": "digits", "fashion": "Fashion-MNIST", "writers": "writers", "heart": "heart", "har": "HAR"}
"""Folder of a comparison -> its heading."""
FIGURES = ("accuracy %", "last", "trained %", "balanced %", "worst 10 %", "macro-F1 %", "gain", "harmed")
SAFE = ("gain", "harmed", "worst 10 %")
COLUMNS = ("federation", "method", "best", *FIGURES, *(f"safe: {name}" for name in SAFE), "s")
GOAL_COLUMNS = (
    *("federation", "methods", "seeds", "gain", "gain of the better", "safe gain", "below", "safe below"),
    *("surely below", "safe surely below", "results", "worst", "safe worst"),
)


def runs_of(folder: Path) -> list[Result]:
    """Return the finished runs of a comparison, in the order of the catalogue; safe forms are at the end."""
    found = [Result.finished_in(p) for p in sorted(folder.iterdir()) if read_commit(p).ended]
    order = {get_title(name): i for i, name in enumerate(METHODS)}
    return sorted(found, key=lambda run: (order.get(run.title, len(order)), run.title, run.seed))


def pairs_of(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the row of each method's safe form by the method's title."""
    return {title.split("-safe")[0]: row for title, row in rows.items() if "-safe" in title}


def seconds(runs: list[Result]) -> float:
    """Return the wall seconds of a run, rounds and evaluations: the least over seeds, as other work only adds some."""
    return min(sum(line.whole + line.evaluation for line in run.timing) for run in runs)


def figures(federation: str, runs: Sequence[Result]) -> list[dict[str, str]]:
    """Return the rows of a federation under `COLUMNS`; a figure that does not exist is an empty text."""
    every = by_title(runs)
    safe = pairs_of({row.title: row for row in comparison_rows(every)})
    groups = {title: each for title, each in every.items() if "-safe" not in title}
    rows = comparison_rows(groups)
    grid = comparison_table(rows, extra=headline(groups, first_of(groups)))
    compared = comparison_table([safe.get(row.title, row) for row in rows])
    best, found = {i for i, _ in grid.bold}, []
    for i, (row, line, theirs) in enumerate(zip(rows, grid.rows, compared.rows, strict=True)):
        own = dict(zip(grid.columns, line, strict=True))
        form = dict(zip(compared.columns, theirs, strict=True)) if row.title in safe else {}
        shown = {name: own.get(name, DASH) for name in FIGURES}
        shown |= {f"safe: {name}": form.get(name, DASH) for name in SAFE}
        taken = seconds(groups[row.title])
        shown["s"] = f"{taken:.1f}" if taken < 10 else f"{taken:.0f}"
        names = {"federation": federation, "method": row.title, "best": "yes" if i in best else ""}
        found.append(names | {name: "" if text == DASH else text for name, text in shown.items()})
    return found


def table() -> str:
    """Return the table of docs/results/catalogue.md: the accuracy of each method on each federation."""
    cells: dict[str, dict[str, str]] = {}
    for row in read(RESULTS):
        accuracy = row["accuracy %"].split(" ")[0]
        cells.setdefault(row["method"], {})[row["federation"]] = f"**{accuracy}**" if row["best"] else accuracy
    lines = [f"| method | {' | '.join(NAMES.values())} |", "| :-- |" + " --: |" * len(NAMES)]
    lines += [f"| {m} | {' | '.join(found.get(name, DASH) for name in NAMES)} |" for m, found in cells.items()]
    return "\n".join(lines)


def goals_table() -> str:
    """Return the table of goals in docs/results/no-harm.md."""
    shown = ("gain", "gain of the better", "safe gain", "surely below", "safe surely below", "results", "worst",
             "safe worst")  # fmt: skip
    lines = [f"| federation | {' | '.join(shown)} |", "| --- |" + " --: |" * len(shown)]
    lines += [f"| {NAMES[row['federation']]} | {' | '.join(row[name] for name in shown)} |" for row in read(GOALS)]
    return "\n".join(lines)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def renew(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows in place of those of the same federations, in the order of `NAMES`."""
    given = {row["federation"] for row in rows}
    kept = [row for row in read(path) if row["federation"] not in given]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *rows], key=lambda row: list(NAMES).index(row["federation"])))


def equal_rows(runs: Sequence[Result], reference: str) -> list[str]:
    """Return the methods whose clients' final accuracies are the reference's to the last digit, in all common seeds."""
    theirs = {run.seed: run.by_client for run in runs if run.title == reference}
    same: dict[str, bool] = {}
    for run in runs:
        if run.title != reference and "-safe" not in run.title and run.seed in theirs:
            same[run.title] = same.get(run.title, True) and run.by_client == theirs[run.seed]
    return [title for title, equal in same.items() if equal]


def goals(federation: str, runs: Sequence[Result]) -> dict[str, str]:
    """Return a federation's row under `GOAL_COLUMNS`: means and sums over methods with a safe form, seeds, clients."""
    rows = {row.title: row for row in comparison_rows(by_title(runs))}
    pairs = [(rows[title], form) for title, form in pairs_of(rows).items() if title in rows]
    gains = [(p.gain.mean, s.gain.mean) for p, s in pairs if p.gain is not None and s.gain is not None]
    better = fmean(max(p, 0.0) for p, _ in gains)
    shown = [f"{100 * v:+.1f}" for v in (fmean(p for p, _ in gains), better, fmean(s for _, s in gains))]
    (below, sure, of, worst), safe = (_losses([pair[i] for pair in pairs]) for i in (0, 1))
    cells = [*shown, below, safe[0], sure, safe[1], of, f"{100 * worst:.0f}", f"{100 * safe[3]:.0f}"]
    seeds = max(p.seeds for p, _ in pairs)
    return dict(zip(GOAL_COLUMNS, map(str, (federation, len(pairs), seeds, *cells)), strict=True))


def behind(runs: Sequence[Result], by: float = 0.003) -> list[str]:
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
    """Write the rows of the folders that are given, and print what the text of the pages names."""
    folders = [Path(a) for a in sys.argv[1:]]
    if not folders:
        raise SystemExit(__doc__)
    found = {folder.name: runs_of(folder) for folder in folders}
    for name, runs in found.items():
        print(f"{name}: safe forms more than 0.3 points behind the better of the two: {', '.join(behind(runs))}")
        for reference in ("Local", "FedAvg"):
            print(f"{name}: equal to {reference} to the last digit: {', '.join(equal_rows(runs, reference))}")
    renew(RESULTS, COLUMNS, [row for name, runs in found.items() for row in figures(name, runs)])
    renew(GOALS, GOAL_COLUMNS, [goals(name, runs) for name, runs in found.items()])


if __name__ == "__main__":
    main()
