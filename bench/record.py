"""One improvement of speed, measured against what was there before it, and the table of all of them.

    git worktree add ../before COMMIT
    python -m bench.record ../before W4 W1a --what "several clients in one order"
    python -m bench.record --table

Rules: both on the same machine and in the same minutes, one run of each after the other, at least five pairs; the ratio
is the median of the pairs. The accuracy of both is noted for each of three seeds of data and first weights and must not
differ by more than two seeds of one program do: computing something else is not a record.
Lines go to bench/records/records.jsonl, the table to bench/records/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/record.py` works, too

from bench.speed import federation, machine
from bench.speed.measure import Ours
from bench.speed.workloads import WORKLOADS, Workload

RECORDS = Path(__file__).parent / "records"
SEEDS = 3
_BEGIN, _END = "<!-- records -->", "<!-- /records -->"
Line = dict[str, Any]


def measured(w: Workload, before: Path, pairs: int, *, paper: bool, evaluate: bool) -> Line:
    """Return the line of a workload: seconds of a round before and now, pair by pair, and both accuracies by seed."""
    ours, found, accuracies = Ours(), list[list[float]](), dict[str, list[float]]()
    for i in range(pairs):
        with tempfile.TemporaryDirectory(prefix="record-") as place:
            federation.write(w, Path(place), seed=i % SEEDS)
            how: dict[str, Any] = {"paper": paper, "evaluate": evaluate}
            former, now = ours.run(w, Path(place), src=before / "src", **how), ours.run(w, Path(place), **how)
        found.append([round(former.median_s, 5), round(now.median_s, 5)])
        accuracies[str(i % SEEDS)] = [former.accuracy, now.accuracy]
    ratios = [former / now for former, now in found]
    return {
        "workload": w.name,
        "method": w.paper if paper else "fedavg",
        "evaluate": evaluate,
        "pairs": found,
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "accuracy": accuracies,
        "equal": same_accuracy(list(accuracies.values())),
    }


def same_accuracy(pairs: Sequence[Sequence[float]]) -> bool:
    """Return whether before and now differ by no more, on average, than seeds do among themselves.

    Args:
        pairs: accuracies before and now, one pair per seed.
    """
    apart = abs(statistics.mean(now - before for before, now in pairs))
    former = [before for before, _ in pairs]
    return apart <= (statistics.stdev(former) if len(former) > 1 else 0.0) + 1e-3


def table(lines: Sequence[Line]) -> str:
    """Return the records in Markdown, the newest last."""
    rows = ["| day | what | workload | times as fast | pairs | same accuracy | machine |", "| --- " * 7 + "|"]
    for line in lines:
        shown = f"{line['workload']} {line['method']}{', evaluated' if line['evaluate'] else ''}"
        low, high = line["spread"]
        rows.append(
            f"| {line['day']} | {line['what']} (`{line['before']}` to `{line['now']}`) | {shown} | "
            f"**{line['ratio']:.2f}** ({low:.2f} to {high:.2f}) | {len(line['pairs'])} | "
            f"{'yes' if line['equal'] else 'NO'}, {len(line['accuracy'])} seeds | "
            f"{line['machine']['cores']} cores, {line['machine']['cpu']}, load {line['machine']['load']} |"
        )
    return "\n".join(rows)


def renewed(text: str, lines: Sequence[Line]) -> str:
    """Return the page with its table made anew."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table(lines)}\n{_END}{after}"


def read(folder: Path) -> list[Line]:
    """Return the lines of a folder of records."""
    path = folder / "records.jsonl"
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_page(folder: Path) -> None:
    """Write the table of a folder's lines into its page."""
    page = folder / "README.md"
    page.write_text(renewed(page.read_text(encoding="utf-8"), read(folder)), encoding="utf-8")


def _commit(place: Path) -> str:
    words = ["git", "-C", str(place), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str] | None = None) -> None:
    """Measure and write lines, or the table alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, help="a checkout of what was there before")
    parser.add_argument("workloads", nargs="*", default=[], help=f"of {', '.join(WORKLOADS)}; default: W1a and W4")
    parser.add_argument("--what", help="what makes it faster, in a few words")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--paper", action="store_true", help="the workload's own method instead of FedAvg")
    parser.add_argument("--evaluate", action="store_true", help="evaluate every round")
    parser.add_argument("--folder", type=Path, default=RECORDS)
    parser.add_argument("--table", action="store_true", help="write the page; no runs")
    args = parser.parse_args(words)
    if not args.table:
        if args.before is None or not args.what:
            parser.error("give a checkout of what was there before, and --what")
        if unknown := [name for name in args.workloads if name not in WORKLOADS]:
            parser.error(f"no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
        for name in args.workloads or ("W1a", "W4"):
            line = {
                "day": date.today().isoformat(),
                "what": args.what,
                "before": _commit(args.before),
                "now": _commit(Path(__file__).parent),
                "machine": machine.described(),
                "versions": machine.versions(),
                **measured(WORKLOADS[name], args.before, args.pairs, paper=args.paper, evaluate=args.evaluate),
            }
            with (args.folder / "records.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name}: {line['ratio']} times, {line['spread']}, accuracy {line['accuracy']}", flush=True)
    write_page(args.folder)


if __name__ == "__main__":
    main()
