"""One table from three comparisons: all methods of the catalogue on three federations.

    fedkin compare reproduce/catalogue/digits.toml --out runs/digits
    fedkin compare reproduce/catalogue/fashion.toml --data PATH/fashion-mnist --out runs/fashion
    fedkin compare reproduce/catalogue/writers.toml --data PATH/mnist --out runs/writers
    python reproduce/catalogue/table.py runs/digits runs/fashion runs/writers

prints the table as Markdown, and which rows are equal to Local or FedAvg to the last digit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedkin.evaluate.verdict import Spread
from fedkin.methods import METHODS, TITLES
from fedkin.report.folder import Run, by_title, read_run
from fedkin.report.tables import Row, comparison_rows, percent


def runs_of(folder: Path) -> list[Run]:
    found = [read_run(p) for p in sorted(folder.iterdir()) if (p / "summary.json").is_file()]
    order = {TITLES[name]: i for i, name in enumerate(METHODS)}
    return sorted(found, key=lambda run: (order[run.title], run.seed))


def seconds(runs: list[Run]) -> dict[str, float]:
    """Wall seconds of a run, on average over seeds: rounds and evaluations."""
    total: dict[str, list[float]] = {}
    for run in runs:
        assert run.folder is not None
        lines = [json.loads(text) for text in (run.folder / "timing.jsonl").read_text().splitlines()]
        total.setdefault(run.title, []).append(sum(line["round_s"] + line["evaluation_s"] for line in lines))
    return {title: sum(values) / len(values) for title, values in total.items()}


def mean(value: Spread | None) -> str:
    return "–" if value is None else f"{100 * value.mean:.1f}"


def cells(row: Row | None) -> list[str]:
    if row is None:
        return ["–"] * 4
    below = [sum(gain < 0 for gain in a.gains.values()) for a in row.against]
    gain = "" if row.gain is None else percent(row.gain, sign=True)
    return [percent(row.accuracy), mean(row.worst_decile), gain, f"{sum(below) / len(below):.1f}" if below else ""]


def equal_rows(runs: list[Run], reference: str) -> list[str]:
    """Methods whose clients' final accuracies are those of the reference, every digit of every seed."""
    theirs = {run.seed: run.by_client for run in runs if run.title == reference}
    same: dict[str, bool] = {}
    for run in runs:
        if run.title != reference:
            same[run.title] = same.get(run.title, True) and run.by_client == theirs[run.seed]
    return [title for title, equal in same.items() if equal]


def main() -> None:
    folders = [Path(a) for a in sys.argv[1:]]
    if not folders:
        raise SystemExit(__doc__)
    everything = [runs_of(folder) for folder in folders]
    rows = [{row.title: row for row in comparison_rows(by_title(runs))} for runs in everything]
    times = [seconds(runs) for runs in everything]
    titles = [t for t in TITLES.values() if any(t in found for found in rows)]
    heads = ["method"] + [f"{f.name}: {h}" for f in folders for h in ("accuracy %", "worst 10 %", "gain", "below")]
    print("| " + " | ".join([*heads, "s"]) + " |")
    print("| --- |" + " ---: |" * len(heads))
    for title in titles:
        spent = [t[title] for t in times if title in t]
        line = [title, *(c for found in rows for c in cells(found.get(title))), f"{sum(spent) / len(spent):.0f}"]
        print("| " + " | ".join(line) + " |")
    print()
    for folder, runs, found in zip(folders, everything, rows, strict=True):
        below = [t for t, row in found.items() if row.gain is not None and row.gain.mean < 0]
        print(f"{folder.name}: below Local in the mean: {', '.join(below) or 'none'}.")
        for reference in ("Local", "FedAvg"):
            same = [t for t in equal_rows(runs, reference) if t != reference]
            print(f"{folder.name}: equal to {reference} to the last digit: {', '.join(same) or 'none'}.")


if __name__ == "__main__":
    main()
