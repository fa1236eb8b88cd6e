"""One run folder as the live page shows it, read on while it grows."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.core.errors import ConfigError, RunFolderError
from fedkin.experiment.listing import ListedRun, described, metric_of, unreadable
from fedkin.live.growing import GrowingFile
from fedkin.report.folder import summary_in
from fedkin.storage.json_lines import Record
from fedkin.storage.toml import read_toml

MOST_POINTS = 200
"""Maximum number of points of a curve; of a longer one every n-th from the first is kept, and the last."""
_PACE = 20  # last rounds whose mean duration gives the time left


class FollowedRun:
    """A run folder; `refresh` reads on in the file of rounds, `refresh_clients` in that of clients.

    Attributes:
        place: the folder.
        listed: what `fedkin runs` would list.
        table: its config.
        names: names of the clients by number; empty until the run has ended, and where they have none.
        metric: as of `metric_of`.
        curve: round and metric of every evaluated round, one after the other, a fraction.
        last: the line of the last round; empty before the first.
        bytes_up, bytes_down: sums over the rounds.
        evaluated: the last evaluated round of which clients were read; 0 before the first.
        values: of each client its number, metric and number of samples in the last evaluated round.
    """

    curve: array[float]
    last: Record
    bytes_up: int
    bytes_down: int
    evaluated: int
    values: list[tuple[int, float, int]]
    _done: int
    _client_curves: dict[int, array[float]]
    _thinned: tuple[int, list[list[float]]]

    def __init__(self, place: Path) -> None:
        self.place, self.table, self.names = place, dict[str, Any](), list[str]()
        self.metric = metric_of(place)
        self._rounds, self._timing, self._clients = (
            GrowingFile(place / f"{name}.jsonl") for name in ("rounds", "timing", "clients")
        )
        self._read: Mapping[str, tuple[int, int]] = {}
        self._summary: Mapping[str, Any] = {}
        self._error: Exception | None = None
        self._forget_rounds()
        self._forget_timing()
        self._forget_clients()
        self.listed = self._list()

    def refresh(self) -> None:
        """Read what is new in the files of the run as a whole."""
        self._rounds.catch_up(self._take_round, self._forget_rounds)
        self._timing.catch_up(self._take_timing, self._forget_timing)
        signs = {name: _sign(self.place / name) for name in ("config.toml", "summary.json")}
        if signs != self._read:
            self._read = signs
            self._read_tables()
        self.listed = self._list()

    def refresh_clients(self) -> None:
        """Read what is new in the file of clients."""
        self._clients.catch_up(self._take_client, self._forget_clients)

    @property
    def damaged(self) -> int:
        """Number of lines that could not be read."""
        return self._rounds.damaged + self._timing.damaged + self._clients.damaged

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the remaining rounds take at the pace of the last ones; None if it is not running or unknown."""
        planned, running = self.listed.planned, self.listed.state.startswith("running")
        if planned is None or not running or not self._paces:
            return None
        return max(planned - self.listed.done, 0) * sum(self._paces) / len(self._paces)

    def points(self) -> list[list[float]]:
        """Return the curve as pairs of round and metric, thinned."""
        if len(self.curve) != self._thinned[0]:
            self._thinned = len(self.curve), thinned(self.curve)
        return self._thinned[1]

    def client_points(self, client: int) -> list[list[float]]:
        """Return the curve of one client as pairs of round and metric, thinned; empty for an unknown client."""
        return thinned(self._client_curves.get(client, array("d")))

    def _list(self) -> ListedRun:
        if self._error is not None:
            return unreadable(self.place, self._error)
        latest = self.curve[-1] if self.curve else None
        return described(self.place, self.table, self._summary, self._done, latest)

    def _read_tables(self) -> None:
        try:
            self.table, self._summary, self._error = read_toml(self.place / "config.toml"), summary_in(self.place), None
        except (ConfigError, RunFolderError) as e:
            self._error = e
            return
        clients = self._summary.get("clients")
        names = clients.get("names") if isinstance(clients, Mapping) else None
        self.names = [str(name) for name in names] if isinstance(names, list) else []

    def _take_round(self, line: Record) -> None:
        number, value = int(line["round"]), finite(line.get(self.metric))
        self._done, self.last = max(self._done, number), line
        self.bytes_up += int(line.get("bytes_up") or 0)
        self.bytes_down += int(line.get("bytes_down") or 0)
        if value is not None:
            self.curve.extend((number, value))

    def _forget_rounds(self) -> None:
        self._done, self.bytes_up, self.bytes_down = 0, 0, 0
        self.curve, self.last, self._thinned = array("d"), {}, (0, [])

    def _take_timing(self, line: Record) -> None:
        if (seconds := finite(line["round_s"])) is not None:
            self._paces.append(seconds)

    def _forget_timing(self) -> None:
        self._paces = deque[float](maxlen=_PACE)

    def _take_client(self, line: Record) -> None:
        number, client = int(line["round"]), int(line["client"])
        names = ("accuracy", "n_test") if self.metric == "accuracy" else ("validation_accuracy", "n_validation")
        value, samples = finite(line.get(names[0])), int(line.get(names[1]) or 0)
        if number > self.evaluated:
            self.evaluated, self.values = number, []
        if value is not None:
            self.values.append((client, value, samples))
            self._client_curves.setdefault(client, array("d")).extend((number, value))

    def _forget_clients(self) -> None:
        self.evaluated, self.values = 0, []
        self._client_curves = {}


def finite(value: Any) -> float | None:
    """Return a finite number as it is, anything else as None: JSON for a browser has no NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def thinned(curve: array[float]) -> list[list[float]]:
    """Return rounds and values ``[2 N]`` as at most about `MOST_POINTS` pairs, with four decimal places."""
    pairs = [[int(curve[i]), round(curve[i + 1], 4)] for i in range(0, len(curve), 2)]
    step = math.ceil(len(pairs) / MOST_POINTS) or 1
    return [pair for i, pair in enumerate(pairs) if i % step == 0 or i == len(pairs) - 1]


def _sign(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written: its time and size, zeros if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
