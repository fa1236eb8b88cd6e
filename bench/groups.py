"""Which clustered methods find groups of clients that are really there.

    python bench/groups.py --fashion-mnist PATH [--seeds 10] [--part 0/1] [--only NAME ...]
    python bench/groups.py --table

40 clients in 4 groups. Synthetic: Gaussian blobs whose classes each group numbers differently (`labels`) or whose
inputs each group sees turned by an orthogonal matrix of its own (`inputs`). Fashion-MNIST: shared out evenly, classes
numbered differently (`labels`) or images turned by quarters (`rotations`). Every client takes part in every round. The
adjusted Rand index is that of the clusters that clients are evaluated in after the last round: what they choose by then
where clients choose, else the server's. Accuracy is the mean of the last ten rounds. Lines go to
`bench/results/groups.jsonl`, one per run; runs that are there already are skipped. `--table` prints the table of
`docs/results/groups.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import fedkin
from fedkin.core import Method
from fedkin.data import IID, load, plant, planted_groups
from fedkin.methods import CAM, CFL, IFCA, PFA, FedSoft, FeSEM, Oracle

ROOT = Path(__file__).parents[1]
LINES = ROOT / "bench" / "results" / "groups.jsonl"
CLIENTS, GROUPS = 40, 4
KINDS = ("synthetic labels", "synthetic inputs", "fashion labels", "fashion rotations")

INNER = IFCA(clusters=GROUPS)
REDRAWN = IFCA(clusters=GROUPS, init_min_share=0.1)

METHODS: dict[str, Method] = {
    "IFCA": INNER,
    "IFCA, starts redrawn": REDRAWN,
    "FeSEM": FeSEM(clusters=GROUPS),
    "CFL": CFL(),
    "CFL, relative lengths": CFL(eps="relative", after=5),
    "CFL, relative, eps1 1.6": CFL(eps="relative", eps1=1.6, after=5),
    "FedSoft": FedSoft(clusters=GROUPS),
    "PFA": PFA(clusters=GROUPS),
    # two bases that differ in the update alone, and from each base one change at a time
    "IFCA-CAM": CAM(inner=INNER),
    "IFCA-CAM, no warm-up": CAM(inner=INNER, warmup=0),
    "IFCA-CAM, starts redrawn": CAM(inner=REDRAWN),
    "IFCA-CAM (Eq. 6)": CAM(inner=INNER, update="damped"),
    "IFCA-CAM (Eq. 6), no warm-up": CAM(inner=INNER, update="damped", warmup=0),
    "IFCA-CAM (Eq. 6), starts redrawn": CAM(inner=REDRAWN, update="damped"),
    "FeSEM-CAM": CAM(inner=FeSEM(clusters=GROUPS, lam=0.01), warmup_of="cluster"),
    "Oracle clusters": Oracle(),
}


def federation(kind: str, path: Path | None, seed: int) -> fedkin.Federation:
    source, what = kind.split()
    if source == "synthetic":
        return planted_groups(
            clients=CLIENTS, groups=GROUPS, samples=100, classes=8, shape=(16,), kind=what, seed=seed, noise=0.5
        )
    if path is None:
        raise SystemExit("Fashion-MNIST is needed: --fashion-mnist PATH, a folder with its idx files")
    even = fedkin.federate(load(str(path)), IID(), clients=CLIENTS, seed=seed, samples_per_client=100)
    return plant(even, what, GROUPS)


def setting(kind: str) -> dict:
    if kind.startswith("synthetic"):
        training = fedkin.Training(epochs=2, batch_size=10, lr=0.05, momentum=0.5)
        return {"model": "mlp", "training": training, "rounds": 30}
    training = fedkin.Training(epochs=2, batch_size=10, lr=0.02, momentum=0.5)
    return {"model": "mlp", "training": training, "rounds": 30}


def one(name: str, kind: str, seed: int, path: Path | None) -> dict:
    how = setting(kind)
    data = federation(kind, path, seed)
    result = fedkin.run(
        METHODS[name], data, **how, seed=seed, compute=fedkin.Compute(engine="loop"), eval_every=how["rounds"]
    )
    last = result.rounds[-1]
    chosen = [line.cluster for line in result.clients if line.round == last.round and line.cluster is not None]
    return {
        "method": name,
        "kind": kind,
        "seed": seed,
        "ari": last.figures.ari if last.figures.ari_evaluated is None else last.figures.ari_evaluated,
        "sizes": [chosen.count(i) for i in range(GROUPS)] if chosen else list(last.cluster_sizes),
        "accuracy": statistics.mean(line.accuracy for line in result.rounds[-10:]),
        "setting": repr((METHODS[name], how)),
        "fedkin": fedkin.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion-mnist", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--part", default="0/1", help="which share of the runs, such as 0/2 and 1/2 on two cores")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    LINES.parent.mkdir(exist_ok=True)
    if args.table:
        print(table())
    else:
        part, parts = map(int, args.part.split("/"))
        wanted = [(k, s, m) for k in args.kinds for s in range(args.seeds) for m in args.only or METHODS]
        for kind, seed, name in wanted[part::parts]:
            if (name, kind, seed) in done():
                continue
            line = one(name, kind, seed, args.fashion_mnist)
            with LINES.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{kind:<18} {name:<34} seed {seed}: ari {line['ari']}, accuracy {line['accuracy']:.3f}", flush=True)


def done() -> dict[tuple[str, str, int], dict]:
    if not LINES.exists():
        return {}
    lines = [json.loads(text) for text in LINES.read_text(encoding="utf-8").splitlines()]
    return {(line["method"], line["kind"], line["seed"]): line for line in lines}


def table() -> str:
    """Median and least adjusted Rand index and mean accuracy, by method and kind of groups, as Markdown."""
    found = done()
    lines = [
        "| method | " + " | ".join(KINDS) + " |",
        "| --- |" + " --- |" * len(KINDS),
    ]
    for name in METHODS:
        cells = [_cell([line for (m, k, _), line in found.items() if (m, k) == (name, kind)]) for kind in KINDS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(lines: list[dict]) -> str:
    if not lines:
        return "–"
    index = [line["ari"] for line in lines]
    accuracy = statistics.mean(line["accuracy"] for line in lines)
    seeds = "" if len(lines) == 10 else f", {len(lines)} seeds"
    return f"{statistics.median(index):.2f} ({min(index):.2f}), {100 * accuracy:.1f} %{seeds}"


if __name__ == "__main__":
    main()
