"""Runs a method on a federation and says how it went."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from fedkin.config import RunSettings, Settings, digest, settings_from
from fedkin.core import ConfigError, Data, Method, Net, Recipe, Rule
from fedkin.core.method import Moment
from fedkin.course import Course, OnRound, Played, Result, follow, one_thread, opened
from fedkin.data import Federation, Shard, require_two_classes
from fedkin.data.shelf import Shelf
from fedkin.engines import (
    Attack,
    Engine,
    EngineName,
    Gradient,
    Job,
    Plan,
    Simulation,
    chance_of_dropout,
    choose,
    gradients,
    join_rounds,
    needs,
)
from fedkin.extending import complete, extend
from fedkin.identity import about_of, network_mark, sizes_of, table_of
from fedkin.methods import get_title
from fedkin.models.start import Model, factory
from fedkin.privacy import Privacy
from fedkin.run_folder import RunFolder
from fedkin.storage.client_states import Kept, States
from fedkin.storage.folders import room
from fedkin.storage.lock import writing
from fedkin.storage.row_store import Banks
from fedkin.toml import read_toml

IN_MEMORY = 256 << 20
"""Bytes that a model for every client may take for ``state = "auto"`` to keep them in memory, where every checkpoint
writes all of them."""


def run(
    method: Method,
    federation: Federation,
    model: Model = "mlp",
    recipe: Recipe | None = None,
    *,
    rounds: int = 50,
    participation: float = 1.0,
    seed: int = 0,
    gradient: Gradient = "auto",
    engine: EngineName | Engine = "auto",
    workers: int = 0,
    state: Kept = "auto",
    eval_every: int | None = None,
    evaluate: Moment = "delivered",
    weighting: Literal["samples", "uniform"] = "samples",
    dropout: float = 0.0,
    join_late: str | None = None,
    min_answers: int = 1,
    over_selection: float = 1.0,
    aggregation: Literal["mean", "median", "trimmed", "krum", "norm"] = "mean",
    assumed_bad: float = 0.2,
    norm_factor: float = 1.0,
    secure_aggregation: bool = False,
    attack: Literal["none", "sign-flip", "scale", "random"] = "none",
    attackers: float = 0.0,
    describe_epsilon: float | None = None,
    dp_noise: float | None = None,
    dp_clip: float = 1.0,
    dp_delta: float = 1e-5,
    head: str | None = None,
    init_weights: Path | str | None = None,
    title: str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    table: dict[str, Any] | None = None,
    sources: Mapping[str, bytes] | None = None,
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
        gradient: "auto" (written out where the network is a chain of convolution, pooling, linear and ReLU layers) or
            "autograd".
        engine: "workers" (processes), "loop" (one client after another), "stacked" (many at once, on a GPU if
            there is one; ``Stacked(...)`` has its settings), "auto" (what is fastest here), or an
            engine of your own. ``summary["computed"]`` says what was taken.
        workers: processes, 0 for one per core; results do not depend on it.
        state: where clients' private states and the server's banks are kept: "memory", "file" (see
            `fedkin.storage.client_states` and `fedkin.storage.row_store`), or "auto": in files as soon as a model for
            every client takes more than 256 MiB. Results do not depend on it.
        eval_every: evaluate every so many rounds, and in each of the last ten.
        evaluate: score each client's model as it would predict now ("delivered"), or where that is another one right
            after its last local training ("trained"): see `fedkin.core.method.Moment`.
        weighting: clients weigh by training samples in means, or all the same.
        dropout: chance that a chosen client never answers.
        join_late: late joiners, such as ``"3@50"``.
        min_answers: a round with fewer usable answers is abandoned.
        over_selection: sample so many times the clients that a round needs and take those who answer first.
        aggregation: how uploads are merged: see `fedkin.core.robust`.
        assumed_bad: share of the uploads that may be false (trimmed, krum).
        norm_factor: longest difference to the middle that an upload may have, in median lengths (norm).
        secure_aggregation: uploads are added up as on real hosts, where the server learns sums and no single upload:
            see `fedkin.engines.secure`.
        attack: what attackers make of their updates: see `fedkin.engines.attacks`.
        attackers: share of the clients that attack; ``summary["attack"]["clients"]`` says which.
        describe_epsilon: noise on what clients say of their classes at joining: see `fedkin.engines.noise`.
        dp_noise, dp_clip, dp_delta: private training: see `fedkin.engines.private` and `fedkin.privacy`.
        head: the network's head by module name; by default the last linear layer.
        init_weights: a ``state_dict`` as safetensors file, the common start; by default random values.
        title: display name.
        out: run folder to write; None keeps everything in memory.
        resume: go on in ``out`` from its checkpoint.
        on_round: called after each round with its report and its line.
        table: the settings to write into the folder, if the run was made from a file or from flags.
        sources: files of one's own code that go with ``table``: file name -> content.

    Raises:
        DataError: all samples of the federation are of one class.
        ConfigError: a setting is out of range, or what the method keeps of so many clients fits neither memory nor disk
            (`fedkin.engines.needs`), or the method does not merge uploads as the aggregation would have it,
            or must see single ones, or tells more than the privacy options cover.
        ModelError: the network does not fit the data.
        RunFolderError: ``out`` exists already, or its checkpoint is damaged or of another run, or another process is
            writing into it.
        DiskFullError: there is no room left for the files in ``out``.
        ClientError: client code failed.
    """
    recipe = recipe or Recipe()
    settings = RunSettings(
        rounds=rounds,
        participation=participation,
        seed=seed,
        eval_every=eval_every,
        evaluate=evaluate,
        weighting=weighting,
        min_answers=min_answers,
        over_selection=over_selection,
        aggregation=aggregation,
        assumed_bad=assumed_bad,
        norm_factor=norm_factor,
        secure_aggregation=secure_aggregation,
        describe_epsilon=describe_epsilon,
        dp_noise=dp_noise,
        dp_clip=dp_clip,
        dp_delta=dp_delta,
    )
    plan = plan_of(settings)
    plan.require(method, len(federation))
    require_two_classes(federation)
    false, privacy = Attack(attack, attackers, seed), privacy_of(settings)
    make = factory(model, federation.shape, federation.classes, init_weights)
    net = Net(make, federation.shape, federation.classes, head=head, seed=seed)
    privacy.require(method, net)
    in_files = _in_files(state, net, len(federation))
    if not resume and 4 * net.size * len(federation) > IN_MEMORY:
        _require_room(method, net, recipe, len(federation), in_files, out)
    stays = isinstance(federation.clients, Shelf)  # on disk, each client's laid out when it is read
    shards = federation.clients if stays else [laid_out(net, shard) for shard in federation.clients]
    made = table or table_of(method, federation, model, recipe, plan, dropout, join_late, false, privacy, gradient)
    marks = {"config": digest(made), "data": federation.fingerprint(), "network": network_mark(net)}
    title, beside = title or method.title, _attacked(false, len(federation))
    beside |= {"notes": list(federation.notes)} if federation.notes else {}
    about = about_of(made, sizes_of(federation), net)
    course = Course(method, net, recipe, plan, federation, title, made, marks, beside, privacy, about)
    chance, joins = chance_of_dropout(dropout), join_rounds(len(federation), join_late)
    with one_thread(), ExitStack() as to_the_end:
        job = Job(method, net, recipe, shards, seed, gradient=gradient, outcomes=plan.outcomes_in, evaluate=evaluate)
        job = privacy.simulated(job)
        chosen, why = choose(engine, workers, job)
        beside["computed"] = f"{why}; {gradients(chosen, job)}"
        session = chosen.start(job)
        try:
            folder = None  # made last: whatever is wrong with the settings has been said by now
            if out is not None:
                to_the_end.enter_context(writing(Path(out)))
                to_the_end.enter_context(room(Path(out)))
                folder = opened(out, made) if resume else RunFolder.create(out, tomli_w.dumps(made), sources)
                if federation.preparation is not None:
                    folder.write("preparation", federation.preparation.to_json())
            store = States(None if folder is None else folder.states) if in_files else None
            banks = Banks(None if folder is None else folder.bank_files) if in_files else None
            simulation = Simulation(
                session, len(federation), seed=seed, dropout=chance, joins=joins, attack=false, store=store
            )
            result = follow(course, simulation, folder, on_round, banks)
            states, place = simulation.states(result.server.acks), result.folder
            result.played = Played(course, job, federation, joins, result.server, states, place)
            return result
        finally:
            session.close()


