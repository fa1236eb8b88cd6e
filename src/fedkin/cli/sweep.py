"""``fedkin sweep``: many settings of one method, chosen on validation data."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from fedkin.cli import screen
from fedkin.cli.flags import Show, sweep_flags
from fedkin.config import read_toml
from fedkin.spaces import Values
from fedkin.sweep import Sweep, chosen, run_sweep, sweep_from, sweep_table


def sweep_command(args: list[str]) -> int:
    """``fedkin sweep METHOD|FILE.toml --grid recipe.lr=0.01,0.1 [flags]``."""
    sweep, show = sweep_flags(args)
    folder = show.out or _new_folder()
    return play(sweep, folder, show)


def resume_sweep(folder: Path, show: Show) -> int:
    """Goes on with a sweep from its folder."""
    path = folder / "sweep.toml"
    return play(sweep_from(read_toml(path), str(path)), folder, show, again=True)


def play(sweep: Sweep, folder: Path, show: Show, *, again: bool = False) -> int:
    """Runs a sweep and shows what came out."""
    quiet = show.quiet or show.json
    rounds = sweep.base.run.rounds
    try:
        with screen.bar(sweep.size * len(sweep.seeds) * rounds, "sweep", quiet=quiet) as bar:

            def on_trial(number: int, count: int, values: Values, seed: int, line: dict[str, Any]) -> None:
                setting = " ".join(f"{n.partition('.')[2]}={v}" for n, v in values.items())
                before = (number * len(sweep.seeds) + sweep.seeds.index(seed)) * rounds
                shown = {**line, "accuracy": None}  # test accuracy is none of a sweep's business
                bar.at(shown, f"{number + 1} of {count}: {setting}", before)

            trials = run_sweep(sweep, folder, resume=again, on_trial=on_trial)
    except KeyboardInterrupt:
        there = (folder / "sweep.toml").exists()
        screen.note(f"stopped; go on with: fedkin resume {folder}" if there else "stopped before the first round")
        return 130
    best = chosen(trials)
    if show.json:
        found = [{**dataclasses.asdict(t), "test": None, "chosen": t is best} for t in trials]
        if best is not None:
            found[trials.index(best)] |= {"test": dataclasses.asdict(best)["test"]}
        screen.write(json.dumps(found, indent=2))
    elif not show.quiet:
        screen.table(sweep_table(trials))
        for trial in trials:
            if trial.failed:
                screen.say(f"failed: {trial.values}: {trial.failed}")
        if best is not None:
            screen.say(
                f"\nThe chosen settings: fedkin run {folder / 'chosen.toml'}; all of them: {folder / 'sweep.csv'}"
            )
    return 0 if best is not None else 1


def _new_folder() -> Path:
    stem = Path("runs") / f"sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = stem, 1
    while folder.exists():
        n += 1
        folder = stem.with_name(f"{stem.name}-{n}")
    return folder
