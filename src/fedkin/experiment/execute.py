"""Execute a run over a transport: its rounds, its folder, its result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkin.capabilities.logs import caveat_of
from fedkin.core import Bundle, FedkinError, Method, MethodError, RunFolderError
from fedkin.core.code_lines import user_frames, user_line
from fedkin.core.errors import typed
from fedkin.core.rows import kept_by
from fedkin.evaluate import best, diverged, final, latest, stop_round
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.records import Participants, lines_of
from fedkin.experiment.result import FinalMetrics, Result
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import decisive
from fedkin.privacy.budget import Spent, add, total, written
from fedkin.server import Plan, RoundReport, RunSettings, Server, Transport, begin
from fedkin.server import rounds as run_rounds
from fedkin.storage.json_lines import SIZES, Written
from fedkin.storage.row_store import Banks
from fedkin.storage.toml import differences, read_toml
from fedkin.version import __version__

OnRound = Callable[[RoundReport, dict[str, Any]], None]
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
    folder: RunFolder | None = None,
    *,
    on_round: OnRound | None = None,
    banks: Banks | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Result:
    """Play the rounds that are left, writing each down, and sum up.

    Args:
        experiment: the run.
        people: its clients, as far as a report wants to know.
        transport: how they are reached.
        folder: where to write, and to go on from; None keeps everything in memory.
        on_round: called after each round with its report and its line.
        banks: keeps the server's banks in files, those of the folder if there is one; None: in memory.
        extra: what else the summary says.

    Raises:
        RunFolderError: the checkpoint is damaged or of another run.
        MethodError: the method broke its contract.
    """
    with kept_by(banks):
        return _executed(experiment, people, transport, folder, on_round, banks, extra or {})


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
        meant = (
            f"; expected {wrong}({', '.join(inspect.signature(getattr(Method, wrong)).parameters)})" if wrong else ""
        )
        raise MethodError(f"{step} of {e.title} failed {when}: {kind}{error}{user_line(error)}{meant}") from error


def _wrong_arguments(error: Exception) -> str:
    """Return the step that does not take the arguments of the call; "" if the error is another one."""
    found = re.search(r"(\w+)\(\) (?:takes|got|missing) ", str(error)) if type(error) is TypeError else None
    step = found[1] if found else ""
    return step if hasattr(Method, step) and not user_frames(error) else ""


def _rounds(e: Experiment, transport: StatefulTransport, server: Server) -> Iterator[RoundReport]:
    """Yield the reports of the rounds that are left."""
    reports = run_rounds(e.method, e.net, e.setup.training, transport, e.plan, server)
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
    folder: RunFolder | None,
    on_round: OnRound | None,
    banks: Banks | None,
    extra: Mapping[str, Any],
) -> Result:
    kept: dict[str, list[dict[str, Any]]] = {"rounds": [], "clients": [], "relations": []}
    with _server_code(e, 0):
        server = begin(e.method, e.net, e.plan)
    if folder is not None:
        folder.banks, folder.about = banks, e.about
        loaded = folder.load(e.marks)
        if loaded is not None:
            server, states = loaded
            transport.restore(states, server.acks)
        folder.lines.cut(server.round)
        del kept["relations"]  # of a method that mixes all clients' models, K x K numbers for each round
        if banks is not None:
            del kept["clients"]
        kept = {name: folder.lines.read(name) for name in kept}
    held = best(kept["rounds"])
    counted = total(kept["rounds"])
    ended = stop_round(kept["rounds"], e.plan.stop_after) is not None
    described = None if e.setup.privacy.asked else _with_counts(kept.get("clients"), folder)
    if folder is not None:
        folder.keep_best(_round(held))
    for report in () if ended else _rounds(e, transport, server):
        lines = lines_of(report, people, described)
        if e.setup.privacy.noise_multiplier is not None:
            spent = transport.take_spent(counted)
            lines.rounds[0]["dp_steps"] = written(spent)
            for i, steps in spent.items():
                add(counted.setdefault(i, {}), steps)
        for name, found in kept.items():
            found += getattr(lines, name)
        ended = is_last(e.plan, lines.rounds[0], kept["rounds"])
        if not ended:
            lines.drop_outcomes()
        if folder is not None:
            seconds = {**report.seconds, "training": transport.training_s}
            timing = {"round": report.round, **{f"{name}_s": value for name, value in seconds.items()}}
            folder.lines.append({"rounds": lines.rounds, "clients": lines.clients, "relations": lines.relations,
                           "timing": [timing]})  # fmt: skip
            folder.save(server, transport.states(server.acks), e.marks)
            before, held = held, best([*([held] if held else []), *lines.rounds])
            if _round(held) != _round(before):
                folder.keep_best(_round(held))
        elif banks is not None:
            banks.saved(server.round, server.state)
        if on_round is not None:
            on_round(report, lines.rounds[0])
        if ended:
            break
    return _result(e, people, kept, server, folder, extra)


def is_last(run: RunSettings, line: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a run ends with a round: with the last planned one, or early.

    Args:
        run: its settings.
        line: the line of the round.
        rounds: the lines of the rounds up to it.
    """
    return bool(line["round"] == run.rounds or (line["evaluated"] and stop_round(rounds, run.stop_after) is not None))


