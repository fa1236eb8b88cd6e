"""The CIFAR-10 benchmark that pfl-research publishes: FedAvg, 1,000 clients of 50 samples, 50 a round, 1,500 rounds.

    python -m bench.race --rounds 20                      # seconds a round on this machine, by part
    python -m bench.race --engine stacked                 # the whole race, on a GPU if there is one
    python -m bench.race --engine stacked --tf32          # tensor cores, as peers use them by default
    python -m bench.race --data noise                     # seconds without CIFAR-10: random images, random labels

Network (its `simple_cnn`): convolutions 3-32 and 32-64 (3 x 3, no padding), max pooling, dropout, linear 12544-128,
dropout, linear 10; 1,626,442 parameters. One local epoch, batch 10, step size 0.1, evaluation every 10 rounds.
Samples are dealt to clients at random, as its IID partition does. Each run is a line in bench/results/race.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `python bench/race.py` works, too

import torch
from bench.speed import machine
from torch import nn

import fedkin
from fedkin.core import Samples
from fedkin.engines import Engine, Stacked

LINES = Path(__file__).parent / "results" / "race.jsonl"
COHORT, BATCH, STEP_SIZE, EVERY = 50, 10, 0.1, 10


class SimpleCNN(nn.Sequential):
    """pfl-research's network for CIFAR-10."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip


def dealt(data: fedkin.Dataset, clients: int, samples: int, tests: int) -> fedkin.Federation:
    """Return a federation of equal clients: random samples to train on, and an equal share of the test images.

    The benchmark evaluates the server's model on all test images; the clients' shares add up to them. A source without
    a test part gives some of its samples.
    """
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    train, rest = order[: clients * samples], order[clients * samples :]
    test = Samples(data.x[rest], data.y[rest]) if data.official_test is None else data.official_test
    if len(train) < clients * samples or len(test) < clients * tests:
        raise SystemExit(f"{data.name} has fewer samples than {clients} clients of {samples} + {tests} need")
    none = Samples(data.x[:0], data.y[:0])
    parts = [
        fedkin.ClientData(Samples(data.x[i], data.y[i]), none, Samples(test.x[j : j + tests], test.y[j : j + tests]))
        for i, j in zip(train.view(clients, -1), range(0, clients * tests, tests), strict=True)
    ]
    return fedkin.Federation(tuple(parts), data.classes, name=data.name)


def noise(train: int, test: int) -> fedkin.Dataset:
    """Return random images with random labels, where only seconds are of interest."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(train + test, 3, 32, 32, generator=rng), torch.randint(0, 10, (train + test,), generator=rng)
    return fedkin.Dataset(x[:train], y[:train], 10, "noise", official_test=Samples(x[train:], y[train:]))


def race(
    data: fedkin.Dataset, clients: int, rounds: int, engine: Engine | str, samples: int = 50, tests: int = 10
) -> dict[str, Any]:
    """Return seconds of the whole race and of a round's parts (medians), and the accuracy of the last round."""
    parts: list[dict[str, float]] = []
    how: dict[str, Any] = {"compute": fedkin.Compute(engine=engine)} if isinstance(engine, str) else {"engine": engine}
    federation, begun = dealt(data, clients, samples, tests), time.perf_counter()
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation, SimpleCNN, fedkin.Training(batch_size=BATCH, lr=STEP_SIZE), rounds=rounds,
        participation=min(COHORT, clients) / clients, eval_every=EVERY,
        on_round=lambda report, line: parts.append(dict(report.seconds)), **how,
    )  # fmt: skip
    medians = {name: round(statistics.median(part[name] for part in parts), 5) for name in parts[0]}
    return {
        "clients": clients,
        "rounds": rounds,
        "seconds": round(time.perf_counter() - begun, 2),
        "round_s": medians,
        "accuracy": result.rounds[-1].figures.pooled,
        "computed": result.run.engine,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Run and write a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--engine", choices=["auto", "loop", "workers", "stacked"], default="auto")
    parser.add_argument("--tf32", action="store_true", help="tensor cores for float32 on the stacked engine")
    parser.add_argument("--data", default="cifar10", help="as of fedkin run --data, or noise: random images")
    parser.add_argument("--lines", type=Path, default=LINES)
    args = parser.parse_args(words)
    engine = Stacked(tf32=args.tf32) if args.engine == "stacked" else args.engine
    data = noise(50 * args.clients, 10 * args.clients) if args.data == "noise" else fedkin.load(args.data)
    found = race(data, args.clients, args.rounds, engine)
    line = {"data": args.data, "day": date.today().isoformat(), "engine": args.engine, "tf32": args.tf32, **found}
    line |= {"machine": machine.described(), "versions": machine.versions()}
    args.lines.parent.mkdir(parents=True, exist_ok=True)
    with args.lines.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=2))


if __name__ == "__main__":
    main()
