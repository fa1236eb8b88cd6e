"""The runs below a folder, with what is known of each without its data: for `fedkin runs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.core.errors import ConfigError, RunFolderError
from fedkin.storage import lock
from fedkin.storage.json_lines import Lines
from fedkin.storage.toml import read_toml

_DEEPEST = 3  # a folder of comparisons, a comparison, its runs
_CONFIG, _SUMMARY = "config.toml", "summary.json"


@dataclass(frozen=True)
class ListedRun:
    """A run folder.

    Attributes:
        folder: where it is.
        method: the method's display name, or its name in the config before the run has ended.
        data: the name of its data.
        seed: its seed; None if the config cannot be read.
        done, planned: numbers of rounds.
        accuracy: mean over clients, a fraction: the final one of a finished run, that of the last evaluated round of
            another; None if there is none.
        state: ``finished``, ``running``, ``interrupted``, ``diverged``, or what is wrong with the folder.
    """

    folder: Path
    method: str
    data: str
    seed: int | None
    done: int
    planned: int | None
    accuracy: float | None
    state: str


def listed(folder: Path) -> list[ListedRun]:
    """Return all runs in a folder and below it, in the order of their paths.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; name the one that holds runs: fedkin runs FOLDER")
    return [_listed(place) for place in _places(folder, _DEEPEST)]


def _places(folder: Path, deepest: int) -> Iterator[Path]:
    if (folder / _CONFIG).is_file():
        yield folder
    elif deepest:
        for place in sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()):
            yield from _places(place, deepest - 1)


def _listed(place: Path) -> ListedRun:
    try:
        table = read_toml(place / _CONFIG)
        summary = _summary(place)
        rounds = list(Lines(place / "rounds.jsonl"))
    except (ConfigError, RunFolderError) as e:
        return ListedRun(place, "?", "?", None, 0, None, None, str(e))
    method, data, run = (_part(table, name) for name in ("method", "data", "run"))
    final = summary.get("final")
    accuracy = final.get("accuracy") if isinstance(final, Mapping) else None
    if not summary:
        accuracy = next((line["accuracy"] for line in reversed(rounds) if line.get("accuracy") is not None), None)
    return ListedRun(
        place,
        str(summary.get("title") or method.get("name") or "?"),
        str(data.get("data") or data.get("name") or "?"),
        run.get("seed") if isinstance(run.get("seed"), int) else None,
        max((line["round"] for line in rounds), default=0),
        run.get("rounds") if isinstance(run.get("rounds"), int) else None,
        accuracy if isinstance(accuracy, int | float) else None,
        _state(place, summary),
    )


def _part(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, Mapping) else {}


def _summary(place: Path) -> Mapping[str, Any]:
    """Read ``summary.json``; empty as long as the run has not ended."""
    try:
        found = json.loads((place / _SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as e:
        raise RunFolderError(f"{_SUMMARY} cannot be read; write it again: fedkin resume {place}") from e
    return found if isinstance(found, Mapping) else {}


def _state(place: Path, summary: Mapping[str, Any]) -> str:
    if writer := lock.owner(place / lock.NAME):
        return f"running (process {writer.pid} on {writer.host})"
    if summary:
        return "finished" if summary.get("diverged") is None else f"diverged in round {summary['diverged']}"
    if (place / "failed.txt").is_file():
        return "failed (failed.txt says why)"
    return "interrupted"
