"""What privacy costs in accuracy: private training, and noise on the class counts that clients tell at joining.

    python bench/private.py [--seeds 2] [--part 0/1]
    python bench/private.py --table

Handwritten digits shared out by Dirichlet(0.5), the mlp, one local epoch of batches of 10 at a step size of 0.05, every
client in every round. `training`: 30 rounds of FedAvg, FedPer and Ditto on 20 clients, FedAvg also on 5 and at a step
size of 0.2, by the noise of private training (clip 1, delta 1e-5). `joining`: 60 rounds of DA-PFL and CFIC on 20
clients, half of them in each round, by the epsilon of the counts. Lines go to `bench/results/private.jsonl`, one per
run; runs that are there already are skipped. `--table` prints the tables of `docs/robust-and-private.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedkin
from fedkin.methods import CFIC, DAPFL, Ditto, FedAvg, FedPer

LINES = Path(__file__).parents[1] / "bench" / "results" / "private.jsonl"
TRAINING = {"FedAvg": FedAvg(), "FedPer": FedPer(), "Ditto": Ditto()}
JOINING = {"DA-PFL": DAPFL(), "CFIC": CFIC()}
LARGE = 0.2  # a step size that suits clipped gradients better
COLUMNS = (("FedAvg", None), ("FedPer", None), ("Ditto", None), ("FedAvg", LARGE))
KEYS = ("kind", "method", "clients", "noise", "epsilon", "seed", "lr")
NOISE = (None, 0.0, 0.5, 1.0, 2.0)
EPSILON = (None, 1.0, 0.5, 0.1)


def runs(seeds: int) -> Iterator[dict[str, Any]]:
    """Every run, as its line without the figures."""
    for seed in range(seeds):
        for clients, names in ((20, ("FedAvg", "FedPer", "Ditto")), (5, ("FedAvg",))):
            for name in names:
                for noise in NOISE:
                    yield {"kind": "training", "method": name, "clients": clients, "noise": noise, "seed": seed}
        for clients in (20, 5):
            for noise in NOISE:
                line = {"kind": "training", "method": "FedAvg", "clients": clients, "noise": noise, "seed": seed}
                yield {**line, "lr": LARGE}
    for seed in range(max(5, seeds)):
        for name in JOINING:
            for epsilon in EPSILON:
                yield {"kind": "joining", "method": name, "clients": 20, "epsilon": epsilon, "seed": seed}


def measured(line: dict[str, Any]) -> dict[str, Any]:
    """The line with its figures: the final accuracy, and the largest epsilon."""
    seed, private = line["seed"], line["kind"] == "training"
    federation = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=line["clients"], seed=seed)
    method = TRAINING[line["method"]] if private else JOINING[line["method"]]
    if private:
        how: dict[str, Any] = {"rounds": 30, "privacy": fedkin.Privacy(noise_multiplier=line.get("noise"))}
    else:
        privacy = fedkin.Privacy(metadata_epsilon=line["epsilon"])
        how = {"rounds": 60, "participation": 0.5, "privacy": privacy}
    training = fedkin.Training(epochs=1, batch_size=10, lr=line.get("lr", 0.05))
    result = fedkin.run(method, federation, "mlp", training, seed=seed, eval_every=30, **how)
    spent = {"spent": result.privacy["epsilon"]} if private and line["noise"] is not None else {}
    return {**line, **spent, "accuracy": round(result.final.accuracy, 4), "fedkin": fedkin.__version__}


def done() -> list[dict[str, Any]]:
    return [json.loads(text) for text in LINES.read_text().splitlines()] if LINES.exists() else []


def cell(lines: list[dict[str, Any]]) -> str:
    """Accuracy in percent, mean and standard deviation over seeds."""
    values = [100 * line["accuracy"] for line in lines]
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0:.1f}"


def table() -> str:
    """Accuracies by noise for 20 and for 5 clients, then by the epsilon of class counts, as Markdown."""
    lines = done()
    training = [line for line in lines if line["kind"] == "training"]
    parts = []
    for clients, columns in ((20, COLUMNS), (5, (COLUMNS[0], COLUMNS[-1]))):
        heads = [name if lr is None else f"{name}, step size {lr:g}" for name, lr in columns]
        rows = [f"| noise, {clients} clients | {' | '.join(heads)} | epsilon |", "| --- " * (len(heads) + 2) + "|"]
        for noise in NOISE:
            here = [line for line in training if line["noise"] == noise and line["clients"] == clients]
            cells = [cell([e for e in here if (e["method"], e.get("lr")) == column]) for column in columns]
            rows.append(f"| {'plain' if noise is None else f'{noise:g}'} | {' | '.join(cells)} | {largest(here)} |")
        parts.append("\n".join(rows))
    rows = ["| epsilon of the counts | DA-PFL | CFIC |", "| --- | --- | --- |"]
    for epsilon in EPSILON:
        here = [line for line in lines if line["kind"] == "joining" and line["epsilon"] == epsilon]
        cells = [cell([line for line in here if line["method"] == name]) for name in JOINING]
        rows.append(f"| {'exact' if epsilon is None else f'{epsilon:g}'} | {' | '.join(cells)} |")
    return "\n\n".join([*parts, "\n".join(rows)])


def largest(lines: list[dict[str, Any]]) -> str:
    """The largest epsilons by method, where they differ (Ditto trains two models)."""
    found: dict[str, float] = {}
    for line in lines:
        if line.get("spent") is not None:
            found[line["method"]] = max(found.get(line["method"], 0.0), line["spent"])
    return " / ".join(dict.fromkeys(f"{value:.3g}" for value in found.values())) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--part", default="0/1", help="which share of the runs, such as 0/2")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    part, parts = map(int, args.part.split("/"))
    there = [{k: line.get(k) for k in KEYS} for line in done()]
    for number, line in enumerate(runs(args.seeds)):
        wanted = {k: line.get(k) for k in KEYS}
        if number % parts == part and wanted not in there:
            found = json.dumps(measured(line))
            with LINES.open("a", encoding="utf-8") as file:
                file.write(found + "\n")
            print(found, flush=True)


if __name__ == "__main__":
    main()