def _round(chosen: Mapping[str, Any] | None) -> int | None:
    return None if chosen is None else int(chosen["round"])


def _with_counts(clients: Sequence[Mapping[str, Any]] | None, folder: RunFolder | None) -> set[int]:
    """Return the clients whose samples by class are recorded already."""
    if clients is None:
        clients = [] if folder is None else Written(folder.path / "clients.jsonl")
    return {line["client"] for line in clients if "labels" in line}


def _result(
    e: Experiment,
    people: Participants,
    kept: dict[str, list[dict[str, Any]]],
    server: Server,
    folder: RunFolder | None,
    extra: Mapping[str, Any],
) -> Result:
    clients = Written(folder.path / "clients.jsonl") if folder and "clients" not in kept else kept["clients"]
    relations = kept["relations"] if folder is None else Written(folder.path / "relations.jsonl")
    mean = final(kept["rounds"], clients=lambda: clients)
    chosen, lost = best(kept["rounds"]), diverged(kept["rounds"])
    groups, names, classes = people.groups_in(server.round), people.client_names, people.labels
    summary = {
        "method": e.table["method"]["name"],
        "title": e.title,
        "seed": e.plan.seed,
        "rounds": server.round,
        "final": mean,
        "last": latest(kept["rounds"]),
        "best": chosen,
        **_stopped(e.plan, kept["rounds"], chosen),
        **({} if lost is None else {"diverged": lost}),
        "bytes_up": sum(line["bytes_up"] for line in kept["rounds"]),
        "bytes_down": sum(line["bytes_down"] for line in kept["rounds"]),
        "bytes_evaluation": sum(line["bytes_evaluation"] for line in kept["rounds"]),
        "clients": {
            "count": len(people),
            "groups": None if groups is None else groups.tolist(),
            **({} if names is None else {"names": list(names)}),
            **({} if classes is None else {"classes": list(classes)}),
        },
        "fedkin": __version__,
        "config": e.table,
        **extra,
        **_noted(e, server.state, extra, [line for line in kept["rounds"] if line["evaluated"]]),
        **({"privacy": e.setup.privacy.summary(total(kept["rounds"]))} if e.setup.privacy.asked else {}),
    }
    if folder is not None:
        if "made_by" not in e.table:
            summary.setdefault("command", f"fedkin run {typed(folder.path / 'config.toml')}")
        folder.write("summary", {**summary, SIZES: folder.lines.sizes()})
    return Result(
        title=e.title,
        seed=e.plan.seed,
        rounds=kept["rounds"],
        clients=clients,
        relations=relations,
        final=FinalMetrics(**mean),
        best=chosen,
        summary=summary,
        server=server,
        folder=None if folder is None else folder.path,
    )


def _stopped(plan: Plan, rounds: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None) -> dict[str, str]:
    """Return when and why the run ended early, as an entry of its summary; nothing if it did not."""
    last = stop_round(rounds, plan.stop_after)
    if last is None or last == plan.rounds or chosen is None:
        return {}
    why = f"no gain in validation accuracy since round {chosen['round']} (stop_after = {plan.stop_after})"
    return {"stopped": f"after round {last} of {plan.rounds}: {why}"}


def _noted(e: Experiment, s: Bundle, extra: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the notes of the data, the method's caveat, and whether the run asks for another moment than it has."""
    notes = [*extra.get("notes", ()), *filter(None, [caveat_of(e.method, e.net, s)])]
    if e.plan.evaluate == "trained" and scored and not any("accuracy_delivered" in line for line in scored):
        notes.append(
            f'evaluate = "trained" changes nothing for {e.title}, which shows no model of the moment after local '
            "training: scored is what its clients would predict with now"
        )
    return {"notes": notes} if notes else {}


def opened(path: Path | str, table: dict[str, Any]) -> RunFolder:
    """Open the folder of this run.

    Raises:
        RunFolderError: it is none, or one of another run.
    """
    folder = RunFolder.open(path)
    there, here = decisive(read_toml(folder.path / "config.toml")), decisive(table)
    if there != here:
        longer = {**here, "run": {**here["run"], "rounds": there.get("run", {}).get("rounds")}} == there
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
