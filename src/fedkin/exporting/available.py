"""The runs in the folder of a comparison or a sweep whose models can be exported."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkin.core.errors import typed
from fedkin.experiment.listing import listed
from fedkin.experiment.sweep import tried_values


@dataclass(frozen=True)
class AvailableRun:
    """A run whose models can be exported.

    Attributes:
        folder: the run folder.
        method: the method's display name, or its name in the config before the run has ended.
        seed: the run's seed.
        rounds: number of rounds that are done.
        accuracy: test accuracy, mean over clients, a fraction; None in a sweep, which does not show test figures of
            single settings, lest one is chosen by them.
        validation: validation accuracy of a run in a sweep, a fraction.
        values: the settings that were tried, in a sweep.
        chosen: whether a sweep has chosen these settings.
        state: as in `fedkin.experiment.listing.ListedRun`.
    """

    folder: Path
    method: str
    seed: int | None
    rounds: int
    accuracy: float | None
    state: str
    validation: float | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False

    @property
    def command(self) -> str:
        """The command that exports the model of the first client."""
        return f"fedkin export {typed(self.folder)} --client 0"


def available(folder: Path) -> list[AvailableRun]:
    """Return the runs below a folder that have a checkpoint, in the order of their paths; none if it is a run folder.

    Raises:
        RunFolderError: there is no such folder.
    """
    if (folder / "config.toml").is_file():
        return []
    runs = [run for run in listed(folder) if run.done]
    if not (folder / "sweep.toml").is_file():
        return [AvailableRun(r.folder, r.method, r.seed, r.done, r.accuracy, r.state) for r in runs]
    values = {f"{n:03d}": one for n, one in enumerate(tried_values(folder))}
    chosen, found = _chosen(folder), []
    for r in runs:
        number = r.folder.name.partition("-seed")[0]
        tried, best = values.get(number, {}), number == chosen
        found.append(AvailableRun(r.folder, r.method, r.seed, r.done, None, r.state, r.validation, tried, best))
    return found


def _chosen(sweep: Path) -> str | None:
    """Return the number of the trial that a finished sweep has chosen."""
    try:
        with (sweep / "sweep.csv").open(newline="", encoding="utf-8") as file:
            return next((f"{int(row['trial']):03d}" for row in csv.DictReader(file) if row["chosen"] == "true"), None)
    except (OSError, ValueError, KeyError):
        return None
