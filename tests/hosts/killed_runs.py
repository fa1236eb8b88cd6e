"""Kills runs of the simulator at random moments, by a seed; each must end as the run that was not killed.

    python tests/hosts/killed_runs.py FOLDER [--kills 100] [--seed 0]

One method of each family, with states in memory and in files, on one process and on workers, with drop-outs and a late
joiner. A run is killed (SIGKILL, to the process or to all of its workers, too) at a moment drawn from its whole length,
resumed, killed again while it is resumed, some also while they get more rounds, until it ends; then all files are
compared but those of seconds. A line of JSON is written for each run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings
from fedkin.methods import get_method
from folders import assert_equal_folders, small

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "no federation": ("local-full", {}),
    "one global model": ("feddyn", {}),
    "personal part": ("pfedcs", {"beta": 7}),
    "personal model": ("ditto", {}),
    "mixture": ("da-pfl", {}),
    "clusters": ("fesem-cam", {"inner": {"clusters": 2}, "warmup": 5}),
    "knowledge": ("fedproto", {}),
}
"""A method of each family, and fields of it."""
ROUNDS, LONGER = 24, 40
_PATIENCE = 600.0  # seconds that a run of a second may take on a busy machine


class Kills:
    """Kills runs in a folder until there were enough.

    Attributes:
        done: kills by what they met.
    """

    def __init__(self, folder: Path, seed: int, say: Callable[..., None]) -> None:
        self.folder, self.say = folder, say
        self.done: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._whole: dict[tuple[str, str, int], tuple[Path, float]] = {}

    def until(self, kills: int) -> None:
        """Tells the stories of runs until this number of kills is reached.

        Raises:
            AssertionError: a run ended otherwise than the one that was not killed.
        """
        number = 0
        kinds = [(family, state) for family in FAMILIES for state in ("memory", "file")]
        while self.done.total() < kills:
            if number % len(kinds) == 0:
                self._draw.shuffle(kinds)
            self._story(number, *kinds[number % len(kinds)])
            number += 1

    def _story(self, number: int, family: str, state: str) -> None:
        """One run from its beginning to its end, with the kills in between."""
        draw, place, before = self._draw, self.folder / f"run{number}", self.done.total()
        longer = draw.random() < 0.3
        settings = settings_of(family, state, draw.choice(("loop", "loop", "workers@n=2")), ROUNDS)
        whole, seconds = self._uninterrupted(family, state, LONGER if longer else ROUNDS)
        self._life("run", draw.random() * seconds, lambda: run_settings(settings, out=place))
        for _ in range(draw.choice((0, 1, 2, 3))):
            if (place / "config.toml").exists():
                self._life("resume", draw.random() * seconds, lambda: resume(place))
        if not (place / "config.toml").exists():  # killed before it was begun
            shutil.rmtree(place, ignore_errors=True)
            run_settings(settings, out=place)
        for _ in range(draw.choice((1, 2)) if longer else 0):
            self._life("longer", draw.random() * seconds, lambda: resume(place, rounds=LONGER))
        resume(place, rounds=LONGER if longer else None)
        assert_equal_folders(place, whole, ROUNDS if longer else 0, but=("engine",))
        self.say(run=number, family=family, state=state, engine=settings.compute.engine, longer=longer,
                 kills=self.done.total() - before, equal=True)  # fmt: skip
        shutil.rmtree(place)

    def _life(self, what: str, moment: float, work: Callable[[], object]) -> None:
        """A process that does the work and is killed at a moment; one that ends before it does not count."""
        process = multiprocessing.get_context("fork").Process(target=lambda: (os.setsid(), work()))
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        assert process.pid is not None
        process.join(moment)
        if process.is_alive():
            group = self._draw.random() < 0.5
            try:
                (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # not its group's leader yet
                os.kill(process.pid, signal.SIGKILL)
            process.join(_PATIENCE)
            self.done[what] += process.exitcode == -signal.SIGKILL  # it may have ended by itself in this moment
        assert process.exitcode in (0, -signal.SIGKILL), f"{what} ended with {process.exitcode}"

    def _uninterrupted(self, family: str, state: str, rounds: int) -> tuple[Path, float]:
        """The folder of a run that nobody killed, and how long it took."""
        key = (family, state, rounds)
        if key not in self._whole:
            place, began = self.folder / f"whole{len(self._whole)}", time.monotonic()
            run_settings(settings_of(family, state, "loop", rounds), out=place)
            self._whole[key] = place, time.monotonic() - began
        return self._whole[key]


def settings_of(family: str, state: str, engine: str, rounds: int) -> Settings:
    """The run of a family."""
    name, fields = FAMILIES[family]
    assert get_method(name).family == family
    run = {"dropout": 0.2, "late_joiners": "1@6", "rounds": rounds, "eval_every": 3}
    compute = {"engine": engine, "state": state}
    return small(name, fields, run=run, compute=compute)


def kill_many(folder: Path, kills: int, seed: int, say: Callable[..., None]) -> Counter[str]:
    """Kills runs in a new folder; how many kills met a run, a resumed one, and one that got more rounds.

    Raises:
        AssertionError: a run ended otherwise than the one that was not killed.
    """
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    found = Kills(folder, seed, say)
    found.until(kills)
    return found.done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    done = kill_many(args.folder, args.kills, args.seed, lambda **told: print(json.dumps(told), flush=True))  # noqa: T201
    print(json.dumps({"kills": done.total(), **done, "equal": True}))  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