def run_settings(settings: Settings, federation: Federation | None = None, **more: Any) -> Result:
    """`run` from settings; ``more`` are further arguments of it (out, resume, on_round, title).

    Args:
        federation: the data that the settings name, where they have been read already.
    """
    federation = settings.data.federation(settings.run.seed) if federation is None else federation
    recipe, how = settings.recipe, {f.name: getattr(settings.run, f.name) for f in fields(settings.run)}
    title = more.pop("title", None) or get_title(settings.name)
    model, head = settings.model.model, settings.model.head
    more |= {"table": settings.table(), "sources": settings.sources(), "init_weights": settings.model.init_weights}
    return run(settings.method, federation, model, recipe, head=head, title=title, **how, **more)


def resume(folder: Path | str, on_round: OnRound | None = None, rounds: int | None = None) -> Result:
    """Goes on with an interrupted run from its folder, to the same result as if it had not been interrupted.

    Args:
        folder: the run's folder.
        on_round: called after each round with its report and its line.
        rounds: give the run, finished or not, this number of rounds, to the same result as if it had had them from the
            start (`fedkin.extending`).

    Raises:
        RunFolderError: no run folder, or its checkpoint or lines are damaged or do not belong to its config and data,
            or another process is writing into it.
        ConfigError: its config was made by a program, with a method, model or data that only that program has, or it is
            a run over real hosts; the rounds that are done are not the first ones of such a run.
    """
    found = RunFolder.open(folder)
    if (found.path / "clients.json").exists():
        raise ConfigError(
            f"{folder} is a run over real hosts, whose data and states are on them; go on with: fedkin submit {folder}"
        )
    with writing(found.path), room(found.path):  # refused before the data are read
        complete(found)
        table = read_toml(found.path / "config.toml")
        if "made_by" in table:
            raise ConfigError(
                f"{folder} was made by a program with {table['made_by']}; go on from that program: "
                f"fedkin.run(..., out={str(folder)!r}, resume=True)"
            )
        settings = settings_from(table, str(found.path / "config.toml"))
        if rounds is not None:
            settings = extend(found, settings, rounds, plan_of)
        return run_settings(settings, out=folder, resume=True, on_round=on_round)


