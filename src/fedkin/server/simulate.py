"""Clients on one machine: the transport of the round loop over an engine, with drop-outs and late joiners."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import torch

from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import Reason
from fedkin.core.seeds import generator
from fedkin.engines.tasks import Session, Task
from fedkin.privacy.secure_sum import NOT_SUMMABLE, OutOfRange, fixed
from fedkin.server.attacks import Attack
from fedkin.server.ledger import Ledger
from fedkin.server.messages import Message, Outcome

Filter = Callable[[int, Bundle], Bundle]
"""``(client, its description) -> what is sent of it``: noise on counts, for example."""


class StateStore(Protocol):
    """Storage of clients' private states. Ledgers hold what it returns instead of the states."""

    def put(self, client: int, seq: int, state: Bundle, committed: Bundle) -> Bundle:
        """Keep a client's state after its upload ``seq``, and also the ``committed`` one, which its ledger holds."""

    def get(self, client: int, held: Bundle) -> Bundle:
        """Return the state for which `put` returned ``held``; an empty one for an empty one."""

    def all(self, held: Mapping[int, Bundle], acks: torch.Tensor, changed: Collection[int]) -> Mapping[int, Bundle]:
        """Return the states of the clients in ``held``, some of which have ``changed`` since the last call."""

    def adopt(self, states: Mapping[int, Bundle], acks: torch.Tensor) -> Mapping[int, Bundle]:
        """Return what ledgers hold in a run that continues with these states, those after uploads ``acks [K]``."""


class InMemory:
    """A ledger holds the state itself."""

    def put(self, client: int, seq: int, state: Bundle, committed: Bundle) -> Bundle:
        """Return the state itself."""
        return state

    def get(self, client: int, held: Bundle) -> Bundle:
        """Return the state itself."""
        return held

    def all(self, held: Mapping[int, Bundle], acks: torch.Tensor, changed: Collection[int]) -> Mapping[int, Bundle]:
        """Return a copy of the mapping."""
        return dict(held)

    def adopt(self, states: Mapping[int, Bundle], acks: torch.Tensor) -> Mapping[int, Bundle]:
        """Return the states themselves."""
        return states


