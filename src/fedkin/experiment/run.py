"""Runs a method on a federation and says how it went."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import tomli_w

from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.roles import role_of
from fedkin.core import ConfigError, Method, Net, RunFolderError, Training
from fedkin.core.errors import typed
from fedkin.core.machine import memory
from fedkin.core.settings import Gradient, Settings
from fedkin.data import Federation, federation_of
from fedkin.engines import Engine, choose, gradients, resolved, why_not_compiled
from fedkin.experiment.execute import OnRound, execute, one_thread, opened
from fedkin.experiment.extend import continued, extend
from fedkin.experiment.listing import whole_of
from fedkin.experiment.prepare import Experiment, FinishedRun
from fedkin.experiment.progress import bar
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import settings_from, sources_of
from fedkin.methods import REFERENCES
from fedkin.models.start import Model
from fedkin.record.files import RUN, read_commit
from fedkin.record.lines import RoundLine, RunLine
from fedkin.record.result import Result
from fedkin.server import Attack, RoundReport, Simulation, join_rounds, needs
from fedkin.storage.banks import SUPPORTED, Banks
from fedkin.storage.folders import room
from fedkin.storage.lock import remove, writing
from fedkin.storage.objects import Objects, States
from fedkin.storage.toml import read_toml
from fedkin.version import __version__

IN_MEMORY = 256 << 20
"""Bytes that a model for every client may take for ``state = "auto"`` to keep them in memory, where every checkpoint
writes all of them."""


@one_thread()
def run(
    method: Method | str,
    federation: Federation,
    model: Model | None = None,
    training: Training | None = None,
    *,
    settings: Settings | None = None,
    engine: Engine | str | None = None,
    title: str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
    **changes: Any,
) -> Result:
    """Train a federation by a method.

    Args:
        method: a name as on the command line, such as ``"fedrep"`` or ``"fedprox@mu=0.1"``, or an object with its
            hyperparameters.
        federation: the clients' data.
        model: a name from ``fedkin list models``, an import path, a module (its values are the common start), or a
            function that makes one. Default: that of the settings.
        training: how clients train unless the method says otherwise.
        settings: the tree that the changes are made in (`fedkin.Settings`). Default: that of a plain run.
        engine: a name, such as ``"loop"`` or ``"workers@n=4"``, or an engine object, such as ``Stacked(...)``.
        title: display name.
        out: run folder to write; None keeps everything in memory.
        resume: go on in ``out``. With another number of ``rounds`` the run there becomes one of so
            many, to the same result as if it had had them from the start (`fedkin.experiment.extend`).
        on_round: called after each round with its report and its line.
        progress: show a progress bar on standard error where that is a terminal or a notebook.
        changes: settings by their names, which are those of the flags: ``rounds=40, participation=0.5, lr=0.1``; or
            whole groups, such as ``privacy=fedkin.Privacy(noise_multiplier=1.0)``.

    Raises:
        DataError: all samples of the federation are of one class.
        ConfigError: a setting is unknown or out of range, or no client has the validation data that ``stop_after``
            needs, or what the method keeps of all clients fits neither memory nor disk
            (`fedkin.server.memory_estimate`), or the method does not merge uploads as the aggregation would have it, or
            must see single ones, or tells more than the privacy options cover.
        ModelError: the network does not fit the data.
        RunFolderError: ``out`` exists already, or a file is damaged or of another run, or another process is
            writing into it.
        DiskFullError: there is no room left for the files in ``out``.
        ClientError: client code failed.
    """
    if training is not None:
        changes["training"] = training
    if isinstance(engine, str):
        changes["engine"], engine = engine, None
    asked = (settings or Settings()).but(**changes)
    experiment = Experiment.of(method, federation, model, asked, title)
    if resume and out is not None and (going_on := continued(out, experiment)) != experiment.settings.run:
        experiment = Experiment.of(method, federation, model, asked.but(run=going_on), title)
    with bar(experiment.settings.run.rounds, experiment.title, quiet=not progress) as shown:

        def each_round(report: RoundReport, line: RoundLine) -> None:
            shown.at(line)
            if on_round is not None:
                on_round(report, line)

        return simulate(experiment, federation, out=out, resume=resume, on_round=each_round, engine=engine)


@one_thread()
def run_settings(
    settings: Settings,
    federation: Federation | None = None,
    *,
    title: str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    engine: Engine | None = None,
) -> Result:
    """Make the run that settings describe; other arguments and errors as of `run`.

    Args:
        federation: the data that the settings name, where they have been read already.
    """
    federation = federation_of(settings.data, settings.run.seed) if federation is None else federation
    experiment = Experiment.prepare(settings, federation, title)
    sources = sources_of(experiment.settings)
    return simulate(experiment, federation, out=out, resume=resume, on_round=on_round, engine=engine, sources=sources)


def simulate(
    experiment: Experiment,
    federation: Federation,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    engine: Engine | None = None,
    sources: Mapping[str, bytes] | None = None,
) -> Result:
    """Execute an experiment on this machine, with all clients in one place.

    Args:
        experiment: the run.
        federation: the data that it was made for.
        out, resume, on_round: as of `run`.
        engine: another one than the settings name.
        sources: files of user-defined code that the experiment's table names: file name -> content.
    """
    e, settings, clients = experiment, experiment.settings, len(federation)
    in_files = _in_files(settings.compute.state, e.net, clients)
    if not resume and 4 * e.net.size * clients > IN_MEMORY:
        _require_room(e, clients, in_files, out)
    joins = join_rounds(clients, settings.run.late_joiners)
    notes = (*federation.notes, *_undecided(e, federation))
    with one_thread(), ExitStack() as to_the_end:
        gradient = _gradient(settings.compute.gradient, out if resume else None)
        job = replace(e.job(e.laid_out(federation.clients)), gradient=gradient, means_only=_means_only(settings))
        chosen, why = choose(engine or settings.compute.engine, job)
        about = RunLine(
            fedkin=__version__,
            title=e.title,
            seed=e.plan.seed,
            clients=clients,
            engine=f"{why}; {gradients(chosen, job)}",
            gradient=gradient,
            command="" if out is None or "made_by" in e.table else f"fedkin run {typed(Path(out) / 'config.toml')}",
            attackers=tuple(Attack.read(settings.run.attack).clients(clients, settings.run.seed)),
            notes=notes,
            role=role_of(e.method),
        )
        with closing(chosen.start(job)) as session:
            folder = None  # made last: whatever is wrong with the settings has been said by now
            if out is not None:
                to_the_end.enter_context(writing(Path(out)))
                to_the_end.enter_context(room(Path(out)))
                folder = opened(out, e.table) if resume else RunFolder.create(out, tomli_w.dumps(e.table), sources)
                if federation.preparation is not None:
                    folder.write("preparation", federation.preparation.to_json())
            store = States(Objects() if folder is None else folder.objects) if in_files else None
            banks = Banks(None if folder is None else folder.path) if in_files and SUPPORTED else None
            simulation = Simulation(
                session,
                clients,
                seed=settings.run.seed,
                dropout=settings.run.dropout,
                joins=joins,
                attack=Attack.read(settings.run.attack),
                store=store,
            )
            try:
                result = execute(e, federation, simulation, about, folder, on_round=on_round, banks=banks)
            except Exception as error:
                passing = any(isinstance(e, (OSError, MemoryError)) for e in (error, error.__cause__))
                again = resume or passing  # it may go well another time
                if folder is not None and not again and not folder.commit.round:
                    remove(folder.path)  # to go on with it would repeat the error
                raise
            rest = federation, joins, result.server, simulation.states(result.server.acks), result.folder
            return replace(result, finished=FinishedRun(e, replace(job, outcomes=None), *rest))


def resume(folder: Path | str, on_round: OnRound | None = None, rounds: int | None = None) -> Result:
    """Continue an interrupted run from its folder, to the same result as if it had not been interrupted.

    Args:
        folder: the run's folder.
        on_round: called after each round with its report and its line.
        rounds: give the run, finished or not, this number of rounds, to the same result as if it had had them from the
            start (`fedkin.experiment.extend`).

    Raises:
        RunFolderError: no run folder, or its files are damaged or do not belong to its config and data,
            or another process is writing into it.
        ConfigError: its config was made by a program, with a method, model or data that only that program has, or it is
            a run over real hosts; the rounds that are done are not the first ones of such a run; or it belongs to a
            comparison or a sweep, whose runs all have the same number.
    """
    result = RunFolder.open(folder)
    if (result.path / "clients.json").exists():
        raise ConfigError(
            f"{folder} is a run over real hosts, whose data and states are on them; go on with: "
            f"fedkin submit {typed(folder)}"
        )
    with writing(result.path), room(result.path):  # refused before the data are read
        result.recover()
        table = read_toml(result.path / "config.toml")
        if "made_by" in table:
            more = "" if rounds is None else f"rounds={rounds}, "
            raise ConfigError(
                f"{folder} was made by a program with {table['made_by']}; go on from that program: "
                f"fedkin.run(..., {more}out={str(folder)!r}, resume=True)"
            )
        settings = settings_from(table, str(result.path / "config.toml"))
        if rounds is not None:
            _require_alone(result.path, settings.run.rounds, rounds)
            settings = extend(result, settings, rounds)
        return run_settings(settings, out=folder, resume=True, on_round=on_round)


def _require_alone(folder: Path, there: int, rounds: int) -> None:
    """Raise `ConfigError` for another number of rounds of a run that others are compared with."""
    if rounds != there and (whole := whole_of(folder)) is not None:
        kind, command = ("sweep", "sweep") if (whole / "sweep.toml").is_file() else ("comparison", "compare")
        raise ConfigError(
            f"{folder} is a run of the {kind} {whole}, whose runs all have {there} rounds; for {rounds}, copy it "
            f"elsewhere and resume it there, or begin another {kind} (fedkin {command}) of {rounds} rounds"
        )


def _gradient(asked: Gradient, resumed: Path | str | None) -> Gradient:
    """Return how gradients are found: as asked, or for a run that is resumed as where it began.

    Raises:
        ConfigError: that is not possible on this machine.
    """
    if resumed is None or not read_commit(Path(resumed)).round:
        return resolved(asked)
    began = RunFolder.gradient(resumed) if asked == "auto" else asked
    if began not in get_args(Gradient):
        raise RunFolderError(f"{Path(resumed) / RUN} names gradients {began!r}, which this fedkin does not know")
    if began == "compiled" and (why := why_not_compiled()):
        raise ConfigError(
            f"{resumed} was begun with compiled training, which is not possible here ({why}); install what it needs, "
            "or begin the run again in another folder: its last digits will differ"
        )
    return cast("Gradient", began)


def _means_only(settings: Settings) -> bool:
    """Return whether nothing looks at single uploads but their check and the weighted mean."""
    return settings.aggregation.rule == "mean" and not settings.aggregation.secure and settings.run.attack == "none"


def _in_files(state: str, net: Net, clients: int) -> bool:
    """Return whether client states and rows of the server go into files."""
    return state == "file" or (state == "auto" and 4 * net.size * clients > IN_MEMORY)


def _require_room(e: Experiment, clients: int, in_files: bool, out: Path | str | None) -> None:
    """Raise `ConfigError` if what the method keeps cannot fit, before anything is trained."""
    with one_thread():
        result = needs(e.method, e.net, e.settings.training)
    place = Path(tempfile.gettempdir()) if out is None else Path(out).absolute()
    while not place.exists():
        place = place.parent
    short = result and result.shortage(
        clients, in_files=in_files, memory=memory() or sys.maxsize, disk=shutil.disk_usage(place).free
    )
    if short:
        raise ConfigError(f"{type(e.method).__name__} does not fit: {short}")


def _undecided(e: Experiment, federation: Federation) -> list[str]:
    """Return a note on a method that decides by validation samples where no client has any; none on references, which
    every comparison has."""
    name = e.settings.method.get("name")
    if not needs_of(e.method).validation or name in REFERENCES or bool(federation.sizes()[:, 1].any()):
        return []
    return [
        f"{e.title} decides at each client by its validation samples, and no client has any, so it has nothing to go "
        "by; --validation 0.2 gives clients some"
    ]
