"""A comparison on FLamby's Fed-Heart-Disease, each seed from the model that FLamby starts from.

    cd reproduce/flamby-heart
    export FEDKIN_DATA=FOLDER             # that holds heart-disease/
    python run.py heart.toml ../../runs/flamby
    python run.py heart.toml ../../runs/flamby-faster --lr 0.1
    python run.py heart.toml ../../runs/flamby-finetune --lr 0.00316227 --methods ./finetune.py:FedAvgFT100

It is ``fedkin compare heart.toml`` once for each seed, with FLamby's start of that seed as ``--init-weights``.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path

from logistic import flamby_start
from safetensors.torch import save_file

from fedkin.experiment.compare import compare, comparison_from


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("settings", type=Path)
    asked.add_argument("out", type=Path)
    asked.add_argument("--lr", type=float, help="step size, in place of that of the file")
    asked.add_argument("--methods", nargs="+", help="methods, in place of those of the file")
    asked.add_argument("--seeds", type=int, nargs="+", help="seeds, in place of those of the file")
    args = asked.parse_args()
    plan = comparison_from(tomllib.loads(args.settings.read_text(encoding="utf-8")), str(args.settings))
    if args.lr is not None:
        plan = replace(plan, base=plan.base.but(lr=args.lr))
    if args.methods is not None:
        plan = replace(plan, methods=tuple(args.methods), own={k: v for k, v in plan.own.items() if k in args.methods})
    for seed in args.seeds or plan.seeds:
        args.out.mkdir(parents=True, exist_ok=True)
        start = args.out / f"start-{seed}.safetensors"
        save_file(flamby_start(seed).state_dict(), start)
        compare(
            replace(plan, seeds=(seed,), base=plan.base.but(init_weights=start)),
            out=args.out / f"seed{seed}",
        )
        print(f"seed {seed}: {args.out / f'seed{seed}'}")


if __name__ == "__main__":
    main()