class Simulation:
    """All clients of a federation, each with a ledger, served by one engine.

    Args:
        session: an engine at work on the federation.
        clients: K.
        seed: of the drop-outs and of the attack.
        dropout: probability that a sampled client never answers.
        joins: the round in which each client joins; ascending. Default: all join in round 1.
        outgoing: changes clients' descriptions before they are sent.
        trace: clients that answer in each round, instead of drop-outs: those of another run, for example.
        absent: the clients that cannot be reached, by round; none by default.
        attack: how attackers change their uploads.
        store: where clients' states are kept; in memory by default.

    Attributes:
        ledgers: each client's memory.
        attackers: ids of the clients whose uploads are changed.
        training_s: seconds that clients spent in local training in the last round, added up.
        spent: private training since `take_spent`: each client's steps at each sampling rate.
    """

    def __init__(
        self,
        session: Session,
        clients: int,
        *,
        seed: int = 0,
        dropout: float = 0.0,
        joins: list[int] | None = None,
        outgoing: Filter | None = None,
        trace: Mapping[int, Collection[int]] | None = None,
        absent: Mapping[int, Collection[int]] | None = None,
        attack: Attack | None = None,
        store: StateStore | None = None,
    ) -> None:
        self._session, self._seed, self._outgoing, self._trace = session, seed, outgoing, trace
        self._away = absent or {}
        self._dropout = dropout
        self._joins = [1] * clients if joins is None else joins
        if len(self._joins) != clients or sorted(self._joins) != list(self._joins):
            raise ConfigError(f"joins must give the rounds of {clients} clients in ascending order, got {self._joins}")
        self._attack = attack or Attack()
        self.attackers = self._attack.clients(clients, seed)
        self.ledgers = [Ledger() for _ in range(clients)]
        self._store: StateStore = InMemory() if store is None else store
        self._held: dict[int, Bundle] = {}  # what ledgers hold of the states that the server believed in, last time,
        self._acks = torch.zeros(0, dtype=torch.int64)  # the uploads it knew of,
        self._touched: set[int] = set()  # and the clients that were written to since
        self._fresh: list[int] = []  # clients whose last answer is kept, for its message may come again
        self.training_s = 0.0
        self.spent: dict[int, dict[float, int]] = {}

    def available(self, round: int) -> list[int]:
        """Return the clients that have joined by this round and can be reached, ascending."""
        away = self._away.get(round, ())
        return [i for i, came in enumerate(self._joins) if came <= round and i not in away]

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Return the descriptions of the clients that join in this round, by number from ``known`` on."""
        new = [i for i in self.available(round) if i >= known]
        tasks = [Task("describe", i, round, Bundle(), Bundle()) for i in new]
        said = {a.client: a.reply for a in self._session.map(tasks)}
        filtered = said if self._outgoing is None else {i: self._outgoing(i, b) for i, b in said.items()}
        return {i: filtered[i] for i in sorted(filtered)}

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        """Return the replies to messages by client, and the reason for each client without one.

        Args:
            messages: what is sent, by client.
            enough: the number of replies after which no more are waited for; all by default.
        """
        answers: dict[int, Bundle] = {}
        missing = self._absent(messages, enough)
        tasks: list[Task] = []
        self._forget(messages)
        for i, m in messages.items():
            ledger = self.ledgers[i]
            if i in missing:
                if m.step == "update":
                    # it would train and its answer be lost: the next message rolls that back, so it need not be done
                    ledger.settle(m.ack)
            elif m.step != "update":
                tasks.append(Task(m.step, i, m.round, m.body, self._store.get(i, ledger.state(m.ack))))
            elif (former := ledger.begin(m.seq, m.ack)) is not None:
                answers[i] = former
            else:
                tasks.append(Task("update", i, m.round, m.body, self._store.get(i, ledger.committed)))
        if all(m.step == "update" for m in messages.values()):
            self.training_s = 0.0
        for answer in self._session.map(tasks):
            reply = answer.reply
            for rate, steps in answer.spent.items():
                mine = self.spent.setdefault(answer.client, {})
                mine[rate] = mine.get(rate, 0) + steps
            if messages[answer.client].step == "update":
                self.training_s += answer.training_s
                ledger, seq = self.ledgers[answer.client], messages[answer.client].seq
                ledger.propose(seq, self._store.put(answer.client, seq, answer.state, ledger.committed), reply)
                self._fresh.append(answer.client)
            answers[answer.client] = reply
        for i in self.attackers:
            if i in answers and messages[i].step == "update":
                answers[i] = self._attack.falsified(i, messages[i].round, messages[i].body, answers[i], self._seed)
        for i, m in messages.items():
            if i in answers and m.pool is not None:
                try:
                    answers[i] = fixed(answers[i], m.pool)
                except OutOfRange:
                    del answers[i]
                    missing[i] = NOT_SUMMABLE
        return answers, missing

    def take_spent(self, counted: Mapping[int, Mapping[float, int]]) -> dict[int, dict[float, int]]:
        """Return the private training since the last call, by client; it cannot have been ``counted`` before."""
        spent, self.spent = {i: self.spent[i] for i in sorted(self.spent)}, {}
        return spent

    def states(self, acks: torch.Tensor) -> Mapping[int, Bundle]:
        """Return every client's state as of the last upload that the server acknowledged."""
        known = min(len(acks), len(self._acks))
        changed = (acks[:known] != self._acks[:known]).nonzero().flatten().tolist()
        changed = sorted({*changed, *(i for i in self._touched if i < known), *range(known, len(acks))})
        for i in changed:
            self._held[i] = self.ledgers[i].state(int(acks[i]))
        self._touched.clear()
        self._acks = acks.clone()
        return self._store.all(self._held, acks, changed)

    def restore(self, states: Mapping[int, Bundle], acks: torch.Tensor) -> None:
        """Restore stored states of clients, those after their uploads ``acks [K]``; a client without one has none."""
        held = self._store.adopt(states, acks)
        for i, ack in enumerate(acks.tolist()):
            self.ledgers[i] = Ledger(committed=held.get(i, Bundle()), at=ack)
        self._held, self._acks = {}, torch.zeros(0, dtype=torch.int64)

    def _forget(self, messages: Mapping[int, Message]) -> None:
        """Drop answers to messages of former rounds, which cannot come again; else each client would keep a model."""
        seqs = {i: m.seq for i, m in messages.items() if m.step == "update"}
        if seqs:
            now = max(seqs.values())
            for i in self._fresh:
                if self.ledgers[i].seq < now:
                    self.ledgers[i].answer = None
            self._fresh = [i for i in self._fresh if self.ledgers[i].seq == now]
            self._touched.update(seqs)

    def _absent(self, messages: Mapping[int, Message], enough: int | None) -> dict[int, Reason]:
        """Return why clients do not answer: drop-outs, and those after ``enough`` others, in a drawn order."""
        missing = {i: Reason("expired") for i, m in messages.items() if m.step != "evaluate" and self._drops(i, m)}
        here = [i for i in messages if i not in missing]
        if enough is not None and len(here) > enough:
            rng = generator(self._seed, "arrival", messages[here[0]].round)
            order = torch.randperm(len(here), generator=rng).tolist()
            missing |= {here[at]: Reason("passed-over") for at in order[enough:]}
        return missing

    def _drops(self, client: int, m: Message) -> bool:
        if self._trace is not None and m.step == "update":
            return client not in self._trace.get(m.round, ())
        if not self._dropout:
            return False
        draw = torch.rand((), generator=generator(self._seed, "dropout", m.round, client))
        return float(draw) < self._dropout


def join_rounds(clients: int, late: str | None) -> list[int]:
    """Return the round in which each client joins, from a text such as ``3@50`` (three clients join in round 50).

    Late clients have the highest numbers. Several parts are separated by commas: ``3@50,2@80``.

    Raises:
        ConfigError: the text is of another form, or leaves no client for round 1.
    """
    rounds: list[int] = []
    for part in (late or "").split(",") if late else []:
        count, at, when = part.strip().partition("@")
        if not (at and count.isdigit() and when.isdigit() and int(count) >= 1 and int(when) >= 2):
            raise ConfigError(
                f"late_joiners must look like 3@50 (three clients join in round 50), got {part.strip()!r}"
            )
        rounds += [int(when)] * int(count)
    if len(rounds) >= clients:
        raise ConfigError(f"late_joiners lets {len(rounds)} of {clients} clients join late; at least one must be there")
    return [1] * (clients - len(rounds)) + sorted(rounds)
