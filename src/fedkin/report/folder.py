"""Reading of a run folder for reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedkin.core.errors import ConfigError, DataError, RunFolderError, counted, typed
from fedkin.evaluate import Answers, answers_of, best, diverged, final, final_by_client, latest
from fedkin.report.frames import frame
from fedkin.storage.folders import require_folder
from fedkin.storage.json_lines import KEYS, SIZES, Lines, Record, require_end, require_rounds

if TYPE_CHECKING:
    from pandas import DataFrame

LARGE = 64_000_000
"""Maximum bytes of lines of clients in memory; larger files are read again on every pass."""


@dataclass(frozen=True, repr=False)
class Run:
    """One run of a comparison, in memory or read from its folder.

    Attributes:
        title: display name; runs of equal title are seeds of one method.
        seed: seed of the run.
        rounds: lines of ``rounds.jsonl``, by round.
        clients: lines of ``clients.jsonl``, possibly read again on every pass.
        relations: lines of ``relations.jsonl``, possibly read again on every pass.
        summary: content of ``summary.json``.
        folder: folder that it was read from; None for a run in memory.
        at_best: figures are of the round with the highest validation accuracy, instead of means over the last rounds.
    """

    title: str
    seed: int = 0
    rounds: Sequence[Record] = ()
    clients: Iterable[Record] = ()
    relations: Iterable[Record] = ()
    summary: Record = field(default_factory=dict)
    folder: Path | None = None
    at_best: bool = False

    def __repr__(self) -> str:
        return f"Run({brief(self.title, self.seed, self.rounds, self.summary)})"

    @cached_property
    def chosen(self) -> int | None:
        """The round of the figures with ``at_best``; None: the means over the last rounds are shown.

        Raises:
            ConfigError: no round has a validation accuracy.
        """
        found = best(self.rounds) if self.at_best else None
        if self.at_best and found is None:
            raise ConfigError(
                f"{self.folder or self.title} has no validation accuracy by which a best round could be chosen; leave "
                "out --round best, or run it with validation data (--validation 0.1)"
            )
        return None if found is None else int(found["round"] or 0)

    @cached_property
    def final(self) -> dict[str, Any]:
        """Final figures, from the lines of the rounds."""
        return final(self.rounds, self.chosen, lambda: self.clients)

    @cached_property
    def last(self) -> dict[str, float | int | None]:
        """Figures of the last evaluated round; empty without one."""
        return latest(self.rounds) or {}

    @property
    def by_client(self) -> dict[int, float]:
        """Final accuracy per client, a fraction."""
        return self.averaged()

    @property
    def moment(self) -> int | None:
        """The round of all statements on single clients: the last evaluated one, or that of the figures `at_best`."""
        last = self.last.get("round")
        return self.chosen if self.chosen is not None or last is None else int(last)

    def single(self, metric: str = "accuracy") -> dict[int, float]:
        """Return a metric per client, a fraction, in the round of all statements on single clients."""
        return self._by_client(metric, self.moment)

    def averaged(self, metric: str = "accuracy") -> dict[int, float]:
        """Return the final figure of a metric per client, a fraction."""
        return self._by_client(metric, self.chosen)

    def _by_client(self, metric: str, chosen: int | None) -> dict[int, float]:
        key = (metric, chosen)
        if key not in self._read:
            self._read[key] = final_by_client(self.clients, self.total, metric, chosen)
        return self._read[key]

    @cached_property
    def _read(self) -> dict[tuple[str, int | None], dict[int, float]]:
        return {}

    @property
    def total(self) -> int | None:
        """The last round; None if no line has it."""
        return max((int(line["round"]) for line in self.rounds), default=None)

    @cached_property
    def diverged(self) -> int | None:
        """The round from which on training has diverged, None if it has not."""
        return diverged(self.rounds)

    @property
    def answers(self) -> dict[int, Answers]:
        """Single test samples by client in the last evaluated round; empty where the run records none, and where the
        figures are of another round.

        Raises:
            RunFolderError: the bits of a line are damaged.
        """
        return self._tests[0] if self.chosen in (None, self.last.get("round")) else {}

    @property
    def test_parts(self) -> dict[int, tuple[int, str | None]]:
        """Number of test samples and their digest, where it is known, by client."""
        return self._tests[1]

    @cached_property
    def _tests(self) -> tuple[dict[int, Answers], dict[int, tuple[int, str | None]]]:
        """Return `answers` and `test_parts`, in one pass over the lines."""
        last, answers, parts = -1, dict[int, Answers](), dict[int, tuple[int, str | None]]()
        for line in self.clients:
            number, client = int(line["round"]), int(line["client"])
            parts[client] = (int(line.get("n_test") or 0), line.get("test_digest"))
            last, answers = (number, dict[int, Answers]()) if number > last else (last, answers)
            if number < last:
                continue
            try:
                one = answers_of(line)
            except DataError as error:
                where = self.title if self.folder is None else self.folder / "clients.jsonl"
                raise RunFolderError(f"{where}: round {number}, client {client}: {error}") from error
            if one is not None:
                answers[client] = one
        return answers, parts

    @property
    def bytes(self) -> int | None:
        """Bytes sent up and down over the whole run; None if nothing was recorded."""
        keys = ("bytes_up", "bytes_down")
        if all(isinstance(self.summary.get(key), int) for key in keys):
            return sum(int(self.summary[key]) for key in keys)
        lines = [line for line in self.rounds if any(key in line for key in keys)]
        return sum(int(line.get(key) or 0) for line in lines for key in keys) if lines else None

    @property
    def timing(self) -> Iterable[Record]:
        """The lines of ``timing.jsonl``, read anew on every pass; none for a run in memory."""
        return () if self.folder is None else Lines(self.folder / "timing.jsonl")

    @property
    def groups(self) -> list[int] | None:
        """True group of every client, ``[K]``, if ``summary.json`` has it under ``clients.groups``; -1 is unknown."""
        clients = self.summary.get("clients")
        groups = clients.get("groups") if isinstance(clients, dict) else None
        return [int(g) for g in groups] if isinstance(groups, list) and groups else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by number, if ``summary.json`` has them under ``clients.names``."""
        return self._texts("names")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by number, if ``summary.json`` has them under ``clients.classes``."""
        return self._texts("classes")

    def to_frame(self, kind: Literal["clients", "rounds"] = "clients") -> DataFrame:
        """Return the figures of the run as a pandas DataFrame (``pip install "fedkin[pandas]"``), with the columns of
        `fedkin.Result.to_frame`.

        Args:
            kind: "clients" or "rounds".

        Raises:
            ConfigError: another kind, or pandas is not installed.
        """
        return frame(kind, self.title, self.seed, self.rounds, self.clients, self.summary)

    def _texts(self, key: str) -> tuple[str, ...]:
        clients = self.summary.get("clients")
        texts = clients.get(key) if isinstance(clients, dict) else None
        return tuple(map(str, texts)) if isinstance(texts, list) else ()


def brief(title: str, seed: int, rounds: Sequence[Record], summary: Record) -> str:
    """Return a run in a line: method, seed, rounds, data and final accuracy."""
    accuracy = (summary.get("final") or {}).get("accuracy")
    figure = "no accuracy" if accuracy is None else f"accuracy {accuracy:.3f}"
    return f"{title!r}, seed {seed}, {counted(len(rounds), 'round')}, {data_of(summary)}, {figure}"


def data_of(summary: Record) -> str:
    """Return the name of a run's data and the number of its clients."""
    data = (summary.get("config") or {}).get("data") or {}
    clients = (summary.get("clients") or {}).get("count")
    name = repr(data.get("name") or data.get("data") or "unknown data")
    return name if clients is None else f"{name} of {counted(clients, 'client')}"


