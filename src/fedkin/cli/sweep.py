"""``fedkin sweep``: settings of one method, chosen on validation data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from fedkin.cli import INTERRUPTED, screen
from fedkin.cli.flags import Shown, ShowSweep
from fedkin.cli.outcome import chosen_folder, tell_clients
from fedkin.core.errors import typed
from fedkin.core.settings import DataSettings
from fedkin.experiment.search_space import Values
from fedkin.experiment.settings import table_of, title_of
from fedkin.experiment.sweep import Sweep, chosen, run_sweep, sweep_from, sweep_table, trial_name
from fedkin.experiment.trackers import TrackedRuns, read_ids, require
from fedkin.record.figures import without_test
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.storage.toml import read_toml


def run(sweep: Sweep, show: ShowSweep, data: DataSettings) -> int:
    """Run a new sweep; ``data`` are the settings of its data as they were given."""
    folder = chosen_folder(show.out, "sweep")
    if not (show.quiet or show.json):
        tell_clients(data)
    return play(sweep, folder, show, show.track)


def resume_sweep(folder: Path, show: Shown) -> int:
    """Continue a sweep from its folder."""
    path = folder / "sweep.toml"
    return play(sweep_from(read_toml(path), str(path)), folder, show, tuple(read_ids(folder)), again=True)


def play(sweep: Sweep, folder: Path, show: Shown, track: Sequence[str] = (), *, again: bool = False) -> int:
    """Run a sweep, report every trial to trackers, and show the results."""
    require(track)
    tracked = TrackedRuns(track, folder)
    quiet = show.quiet or show.json
    rounds, title, total = sweep.base.run.rounds, title_of(sweep.base), sweep.size * len(sweep.seeds)
    log = screen.RunLog(quiet=quiet, runs=total)
    try:
        with screen.bar(total * rounds, "sweep", quiet=quiet) as bar:

            def on_trial(number: int, count: int, values: Values, seed: int, line: RoundLine) -> None:
                setting = " ".join(f"{n.partition('.')[2]}={v}" for n, v in values.items())
                place, at = folder / trial_name(number, seed), number * len(sweep.seeds) + sweep.seeds.index(seed)
                bar.at(without_test(line), f"{number + 1} of {count}: {setting}", at * rounds)
                settings = sweep.settings(values, seed)
                tracked.round(place, setting, table_of(settings), line)
                if (made := Result.open(place)).ended:
                    log.finished(f"{title}, {setting}, seed {seed}", made, at + 1, "validation")

            trials = run_sweep(sweep, folder, resume=again, on_trial=on_trial)
            tracked.end()
    except KeyboardInterrupt:
        if (folder / "sweep.toml").exists():
            screen.note("stopped; continue with:", f"fedkin resume {typed(folder)}")
        else:
            screen.note("stopped before the first round")
        return INTERRUPTED
    best = chosen(trials)
    if show.json:
        result = [{**dataclasses.asdict(t), "test": None, "chosen": t is best} for t in trials]
        if best is not None:
            result[trials.index(best)] |= {"test": dataclasses.asdict(best)["test"]}
        screen.write(json.dumps(result, indent=2))
    elif not show.quiet:
        screen.table(sweep_table(sweep, trials))
        for trial in trials:
            if trial.failed:
                screen.say(f"failed: {trial.values}: {trial.failed}")
        if best is not None:
            screen.say(f"\nThe chosen settings: fedkin run {typed(folder / 'chosen.toml')}")
            screen.say(f"All settings and their figures: {folder / 'sweep.csv'}")
    return 0 if best is not None else 1
