"""One run of a method through the actual round loop, with all its results, so that two runs can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedkin.core import Bundle, ClientData, Method, Net, Training
from fedkin.core.refusals import Reason
from fedkin.engines import Engine, Job, Loop
from fedkin.server import Message, Outcome, Plan, RoundReport, Server, Simulation, begin, rounds
from fedkin.testing.toys import Kind, federation, network

Exchange = Callable[[Mapping[int, Message]], Outcome]
Touch = Callable[[Mapping[int, Message], Exchange], Outcome]
"""``(messages, pass_on) -> replies``: a change of a round's messages and their answers on the way."""


@dataclass(frozen=True)
class Setting:
    """The settings of a run except the method and the engine."""

    kind: Kind = "mlp"
    shards: tuple[ClientData, ...] = field(default_factory=federation)
    training: Training = field(default_factory=lambda: Training(epochs=2, batch_size=4, lr=0.1, momentum=0.5))
    plan: Plan = field(default_factory=lambda: Plan(rounds=4, participation=0.7, seed=1))
    dropout: float = 0.0
    joins: list[int] | None = None

    def network(self) -> Net:
        """Return the network of the run."""
        return network(self.kind)


@dataclass(frozen=True)
class Moment:
    """The complete state of a run between two rounds, in its own memory, as a checkpoint would hold it."""

    server: Server
    states: Mapping[int, Bundle]


@dataclass
class TrialRun:
    """The results of a run."""

    reports: list[RoundReport]
    moments: list[Moment]  # before the first round, then after each
    uploads: list[dict[int, Bundle]]  # answers to each round's messages, in order of arrival
    messages: list[dict[int, Message]]
    simulation: Simulation
    server: Server
    notes: list[str] = field(default_factory=list)  # what the engine's session says of the run, as `Stacked`'s does


class Wire:
    """The simulator's transport with a change of messages on the way, and a record of them."""

    def __init__(self, inner: Simulation, touch: Touch | None) -> None:
        self._inner, self._touch = inner, touch
        self.messages: list[dict[int, Message]] = []
        self.uploads: list[dict[int, Bundle]] = []

    def available(self, round: int) -> list[int]:
        """Return the clients that the simulator offers in this round."""
        return self._inner.available(round)

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Return the descriptions of the clients that join in this round."""
        return self._inner.joiners(known, round)

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        """Exchange messages through the change, and record those of updates with their answers."""
        if any(m.step == "evaluate" for m in messages.values()):
            return self._inner.exchange(messages)
        touch = self._touch or (lambda sent, pass_on: pass_on(sent))
        answers, missing = touch(messages, lambda sent: self._inner.exchange(sent, enough))
        if any(m.step == "update" for m in messages.values()):
            self.messages.append(dict(messages))
            self.uploads.append(dict(answers))
        return answers, missing


def play(
    method: Method,
    setting: Setting,
    engine: Engine | None = None,
    *,
    touch: Touch | None = None,
    since: Moment | None = None,
    stop: int | None = None,
    ambient: int = 0,
    net: Net | None = None,
) -> TrialRun:
    """Run a method to the end, or from a moment on, or until after a round.

    Args:
        method: the method.
        setting: settings of the run.
        ambient: seed of Python's and torch's global generators, on which no result may depend.
        net: the network of the setting, as another run used it. Default: a new one.
    """
    net = net or setting.network()
    with calm(ambient):
        plan = setting.plan
        job = Job(method, net, setting.training, setting.shards, plan.seed, rounds=plan.rounds)
        session = (engine or Loop()).start(job)
        try:
            simulation = Simulation(
                session,
                len(setting.shards),
                seed=setting.plan.seed,
                dropout=setting.dropout,
                joins=setting.joins,
            )
            server = begin(method, net, setting.plan) if since is None else copied(since).server
            if since is not None:
                simulation.restore(copied(since).states, server.acks)
            wire = Wire(simulation, touch)
            trial = TrialRun([], [_moment(server, simulation)], wire.uploads, wire.messages, simulation, server)
            for report in rounds(method, net, setting.training, wire, setting.plan, server):
                trial.reports.append(report)
                trial.moments.append(_moment(server, simulation))
                if report.round == stop:
                    break
        finally:
            session.close()
    trial.notes += getattr(session, "notes", [])
    return trial


@contextmanager
def calm(seed: int) -> Iterator[None]:
    """Use one thread and global generators of this seed inside; restore both afterwards."""
    threads, state = torch.get_num_threads(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(state)


def _moment(server: Server, simulation: Simulation) -> Moment:
    return copied(Moment(server, simulation.states(server.acks)))


def copied(m: Moment) -> Moment:
    """Return a copy in its own memory, as if it had been written to a file and read again."""
    s = m.server
    server = Server(s.state.owned(), s.round, s.sizes.clone(), s.described.owned(), s.acks.clone())
    return Moment(server, {i: b.owned() for i, b in m.states.items()})


def tensors(trial: TrialRun, rounds: Iterable[int] | None = None) -> dict[str, Tensor]:
    """Return all results of a run by readable names; reports of the given rounds only."""
    end, wanted = trial.moments[-1], None if rounds is None else set(rounds)
    out = {f"server state {n!r}": t for n, t in end.server.state.items()}
    out["rounds acknowledged"] = end.server.acks
    out |= {f"state {n!r} of client {i}": t for i, b in end.states.items() for n, t in b.items()}
    for report in trial.reports:
        if wanted is not None and report.round not in wanted:
            continue
        at = f"of round {report.round}"
        out[f"the cohort {at}"] = torch.tensor(report.cohort)
        out[f"the clients that answered {at}"] = torch.tensor(report.answered)
        out |= {f"the {n} {at}": t for n in ("weights", "clusters") if (t := getattr(report, n)) is not None}
        out |= {f"evaluation {n!r} of client {i} {at}": t for i, b in report.evaluation.items() for n, t in b.items()}
    return out


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor], within: float = 0.0) -> str | None:
    """Return the first difference between named tensors in words, or None if they are equal.

    Args:
        a, b: the tensors by name.
        within: tolerance for floating-point numbers, relative to their size where that is above 1.
    """
    if set(a) != set(b):
        return f"only one of them has {sorted(set(a) ^ set(b))[0]}"
    for name, t in a.items():
        other = b[name]
        if t.shape != other.shape or t.dtype != other.dtype:
            return f"{name} is {t.dtype} {list(t.shape)} in one and {other.dtype} {list(other.shape)} in the other"
        apart = t != other
        if within and t.is_floating_point():
            apart = ~torch.isclose(t, other, rtol=within, atol=within)
        if bool(apart.any()):
            where = tuple(apart.nonzero()[0].tolist())
            return (
                f"{name} differs in {int(apart.sum())} of {t.numel()} numbers, "
                f"first at {list(where)}: {t[where].item()} and {other[where].item()}"
            )
    return None


def lose(lost: Mapping[int, Sequence[int]]) -> Touch:
    """Return a change that loses the answers of these clients in these rounds, after the work was done."""

    def touch(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        for i, m in messages.items():
            if i in lost.get(m.round, ()) and i in answers:
                del answers[i]
                missing[i] = Reason("gone")
        return answers, missing

    return touch


def twice(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
    """Send every message twice; the second answer counts."""
    pass_on(messages)
    return pass_on(messages)
