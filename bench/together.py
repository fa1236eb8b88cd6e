"""A comparison whose runs train together in common stacks against the same one run after another, on one device.

    python -m bench.together                          # on a GPU if there is one
    python -m bench.together --rounds 2 --seeds 1     # to see that it runs

Handwritten digits (no download), five methods and training alone, the methods' own settings. The two ways alternate;
a line has the seconds of every comparison, the ratio, and the largest difference of a run's accuracy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from bench.speed import machine

from fedkin.core import Training
from fedkin.experiment.compare import Comparison, compare
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings

LINES = Path(__file__).parent / "results" / "together.jsonl"
METHODS = ("fedavg", "fedprox", "ditto", "ifca", "da-pfl")


def plan(clients: int, rounds: int, seeds: int) -> Comparison:
    """Return the comparison."""
    return Comparison(
        METHODS,
        seeds=tuple(range(seeds)),
        data=DataSettings(clients=clients, validation=0.1),
        model=ModelSettings("mlp"),
        training=Training(epochs=2, batch_size=10, lr=0.05),
        run=RunSettings(rounds=rounds),
        compute=Compute(engine="stacked"),
    )


def measured(given: Comparison, together: int) -> tuple[float, list[float]]:
    """Return the seconds of a comparison, and the final accuracy of each run."""
    started = time.perf_counter()
    runs = compare(given, together=together, progress=False).runs
    seconds = time.perf_counter() - started
    print(f"{len(runs)} runs, {together} at a time: {seconds:.2f} s", flush=True)
    return seconds, [run.rounds[-1]["accuracy"] for run in runs]


def measure(given: Comparison, together: int, pairs: int) -> dict[str, Any]:
    """Return the seconds of both ways and how far their accuracies are apart at most."""
    each: dict[str, list[float]] = {"one by one": [], "together": []}
    apart = 0.0
    measured(given, together)  # recordings, timings of convolutions, first calls of libraries
    for _ in range(pairs):
        alone_s, alone = measured(given, 1)
        common_s, common = measured(given, together)
        each["one by one"].append(round(alone_s, 3))
        each["together"].append(round(common_s, 3))
        apart = max(apart, *(abs(a - b) for a, b in zip(alone, common, strict=True)))
    ratios = [a / b for a, b in zip(*each.values(), strict=True)]
    return {"runs": len(alone), "seconds": each, "times as fast": round(statistics.median(ratios), 2), "apart": apart}


def main(words: Sequence[str] | None = None) -> None:
    """Run and write a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", type=int, default=8, help="runs at a time")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--lines", type=Path, default=LINES)
    args = parser.parse_args(words)
    given = plan(args.clients, args.rounds, args.seeds)
    about = {"day": date.today().isoformat(), "clients": args.clients, "rounds": args.rounds, "together": args.together}
    line = {**about, **measure(given, args.together, args.pairs), "machine": machine.described()}
    line["versions"] = machine.versions()
    args.lines.parent.mkdir(parents=True, exist_ok=True)
    with args.lines.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=2))


if __name__ == "__main__":
    main()
