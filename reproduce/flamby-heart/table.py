"""One table of a comparison by run.py, with FLamby's figures where it has the method.

    python table.py ../../runs/flamby
    python table.py ../../runs/flamby-faster --alone

Accuracy on each hospital's test rows after the last round, mean over seeds; the last columns are the mean of the four
hospitals (± the standard deviation over seeds) and FLamby's mean.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
Figures = dict[str, dict[int, list[float]]]
"""Method -> seed -> accuracy at each hospital."""


def ours(out: Path) -> Figures:
    found: Figures = {}
    for run in sorted(out.glob("seed*/*-seed*")):
        lines = [json.loads(text) for text in (run / "clients.jsonl").read_text(encoding="utf-8").splitlines()]
        last = {line["client"]: line["accuracy"] for line in lines if line["round"] == lines[-1]["round"]}
        name, _, seed = run.name.rpartition("-seed")
        found.setdefault(name, {})[int(seed)] = [last[k] for k in range(len(HOSPITALS))]
    return found


def theirs() -> Figures:
    found: Figures = {}
    with (HERE / "theirs.csv").open(encoding="utf-8") as lines:
        for method, seed, *values in list(csv.reader(lines))[1:]:
            found.setdefault(method.lower(), {})[int(seed)] = [float(v) for v in values]
    return found


def cells(by_seed: dict[int, list[float]]) -> list[str]:
    """The four hospitals, then their mean ± its deviation over seeds."""
    means = [statistics.mean(values) for values in by_seed.values()]
    spread = f" ± {statistics.stdev(means):.3f}" if len(means) > 1 else ""
    columns = [statistics.mean(column) for column in zip(*by_seed.values(), strict=True)]
    return [*(f"{c:.3f}" for c in columns), f"{statistics.mean(means):.3f}{spread}"]


def table(runs: Figures, published: Figures) -> str:
    lines = [f"| method | {' | '.join(HOSPITALS)} | mean of four |", "| --- |" + " ---: |" * 5]
    for name, by_seed in sorted(runs.items(), key=lambda item: item[0].lower()):
        lines.append("| " + " | ".join([f"fedkin {name}", *cells(by_seed)]) + " |")
        if name in published:
            lines.append("| " + " | ".join([f"FLamby {name}", *cells(published.pop(name))]) + " |")
    for name, by_seed in published.items():
        lines.append("| " + " | ".join([f"FLamby {name}", *cells(by_seed)]) + " |")
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path, help="folder that run.py wrote")
    asked.add_argument("--alone", action="store_true", help="without FLamby's figures")
    args = asked.parse_args()
    print(table(ours(args.out), {} if args.alone else theirs()))


if __name__ == "__main__":
    main()
