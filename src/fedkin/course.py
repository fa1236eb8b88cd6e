"""One run being played, over whatever transport: its rounds, its folder, its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkin.config import decisive
from fedkin.core import Bundle, Method, Net, Recipe, RunFolderError
from fedkin.core.rows import kept_by
from fedkin.data import Federation
from fedkin.engines import Job, Plan, Report, Server, Transport, begin
from fedkin.engines import rounds as run_rounds
from fedkin.evaluate import best, diverged, final, latest
from fedkin.privacy import Privacy, Spent, add, total, written
from fedkin.records import People, lines_of
from fedkin.run_folder import RunFolder
from fedkin.storage.json_lines import Written
from fedkin.storage.row_store import Banks
from fedkin.storage.summary import understood, with_digests
from fedkin.toml import differences, read_toml
from fedkin.version import __version__

OnRound = Callable[[Report, dict[str, Any]], None]


@dataclass
class Result:
    """What a run gave.

    Attributes:
        title: the method's display name.
        seed: the run's seed.
        rounds, clients, relations: the lines of the files of the same names; those of clients are read from their file
            where the run keeps states in files, and are a list otherwise.
        final: mean over the rounds of `fedkin.evaluate.rounds.window`, which ``final["rounds"]`` names.
        best: the round that validation chose.
        summary: everything in short, as in ``summary.json``; ``diverged`` in it is the round from which on training
            has diverged (`fedkin.evaluate.diverged`), and is absent where it has not.
        server: the server after the last round, with all models.
        folder: where it was written, or None.
        played: what can be asked of the clients afterwards, in a simulation.
    """

    title: str
    seed: int
    rounds: list[dict[str, Any]]
    clients: Sequence[dict[str, Any]]
    relations: list[dict[str, Any]]
    final: dict[str, Any]
    best: dict[str, Any] | None
    summary: dict[str, Any]
    server: Server
    folder: Path | None = None
    played: Played | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Played:
    """A run after its last round, all clients with it: what `fedkin.exporting` takes models from.

    Attributes:
        course: what stayed the same.
        job: the clients' data, and how they train.
        federation: the data as they were given: names of classes and clients.
        joins: the round in which each client came.
        server: the server after the last round.
        states: every client's private state after it.
        folder: where the run was written, or None.
    """

    course: Course
    job: Job
    federation: Federation
    joins: Sequence[int]
    server: Server
    states: Mapping[int, Bundle]
    folder: Path | None = None


class Reached(Transport, Protocol):
    """A transport whose clients' private states can be stored with the server's, if they are to be had.

    Attributes:
        training_s: seconds that clients spent in local training in the last round, added up.
    """

    training_s: float

    def states(self, acks: Tensor) -> Mapping[int, Bundle]:
        """The clients' states that go with their uploads ``acks [K]``; none where clients keep their own."""

    def restore(self, states: Mapping[int, Bundle], acks: Tensor) -> None:
        """Puts clients back to stored states."""

    def take_spent(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """What private training took since the last call, as far as clients tell it: steps at each sampling rate.

        Args:
            counted: what former calls gave, added up, those of a former life of this run included.
        """


@dataclass(frozen=True)
class Course:
    """All that stays the same while a run is played.

    Attributes:
        people: who takes part, as far as a report wants to know.
        title: the method's display name.
        table: the settings.
        marks: fingerprints by which a checkpoint is recognised.
        about: what is said of each where it differs, as JSON.
        beside: what else the summary says.
        privacy: what is promised to single samples.
    """

    method: Method
    net: Net
    recipe: Recipe
    plan: Plan
    people: People
    title: str
    table: dict[str, Any]
    marks: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    privacy: Privacy = field(default_factory=Privacy)
    about: Mapping[str, str] = field(default_factory=dict)


def follow(
    p: Course, transport: Reached, folder: RunFolder | None, on_round: OnRound | None, banks: Banks | None = None
) -> Result:
    """Plays the rounds that are left, writing each down, and sums up.

    Args:
        banks: keeps the server's banks in files, those of the folder if there is one; None: in memory.

    Raises:
        RunFolderError: the checkpoint is damaged or of another run.
        MethodError: the method broke its contract.
    """
    with kept_by(banks):
        return _followed(p, transport, folder, on_round, banks)


def _followed(
    p: Course, transport: Reached, folder: RunFolder | None, on_round: OnRound | None, banks: Banks | None
) -> Result:
    kept: dict[str, list[dict[str, Any]]] = {"rounds": [], "clients": [], "relations": []}
    server = begin(p.method, p.net, p.plan)
    if folder is not None:
        folder.banks, folder.about = banks, p.about
        loaded = folder.load(p.marks)
        if loaded is not None:
            server, states = loaded
            transport.restore(states, server.acks)
        folder.lines.cut(server.round)
        if banks is not None:
            del kept["clients"]
        kept = {name: folder.lines.read(name) for name in kept}
    checked = folder is None or not folder.lines.unchecked
    where = Path() if folder is None else folder.path
    with understood(where, checked):
        held = best(kept["rounds"])
        counted = total(kept["rounds"])
        told = None if p.privacy.asked else _told(kept.get("clients"), folder)
    if folder is not None:
        folder.keep_best(_round(held))
    for report in run_rounds(p.method, p.net, p.recipe, transport, p.plan, server):
        lines = lines_of(report, p.people, told)
        if p.privacy.dp_noise is not None:
            spent = transport.take_spent(counted)
            lines.rounds[0]["dp_steps"] = written(spent)
            for i, steps in spent.items():
                add(counted.setdefault(i, {}), steps)
        for name, found in kept.items():
            found += getattr(lines, name)
        if folder is not None:
            seconds = {**report.seconds, "training": transport.training_s}
            timing = {"round": report.round, **{f"{name}_s": value for name, value in seconds.items()}}
            folder.lines.append({"rounds": lines.rounds, "clients": lines.clients, "relations": lines.relations,
                           "timing": [timing]})  # fmt: skip
            folder.save(server, transport.states(server.acks), p.marks)
            before, held = held, best([*([held] if held else []), *lines.rounds])
            if _round(held) != _round(before):
                folder.keep_best(_round(held))
        elif banks is not None:
            banks.saved(server.round, server.state)
        if on_round is not None:
            on_round(report, lines.rounds[0])
    with understood(where, checked):
        return _result(p, kept, server, folder)


def _round(chosen: Mapping[str, Any] | None) -> int | None:
    return None if chosen is None else int(chosen["round"])


def _told(clients: Sequence[Mapping[str, Any]] | None, folder: RunFolder | None) -> set[int]:
    """Clients whose samples by class are written down already."""
    if clients is None:
        clients = [] if folder is None else Written(folder.path / "clients.jsonl")
    return {line["client"] for line in clients if "labels" in line}


def _result(p: Course, kept: dict[str, list[dict[str, Any]]], server: Server, folder: RunFolder | None) -> Result:
    mean, chosen, lost = final(kept["rounds"]), best(kept["rounds"]), diverged(kept["rounds"])
    groups, names, classes = p.people.groups, p.people.client_names, p.people.labels
    summary = {
        "method": p.table["method"]["name"],
        "title": p.title,
        "seed": p.plan.seed,
        "rounds": server.round,
        "final": mean,
        "last": latest(kept["rounds"]),
        "best": chosen,
        **({} if lost is None else {"diverged": lost}),
        "bytes_up": sum(line["bytes_up"] for line in kept["rounds"]),
        "bytes_down": sum(line["bytes_down"] for line in kept["rounds"]),
        "bytes_evaluation": sum(line["bytes_evaluation"] for line in kept["rounds"]),
        "clients": {
            "count": len(p.people),
            "groups": None if groups is None else groups.tolist(),
            **({} if names is None else {"names": list(names)}),
            **({} if classes is None else {"classes": list(classes)}),
        },
        "fedkin": __version__,
        "config": p.table,
        **p.beside,
        **_noted(p, [line for line in kept["rounds"] if line["evaluated"]]),
        **({"privacy": p.privacy.summary(total(kept["rounds"]))} if p.privacy.asked else {}),
    }
    if folder is not None:
        if "made_by" not in p.table:
            summary.setdefault("command", f"fedkin run {folder.path / 'config.toml'}")
        folder.write("summary", with_digests(summary, folder.lines.digests(), folder.lines.unchecked))
    return Result(
        title=p.title,
        seed=p.plan.seed,
        rounds=kept["rounds"],
        clients=Written(folder.path / "clients.jsonl") if folder and "clients" not in kept else kept["clients"],
        relations=kept["relations"],
        final=mean,
        best=chosen,
        summary=summary,
        server=server,
        folder=None if folder is None else folder.path,
    )


def _noted(p: Course, evaluated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The notes of the data, and one where the run asks for another moment than the method has."""
    notes = list(p.beside.get("notes", ()))
    if p.plan.evaluate == "trained" and evaluated and not any("accuracy_delivered" in line for line in evaluated):
        notes.append(
            f'evaluate = "trained" changes nothing for {p.title}, which shows no model of the moment after local '
            "training: scored is what its clients would predict with now"
        )
    return {"notes": notes} if notes else {}


def opened(path: Path | str, table: dict[str, Any]) -> RunFolder:
    """The folder of this very run.

    Raises:
        RunFolderError: it is none, or one of another run.
    """
    folder = RunFolder.open(path)
    there, here = decisive(read_toml(folder.path / "config.toml")), decisive(table)
    if there != here:
        longer = {**here, "run": {**here["run"], "rounds": there["run"].get("rounds")}} == there
        more = f", or with another number of rounds: fedkin resume {folder.path} --rounds N" if longer else ""
        raise RunFolderError(
            f"{folder.path} belongs to a run with another config: {differences(there, here)}; resume it as it was "
            f"begun{more}"
        )
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread in this process: the same sums whatever the machine, and the cores are the workers'."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
