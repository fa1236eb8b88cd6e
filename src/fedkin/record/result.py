"""The result of a run: what its folder holds, or what was kept in memory."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from fedkin.core.errors import ConfigError, RunFolderError, counted, typed
from fedkin.core.grammar import Table, subtable
from fedkin.core.settings import Settings, read_settings
from fedkin.privacy.budget import privacy_summary, total
from fedkin.record.divergence import diverged
from fedkin.record.figures import best, evaluated, final, final_by_client
from fedkin.record.files import RUN, Lines, read_commit, read_json
from fedkin.record.frames import frame
from fedkin.record.lines import (
    ClientLine,
    Ended,
    Figures,
    FinalFigures,
    RelationLine,
    RoundLine,
    RunLine,
    TimingLine,
)
from fedkin.storage.folders import require_folder
from fedkin.user_code.reference import CodeRef

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Result:
    """Result of a run, finished or not: of the rounds that are whole.

    Attributes:
        run: what the run is.
        config: the tables of its ``config.toml``.
        rounds: a line per round.
        clients: a line per evaluated round and client; those of many clients are read again on every pass.
        relations: a line per round of methods that record who learned from whom, likewise.
        timing: seconds of every round; none for a run in memory.
        ended: "rounds" if all rounds are done, "early" if ``stop_after`` ended the run, "" while it goes on.
        folder: the run folder, or None if the run was kept in memory.
        at_best: figures are of the round with the highest validation accuracy, instead of means over the last rounds.
        server: of a run that was made in this process, the server after the last round (`fedkin.server.Server`).
        finished: of such a simulation, all clients (`fedkin.experiment.prepare.FinishedRun`), from which
            `fedkin.export` takes models.
    """

    run: RunLine
    config: Table
    rounds: Sequence[RoundLine] = ()
    clients: Iterable[ClientLine] = ()
    relations: Iterable[RelationLine] = ()
    timing: Iterable[TimingLine] = ()
    ended: Ended = ""
    folder: Path | None = None
    at_best: bool = False
    server: Any = None
    finished: Any = None

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Read the folder of a run.

        Raises:
            RunFolderError: it is none, or a file is damaged.
        """
        folder = Path(folder)
        require_folder(folder)
        if not (folder / "config.toml").is_file():
            raise RunFolderError(f"{folder} is not a run folder: it has no config.toml")
        config, commit = _config(folder / "config.toml"), read_commit(folder)
        run = read_json(folder / RUN, RunLine) if commit.round or (folder / RUN).exists() else _begun(config)
        rounds = list(Lines(folder, RoundLine, commit, run.clients))
        if [line.round for line in rounds] != list(range(1, commit.round + 1)):
            raise RunFolderError(f"{folder / 'rounds.jsonl'} must hold rounds 1 to {commit.round}; restore it")
        return cls(
            run=run,
            config=config,
            rounds=rounds,
            clients=Lines(folder, ClientLine, commit, run.clients),
            relations=Lines(folder, RelationLine, commit, run.clients),
            timing=Lines(folder, TimingLine, commit, run.clients),
            ended=commit.ended,
            folder=folder,
        )

    @classmethod
    def finished_in(cls, folder: Path | str) -> Self:
        """Read the folder of a finished run.

        Raises:
            RunFolderError: the run has not ended; otherwise as of `open`.
        """
        result = cls.open(folder)
        if not result.ended:
            raise RunFolderError(
                f"{folder} is not a finished run; if it was begun, go on with: fedkin resume {typed(folder)}"
            )
        return result

    def __repr__(self) -> str:
        figure = "no accuracy" if self.final.accuracy is None else f"accuracy {self.final.accuracy:.3f}"
        rounds = counted(len(self.rounds), "round")
        return f"Result({self.title!r}, seed {self.seed}, {rounds}, {self.data}, {figure})"

    @property
    def title(self) -> str:
        """Display name of the method."""
        return self.run.title

    @property
    def role(self) -> str:
        """Role of the method in a comparison (`fedkin.capabilities.roles.Role`); "" for most."""
        return self.run.role

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.run.seed

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by number; empty where they have none."""
        return self.run.names

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by number; empty where they have none."""
        return self.run.classes

    @property
    def groups(self) -> tuple[int, ...] | None:
        """True group of every client, ``[K]``, -1 is unknown; None if none is known."""
        return self.run.groups or None

    @cached_property
    def settings(self) -> Settings:
        """All settings, those that the config does not have at their defaults.

        Raises:
            ConfigError: the config has an unknown setting, or a value out of range.
        """
        return read_settings(self.config, "config.toml" if self.folder is None else str(self.folder / "config.toml"))

    def table(self, name: str) -> Table:
        """Return a table of the config; empty where it has none."""
        return subtable(self.config, name)

    @property
    def data(self) -> str:
        """Name of the data, and number of clients."""
        data = self.table("data")
        name = repr(data.get("name") or data.get("data") or "unknown data")
        return f"{name} of {counted(self.run.clients, 'client')}" if self.run.clients else name

    @property
    def total(self) -> int:
        """The last round; 0 before the first."""
        return len(self.rounds)

    # ---- figures ----------------------------------------------------------------------------------------------
    @cached_property
    def best(self) -> RoundLine | None:
        """The round with the highest validation accuracy; None without validation data."""
        return best(self.rounds)

    @cached_property
    def chosen(self) -> int | None:
        """The round of the figures with ``at_best``; None: the means over the last rounds are shown.

        Raises:
            ConfigError: no round has a validation accuracy.
        """
        if self.at_best and self.best is None:
            raise ConfigError(
                f"{self.folder or self.title} has no validation accuracy by which a best round could be chosen; leave "
                "out --round best, or run it with validation data (--validation 0.1)"
            )
        return self.best.round if self.at_best and self.best is not None else None

    @cached_property
    def final(self) -> FinalFigures:
        """Final figures: means over the last evaluated rounds, or those of the best round with ``at_best``."""
        return final(self.rounds, self.chosen, lambda: self.clients)

    @cached_property
    def last(self) -> tuple[int, Figures] | None:
        """The last evaluated round and its figures; None if none was evaluated."""
        return next(iter(evaluated(self.rounds)[-1:]), None)

    @property
    def moment(self) -> int | None:
        """The round of all statements on single clients: the last evaluated one, or that of the figures `at_best`."""
        return self.chosen if self.chosen is not None or self.last is None else self.last[0]

    @property
    def by_client(self) -> dict[int, float]:
        """Final accuracy per client, a fraction."""
        return self.averaged()

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

    @cached_property
    def diverged(self) -> int | None:
        """The round from which on training has diverged, None if it has not."""
        return diverged(self.rounds)

    @property
    def stopped(self) -> str:
        """When and why the run ended early (``stop_after``); "" if it did not."""
        if self.ended != "early" or self.best is None:
            return ""
        after, rounds = (self.table("run").get(name) for name in ("stop_after", "rounds"))
        why = f"no gain in validation accuracy since round {self.best.round} (stop_after = {after})"
        return f"after round {self.total} of {rounds}: {why}"

    @property
    def bytes(self) -> int:
        """Bytes sent up and down over the whole run."""
        return sum(line.bytes for line in self.rounds)

    @cached_property
    def privacy(self) -> dict[str, float | int | None] | None:
        """The privacy options and what training spent; None without any."""
        options = self.settings.privacy
        return privacy_summary(options, total(line.private for line in self.rounds)) if options.asked else None

    # ---- single test samples ----------------------------------------------------------------------------------
    @property
    def answers(self) -> dict[int, ClientLine]:
        """Clients with the outcomes of single test samples, in the last evaluated round; empty where the run records
        none, and where the figures are of another round.

        Raises:
            RunFolderError: a line has not a bit for each sample.
        """
        return self._tests[0] if self.last is not None and self.chosen in (None, self.last[0]) else {}

    @property
    def test_parts(self) -> dict[int, tuple[int, str]]:
        """Number of test samples and their digest, "" where it is not known, by client."""
        return self._tests[1]

    @cached_property
    def _tests(self) -> tuple[dict[int, ClientLine], dict[int, tuple[int, str]]]:
        answers, parts = dict[int, ClientLine](), dict[int, tuple[int, str]]()
        for line in self.clients:
            parts[line.client] = line.n_test, line.test_part
            if self.last is None or line.round != self.last[0] or not line.right:
                continue
            if len(line.right) != math.ceil(line.n_test / 8):
                raise RunFolderError(
                    f"{self.folder or self.title}: client {line.client} has {line.n_test} test samples in round "
                    f"{line.round}, and {8 * len(line.right)} outcomes of them; restore clients.jsonl"
                )
            answers[line.client] = line
        return answers, parts

    # ---- as tables --------------------------------------------------------------------------------------------
    def to_frame(self, kind: Literal["clients", "rounds"] = "clients") -> DataFrame:
        """Return the figures of the run as a pandas DataFrame.

        Frames of several runs can be concatenated: their first columns are ``method`` and ``seed``.

        ``to_frame()`` has one row per evaluated round and client:

        - ``method``, ``seed``, ``round``, ``client``: display name, seed, round from 1, client from 0.
        - ``accuracy``, ``balanced``, ``macro_f1``, ``validation``: fractions; NaN without such samples.
        - ``correct``, ``n_test``, ``n_validation``: number of correct test samples, of test and validation samples.
        - ``majority``: number of test samples of the client's most frequent training class.
        - ``few_correct``, ``few_total``, and the same of ``medium``, ``many``, ``unseen``: correct and all test samples
          of classes of which the client has 1 to 29, 30 to 80, more than 80, or no training samples.
        - Where the run has them: ``client_name``; ``n_train``, number of training samples (not with privacy options);
          ``group``, the true group, -1 if unknown; ``cluster``, the cluster that the client chose at the evaluation;
          ``accuracy_trained`` and the like, accuracy of further models of the method; ``note_share``, the share of the
          method in a safe form's prediction, and other numbers that a method notes on a client.

        ``to_frame("rounds")`` has one row per round:

        - ``method``, ``seed``, ``round``, ``evaluated``, ``abandoned``.
        - The metrics of `fedkin.record.lines.Figures` in this round; NaN where it was not evaluated.
        - ``cohort``, ``answered``, ``joined``, ``absent``, ``refused``, ``missing``: number of clients that were asked
          to train, whose update was used, that joined, could not be reached, whose update or evaluation was refused,
          and that sent no update.
        - ``bytes_up``, ``bytes_down``, ``bytes_evaluation``: bytes sent by and to all clients.
        - ``clients``, ``untested``: number of evaluated clients with and without test samples.
        - ``clusters``: number of clusters, where the method has them.

        Args:
            kind: "clients" or "rounds".

        Raises:
            ConfigError: another kind.
        """
        return frame(kind, self.run, self.rounds, self.clients)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``, which is for people: nothing reads it."""
        best = None if self.best is None else {"round": self.best.round, **msgspec.to_builtins(self.best.figures)}
        return {
            **{k: v for k, v in msgspec.to_builtins(self.run).items() if k not in ("marks", "about")},
            "method": self.table("method").get("name"),
            "rounds": self.total,
            "final": msgspec.to_builtins(self.final),
            "best": best,
            "bytes_up": sum(line.bytes_up for line in self.rounds),
            "bytes_down": sum(line.bytes_down for line in self.rounds),
            "bytes_evaluation": sum(line.bytes_evaluation for line in self.rounds),
            **({} if self.diverged is None else {"diverged": self.diverged}),
            **({"stopped": self.stopped} if self.stopped else {}),
            **({} if self.privacy is None else {"privacy": self.privacy}),
            "config": self.config,
        }


def _config(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise RunFolderError(f"{path} is not a TOML file ({e}); restore it from a copy") from e


def _begun(config: Table) -> RunLine:
    """Return what a run is of which the config alone is there."""
    method, seed = subtable(config, "method").get("name"), subtable(config, "run").get("seed")
    return RunLine("", CodeRef(str(method or "?")).attribute, seed if isinstance(seed, int) else 0, 0)


def by_title(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """Return runs grouped by title, ordered by seed; titles in the order of their first run.

    Raises:
        RunFolderError: two runs have the same title and seed, so they are not seeds of one method.
    """
    groups: dict[str, list[Result]] = {}
    for run in runs:
        group = groups.setdefault(run.title, [])
        if any(run.seed == other.seed for other in group):
            raise RunFolderError(f"two runs are titled {run.title!r} with seed {run.seed}; give one another title")
        group.append(run)
    return {title: sorted(group, key=lambda run: run.seed) for title, group in groups.items()}
