"""What false uploads do to a federation, and what each rule of aggregation does against them.

    python bench/robust.py [--seeds 3] [--part 0/1] [--only NAME ...]
    python bench/robust.py --table

Digits, 20 clients, Dirichlet 0.5, the network `mlp`, two epochs of batches of 10 at step size 0.05, 40 rounds, every
client in every round. Rules are told that 30 % may be false. Accuracies are means over the *honest* clients, each over
the evaluated rounds in the last fifth of the run, at most ten; `clean` is the run without attackers, by the mean, over
the same clients. Lines go to `bench/results/robust.jsonl`, one per run; runs that are there already are skipped.
`--table` prints the tables of `docs/results/robust.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import fedkin
from fedkin.core import Method
from fedkin.data import Dirichlet, federate, load
from fedkin.methods import DAPFL, IFCA, FedAvg
from fedkin.record.figures import final_by_client
from fedkin.server import Attack

ROOT = Path(__file__).parents[1]
LINES = ROOT / "bench" / "results" / "robust.jsonl"
CLIENTS, ROUNDS = 20, 40

METHODS: dict[str, Method] = {"FedAvg": FedAvg(), "IFCA": IFCA(clusters=2), "DA-PFL": DAPFL()}
RULES = ("mean", "median", "trimmed", "krum", "norm")
ATTACKS = [("none", 0.0)] + [(a, share) for a in ("sign-flip", "scale", "random") for share in (0.1, 0.2, 0.3)]
NAMES = {"none": "no attacker", "sign-flip": "sign flip", "scale": "x100", "random": "random"}
Key = tuple[str, str, float, str, int]


def one(name: str, attack: str, share: float, rule: str, seed: int) -> dict:
    data = federate(load("digits"), Dirichlet(alpha=0.5), clients=CLIENTS, seed=seed)
    started = time.perf_counter()
    result = fedkin.run(
        METHODS[name],
        data,
        "mlp",
        fedkin.Training(epochs=2, batch_size=10, lr=0.05),
        rounds=ROUNDS,
        seed=seed,
        compute=fedkin.Compute(engine="loop"),
        eval_every=ROUNDS,
        rule=f"{rule}@fraction=0.3" if rule in ("trimmed", "krum") else rule,
        attack=f"{attack}@fraction={share}" if share else "none",
    )
    false = list(result.run.attackers)
    by_client = final_by_client(result.clients)
    honest = [v for i, v in by_client.items() if i not in false]
    return {
        "method": name,
        "attack": attack,
        "share": share,
        "rule": rule,
        "seed": seed,
        "accuracy": statistics.mean(honest),
        "worst": min(honest),
        "by_client": {str(i): round(v, 6) for i, v in by_client.items()},
        "refused": sum(len(line.unused("update")) for line in result.rounds),
        "seconds": round(time.perf_counter() - started, 2),
        "fedkin": fedkin.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", default="0/1", help="which share of the runs, such as 0/2 and 1/2 on two cores")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    LINES.parent.mkdir(exist_ok=True)
    if args.table:
        print(table())
        return
    part, parts = map(int, args.part.split("/"))
    wanted = [
        (name, attack, share, rule, seed)
        for seed in range(args.seeds)
        for attack, share in ATTACKS
        for name in args.only or METHODS
        for rule in RULES
    ]
    for key in wanted[part::parts]:
        if key in done():
            continue
        line = one(*key)
        with LINES.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{key}: accuracy {line['accuracy']:.3f}, {line['seconds']} s", flush=True)


def done() -> dict[Key, dict]:
    if not LINES.exists():
        return {}
    lines = [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]
    return {(x["method"], x["attack"], x["share"], x["rule"], x["seed"]): x for x in lines}


def table() -> str:
    """Mean accuracy of honest clients over seeds, by method, attack and rule, as Markdown."""
    found = done()
    rows = ["| method, attackers | clean | " + " | ".join(RULES) + " |", "| --- | --: |" + " --: |" * len(RULES)]
    rows += [_row(found, name, attack, share) for name in METHODS for attack, share in ATTACKS if share != 0.1]
    return "\n".join(rows)


def _row(found: dict[Key, dict], name: str, attack: str, share: float) -> str:
    what = NAMES[attack] + (f", {share:.0%}" if share else "")
    clean = [x for (m, a, _, r, _), x in found.items() if (m, a, r) == (name, "none", "mean")]
    cells = [_cell([_clean(x, attack, share) for x in clean])]
    for rule in RULES:
        here = (name, attack, share, rule)
        cells.append(_cell([x["accuracy"] for (*key, _), x in found.items() if tuple(key) == here]))
    return f"| {name}, {what} | " + " | ".join(cells) + " |"


def _clean(line: dict, attack: str, share: float) -> float:
    """Without attackers and by the mean, over those clients that are honest under this attack."""
    false = Attack(attack, share).clients(CLIENTS, line["seed"])
    return statistics.mean(v for i, v in line["by_client"].items() if int(i) not in false)


def _cell(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}" if values else "–"


if __name__ == "__main__":
    main()
