"""A run after its last complete round, with its clients, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.core import Bundle, ConfigError, RunFolderError
from fedkin.core.errors import similar, typed
from fedkin.core.settings import Gradient
from fedkin.data import federation_of
from fedkin.data.checks import listed
from fedkin.engines import Job, Loop
from fedkin.experiment.execute import one_thread
from fedkin.experiment.prepare import Experiment, FinishedRun
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import settings_from
from fedkin.exporting.card import Chosen
from fedkin.record.files import read_commit
from fedkin.record.result import Result
from fedkin.server import Server, Simulation, join_rounds
from fedkin.storage.banks import SUPPORTED, Banks
from fedkin.storage.toml import read_toml

_TRIES = 5  # to read the files of a run that is being written
Run = Result | Path | str
"""The result of `fedkin.run`, or the folder of a run."""


def finished(run: Run) -> FinishedRun:
    """Return the run with its clients. A folder may be of a finished or an interrupted run; it is not changed."""
    if isinstance(run, Result):
        if run.finished is None:
            raise ConfigError("this result has no clients: only a result of fedkin.run has")
        finished: FinishedRun = run.finished
        return finished
    folder = RunFolder.open(run)
    table, why = read_toml(folder.path / "config.toml"), ""
    if (folder.path / "clients.json").exists():
        why = (
            "is a run over real hosts: clients' data and states are on their machines, not here. When the run ended, "
            "each node wrote the same folder with its own model to its own disk: clients/CLIENT/RUN/model in the "
            "node's --folder"
        )
    elif "made_by" in table:
        why = (
            f"was made by a program with {table['made_by']}; export from that program: result = fedkin.run(..., "
            f"out={str(run)!r}, resume=True), then fedkin.export(result, client=0)"
        )
    if why:
        raise ConfigError(f"{folder.path} {why}")
    settings = settings_from(table, str(folder.path / "config.toml"))
    federation = federation_of(settings.data, settings.run.seed)
    e = Experiment.prepare(settings, federation)
    loaded = _state(folder, e)
    if loaded is None:
        raise RunFolderError(f"no round of {folder.path} is done; continue it: fedkin resume {typed(folder.path)}")
    # what is trained after the end is trained as in the run, if that is possible here
    gradient: Gradient = "auto" if RunFolder.gradient(folder.path) == "compiled" else "explicit"
    job = e.job(e.laid_out(federation.clients), outcomes=False)
    job = replace(job, gradient=gradient) if job.gradient == "auto" else job
    joins = join_rounds(len(federation), settings.run.late_joiners)
    return FinishedRun(e, job, federation, joins, *loaded, folder.path)


def _state(folder: RunFolder, e: Experiment) -> tuple[Server, Mapping[int, Bundle]] | None:
    """Return what `RunFolder.load` does; again if the run went on meanwhile, and deleted what was to be read."""
    for left in reversed(range(_TRIES)):
        commit = read_commit(folder.path)
        try:
            return _load(folder, e)
        except RunFolderError:
            if not left or read_commit(folder.path) == commit:
                raise
    return None


def _load(folder: RunFolder, e: Experiment, *, best: bool = False) -> tuple[Server, Mapping[int, Bundle]] | None:
    last = read_commit(folder.path).last
    folder.banks = Banks() if SUPPORTED and last is not None and last.banks else None
    return folder.load(e.marks, e.about, best=best)


def at_best(p: FinishedRun) -> tuple[FinishedRun, Chosen]:
    """Return the run as of the round with the highest validation accuracy, and the figures of this round."""
    if p.folder is None:
        raise ConfigError("only a run with a folder keeps its best round: give it one, fedkin.run(..., out='FOLDER')")
    folder = RunFolder.open(p.folder)
    result = Result.open(p.folder).best
    if result is None:
        raise ConfigError(
            f"no round of {p.folder} can be chosen: no client has validation samples; run with --validation 0.1, or "
            "export the last round"
        )
    assert result.figures is not None  # it was evaluated
    chosen = Chosen(result.round, result.figures.validation or 0.0, result.figures.accuracy)
    if result.round == p.server.round:
        return p, chosen
    loaded = _load(folder, p.experiment, best=True)
    if loaded is None or loaded[0].round != result.round:
        raise ConfigError(
            f"the best round of {p.folder}, {result.round}, was not kept: the run got more rounds later (--rounds); "
            f"run it again: fedkin run {typed(folder.path / 'config.toml')} --out FOLDER"
        )
    return replace(p, server=loaded[0], states=loaded[1]), chosen


@contextmanager
def simulation(p: FinishedRun) -> Iterator[Simulation]:
    """Yield the run's clients as they were after the last round, each computing as in the run."""
    with clients_of(p.job, joins=list(p.joins)) as result:
        result.restore(p.states, p.server.acks)
        yield result


@contextmanager
def clients_of(job: Job, **more: Any) -> Iterator[Simulation]:
    """Yield the clients of a job, computing one after another; the other arguments are those of `Simulation`."""
    with one_thread():
        session = Loop().start(job)
        try:
            yield Simulation(session, len(job.shards), seed=job.seed, **more)
        finally:
            session.close()


def number_of(p: FinishedRun, client: int | str) -> int:
    """Return a client's number from its number or its name."""
    names, count, text = p.federation.client_names or (), len(p.federation), str(client)
    known = {name: number for number, name in enumerate(names)}
    # or its number in the data, of which some clients may be left out
    number = known.get(text, known.get(f"client {text}", count))
    if text.isdigit() and number == count and not any(name.startswith("client ") for name in names):
        number = int(text)
    if number >= count:
        called = f", called {listed(names)}" if names else ""
        raise ConfigError(
            f"there is no client {client!r}{similar(text, names)}; the run has clients 0 to {count - 1}{called}"
        )
    if number >= len(p.server.sizes):
        raise ConfigError(
            f"client {text} joins in round {p.joins[number]}, and the run has come to round {p.server.round}; it has "
            "no model yet"
        )
    return number


def name_of(p: FinishedRun, client: int) -> str | None:
    """Return a client's name, if it has one."""
    return None if p.federation.client_names is None else p.federation.client_names[client]
