"""How much of a round is not local training, and how long until the first round starts.

    python bench/overhead.py [--rounds 30] [--repeats 3]

FedAvg, MLP 784-200-100-10, 100 clients of 300 samples, 20 per round, batch 10, one epoch, `workers` with one process
per core. The share of a round outside local training is 1 - training / (processes x round), where training is the time
all processes spent inside SGD; idle processes at the end of a round count as overhead. Evaluation is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import fedkin
from fedkin.engines.workers import cores


def federation() -> fedkin.Federation:
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(430, 784)).astype(np.float32), rng.integers(0, 10, size=430).astype(np.int64))
        for _ in range(100)
    ]
    return fedkin.Federation.from_arrays(clients, classes=10, name="noise")


def overhead(data: fedkin.Federation, rounds: int, processes: int) -> dict[str, float]:
    """Median over rounds of the share outside training, with the folder written as in every run."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        fedkin.run(
            fedkin.get_method("fedavg"), data, "mlp", fedkin.Recipe(batch=10, lr=0.01), rounds=rounds,
            participation=0.2, workers=processes, eval_every=rounds, out=out,
        )  # fmt: skip
        lines = [json.loads(text) for text in (out / "timing.jsonl").read_text().splitlines()][1:]
    share = [1 - line["training_s"] / (processes * line["round_s"]) for line in lines]
    return {"share": statistics.median(share), "round_s": statistics.median(line["round_s"] for line in lines)}


def first_round() -> float:
    """Seconds from the command to the start of the first round (the folder is made right before it)."""
    with tempfile.TemporaryDirectory() as place:
        started = time.time()
        flags = ["--rounds", "1", "--clients", "100", "--min-samples", "1", "--quiet", "--out", f"{place}/run"]
        command = [sys.executable, "-m", "fedkin", "run", "fedavg", *flags]
        subprocess.run(command, check=True)
        return (Path(place) / "run" / "config.toml").stat().st_mtime - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    data, processes = federation(), cores()
    for _ in range(args.repeats):
        got = overhead(data, args.rounds, processes)
        outside = f"{100 * got['share']:.1f} % of a round outside training"
        print(f"{processes} processes: {outside}, round {got['round_s']:.3f} s")
        print(f"first round starts {first_round():.2f} s after the command")


if __name__ == "__main__":
    main()
