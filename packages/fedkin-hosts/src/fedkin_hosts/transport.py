"""Transport of the round loop to real hosts: deadlines, late clients, and clients at another upload."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedkin.core import Bundle, DataError, EngineError, Net
from fedkin.core.refusals import UNUSED, Reason, Refused
from fedkin.data import Card, merge
from fedkin.data.card import misfit
from fedkin.experiment.settings import HostSettings, Settings
from fedkin.privacy.budget import Spent
from fedkin.server import Message, Outcome, RoundReport
from fedkin_hosts.heads import MOST_RATES, Evaluated, Updated, WireMessage
from fedkin_hosts.joining import Clock, Enrolment
from fedkin_hosts.messages import Channel, Clerk, NoSetup, OtherKey, OtherUpload, Reply
from fedkin_hosts.participants import Members

log = logging.getLogger("fedkin_hosts")
_GREETING = 10.0  # seconds that a start of the server waits for unknown nodes to say hello; later rounds do not wait
_WAY = 10.0  # seconds allowed for the transport of a message and its answer: a node asks for messages every 3 seconds
_RETURN = 120.0  # seconds that a restarted server waits for its clients, which connect again after a while
_REMINDER = 30.0  # seconds between two log lines that list the clients still awaited
_MOST = 1000  # number of pending answers that are remembered


class Suspects:
    """Names of the late clients, and by ticket those whose answers may still arrive (``owed``)."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.owed: dict[str, str] = {}  # ticket: name

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def missed(self, name: str, ticket: str) -> None:
        """Record that a client's answer did not arrive while it was waited for."""
        self._names.add(name)
        self.owed[ticket] = name
        while len(self.owed) > _MOST:
            del self.owed[next(iter(self.owed))]

    def passed_over(self, name: str, ticket: str) -> None:
        """Record that others answered first and this client was not waited for, which is not a fault of the client."""
        if name in self._names:
            self.missed(name, ticket)

    def record(self, name: str, got: WireMessage | str) -> None:
        """Record that an answer arrived in time. A step that had to be ended at its deadline makes the client late."""
        if isinstance(got, WireMessage) and got.head.get("code") == "deadline":
            self._names.add(name)
        else:
            self._names.discard(name)

    def late(self, ticket: str, got: WireMessage | str) -> None:
        """Record that a pending answer has arrived: the client works again, so its next answer is waited for."""
        name = self.owed.pop(ticket, None)
        if name is not None and isinstance(got, WireMessage):
            self.record(name, got)


@dataclass
class _Exchange:
    """Messages of one step and what has come of them.

    Attributes:
        messages: by client.
        end: deadline of all answers.
        open: clients whose answers are awaited, by ticket.
        answers, missing: by client.
        renewed, inline: clients that were asked again: from the upload that they know, and with the run's setup.
    """

    messages: Mapping[int, Message]
    end: float
    open: dict[str, int] = field(default_factory=dict)
    answers: dict[int, Bundle] = field(default_factory=dict)
    missing: dict[int, Reason] = field(default_factory=dict)
    renewed: set[int] = field(default_factory=set)
    inline: set[int] = field(default_factory=set)


