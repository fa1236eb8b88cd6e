"""A run on the server: the simulator's round loop, run folder and report, with clients on real hosts."""

from __future__ import annotations

import logging
from pathlib import Path

import tomli_w

from fedkin.capabilities.roles import role_of
from fedkin.core import ConfigError
from fedkin.experiment.execute import OnRound, execute, one_thread, opened
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import RunSettings, Settings, method_of, table_of
from fedkin.record.lines import RoundLine, RunLine
from fedkin.record.result import Result
from fedkin.server import RoundReport, Server, asked
from fedkin.server.requirements import require
from fedkin.storage.banks import Banks
from fedkin.storage.files import sync_to_disk
from fedkin.storage.folders import room
from fedkin.storage.lock import writing
from fedkin.version import __version__
from fedkin_hosts.joining import Clock
from fedkin_hosts.messages import Channel
from fedkin_hosts.participants import Members
from fedkin_hosts.transport import Fleet

log = logging.getLogger("fedkin_hosts")


def serve(
    settings: Settings,
    post: Channel,
    folder: Path,
    *,
    command: str | None = None,
    on_round: OnRound | None = None,
    clock: Clock | None = None,
) -> Result:
    """Run the remaining rounds, then have every client store its model.

    Starts in a new folder, or continues in one that holds a run with the same settings.

    Args:
        settings: settings of the run; its ``[data]`` describes how sites read and split their data, not where it is.
        post: channel to the nodes.
        folder: the run folder, as the simulator's; ``clients.json`` lists the clients, ``events.jsonl`` the events.
        command: command that repeats this run, for summary and report. Default: submission at the link in
            ``fedkin-link``.

    Raises:
        ConfigError: a setting that applies to simulations only.
        EngineError: too few clients connected.
        RunFolderError: the folder holds something else, or is damaged, or another process is writing into it.
    """
    _require_possible(settings)
    with writing(folder), room(folder, "fedkin submit"):
        return _served(settings, post, folder, command, on_round, clock)


def _served(
    settings: Settings, post: Channel, folder: Path, command: str | None, on_round: OnRound | None, clock: Clock | None
) -> Result:
    table = table_of(settings)
    begun = (folder / "config.toml").exists()
    here = opened(folder, table) if begun else RunFolder.create(folder, tomli_w.dumps(table))
    here.survives_power_failures = True  # rounds take seconds, and clients go on from them
    sync_to_disk(folder / "config.toml")
    members = Members.load(folder)
    del members.listed[here.joined() :]  # numbered, but in no whole round: they join again
    fleet = Fleet(post, settings, members, clock)
    e = Experiment.on_hosts(settings, fleet.gather(), members.run)
    fleet.open(e.net, e.networks)
    about = RunLine(
        fedkin=__version__,
        title=e.title,
        seed=e.plan.seed,
        clients=len(members),
        engine="hosts",
        role=role_of(e.method),
        command=command or f"fedkin submit {folder / 'config.toml'}",
    )
    banks = Banks(folder) if settings.compute.state == "file" else None

    def noted(report: RoundReport, line: RoundLine) -> None:
        fleet.note(report)
        if on_round is not None:
            on_round(report, line)

    with one_thread():
        result = execute(e, members, fleet, about, here, on_round=noted, banks=banks)
        _keep(e, fleet, result.server)
    return result


def _keep(e: Experiment, fleet: Fleet, server: Server) -> None:
    """Have every client that can be reached store the model it predicts with."""
    fleet.note_refused(server.round, asked(e.method, e.net, fleet, e.plan, server, "keep")[1])


def _require_possible(settings: Settings) -> None:
    """Raise `ConfigError` if real hosts, the method or the clients' data do not allow what the settings ask for."""
    usual = RunSettings()
    for name in ("dropout", "late_joiners", "attack"):
        if (value := getattr(settings.run, name)) != getattr(usual, name):
            raise ConfigError(
                f"[run] {name} = {value!r} simulates something that happens by itself on real hosts; leave it out"
            )
    held_out = settings.data.validation > 0
    require(settings, method_of(settings), clients=settings.hosts.min_clients, validation=held_out)
