"""Every method of the catalogue and its safe form on five federations, five seeds; tables of docs/results/no-harm.md.

    python reproduce/no-harm/safe_forms.py digits --out runs/no-harm
    python reproduce/no-harm/safe_forms.py fashion --data PATH/fashion-mnist --out runs/no-harm
    python reproduce/no-harm/safe_forms.py writers --data PATH/mnist --out runs/no-harm
    python reproduce/no-harm/safe_forms.py heart --data PATH/heart-disease --out runs/no-harm
    python reproduce/no-harm/safe_forms.py har --data PATH/uci-har/uci-har.npz --out runs/no-harm
    python reproduce/no-harm/safe_forms.py --table runs/no-harm

The first three federations are those of `reproduce/catalogue`, with a fifth of the samples held out; heart disease by
hospital and UCI HAR by subject have natural clients. A command that was interrupted goes on when it is given again;
`--methods` and `--seeds` make a part, in a folder of its own. In modes other than "likely": `--mode best`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from fedkin.core import Training
from fedkin.experiment.compare import ALWAYS, Comparison, compare, comparison_from
from fedkin.experiment.settings import DataSettings, ModelSettings, RunSettings
from fedkin.methods import METHODS, get_method
from fedkin.report.folder import by_title, read_run
from fedkin.report.rows import Row, comparison_rows
from fedkin.storage.toml import read_toml

CATALOGUE = Path(__file__).parents[1] / "catalogue"
NATURAL: dict[str, tuple[DataSettings, RunSettings]] = {
    "heart": (
        DataSettings(data="heart-disease", target="target", binary=True, validation=0.2),
        RunSettings(rounds=40, eval_every=5),
    ),
    "har": (
        DataSettings(data="uci-har.npz", client_column="subject", samples_per_client=150, validation=0.2),
        RunSettings(rounds=40, participation=0.5, eval_every=5),
    ),
}
SEEDS = (0, 1, 2, 3, 4)


def planned(name: str, data: str | None) -> Comparison:
    """Return the comparison of all methods and their safe forms on one federation."""
    methods = tuple(n for n in METHODS if n not in (*ALWAYS, "oracle", "fedavg-safe"))
    if name in NATURAL:
        of, run = NATURAL[name]
        model, training = ModelSettings(model="mlp"), Training(epochs=2, batch_size=10, lr=0.05)
        plan = Comparison(methods, SEEDS, safe=True, data=of, model=model, training=training, run=run)
    else:
        table = read_toml(CATALOGUE / f"{name}.toml")
        plan = replace(comparison_from(table, name), methods=methods, seeds=SEEDS, safe=True)
        plan = replace(plan, data=replace(plan.data, validation=0.2))
    return plan if data is None else replace(plan, data=replace(plan.data, data=data))


def table(folder: Path) -> str:
    """Return one row per method: gain over Local and harmed clients, of the method and of its safe form."""
    runs = [read_run(p) for p in sorted(folder.iterdir()) if (p / "summary.json").is_file()]
    rows = {row.title: row for row in comparison_rows(by_title(runs))}
    lines = ["| method | gain | harmed | worst 10 % | safe: gain | harmed | worst 10 % |", "| --- |" + " --: |" * 6]
    for title in (get_method(name).title for name in METHODS):
        if f"{title}-safe" in rows and title in rows:
            cells = [*_cells(rows[title]), *_cells(rows[f"{title}-safe"])]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, str]:
    harmed = None if row.finding is None else row.finding.harmed
    clients = "–" if harmed is None else f"{harmed.low}–{harmed.high} of {harmed.of}"
    worst = "–" if row.worst_decile is None else f"{100 * row.worst_decile.mean:.1f}"
    return "–" if row.gain is None else f"{100 * row.gain.mean:+.1f}", clients, worst


def main() -> None:
    """Run one federation, or print the tables of all that are there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", choices=["digits", "fashion", "writers", *NATURAL])
    parser.add_argument("--data", help="folder or file of the data")
    parser.add_argument("--out", type=Path, default=Path("runs/no-harm"))
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--mode", choices=["best", "likely", "sure"], default="likely")
    parser.add_argument("--table", type=Path, metavar="FOLDER")
    flags = parser.parse_args()
    if flags.table is not None:
        for folder in sorted(p for p in flags.table.iterdir() if p.is_dir()):
            print(f"### {folder.name}\n\n{table(folder)}\n")
        return
    if flags.name is None:
        parser.error("name a federation, or --table FOLDER")
    plan = planned(flags.name, flags.data)
    plan = replace(plan, methods=tuple(flags.methods or plan.methods), seeds=tuple(flags.seeds or plan.seeds))
    if flags.mode != "likely":
        safe = [n for n in plan.names if n.endswith("-safe")]
        safe = [n for n in safe if flags.mode != "sure" or not get_method(n.removesuffix("-safe")).reads_validation]
        plan = replace(plan, own={**plan.own, **{n: {"mode": flags.mode} for n in safe}})
    place = flags.out / flags.name
    compare(plan, place, resume=(place / "compare.toml").is_file())


if __name__ == "__main__":
    main()
