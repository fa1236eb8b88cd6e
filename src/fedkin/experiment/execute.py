"""Execute a run over a transport: its rounds, its folder, its result."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Protocol

import torch
from msgspec.structs import replace
from torch import Tensor

from fedkin.capabilities.logs import caveat_of
from fedkin.core import Bundle, FedkinError, Method, MethodError, RunFolderError
from fedkin.core.errors import typed, user_frames, user_line
from fedkin.core.grammar import Table, subtable
from fedkin.core.rows import kept_by
from fedkin.core.settings import RunSettings
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.records import Participants, lines_of
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import decisive
from fedkin.privacy.budget import Spent, add, total
from fedkin.record.figures import best, evaluated, stop_round
from fedkin.record.lines import ClientLine, Ended, RelationLine, RoundLine, RunLine, TimingLine
from fedkin.record.result import Result
from fedkin.server import RoundReport, Server, Transport, begin
from fedkin.server import rounds as run_rounds
from fedkin.storage.banks import Banks
from fedkin.storage.toml import differences, read_toml

OnRound = Callable[[RoundReport, RoundLine], None]
_TURNS = RLock()  # a run may make another run


class StatefulTransport(Transport, Protocol):
    """A transport whose clients' private states can be stored with the server's, if they are to be had.

    Attributes:
        training_s: seconds that clients spent in local training in the last round, added up.
    """

    training_s: float

    def states(self, acks: Tensor) -> Mapping[int, Bundle]:
        """Return the clients' states after their uploads ``acks [K]``; empty where clients store their own."""

    def restore(self, states: Mapping[int, Bundle], acks: Tensor) -> None:
        """Restore the states of clients."""

    def take_spent(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """Return the private training since the last call that clients reported: steps at each sampling rate.

        Args:
            counted: the sum of former calls, those before an interruption of this run included.
        """


def execute(
    experiment: Experiment,
    people: Participants,
    transport: StatefulTransport,
    about: RunLine,
    folder: RunFolder | None = None,
    *,
    on_round: OnRound | None = None,
    banks: Banks | None = None,
) -> Result:
    """Play the rounds that are left, writing each down; return the result.

    Args:
        experiment: the run.
        people: its clients, as far as a report wants to know.
        transport: how they are reached.
        about: what the run is; the clients' number, names and groups are filled in.
        folder: where to write, and to go on from; None keeps everything in memory.
        on_round: called after each round with its report and its line.
        banks: keeps the server's banks in files, those of the folder if there is one; None: in memory.

    Raises:
        RunFolderError: a file is damaged, or the folder is of another run.
        MethodError: the method broke its contract.
    """
    with kept_by(banks):
        return _executed(experiment, people, transport, about, folder, on_round, banks)


@contextmanager
def _server_code(e: Experiment, round: int) -> Iterator[None]:
    """Name step, round and line where a user's server code fails; the original error is the cause.

    Raises:
        MethodError: instead of the error. Those of the system and of other code stay as they are, and those that fedkin
            raises but for misuse by a step.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        frames, wrong = user_frames(error), _wrong_arguments(error)
        if not (frames or wrong) or (isinstance(error, FedkinError) and type(error) is not MethodError):
            raise
        step = wrong or (frames[0].name if hasattr(Method, frames[0].name) else "a step of the server")
        when = f"in round {round}" if round else "before the first round"
        kind = "" if isinstance(error, MethodError) else f"{type(error).__name__}: "
        hint = f"; expected {wrong}({', '.join(inspect.signature(getattr(Method, wrong)).parameters)})" if wrong else ""
        raise MethodError(f"{step} of {e.title} failed {when}: {kind}{error}{user_line(error)}{hint}") from error


def _wrong_arguments(error: Exception) -> str:
    """Return the step that does not take the arguments of the call; "" if the error is another one."""
    result = re.search(r"(\w+)\(\) (?:takes|got|missing) ", str(error)) if type(error) is TypeError else None
    step = result[1] if result else ""
    return step if hasattr(Method, step) and not user_frames(error) else ""


def _rounds(e: Experiment, transport: StatefulTransport, server: Server) -> Iterator[RoundReport]:
    """Yield the reports of the rounds that are left."""
    reports = run_rounds(e.method, e.net, e.settings.training, transport, e.plan, server)
    while True:
        with _server_code(e, server.round + 1):
            report = next(reports, None)
        if report is None:
            return
        yield report


def _executed(
    e: Experiment,
    people: Participants,
    transport: StatefulTransport,
    about: RunLine,
    folder: RunFolder | None,
    on_round: OnRound | None,
    banks: Banks | None,
) -> Result:
    about = replace(about, marks=dict(e.marks), about=dict(e.about))
    with _server_code(e, 0):
        server = begin(e.method, e.net, e.plan)
    rounds, clients, relations = list[RoundLine](), list[ClientLine](), list[RelationLine]()
    if folder is not None:
        folder.banks = banks
        loaded = folder.load(e.marks, e.about)
        if loaded is not None:
            server, states = loaded
            transport.restore(states, server.acks)
        rounds = list(folder.rounds())
    counted = total(line.private for line in rounds)
    ended = _end_after(e.plan, rounds)
    described = None if e.settings.privacy.asked else set[int]()
    if folder is not None:
        if described is not None:
            described |= {line.client for line in folder.clients() if line.labels}
        if not ended:
            folder.describe(_described(about, people, server.round))
    for report in () if ended else _rounds(e, transport, server):
        spent = {} if e.settings.privacy.noise_multiplier is None else transport.take_spent(counted)
        for i, steps in spent.items():
            add(counted.setdefault(i, {}), steps)
        lines = lines_of(report, people, described, spent)
        rounds.append(lines.round)
        if not (ended := _end_after(e.plan, rounds)):
            lines.drop_outcomes()
        if folder is not None:
            took = {"whole" if name == "round" else name: s for name, s in report.seconds.items()}
            seconds = TimingLine(report.round, **took, training=transport.training_s)
            if report.joined:
                folder.describe(_described(about, people, server.round))
            folder.append(lines, seconds)
            held = best(rounds)
            folder.save(server, transport.states(server.acks), ended, best=None if held is None else held.round)
        else:
            clients += lines.clients
            relations += lines.relations
            transport.states(server.acks)  # former ones are deleted
            if banks is not None:
                banks.forget(server.state)
        if on_round is not None:
            on_round(report, lines.round)
        if ended:
            break
    whole = _described(about, people, server.round, [*about.notes, *_caveats(e, server.state, rounds)])
    if folder is not None:
        folder.describe(whole)
        result = Result.open(folder.path)
        folder.write("summary", result.summary)
        return dataclasses.replace(result, server=server)
    return Result(
        run=whole, config=e.table, rounds=rounds, clients=clients, relations=relations, ended=ended, server=server
    )


def _end_after(run: RunSettings, rounds: Sequence[RoundLine]) -> Ended:
    """Return why a run ends with its last round so far; "" if it goes on."""
    if rounds and rounds[-1].round == run.rounds:
        return "rounds"
    return "" if stop_round(rounds, run.stop_after) is None else "early"


def _described(about: RunLine, people: Participants, round: int, notes: Sequence[str] | None = None) -> RunLine:
    """Return what the run is, with what is known of its clients in a round."""
    groups = people.groups_in(max(1, round))
    return replace(
        about,
        clients=len(people),
        names=people.client_names or (),
        classes=people.labels or (),
        groups=() if groups is None else tuple(groups.tolist()),
        notes=about.notes if notes is None else tuple(notes),
    )


def _caveats(e: Experiment, s: Bundle, rounds: Sequence[RoundLine]) -> list[str]:
    """Return the method's caveat, and whether the run asks for another moment than it has."""
    notes = [caveat] if (caveat := caveat_of(e.method, e.net, s)) else []
    scored = evaluated(rounds)
    if e.plan.evaluate == "trained" and scored and not any("delivered" in f.views for _, f in scored):
        notes.append(
            f'evaluate = "trained" changes nothing for {e.title}, which shows no model of the moment after local '
            "training: scored is what its clients would predict with now"
        )
    return notes


def opened(path: Path | str, table: Table) -> RunFolder:
    """Open the folder of this run, to go on in it.

    Raises:
        RunFolderError: it is none, or one of another run.
    """
    folder = RunFolder.open(path)
    folder.recover()
    there, here = decisive(read_toml(folder.path / "config.toml")), decisive(table)
    if there != here:
        longer = {**here, "run": {**subtable(here, "run"), "rounds": subtable(there, "run").get("rounds")}} == there
        more = f", or with another number of rounds: fedkin resume {typed(folder.path)} --rounds N" if longer else ""
        raise RunFolderError(
            f"{folder.path} belongs to a run with another config: {differences(there, here)}; resume it as it was "
            f"begun{more}"
        )
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread in this process, in torch's usual modes: the same sums whatever the machine and the program around,
    and the cores are the workers'.

    Other threads wait: torch's random numbers, number of threads and tracing of modules are the process's.
    """
    with _TURNS:
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        try:
            with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
                yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
