"""A run after its last complete round, with its clients, for evaluation and export."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedkin.core import Bundle, ConfigError, RunFolderError
from fedkin.core.errors import meant, typed
from fedkin.core.settings import Gradient
from fedkin.data import federation_of
from fedkin.engines import Loop
from fedkin.experiment.execute import one_thread
from fedkin.experiment.finished import FinishedRun
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import settings_from
from fedkin.exporting.card import Chosen
from fedkin.record.files import read_commit
from fedkin.record.result import Result
from fedkin.server import Server, Simulation, join_rounds
from fedkin.storage.lock import NAME as LOCK
from fedkin.storage.lock import owner
from fedkin.storage.row_store import SUPPORTED, Banks
from fedkin.storage.toml import read_toml

_TRIES = 5  # to read the files of a run that is being written
Run = Result | Path | str
"""The result of `fedkin.run`, or the folder of a run."""


def finished(run: Run) -> FinishedRun:
    """Return the run with its clients. A folder may be of a finished or an interrupted run; it is not changed.

    Raises:
        RunFolderError: not a run folder, no round is done, or its checkpoint is damaged or not of its config and data.
        ConfigError: the folder was written by a program or by a run over real hosts.
    """
    if isinstance(run, Result):
        if run.finished is None:
            raise ConfigError("this result has no clients: only a result of fedkin.run has")
        finished: FinishedRun = run.finished
        return finished
    folder = RunFolder.open(run)
    if (folder.path / "clients.json").exists():
        raise ConfigError(
            f"{folder.path} is a run over real hosts: clients' data and states are on their machines, not here. When "
            "the run ended, each node wrote the same folder with its own model to its own disk: "
            "clients/CLIENT/RUN/model in the node's --folder"
        )
    table = read_toml(folder.path / "config.toml")
    if "made_by" in table:
        raise ConfigError(
            f"{folder.path} was made by a program with {table['made_by']}; export from that program: "
            f"result = fedkin.run(..., out={str(run)!r}, resume=True), then fedkin.export(result, client=0)"
        )
    return _loaded(folder, table)


def _loaded(folder: RunFolder, table: dict[str, object]) -> FinishedRun:
    settings = settings_from(table, str(folder.path / "config.toml"))
    federation = federation_of(settings.data, settings.run.seed)
    e = Experiment.prepare(settings, federation)
    folder.about = e.about
    loaded = _checkpoint(folder, e)
    if loaded is None:
        raise RunFolderError(f"no round of {folder.path} is done; continue it: fedkin resume {typed(folder.path)}")
    # what is trained after the end is trained as in the run, if that is possible here
    gradient: Gradient = "auto" if RunFolder.gradient(folder.path) == "compiled" else "explicit"
    job = e.job(e.laid_out(federation.clients), outcomes=False)
    job = replace(job, gradient=gradient) if job.gradient == "auto" else job
    joins = join_rounds(len(federation), settings.run.late_joiners)
    return FinishedRun(e, job, federation, joins, *loaded, folder.path)


def _checkpoint(folder: RunFolder, e: Experiment) -> tuple[Server, Mapping[int, Bundle]] | None:
    """Return what `RunFolder.load` does; again if the run wrote to its files meanwhile.

    Raises:
        RunFolderError: they are damaged, or written too often to be read.
    """
    for attempt in range(_TRIES):
        round = folder.checkpoint.round()
        try:
            if folder.bank_files.exists() and SUPPORTED:
                folder.banks = Banks(_banks_of(folder))
            return folder.load(e.marks)
        except RunFolderError as error:
            busy = folder.checkpoint.round() != round or owner(folder.path / LOCK) is not None
            if busy and attempt == _TRIES - 1:
                raise RunFolderError(
                    f"{folder.path} is being written, faster than it can be read; export it when the run has ended"
                ) from error
            if not busy:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def at_best(p: FinishedRun) -> tuple[FinishedRun, Chosen]:
    """Return the run as of the round with the highest validation accuracy, and the figures of this round.

    Raises:
        ConfigError: no client has validation samples, or the checkpoint of this round was not kept.
        RunFolderError: the checkpoint is damaged.
    """
    if p.folder is None:
        raise ConfigError("only a run with a folder keeps its best round: give it one, fedkin.run(..., out='FOLDER')")
    folder = RunFolder.open(p.folder)
    found = Result.open(p.folder).best
    if found is None:
        raise ConfigError(
            f"no round of {p.folder} can be chosen: no client has validation samples; run with --validation 0.1, or "
            "export the last round"
        )
    assert found.figures is not None  # it was evaluated
    chosen = Chosen(found.round, found.figures.validation or 0.0, found.figures.accuracy)
    if found.round == p.server.round:
        return p, chosen
    if folder.best.round() != found.round:
        raise ConfigError(f"the best round of {p.folder}, {found.round}, was not kept: {_not_kept(folder)}")
    loaded = folder.load(p.experiment.marks, best=True)
    assert loaded is not None  # it has a round
    return replace(p, server=loaded[0], states=loaded[1]), chosen


def _not_kept(folder: RunFolder) -> str:
    """Return the reason, and the remedy."""
    why = "the run got more rounds later (--rounds); run it again:"
    if folder.states.exists() or folder.bank_files.exists():
        why = "models of single clients are in files (state = 'file'), which later rounds overwrite; run it again with"
        why += " everything in the checkpoint, with equal results:"
    return f"{why} fedkin run {typed(folder.path / 'config.toml')} --state memory --out FOLDER"


def _banks_of(folder: RunFolder) -> Path:
    """Return a folder where the banks can be opened with write access: links to those of a run that is done, copies of
    others, since opening them reverts the rows of a round that may be in progress."""
    place = Path(tempfile.mkdtemp(prefix="fedkin-"))
    weakref.finalize(folder, shutil.rmtree, place, ignore_errors=True)  # open files stay readable
    done = bool(read_commit(folder.path).ended)
    for file in folder.bank_files.iterdir():
        if done:
            (place / file.name).symlink_to(file.absolute())
        else:
            shutil.copyfile(file, place / file.name)
    return place


@contextmanager
def simulation(p: FinishedRun) -> Iterator[Simulation]:
    """Yield the run's clients as they were after the last round, each computing as in the run."""
    with one_thread():
        session = Loop().start(p.job)
        try:
            found = Simulation(session, len(p.federation), seed=p.job.seed, joins=list(p.joins))
            found.restore(p.states, p.server.acks)
            yield found
        finally:
            session.close()


def number_of(p: FinishedRun, client: int | str) -> int:
    """Return a client's number from its number or its name.

    Raises:
        ConfigError: there is no such client, or it has not joined yet.
    """
    names, count = p.federation.client_names or (), len(p.federation)
    text = str(client)
    if text in names:
        number = names.index(text)
    elif f"client {text}" in names:  # its number in the data, of which some clients may be left out
        number = names.index(f"client {text}")
    elif text.isdigit() and int(text) < count and not any(name.startswith("client ") for name in names):
        number = int(text)
    else:
        called = f", called {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}" if names else ""
        raise ConfigError(
            f"there is no client {client!r}{meant(text, names)}; the run has clients 0 to {count - 1}{called}"
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
