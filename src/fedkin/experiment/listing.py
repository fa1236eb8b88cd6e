"""The runs below a folder, with what is known of each without its data: for `fedkin runs`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedkin.core.errors import ConfigError, RunFolderError, counted, typed
from fedkin.report.folder import summary_in
from fedkin.storage import lock
from fedkin.storage.files import require_plain
from fedkin.storage.json_lines import Lines
from fedkin.storage.toml import read_toml
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
        require_plain(place)
        table, summary = read_toml(place / _CONFIG), summary_in(place)
        rounds = list(Lines(place / "rounds.jsonl"))
    except (ConfigError, RunFolderError, OSError) as e:
        return unreadable(place, e)
    metric = metric_of(place)
    latest = next((line[metric] for line in reversed(rounds) if line.get(metric) is not None), None)
    return described(place, table, summary, max((line["round"] for line in rounds), default=0), latest)


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


def described(place: Path, table: Mapping[str, Any], summary: Mapping[str, Any], done: int, latest: Any) -> ListedRun:
    """Return the entry of a run.

    Args:
        place: its folder.
        table: its config.
        summary: as from `summary_in`.
        done: number of rounds done.
        latest: the figure of `metric_of` in the last evaluated round.
    """
    method, data, run = (_part(table, name) for name in ("method", "data", "run"))
    metric = metric_of(place)
    figure = _part(summary, "final").get(metric) if summary else latest
    figure = figure if isinstance(figure, int | float) else None
    return ListedRun(
        place,
        str(summary.get("title") or CodeRef(str(method.get("name") or "?")).attribute),
        str(data.get("data") or data.get("name") or "?"),
        run.get("seed") if isinstance(run.get("seed"), int) else None,
        done,
        run.get("rounds") if isinstance(run.get("rounds"), int) else None,
        figure if metric == "accuracy" else None,
        _state(place, summary),
        figure if metric == "validation" else None,
    )


def _part(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, Mapping) else {}


def _state(place: Path, summary: Mapping[str, Any]) -> str:
    if writer := lock.owner(place / lock.NAME):
        return f"running (process {writer.pid} on {writer.host})"
    if summary:
        if summary.get("diverged") is not None:
            return f"diverged in round {summary['diverged']}"
        return "finished early" if "stopped" in summary else "finished"
    if (place / "failed.txt").is_file():
        return "failed (failed.txt says why)"
    return "interrupted"
