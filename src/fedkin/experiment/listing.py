"""The runs below a folder, with what is known of each without its data: for `fedkin runs`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from fedkin.core.errors import ConfigError, RunFolderError, counted, typed
from fedkin.core.grammar import Table, converted, subtable
from fedkin.methods import ALONE, REFERENCES
from fedkin.record.result import Result
from fedkin.storage import lock
from fedkin.storage.folders import require_folder
from fedkin.storage.toml import read_toml
from fedkin.user_code.loading import plain_name
from fedkin.user_code.reference import CodeRef

TRIALS = "tuning"
"""Folder of a comparison that holds the trials of its methods."""
_DEEPEST = 3  # a folder of comparisons, a comparison, its runs
_CONFIG = "config.toml"


@dataclass(frozen=True)
class ListedRun:
    """A run folder.

    Attributes:
        folder: where it is.
        method: the method's display name; before the run has ended its name in the config, of user-defined code that
            of the class.
        data: the name of its data.
        seed: its seed; None if the config cannot be read.
        done, planned: numbers of rounds.
        accuracy: mean over clients, a fraction: the final one of a finished run, that of the last evaluated round of
            another; None if there is none, and for a trial of a sweep.
        state: ``finished``, ``finished early`` (``stop_after``), ``running``, ``interrupted``, ``diverged``, or what is
            wrong with the folder.
        validation: in place of ``accuracy`` for a trial of a sweep, whose settings must not be chosen by test figures:
            the same of validation accuracy.
    """

    folder: Path
    method: str
    data: str
    seed: int | None
    done: int
    planned: int | None
    accuracy: float | None
    state: str
    validation: float | None = None


def listed(folder: Path) -> list[ListedRun]:
    """Return all runs in a folder and below it, in the order of their paths.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; name the one that holds runs: fedkin runs FOLDER")
    return [_listed(place) for place in run_folders(folder)]


