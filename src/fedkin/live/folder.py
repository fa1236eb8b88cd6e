"""All runs below a folder, as the live page gets them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedkin.core.errors import FedkinError
from fedkin.experiment.listing import run_folders
from fedkin.experiment.planned import planned_runs
from fedkin.live.followed import FollowedRun
from fedkin.methods import get_title
from fedkin.report.palette import slots
from fedkin.report.references import FULL, LOCAL

MOST_SETTINGS = 24
"""Maximum number of settings by which runs can be grouped."""
_NOT_SETTINGS = ("made_by", "method.name", "method.code", "data.data", "run.seed")


class LiveFolder:
    """The runs in a folder and below it, which may not exist yet; several threads may ask.

    Args:
        folder: where the runs are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, FollowedRun] = {}
        self._planned: dict[Path, int] = {}
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Any]:
        """Return all runs with their curves, methods' colours, and the settings in which the runs differ."""
        with self._lock:
            self._refresh()
            found = [self._entry(name, run) for name, run in self._runs.items()]
            for entry, settings in zip(found, self._differing(), strict=True):
                entry["settings"] = settings
        titles = list(dict.fromkeys(str(entry["method"]) for entry in found))
        return {"folder": str(self.folder), "runs": found, "slots": slots(titles, (LOCAL, FULL))}

    def clients(self, name: str, client: int | None = None) -> dict[str, Any] | None:
        """Return the clients of a run in its last evaluated round; None if the folder has no such run.

        Args:
            name: the run, as `runs` names it.
            client: also return the curve of this client.
        """
        with self._lock:
            if name not in self._runs:
                self._refresh()
            if (run := self._runs.get(name)) is None:
                return None
            run.refresh()
            run.refresh_clients()
            names = self._names(run)
            values = [[i, names[i] if i < len(names) else "", round(v, 4), n] for i, v, n in run.values]
            return {
                "run": name, "round": run.evaluated, "metric": run.metric, "clients": values,
                "refused": _reasons(run.last.get("refused")), "missing": _reasons(run.last.get("missing")),
                "last": run.last.get("round"), "bytes_up": run.bytes_up, "bytes_down": run.bytes_down,
                "damaged": run.damaged, "client": client,
                "curve": [] if client is None else run.client_points(client),
            }  # fmt: skip

    def _refresh(self) -> None:
        places = list(run_folders(self.folder)) if self.folder.is_dir() else []
        names = {place.relative_to(self.folder).as_posix(): place for place in places}
        self._runs = {name: self._runs.get(name) or FollowedRun(place) for name, place in names.items()}
        for run in self._runs.values():
            run.refresh()

    def _entry(self, name: str, run: FollowedRun) -> dict[str, Any]:
        listed = run.listed
        shown = self.folder.resolve().name if name == "." else name
        value, (number, of) = listed.accuracy if listed.validation is None else listed.validation, self._place(run)
        return {
            "id": name, "folder": shown, "place": str(run.place), "method": _title(listed.method),
            "data": Path(listed.data).name, "seed": listed.seed, "done": listed.done, "planned": listed.planned,
            "value": value, "metric": run.metric, "state": listed.state, "left": run.seconds_left,
            "curve": run.points(), "number": number, "of": of,
        }  # fmt: skip

    def _place(self, run: FollowedRun) -> tuple[int | None, int | None]:
        """Return which run of a comparison or sweep is running, from 1, and how many there will be; else None twice."""
        parent = run.place.parent
        if not run.listed.state.startswith("running"):
            return None, None
        if parent not in self._planned and (planned := planned_runs(parent)) is not None:
            self._planned[parent] = planned
        begun = sum(other.place.parent == parent for other in self._runs.values())  # one after the other
        return (begun, self._planned[parent]) if parent in self._planned else (None, None)

    def _differing(self) -> list[dict[str, str]]:
        """Return for each run the settings that are not the same in all runs."""
        tables = [dict(_flat(run.table)) for run in self._runs.values()]
        count = Counter(name for table in tables for name in table if not _about(name))
        names = sorted(count, key=lambda name: (-count[name], name))  # first what all runs have
        other = [name for name in names if len({table.get(name) for table in tables}) > 1][:MOST_SETTINGS]
        return [{name: table.get(name, "–") for name in other} for table in tables]

    def _names(self, run: FollowedRun) -> list[str]:
        """Return names of a run's clients; before its end those of a finished run on the same data and seed."""
        if run.names or not run.table:
            return run.names
        mine = run.table.get("data"), run.listed.seed
        others = (other for other in self._runs.values() if (other.table.get("data"), other.listed.seed) == mine)
        return next((other.names for other in others if other.names), [])


def _about(name: str) -> bool:
    """Return whether an entry of a run's table is left out of the settings that runs are grouped by."""
    return any(name == entry or name.startswith(f"{entry}.") for entry in _NOT_SETTINGS)


@cache
def _title(name: str) -> str:
    """Return the title of a method; no user-defined code is loaded."""
    try:
        return get_title(name)
    except FedkinError:
        return name


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)


def _reasons(found: Any) -> dict[str, str]:
    return {str(i): str(why) for i, why in found.items()} if isinstance(found, Mapping) else {}