class Fleet:
    """A transport over clients on their own hosts.

    Args:
        post: the channel to the nodes.
        settings: the run's settings.
        members: the clients of the run so far; written to disk at every change.

    Attributes:
        training_s: total seconds of local training in the last round, as reported by the clients.
    """

    def __init__(self, post: Channel, settings: Settings, members: Members, clock: Clock | None = None) -> None:
        self._post, self.members, self._clock = post, members, clock or Clock()
        self._hosts: HostSettings = settings.hosts
        self._clerk = Clerk(settings, members, members.next_session())
        self._roll = Enrolment(post, self._clerk, self._say, self._clock)
        self._net: Net | None = None
        self._suspects = Suspects()
        self._instead: dict[int, tuple[int, int]] = {}  # client: (the server's ack, the one that the client knows)
        self._spent: dict[int, dict[float, int]] = {}  # all private training in this run, as last reported
        self.training_s = 0.0

    # ---- before the first round -----------------------------------------------------------------------------------
    def gather(self) -> Card:
        """Wait for enough clients and return the card that their data have in common.

        A single client whose card contradicts the cards of all others is refused, and the run waits for another client.
        A run that has rounds behind it gives its clients time to connect again; then its next round decides for whom
        it waits, as every round does.

        Raises:
            EngineError: fewer clients than wanted came within the timeout.
            DataError: their data have nothing in common that one network could be made for.
        """
        if self.members.listed:
            self._wait(min(self._hosts.min_clients, len(self.members)), 0, _GREETING, _RETURN)
        else:
            self._wait_for_all()
        while self.members.card is None:
            cards = {name: self._roll.new[name].card for name in sorted(self._roll.new)}
            try:
                self.members.card = merge(cards)
                self.members.save()
            except DataError as e:
                if (odd := misfit(cards)) is None:
                    raise
                self._roll.leave_out(odd, Reason("misfit", value=str(e)))
                self._wait_for_all()
        return self.members.card

    def _wait_for_all(self) -> None:
        wanted = self._hosts.min_clients
        self._wait(wanted, 0, _GREETING)
        here = sorted(self._roll.here())
        if len(here) < wanted:
            raise EngineError(
                f"waited {self._hosts.wait_timeout:g} s for {wanted} clients; there are {len(here)}: "
                f"{', '.join(here) or 'none'}. Start the others (fedkin node; events.jsonl names refused ones), or "
                "lower [hosts] min_clients"
            )

    def open(self, net: Net, mark: str) -> None:
        """Set the network that clients work with from here on; ``mark`` is its fingerprint."""
        self._net, self._clerk.network = net, mark

    # ---- the transport --------------------------------------------------------------------------------------------
    def available(self, round: int) -> list[int]:
        """Return the numbers of the connected clients, after waiting for the required number of them."""
        numbers = self.members.number_of()
        self._wait(self._hosts.min_connected, round, 0)
        return sorted(numbers[name] for name in self._roll.here() if name in numbers)

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Return the descriptions of joining clients by the numbers that they get; ``known`` clients have one.

        The first clients of a run get numbers when enough of them have described themselves.

        Raises:
            EngineError: fewer clients than wanted for the first round came within the timeout.
        """
        assert self._net is not None
        assert known == len(self.members)
        least = 0 if known else self._hosts.min_clients
        self._roll.meet(round, 0 if known else _GREETING)
        result = self._roll.take_in(self._net, known, round, least)
        while len(self.members) < least:
            self._wait_for_all()
            result = self._roll.take_in(self._net, known, round, least)
        return result

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        """Send messages to clients and collect their answers until the deadline, or until ``enough`` have arrived.

        Returns:
            The answers by client, and for each other client the reason why there is none.
        """
        self._roll.look()
        if any(m.step == "update" for m in messages.values()):
            self.training_s = 0.0
        x, since = _Exchange(messages, self._clock.now() + self._hosts.reply_timeout), self._clock.now()
        self._send(x, list(messages))
        reminded = self._clock.now()
        for_all = any(m.pool is not None for m in messages.values())  # a secure sum needs late clients as well
        while x.open and self._clock.now() < x.end and (for_all or self._awaited(x, enough)):
            self._roll.listen()
            self._send(x, self._collected(x))
            if x.open:
                reminded = self._remind(x.open, reminded)
                self._clock.pause(since, x.end)
        for ticket, i in x.open.items():
            late = enough is not None and len(x.answers) >= enough
            x.missing[i] = Reason("passed-over" if late else "expired")
            (self._suspects.passed_over if late else self._suspects.missed)(self._name(i), ticket)
        return {i: x.answers[i] for i in sorted(x.answers)}, x.missing

    def take_spent(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """Return the private training steps beyond those already ``counted``, as far as clients have reported them."""
        result: dict[int, dict[float, int]] = {}
        for i, spent in sorted(self._spent.items()):
            before = counted.get(i, {})
            more = {rate: n - before.get(rate, 0) for rate, n in spent.items() if n > before.get(rate, 0)}
            if more and len({**before, **more}) <= MOST_RATES:
                result[i] = more
        return result

    def note(self, report: RoundReport) -> None:
        """Log the clients of a round whose answers were not used or did not arrive, or that claim too many samples."""
        self.note_refused(report.round, report.refused)
        for i, (claimed, used) in sorted(report.limited.items()):
            share = f"{100 * self._hosts.max_share:g} % of the round's ([hosts] max_share)"
            self._say(report.round, self._name(i), f"claims {claimed} samples, more than {share}: {used} are used")

    def note_refused(self, round: int, refused: Iterable[Refused]) -> None:
        """Log answers that were not used or did not arrive."""
        for one in refused:
            self._say(round, self._name(one.client), f"{one.stage}: {'refused: ' if one.code in UNUSED else ''}{one}")

    def states(self, acks: Tensor) -> dict[int, Bundle]:
        """Return an empty mapping: every client keeps its state on its own disk."""
        return {}

    def restore(self, states: Mapping[int, Bundle], acks: Tensor) -> None:
        """Do nothing: the next messages state the upload from which each client continues."""

    # ---- one exchange ---------------------------------------------------------------------------------------------
    def _send(self, x: _Exchange, whom: Iterable[int]) -> None:
        seconds, outgoing, number = x.end - self._clock.now(), dict[int, WireMessage](), dict[int, int]()
        for i in whom:
            node = self._roll.place(self._name(i))
            if node is None or seconds <= 0:
                x.missing[i] = Reason("gone" if node is None else "expired")
                continue
            m = x.messages[i]
            work = seconds - min(_WAY, seconds / 4)
            ack = self._ack(i, m)
            outgoing[node] = self._clerk.write(
                m.step, m.round, work, client=i, seq=m.seq, ack=ack, body=m.body, pool=m.pool, inline=i in x.inline
            )
            number[node] = i
        tickets = self._post.post(outgoing, seconds) if outgoing else {}
        for node, i in number.items():
            if node in tickets:
                x.open[tickets[node]] = i
            else:
                x.missing[i] = Reason("undelivered")

    def _collected(self, x: _Exchange) -> list[int]:
        """Sort the answers that have arrived; return the clients to ask again: from the upload that they know, or with
        the run's setup.

        A client is asked again once for each in an exchange: one that reports yet another upload could keep all others
        waiting.
        """
        again: list[int] = []
        for ticket, got in self._post.collect([*x.open, *self._suspects.owed]).items():
            if ticket not in x.open:
                self._suspects.late(ticket, got)
                continue
            i = x.open.pop(ticket)
            m, name = x.messages[i], self._name(i)
            result = self._clerk.read(got, m.step, name, m.seq)
            if not isinstance(result, OtherUpload | NoSetup):  # a suspect that is asked again stays one
                self._suspects.record(name, got)
            if isinstance(result, Reply):
                x.answers[i] = result.body
                self.training_s += result.head.training_s if isinstance(result.head, Updated) else 0.0
                if isinstance(result.head, Evaluated) and result.head.spent:
                    self._spent[i] = {step.rate: step.count for step in result.head.spent}
            elif isinstance(result, OtherUpload) and result.have == self._ack(i, m):
                x.missing[i] = Reason("newer-start")
            elif isinstance(result, OtherUpload) and i in x.renewed:
                self._suspects.missed(name, ticket)
                x.missing[i] = Reason("two-uploads")
            elif isinstance(result, OtherUpload):
                goes_on = f"goes on from upload {result.have}" if result.have else "joins again: its disk was lost"
                self._say(m.round, name, f"does not know upload {self._ack(i, m)} and {goes_on}")
                self._instead[i] = (m.ack, result.have)
                x.renewed.add(i)
                again.append(i)
            elif isinstance(result, NoSetup):
                if i in x.inline:
                    x.missing[i] = Reason("garbled")
                else:
                    x.inline.add(i)
                    again.append(i)
            elif isinstance(result, OtherKey):
                self.members.goes_public(i, result.public, result.signature)
                x.missing[i] = Reason("new-key")
            else:
                x.missing[i] = result
        return again

    def _ack(self, i: int, m: Message) -> int:
        """Return the upload that a client continues from: the server's ack, or the one that the client reported."""
        server, client = self._instead.get(i, (-1, 0))
        return client if server == m.ack else m.ack

    def _awaited(self, x: _Exchange, enough: int | None) -> bool:
        """Return whether to wait on: not if enough have answered, and for late clients only if there are no others."""
        if enough is not None and len(x.answers) >= enough:
            return False
        return any(self._name(i) not in self._suspects for i in x.open.values()) or not x.answers

    def _remind(self, open: Mapping[str, int], reminded: float) -> float:
        if self._clock.now() - reminded < _REMINDER:
            return reminded
        log.info("waiting for %s", ", ".join(sorted(self._name(i) for i in open.values())))
        return self._clock.now()

    def _wait(self, wanted: int, round: int, greeting: float, most: float = math.inf) -> None:
        """Wait until ``wanted`` clients are connected, or the timeout or ``most`` seconds are over; first ``greeting``
        seconds for those that have not said hello."""
        end, reminded = self._clock.now() + min(self._hosts.wait_timeout, most), float("-inf")
        self._roll.meet(round, greeting)
        while len(here := self._roll.here()) < wanted and self._clock.now() < end:
            if self._clock.now() - reminded >= _REMINDER:
                log.info("%d of %d clients are connected: %s", len(here), wanted, ", ".join(sorted(here)) or "none")
                reminded = self._clock.now()
            self._clock.sleep(10 * self._clock.poll)
            self._roll.meet(round, 0)

    def _name(self, i: int) -> str:
        return self.members.listed[i].client

    def _say(self, round: int, name: str, text: str) -> None:
        log.warning("round %d, %s: %s", round, name, text)
        line = {"round": round, "client": name, "what": text}
        with (self.members.path.parent / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
