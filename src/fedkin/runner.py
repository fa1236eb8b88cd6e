"""Runs a method on a federation and says how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch

from fedkin.config import Settings, digest, read_toml, settings_from
from fedkin.core import ConfigError, Data, Method, Net, Recipe, RunFolderError
from fedkin.data import Federation, Shard
from fedkin.engines import (
    Engine,
    Job,
    Loop,
    Plan,
    Report,
    Server,
    Session,
    Simulation,
    Workers,
    begin,
    chance_of_dropout,
    join_rounds,
)
from fedkin.engines import rounds as run_rounds
from fedkin.evaluate import best, final
from fedkin.folder import RunFolder
from fedkin.identity import network_mark, table_of, title_of
from fedkin.lines import lines_of
from fedkin.methods import get_title
from fedkin.models.start import Model, factory
from fedkin.version import __version__

OnRound = Callable[[Report, dict[str, Any]], None]


@dataclass
class Result:
    """What a run gave.

    Attributes:
        title: the method's display name.
        seed: the run's seed.
        rounds, clients, relations: the lines of the files of the same names.
        final: mean over the last ten evaluated rounds; best: the round that validation chose.
        summary: everything in short, as in ``summary.json``.
        server: the server after the last round, with all models.
        folder: where it was written, or None.
    """

    title: str
    seed: int
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    relations: list[dict[str, Any]]
    final: dict[str, Any]
    best: dict[str, Any] | None
    summary: dict[str, Any]
    server: Server
    folder: Path | None = None


@dataclass(frozen=True)
class _Prepared:
    """A run with everything built and checked, before anything is written."""

    job: Job
    plan: Plan
    engine: Engine
    federation: Federation
    dropout: float
    joins: list[int]
    title: str
    table: dict[str, Any]
    marks: dict[str, str] = field(default_factory=dict)


def run(
    method: Method,
    federation: Federation,
    model: Model = "mlp",
    recipe: Recipe | None = None,
    *,
    rounds: int = 50,
    participation: float = 1.0,
    seed: int = 0,
    engine: Literal["workers", "loop"] | Engine = "workers",
    workers: int = 0,
    eval_every: int | None = None,
    weighting: Literal["samples", "uniform"] = "samples",
    dropout: float = 0.0,
    join_late: str | None = None,
    min_answers: int = 1,
    over_selection: float = 1.0,
    head: str | None = None,
    title: str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    table: dict[str, Any] | None = None,
) -> Result:
    """Trains a federation by a method.

    Args:
        method: what is done, with its hyperparameters.
        federation: the clients' data.
        model: a name from ``fedkin list models``, an import path, a module (its values are the common start), or a
            function that makes one.
        recipe: how clients train unless the method says otherwise.
        rounds: communication rounds.
        participation: share of the clients sampled in each round.
        seed: of every random draw.
        engine: "workers" (processes), "loop" (one client after another), or an engine of your own.
        workers: processes, 0 for one per core; results do not depend on it.
        eval_every: evaluate every so many rounds, and in each of the last ten.
        weighting: clients weigh by training samples in means, or all the same.
        dropout: chance that a chosen client never answers.
        join_late: late joiners, such as ``"3@50"``.
        min_answers: a round with fewer usable answers is abandoned.
        over_selection: sample so many times the clients that a round needs and take those who answer first.
        head: the network's head by module name; by default the last linear layer.
        title: display name.
        out: run folder to write; None keeps everything in memory.
        resume: go on in ``out`` from its checkpoint.
        on_round: called after each round with its report and its line.
        table: the settings to write into the folder, if the run was made from a file or from flags.

    Raises:
        ConfigError: a setting is out of range.
        ModelError: the network does not fit the data.
        RunFolderError: ``out`` exists already, or its checkpoint is damaged or of another run.
        ClientError: client code failed.
    """
    recipe = recipe or Recipe()
    every = max(1, rounds // 25) if eval_every is None else eval_every
    plan = Plan(
        rounds,
        participation,
        every,
        weighting == "uniform",
        min_answers=min_answers,
        over_selection=over_selection,
        seed=seed,
    )
    net = Net(
        factory(model, federation.shape, federation.classes), federation.shape, federation.classes, head=head, seed=seed
    )
    shards = [_laid_out(net, shard) for shard in federation.clients]
    made = table or table_of(method, federation, model, recipe, plan, dropout, join_late)
    prepared = _Prepared(
        job=Job(method, net, recipe, shards, seed),
        plan=plan,
        engine=_engine(engine, workers),
        federation=federation,
        dropout=chance_of_dropout(dropout),
        joins=join_rounds(len(federation), join_late),
        title=title or title_of(method),
        table=made,
        marks={"config": digest(made), "data": federation.fingerprint(), "network": network_mark(net)},
    )
    with _one_thread():
        session = prepared.engine.start(prepared.job)
        try:
            folder = None  # made last: whatever is wrong with the settings has been said by now
            if out is not None:
                folder = _opened(out, made) if resume else RunFolder.create(out, tomli_w.dumps(made))
            return _loop(prepared, session, folder, on_round)
        finally:
            session.close()


def run_settings(settings: Settings, **more: Any) -> Result:
    """`run` from settings; ``more`` are further arguments of it (out, resume, on_round, title)."""
    federation = settings.data.federation(settings.run.seed)
    recipe, how = settings.recipe, {f.name: getattr(settings.run, f.name) for f in fields(settings.run)}
    title = more.pop("title", None) or get_title(settings.name)
    model, head = settings.model.model, settings.model.head
    return run(
        settings.method, federation, model, recipe, head=head, title=title, table=settings.table(), **how, **more
    )


def resume(folder: Path | str, on_round: OnRound | None = None) -> Result:
    """Goes on with an interrupted run from its folder, to the same result as if it had not been interrupted.

    Raises:
        RunFolderError: no run folder, or its checkpoint is damaged or does not belong to its config and data.
        ConfigError: its config was made by a program, with a method, model or data that only that program has.
    """
    found = RunFolder.open(folder)
    table = read_toml(found.path / "config.toml")
    if "made_by" in table:
        raise ConfigError(
            f"{folder} was made by a program with {table['made_by']}; go on from that program: "
            f"fedkin.run(..., out={str(folder)!r}, resume=True)"
        )
    return run_settings(
        settings_from(table, str(found.path / "config.toml")), out=folder, resume=True, on_round=on_round
    )


def _opened(path: Path | str, table: dict[str, Any]) -> RunFolder:
    """The folder of this very run.

    Raises:
        RunFolderError: it is none, or one of another run.
    """
    folder = RunFolder.open(path)
    if digest(read_toml(folder.path / "config.toml")) != digest(table):
        raise RunFolderError(f"{folder.path} belongs to a run with another config; resume it as it was begun")
    return folder


def _loop(p: _Prepared, session: Session, folder: RunFolder | None, on_round: OnRound | None) -> Result:
    clients = len(p.federation)
    simulation = Simulation(session, clients, seed=p.plan.seed, dropout=p.dropout, joins=p.joins)
    kept: dict[str, list[dict[str, Any]]] = {"rounds": [], "clients": [], "relations": []}
    server = begin(p.job.method, p.job.net, p.plan)
    if folder is not None:
        loaded = folder.load(p.marks)
        if loaded is not None:
            server, states = loaded
            simulation.restore(states, server.acks)
        folder.cut(server.round)
        kept = {name: folder.read(name) for name in kept}
    for report in run_rounds(p.job.method, p.job.net, p.job.recipe, simulation, p.plan, server):
        lines = lines_of(report, p.federation)
        for name, found in kept.items():
            found += getattr(lines, name)
        if folder is not None:
            seconds = {**report.seconds, "training": simulation.training_s}
            timing = {"round": report.round, **{f"{name}_s": value for name, value in seconds.items()}}
            folder.append({"rounds": lines.rounds, "clients": lines.clients, "relations": lines.relations,
                           "timing": [timing]})  # fmt: skip
            folder.save(server, simulation.states(server.acks), p.marks)
        if on_round is not None:
            on_round(report, lines.rounds[0])
    return _result(p, kept, server, folder)


def _result(p: _Prepared, kept: dict[str, list[dict[str, Any]]], server: Server, folder: RunFolder | None) -> Result:
    evaluated = [line for line in kept["rounds"] if line["evaluated"]]
    last, chosen = final(evaluated), best(evaluated)
    groups = p.federation.groups
    summary = {
        "method": p.table["method"]["name"],
        "title": p.title,
        "seed": p.plan.seed,
        "rounds": server.round,
        "final": last,
        "best": chosen,
        "bytes_up": sum(line["bytes_up"] for line in kept["rounds"]),
        "bytes_down": sum(line["bytes_down"] for line in kept["rounds"]),
        "clients": {"count": len(p.federation), "groups": None if groups is None else groups.tolist()},
        "fedkin": __version__,
        "config": p.table,
    }
    if folder is not None:
        if "made_by" not in p.table:
            summary["command"] = f"fedkin run {folder.path / 'config.toml'}"
        folder.write("summary", summary)
    return Result(
        title=p.title,
        seed=p.plan.seed,
        rounds=kept["rounds"],
        clients=kept["clients"],
        relations=kept["relations"],
        final=last,
        best=chosen,
        summary=summary,
        server=server,
        folder=None if folder is None else folder.path,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread in this process: the same sums whatever the machine, and the cores are the workers'."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _engine(engine: str | Engine, workers: int) -> Engine:
    if engine == "workers":
        return Workers(workers)
    if engine == "loop":
        return Loop()
    if isinstance(engine, str):
        raise ConfigError(f"unknown engine {engine!r}; there are workers and loop")
    return engine


def _laid_out(net: Net, shard: Shard) -> Shard:
    """The shard in the memory layout that the network is fastest on, once."""
    train, held, tested = (Data(net.layout(d.x), d.y) for d in (shard.train, shard.validation, shard.test))
    return replace(shard, train=train, validation=held, test=tested)