def plan_of(run: RunSettings) -> Plan:
    """What the round loop is to do, from a run's settings."""
    return Plan(
        run.rounds,
        run.participation,
        max(1, run.rounds // 25) if run.eval_every is None else run.eval_every,
        run.weighting == "uniform",
        min_answers=run.min_answers,
        over_selection=run.over_selection,
        seed=run.seed,
        rule=Rule(run.aggregation, run.assumed_bad, run.norm_factor),
        secure=run.secure_aggregation,
        outcomes=not privacy_of(run).asked,
        evaluate=run.evaluate,
    )


def privacy_of(run: RunSettings) -> Privacy:
    """What a run promises single samples, from its settings."""
    return Privacy(run.describe_epsilon, run.dp_noise, run.dp_clip, run.dp_delta)


def _in_files(state: str, net: Net, clients: int) -> bool:
    """Whether states and banks go into files."""
    if state not in get_args(Kept):
        raise ConfigError(f"state must be one of {', '.join(map(repr, get_args(Kept)))}, got {state!r}")
    return state == "file" or (state == "auto" and 4 * net.size * clients > IN_MEMORY)


def _require_room(
    method: Method, net: Net, recipe: Recipe, clients: int, in_files: bool, out: Path | str | None
) -> None:
    """Raises `ConfigError` if what the method keeps cannot fit, before anything is trained."""
    with one_thread():
        found = needs(method, net, recipe)
    place = Path(tempfile.gettempdir()) if out is None else Path(out).absolute()
    while not place.exists():
        place = place.parent
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    short = found and found.shortage(clients, in_files=in_files, memory=memory, disk=shutil.disk_usage(place).free)
    if short:
        raise ConfigError(f"{type(method).__name__} does not fit: {short}")


def _attacked(attack: Attack, clients: int) -> dict[str, Any]:
    """What a summary says of attackers: who they are, so that figures can be told of the others."""
    return {"attack": {"kind": attack.kind, "clients": attack.clients(clients)}} if attack.share else {}


def laid_out(net: Net, shard: Shard) -> Shard:
    """The shard in the memory layout that the network is fastest on, once."""
    train, held, tested = (Data(net.layout(d.x), d.y) for d in (shard.train, shard.validation, shard.test))
    return replace(shard, train=train, validation=held, test=tested)
