"""What Flower's simulator with Ray costs, against our own: seconds until the first round, seconds per round.

    python bench/scale_out.py [--repeats 3]
    python bench/scale_out.py --table

FedAvg on the digits with 20 and 100 clients, of whom each round samples a fifth; almost no training, so that what is
measured is what lies around it. Both start anew in every run: `fedkin run` and `fedkin submit --ray`, one after the
other. Lines go to `bench/results/scale_out.jsonl`; `--table` prints medians. Needs `fedkin[ray]`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

LINES = Path(__file__).parent / "results" / "scale_out.jsonl"
WAYS = {"fedkin run": ("run",), "fedkin submit --ray": ("submit", "--ray")}
RUN = """[method]
name = "fedavg"
[data]
data = "digits"
clients = {clients}
partition = "dirichlet@min_samples=1"
[training]
steps = 1
[run]
rounds = 40
participation = 0.2
eval_every = 1000
"""


def measure(way: str, clients: int) -> dict[str, float]:
    """Seconds until the first round begins, per round without its evaluation, and of the whole command."""
    with tempfile.TemporaryDirectory() as place:
        config, out = Path(place) / "run.toml", Path(place) / "run"
        config.write_text(RUN.format(clients=clients))
        name, *flags = WAYS[way]
        command = [sys.executable, "-m", "fedkin", name, str(config), *flags, "--out", str(out), "--quiet"]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        first = 0.0
        while process.poll() is None:
            if not first and (out / "timing.jsonl").exists() and (out / "timing.jsonl").stat().st_size:
                first = time.monotonic() - started
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"{way} ended with exit code {process.returncode}")
        whole = time.monotonic() - started
        lines = [json.loads(text) for text in (out / "timing.jsonl").read_text().splitlines()]
    rounds = [line["whole"] for line in lines[1:]]
    return {
        "first_s": round(first - lines[0]["whole"], 2),
        "round_s": round(statistics.median(rounds), 4),
        "whole_s": round(whole, 2),
    }


def table() -> str:
    found = [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]
    rows = ["| clients | | until the first round | a round | the whole command |", "| --- | --- | --- | --- | --- |"]
    for clients in sorted({line["clients"] for line in found}):
        for way in WAYS:
            runs = [line for line in found if (line["way"], line["clients"]) == (way, clients)]
            first, each, whole = (statistics.median(r[n] for r in runs) for n in ("first_s", "round_s", "whole_s"))
            rows.append(f"| {clients} | `{way}` | {first:.1f} s | {1000 * each:.0f} ms | {whole:.1f} s |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    versions = {name: metadata.version(name) for name in ("fedkin", "flwr", "ray", "torch")}
    for _ in range(args.repeats):
        for clients in (20, 100):
            for way in WAYS:
                found = {"way": way, "clients": clients, **measure(way, clients)}
                line = {**found, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "versions": versions}
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{found}, load {line['load']}", flush=True)


if __name__ == "__main__":
    main()