def read_run(folder: Path | str) -> Run:
    """Read the folder of a finished run.

    Raises:
        RunFolderError: the folder or its summary is missing, or a file is damaged.
    """
    folder = Path(folder)
    require_folder(folder)
    summary = summary_in(folder)
    if not summary:
        raise RunFolderError(
            f"{folder} is not a finished run: it has no summary.json; if it was begun, go on with: "
            f"fedkin resume {typed(folder)}"
        )
    for name, size in (summary.pop(SIZES, None) or {}).items():
        if name in KEYS and (there := _size(folder / name)) != size:
            require_end(folder / name, size)  # names the line, where one is damaged
            raise RunFolderError(
                f"{folder / name} has {there} bytes, and {size} when the run ended: lines were changed, removed or "
                f"added; restore the file, or, if a kill came in between: fedkin resume {typed(folder)}"
            )
    require_rounds(folder / "timing.jsonl", int(summary["rounds"]))
    clients = Lines(folder / "clients.jsonl")
    return Run(
        title=str(summary["title"]),
        seed=int(summary["seed"]),
        rounds=list(Lines(folder / "rounds.jsonl")),
        clients=clients if _size(clients.path) > LARGE else list(clients),
        relations=Lines(folder / "relations.jsonl"),
        summary=summary,
        folder=folder,
    )


def summary_in(folder: Path) -> Record:
    """Read ``summary.json``; empty as long as the run has not ended.

    Raises:
        RunFolderError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as e:
        found = e
    if not isinstance(found, dict):
        raise RunFolderError(
            f"{folder / 'summary.json'} is not JSON of a run; write it again: fedkin resume {typed(folder)}"
        )
    return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def by_title(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return runs grouped by title, ordered by seed; titles in the order of their first run.

    Raises:
        RunFolderError: two runs have the same title and seed, so they are not seeds of one method.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.title, [])
        if any(run.seed == other.seed for other in group):
            raise RunFolderError(f"two runs are titled {run.title!r} with seed {run.seed}; give one another title")
        group.append(run)
    return {title: sorted(group, key=lambda run: run.seed) for title, group in groups.items()}
