"""The tables of docs/results/tuned.md: methods with one set of settings for all, and each with settings of its own.

    fedkin compare reproduce/tuned/digits.toml --out runs/digits
    fedkin compare reproduce/tuned/digits.toml --tune 20 --out runs/digits-tuned
    fedkin compare reproduce/tuned/heart.toml --data PATH/heart-disease --out runs/heart
    fedkin compare reproduce/tuned/heart.toml --data PATH/heart-disease --tune 20 --out runs/heart-tuned
    python reproduce/tuned/table.py runs/digits runs/digits-tuned
    python reproduce/tuned/table.py runs/heart runs/heart-tuned

prints a table as Markdown, methods in the order of the tuned ones, and the seconds of all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedkin.record.files import read_commit
from fedkin.record.result import Result, by_title
from fedkin.report.standings import Row, comparison_rows
from fedkin.report.tables import Grid, percent, to_markdown
from fedkin.report.tuning import read_tuned


def runs_of(folder: Path) -> dict[str, list[Result]]:
    return by_title(Result.finished_in(p) for p in sorted(folder.iterdir()) if read_commit(p).ended)


def ranked(rows: list[Row]) -> dict[str, int]:
    """Title -> place by mean accuracy, the highest first."""
    order = sorted(rows, key=lambda row: -row.accuracy.mean if row.accuracy else 1)
    return {row.title: place for place, row in enumerate(order, start=1)}


def seconds(runs: list[Result]) -> float:
    """Seconds of all runs, rounds and evaluations."""
    return sum(line.whole + line.evaluation for run in runs for line in run.timing)


def table(default: Path, tuned: Path) -> Grid:
    before, after = (comparison_rows(runs_of(folder)) for folder in (default, tuned))
    place, now = ranked(before), ranked(after)
    old, found = {row.title: row for row in before}, {one.title: one for one in read_tuned(tuned)}
    rows = []
    for row in sorted(after, key=lambda row: now[row.title]):
        title, was = row.title, old[row.title].accuracy
        change = 100 * (row.accuracy.mean - was.mean) if row.accuracy and was else float("nan")
        figures = percent(was), str(place[title]), percent(row.accuracy), f"{change:+.1f}"
        rows.append((title, found[title].text, *figures))
    columns = ("method", "chosen", "untuned %", "rank", "tuned %", "change")
    return Grid("", columns, tuple(rows), words=2)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    default, tuned = map(Path, sys.argv[1:])
    print(to_markdown(table(default, tuned)))
    runs = [run for group in runs_of(default).values() for run in group]
    trials = sum(one.seconds for one in read_tuned(tuned))
    print(f"Seconds of all runs: {seconds(runs):.0f}; of all trials: {trials:.0f}.")
    for one in read_tuned(tuned):
        print(json.dumps({"method": one.title, "trial": one.trial, "failed": one.failed, "ends": list(one.ends),
                          "validation": one.validation, "untuned": one.untuned}))  # fmt: skip


if __name__ == "__main__":
    main()