def run_folders(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Yield the run folders in a folder and below it, in the order of their paths; ``deepest``: levels below it.

    Trials of a comparison are found only in their own folder; folders below that may not be read are left out.
    """
    if (folder / _CONFIG).is_file():
        yield folder
    elif deepest:
        hidden = TRIALS if (folder / "compare.toml").is_file() else None
        for place in sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and p.name != hidden):
            if os.access(place, os.R_OK | os.X_OK):
                yield from run_folders(place, deepest - 1)


def read_runs(folder: Path | str) -> list[Result]:
    """Read the finished runs of a comparison, or a single run.

    Runs that are not finished are omitted, with a warning.

    Args:
        folder: a run folder, or the folder of a comparison.

    Returns:
        the runs, in the order of their folders' names; `Result.to_frame` makes DataFrames of them.

    Raises:
        RunFolderError: the folder does not exist, is neither a run nor a comparison, or has no finished run; or a file
            is damaged.
    """
    folder = Path(folder)
    require_folder(folder)
    require_run_or_comparison(folder)
    if not (folder / "compare.toml").is_file():
        return [Result.finished_in(folder)]
    runs = [Result.open(place) for place in run_folders(folder)]
    done = [run for run in runs if run.ended]
    again = f"go on with: fedkin resume {typed(folder)}"
    if not done:
        raise RunFolderError(f"{folder} has no finished run; {again}")
    if len(done) < (planned := planned_runs(folder) or len(runs)):
        warnings.warn(f"{len(done)} of {planned} runs in {folder} are finished; {again}", stacklevel=2)
    return done


def require_run_or_comparison(folder: Path) -> None:
    """Raise `RunFolderError` for a sweep, and for a folder of several runs that is not a comparison."""
    kinds = (_CONFIG, "compare.toml", "sweep.toml")
    if (folder / "sweep.toml").is_file():
        raise RunFolderError(f"{folder} is a sweep, whose settings and figures are in sweep.csv; name one of its runs, "
                             "or a comparison")  # fmt: skip
    if not any((folder / kind).is_file() for kind in kinds):
        inside = {path.parent for kind in kinds for path in folder.glob(f"*/{kind}")}
        if inside:
            raise RunFolderError(
                f"{folder} holds {counted(len(inside), 'run')} and is none itself; name one of them, such as "
                f"{min(inside)}, or list them: fedkin runs {typed(folder)}"
            )


def _listed(place: Path) -> ListedRun:
    try:
        return described(place, Result.open(place))
    except (ConfigError, RunFolderError, OSError) as e:
        return unreadable(place, e)


def metric_of(place: Path) -> Literal["accuracy", "validation"]:
    """Return the figure that may be looked at of a run: validation accuracy of a trial of a sweep, else accuracy."""
    return "validation" if (place.parent / "sweep.toml").is_file() else "accuracy"


def whole_of(place: Path) -> Path | None:
    """Return the folder of the comparison or the sweep that a run folder lies in; None for a run by itself."""
    above = (place if place.name else place.absolute()).parent
    return above if any((above / file).is_file() for file in ("compare.toml", "sweep.toml")) else None


def unreadable(place: Path, error: Exception) -> ListedRun:
    """Return the entry of a folder whose files cannot be read."""
    return ListedRun(place, "?", "?", None, 0, None, None, str(error))


def described(place: Path, run: Result) -> ListedRun:
    """Return the entry of a run in a folder."""
    data, how = (subtable(run.config, name) for name in ("data", "run"))
    seed, rounds = how.get("seed"), how.get("rounds")
    metric = metric_of(place)
    figures = run.final if run.ended else None if run.last is None else run.last[1]
    figure = None if figures is None else figures.of(metric)
    return ListedRun(
        place,
        run.title,
        str(data.get("data") or data.get("name") or "?"),
        seed if isinstance(seed, int) else None,
        run.total,
        rounds if isinstance(rounds, int) else None,
        figure if metric == "accuracy" else None,
        _state(place, run),
        figure if metric == "validation" else None,
    )


def _state(place: Path, run: Result) -> str:
    if writer := lock.owner(place / lock.NAME):
        return f"running (process {writer.pid} on {writer.host})"
    if run.ended:
        if run.diverged is not None:
            return f"diverged in round {run.diverged}"
        return "finished early" if run.ended == "early" else "finished"
    if (place / "failed.txt").is_file():
        return "failed (failed.txt says why)"
    return "interrupted"


def compared(methods: Sequence[str], safe: bool) -> tuple[str, ...]:
    """Return the names of all that a comparison runs for each seed, in order, each once.

    Args:
        methods: names that were given; those of `REFERENCES` are put in front if they are missing.
        safe: whether each is followed by its safe form, which the local references do not have.

    Raises:
        ConfigError: no folder can be named after a method, since its name is a path.
    """
    for label in (CodeRef(name).attribute for name in methods):
        if Path(label).name != label:
            raise ConfigError(f"{label!r} cannot name the folder of a run; give the method's name without a path")
    named = [*(n for n in REFERENCES if n not in methods), *methods]
    if safe:
        named = [form for name in named for form in (name, *_safe_forms(name))]
    return tuple(dict.fromkeys(named))


def _safe_forms(name: str) -> tuple[str, ...]:
    """Return the name of a method's safe form; nothing for a safe form and for the local references."""
    return () if name in ALONE or plain_name(name) != name else (f"{name}-safe",)


def planned_runs(folder: Path) -> int | None:
    """Return the number of runs in the folder of a comparison or a sweep when it has ended; None if it is neither."""
    for name, count in (("compare.toml", _of_comparison), ("sweep.toml", _of_sweep)):
        try:
            if (folder / name).is_file():
                return count(read_toml(folder / name))
        except ConfigError:  # `fedkin resume` says what is wrong
            return None
    return None


class _Comparison(msgspec.Struct):
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    safe: bool = False


class _Sweep(msgspec.Struct):
    seeds: tuple[int, ...]
    trials: int = 0


def _of_comparison(table: Table) -> int:
    plan: _Comparison = converted(table, _Comparison, "compare.toml")
    return len(compared(plan.methods, plan.safe)) * len(plan.seeds)


def _of_sweep(table: Table) -> int:
    entries = subtable(table, "sweep")
    plan: _Sweep = converted(entries, _Sweep, "sweep.toml")
    values = [v for name, v in entries.items() if name not in ("seeds", "trials", "sampler")]
    return len(plan.seeds) * (plan.trials or math.prod(len(v) for v in values if isinstance(v, list)))
