"""A made-up paper on digits whose cells take a fraction of a second, and lines of results made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduce.reading import read_paper
from reproduce.tables import Paper

ABOUT = """
title = "Toy"
cite = "Someone: Toys"
tables = ["one", "two"]
"""
ONE = """
title = "Table 1"
priority = 10
seeds = [0, 1]
baselines = ["fedavg"]

[data]
data = "digits"
partition = "dirichlet"
samples_per_client = 24

[model]
model = "linear"

[training]
steps = 2
batch_size = 5
lr = 0.1

[run]
rounds = 5
eval_every = 1

[method.da-pfl]
lam = 0.5

[rows]
fedavg = {}
da-pfl = {}
strong = { title = "DA-PFL, strong", method = { name = "da-pfl", lam = 2.0 }, later = 3 }
code = { title = "DA-PFL, code", method = { name = "da-pfl" }, preset = "code" }

[columns.few]
title = "6 clients"
data = { clients = 6 }

[columns.many]
title = "8 clients"
data = { clients = 8 }
run = { participation = 0.5 }
later = 1

[scales.paper]
text = "All of it."
guess = 10

[scales.small]
text = "Fewer rounds."
guess = 1
seeds = [0]
run = { rounds = 2 }
only_rows = ["fedavg", "da-pfl"]
columns.many = { data = { clients = 7 } }

[numbers]
fedavg = [50.0, [60.0, 1.5]]
da-pfl = [70.0, "-"]

[[claims]]
text = "DA-PFL is above FedAvg."
row = "da-pfl"
than = "baselines"
"""
TWO = """
title = "Table 2"
like = "one"
only = ["fedavg", "da-pfl"]
priority = 5
metrics = ["rounds-to-40"]

[columns.forty]
metric = "rounds-to-40"
data = { clients = 6 }

[columns.few]
metric = "few"
data = { clients = 6 }

[numbers]
fedavg = [9, 30.0]
"""


def paper(folder: Path, **tables: str) -> Paper:
    """The made-up paper in a folder, with other texts in place of its own if any are given."""
    found = {"one": ONE, "two": TWO} | tables
    folder = folder / "toy"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"paper": ABOUT, **found}.items():
        (folder / f"{name}.toml").write_text(text)
    return read_paper(folder)


def line(digest: str, accuracies: list[float], *, seed: int = 0, seconds: float = 10.0, **more: Any) -> dict[str, Any]:
    """A line of results for clients with these final accuracies."""
    mean = sum(accuracies) / len(accuracies)
    return {
        "cell": "toy",
        "config": {},
        "seed": seed,
        "digest": digest,
        "seconds": seconds,
        "final": {"accuracy": mean, "rounds": "rounds 4 to 5", "last_round": 5, **more.pop("final", {})},
        "curve": {"rounds": [1, 2, 5], "accuracy": [mean / 4, mean / 2, mean]},
        "clients": {"ids": list(range(len(accuracies))), "accuracy": accuracies, **more.pop("clients", {})},
        **more,
    }
