"""Export of clients' models to folders."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from fedkin.core import Bundle, ConfigError
from fedkin.core.errors import typed
from fedkin.core.grammar import converted
from fedkin.experiment.prepare import FinishedRun
from fedkin.exporting.card import Chosen, ExportSource, Taken
from fedkin.exporting.finished import Run, at_best, finished, name_of, number_of, simulation
from fedkin.exporting.folder import require_free, write_export
from fedkin.exporting.ranges import of_all, of_client
from fedkin.server import asked, common

log = logging.getLogger("fedkin.export")
Round = Literal["last", "best"]
"""The round after which models are exported."""


def export(
    run: Run, client: int | str, out: Path | str | None = None, *, round: Round = "last", force: bool = False
) -> Path:
    """Export the model that a client predicts with after the run's last or best round.

    Training that a method does for prediction is the same as in an evaluation, so figures equal the run's.

    Args:
        run: result of `fedkin.run`, or a run folder; an interrupted run provides the models of its last complete round.
        client: number or name of the client.
        out: the new folder. Default: ``exports/client-NAME`` in the run's folder, with ``round="best"``
            ``exports/best/client-NAME``.
        round: "last", or "best": the round with the highest validation accuracy (mean over clients, the earliest of
            equals), which a run with a folder keeps.
        force: replace an older export in ``out``.

    Returns:
        The folder.

    Raises:
        ConfigError: no such client; the clients of the run are on other hosts; the model predicts NaN; a best round
            that was not kept.
        RunFolderError: ``out`` exists, or the run's folder is damaged.
    """
    p, chosen = _at(run, round)
    number = number_of(p, client)
    place = _place(p, out, _folder_of(p, number), chosen)
    require_free(place, force)
    return next(_written(p, {number: place}, force, chosen))


def export_all(
    run: Run, out: Path | str | None = None, *, round: Round = "last", force: bool = False
) -> Iterator[Path]:
    """`export` every client that has joined, each into ``OUT/client-NAME``; yield each folder when it is done.

    Models that predict NaN are left out, with a warning.
    """
    p, chosen = _at(run, round)
    root = _place(p, out, "", chosen)
    places = {i: root / _folder_of(p, i) for i in range(len(p.server.sizes))}
    if len(set(places.values())) < len(places):
        places = {i: root / f"client-{i}" for i in places}
    for place in places.values():
        require_free(place, force)
    yield from _written(p, places, force, chosen)


def export_global(run: Run, out: Path | str | None = None, *, round: Round = "last", force: bool = False) -> Path:
    """`export` the one model that the server sends to all clients.

    Raises:
        ConfigError: the method has no such model, or its clients prepare their inputs in different ways.
    """
    p, chosen = _at(run, round)
    e, made = p.experiment, p.federation.preparation
    if made is not None and made.per_client:
        raise ConfigError(
            "there is no model of all clients: each client scales its columns by its own values (scaling = 'client'); "
            "export the model of one client (--client NAME) or of all clients (--all), or run with --scaling pooled"
        )
    place = _place(p, out, "global", chosen)
    require_free(place, force)
    with simulation(p) as clients:
        if e.method.family == "one global model":  # the model of one client is the model of all
            bundle = asked(e.method, e.net, clients, e.plan, p.server, "keep", [0])[0][0]
        else:
            sent = common(e.method, e.net, clients, e.plan, p.server).get("model", torch.empty(0))
            if e.method.family in ("clusters", "no federation") or sent.shape != (e.net.size,):
                raise ConfigError(
                    f"{e.title} has no global model: clients receive {e.method.family or 'personal models'}; export "
                    "the model of one client (--client) or of all clients (--all)"
                )
            bundle = Bundle(model=sent)
    ranges = None if e.settings.privacy.asked else of_all(p.federation)
    write_export(_origin(p, chosen), Taken(bundle, made, ranges=ranges), place, force=force)
    return place


def _at(run: Run, round: Round) -> tuple[FinishedRun, Chosen | None]:
    """Return the run as of the requested round, and the figures by which the round was chosen."""
    p = finished(run)
    return (p, None) if converted(round, Round, "round") == "last" else at_best(p)


def _written(p: FinishedRun, places: dict[int, Path], force: bool, chosen: Chosen | None) -> Iterator[Path]:
    c, origin = p.experiment, _origin(p, chosen)
    for at in range(0, len(places), 32):  # a few at a time, which bounds the models in memory
        some = list(places)[at : at + 32]
        with simulation(p) as clients:
            kept, _ = asked(c.method, c.net, clients, c.plan, p.server, "keep", some)
            seen, _ = asked(c.method, c.net, clients, c.plan, p.server, "evaluate", some)
            for i in some:
                if len(places) > 1 and int(seen[i].get("unpredicted", torch.tensor(0))):
                    log.warning("the model of client %s predicts NaN and is not exported", name_of(p, i) or i)
                    continue
                made, shard = p.federation.preparation, p.job.shards[i].at(p.server.round)
                own = None if made is None else made.of(i)
                ranges = None if c.settings.privacy.asked else of_client(shard, own)
                taken = Taken(kept[i], own, i, name_of(p, i), shard, ranges, seen[i].test)
                write_export(origin, taken, places[i], force=force)
                yield places[i]


def _origin(p: FinishedRun, chosen: Chosen | None) -> ExportSource:
    c, command = p.experiment, None
    if p.folder is not None and "made_by" not in c.table:
        command = f"fedkin run {typed(p.folder / 'config.toml')}"
    return ExportSource(
        c.method, c.net, c.title, c.table, c.marks, p.server.round, c.plan.rounds, c.plan.seed, p.federation.name,
        p.federation.labels, command, chosen,
    )  # fmt: skip


# ---- places ---------------------------------------------------------------------------------------------------------
def _place(p: FinishedRun, out: Path | str | None, name: str, chosen: Chosen | None) -> Path:
    if out is not None:
        return Path(out)
    if p.folder is None:
        raise ConfigError("this run has no folder: set the folder of the export, out='FOLDER'")
    root = p.folder / "exports" if chosen is None else p.folder / "exports" / "best"
    return root / name if name else root


def _folder_of(p: FinishedRun, client: int) -> str:
    """Return the name of a client's folder."""
    name = (name_of(p, client) or str(client)).removeprefix("client ")
    return "client-" + "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in name)[:80]
