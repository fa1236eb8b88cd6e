"""Enrolment of clients: nodes are greeted, checked, pinned to their keys, and their clients get numbers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fedkin.core import Bundle, ConfigError, Net
from fedkin.core.bundle import refusal
from fedkin.core.refusals import Code, Reason, outside
from fedkin.data import Card
from fedkin.experiment.settings import method_of
from fedkin.server.upload_checks import described
from fedkin_hosts import heads
from fedkin_hosts.allowed_code import unlike, versions
from fedkin_hosts.client_memory import checked_name
from fedkin_hosts.heads import WireError, WireMessage
from fedkin_hosts.messages import Channel, Clerk, Reply, attempt
from fedkin_hosts.participants import Member

log = logging.getLogger("fedkin_hosts")
_HELLO = 60.0  # seconds for the answer to a hello: reading the data for the first time may take long
_AGAIN = 15.0  # seconds before a node that could not be taken is greeted again
_TRIES = 5  # failed descriptions of one key before its client is refused
_RARELY = 1.0  # longest pause between two looks in seconds: 20 looks a second take a tenth of a core at the link
_COUNTS = 1e12  # larger numbers in a client's description are refused
_PASSING: frozenset[Code] = frozenset({"expired", "disk", "died", "deadline", "undelivered", "gone"})
"""Reasons of a failed description that may have passed when the client is asked again."""

Printer = Callable[[int, str, str], None]
"""``(round, client, text)``: an event that concerns a client."""


@dataclass(frozen=True)
class JoiningClient:
    """A joining client: it has answered the hello and has no number yet; ``said`` is its description."""

    node: int
    key: str
    card: Card
    public: str = ""
    signature: str = ""
    said: Bundle | None = None


@dataclass(frozen=True)
class Clock:
    """The system's clock, which tests replace so that they need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll: float = 0.05

    def pause(self, since: float, end: float) -> None:
        """Sleep until the next look for answers: at most 2 % of the time waited so far, and shorter near the end."""
        now = self.now()
        self.sleep(max(self.poll, min(_RARELY, (now - since) / 50, (end - now) / 2)))


@dataclass(frozen=True)
class _Pending:
    """A message to a node whose answer is awaited until ``end``; ``name``: its client, once that is known."""

    node: int
    end: float
    name: str = "?"


class Enrolment:
    """Connected clients by name, on whichever node they are.

    Attributes:
        node: the node on which each client was last seen.
        new: joining clients, which have answered the hello and have no number yet.
    """

    def __init__(self, post: Channel, clerk: Clerk, say: Printer, clock: Clock) -> None:
        self._post, self._clerk, self._say, self._clock = post, clerk, say, clock
        self._ours = versions(method_of(clerk.settings))
        self._keys: Mapping[int, str] = {}
        self._done: set[int] = set()  # nodes that need no greeting: enrolled, or refused permanently
        self._greeted: dict[int, float] = {}
        self._hellos: dict[str, _Pending] = {}  # pending greetings, by ticket
        self._nameless: set[int] = set()  # nodes without a registered name that were reported
        self._asked: dict[str, _Pending] = {}  # pending requests for descriptions, by ticket
        self._arrived: dict[str, WireMessage | Code] = {}  # answers to both that are not read yet
        self._failed: dict[str, int] = {}  # failed descriptions, for reasons that may pass, by key (else by name)
        self.node: dict[str, int] = {}
        self.new: dict[str, JoiningClient] = {}

    def here(self) -> set[str]:
        """Return the names of the connected clients, with and without numbers."""
        return {name for name, node in self.node.items() if node in self._keys}

    def place(self, client: str) -> int | None:
        """Return the node of a client, or None if it is not connected."""
        node = self.node.get(client)
        return node if node in self._keys else None

    def look(self) -> None:
        """Update the list of connected nodes."""
        self._keys = self._post.nodes()
        self._done &= set(self._keys)

    def listen(self) -> None:
        """Fetch the answers of unknown nodes and joining clients before they expire; the next round reads them."""
        if pending := [ticket for ticket in (*self._hellos, *self._asked) if ticket not in self._arrived]:
            self._arrived |= self._post.collect(pending)

    def _answers(self, tickets: Collection[str]) -> dict[str, WireMessage | Code]:
        self.listen()
        return {ticket: self._arrived.pop(ticket) for ticket in [*tickets] if ticket in self._arrived}

    def meet(self, round: int, seconds: float) -> None:
        """Greet unknown nodes and wait for answers at most ``seconds``; later answers are read in later rounds."""
        self.look()
        now, under_way = self._clock.now(), {hello.node for hello in self._hellos.values()}
        strange = [
            n for n in self._keys
            if n not in self._done and n not in under_way and now - self._greeted.get(n, -_AGAIN) >= _AGAIN
        ]  # fmt: skip
        self._greeted |= dict.fromkeys(strange, now)
        messages = {n: self._clerk.write("hello", round, _HELLO, inline=True) for n in strange}
        for node, ticket in (self._post.post(messages, _HELLO) if messages else {}).items():
            self._hellos[ticket] = _Pending(node, now + _HELLO)
        while self._hellos:
            for ticket, got in self._answers(self._hellos).items():
                self._welcome(round, self._hellos.pop(ticket), got)
            if not self._hellos or self._clock.now() >= now + seconds:
                break
            self._clock.sleep(self._clock.poll)
        for ticket in [ticket for ticket, hello in self._hellos.items() if hello.end <= self._clock.now()]:
            self._expired(round, self._hellos.pop(ticket).node)

    def take_in(self, net: Net, known: int, round: int, least: int = 0) -> dict[int, Bundle]:
        """Give numbers to joining clients in the order of their names and return their descriptions by number.

        The first clients of a run are waited for. Later ones are asked and not waited for: they join in a round before
        which their description has arrived. With fewer than ``least`` clients in all, none gets a number: they stay
        among the joining clients, so that numbers follow the names of all when the others have come.
        """
        members = self._clerk.members
        schema = described(method_of(self._clerk.settings), net, self._clerk.settings.training)
        for name in [name for name, n in self.new.items() if n.node not in self._keys]:
            del self.new[name]
            self.node.pop(name, None)  # connected again, it counts when it has said hello
        self._ask(known, round)
        end = self._clock.now() + (0 if known else self._clerk.settings.hosts.reply_timeout)
        while self._asked:
            self._hear(round, schema)
            if not self._asked or self._clock.now() >= end:
                break
            self._clock.sleep(self._clock.poll)
        ready = {name: n.said for name, n in sorted(self.new.items()) if n.said is not None}
        if not ready or known + len(ready) < least:
            return {}
        for i, name in enumerate(ready, start=known):
            came = self.new.pop(name)
            members.listed.append(Member(name, came.key, came.public, came.signature))
            self._say(round, name, f"joins as client {i}")
        members.save()
        return dict(enumerate(ready.values(), start=known))

    def leave_out(self, name: str, why: Reason) -> None:
        """Refuse a joining client before the first round."""
        self._refuse(0, name, self.new.pop(name).node, why)

    # ---- greetings ------------------------------------------------------------------------------------------------
    def _expired(self, round: int, node: int) -> None:
        self._say(
            round,
            self._registered(node) or "?",
            f"is connected, but has not answered a hello within {_HELLO:g} s: look at the load of its machine and its "
            "network; it is asked again",
        )

    def _registered(self, node: int) -> str | None:
        """Return the registered name of a node's key; None where keys have no names."""
        return (self._post.names() or {}).get(node)

    def _unnamed(self, round: int, node: int, name: str) -> None:
        """Log once that names are required and a node's key has no registered name (yet)."""
        if node not in self._nameless:
            self._nameless.add(node)
            self._say(
                round,
                "?",
                f"came as {name} with a key that has no name at this link: put its NAME.pub into the link's folder "
                "nodes/, or set free_names = true in [hosts]; it is asked again",
            )

    def _welcome(self, round: int, hello: _Pending, got: WireMessage | Code) -> None:
        node = hello.node
        if got == "expired":
            self._expired(round, node)
        if isinstance(got, str):
            log.warning("node %s did not say hello: %s", node, Reason(got))
            return None
        try:
            name = checked_name(heads.decode(got, heads.AnswerHead).client, "client-id")
        except (WireError, ConfigError) as e:
            return self._refuse(round, "?", node, e)
        names = None if self._clerk.settings.hosts.free_names else self._post.names()
        if (registered := name if names is None else names.get(node)) is None:
            return self._unnamed(round, node, name)
        if registered != name:
            return self._refuse(round, registered, node, Reason("other-name", value=name, expected=registered))
        result = self._clerk.read(got, "hello", name)
        if not (isinstance(result, Reply) and isinstance(result.head, heads.Hello)):  # perhaps another time
            return self._say(round, name, str(result if isinstance(result, Reason) else Reason("garbled")))
        former = self.place(name)
        if former not in (None, node):
            return self._say(round, name, "is connected already; another node of this name waits until it is gone")
        if why := self._unfit(name, node, result.head):
            return self._refuse(round, name, node, why)
        if self.node.get(name) not in (None, node):
            self._say(round, name, "is back on another node")
        self._done.add(node)
        self.node[name] = node
        return None

    def _unfit(self, name: str, node: int, hello: heads.Hello) -> Reason | None:
        """Return the reason why a client is not accepted; None if it is known already, or is now listed as new."""
        members, key = self._clerk.members, self._keys.get(node, "")
        why = unlike(hello.versions, self._ours) or members.pinned(name, key)
        if why is not None or name in members.number_of():
            return why
        if key and (others := [other for other, n in self.new.items() if n.key == key and other != name]):
            return Reason("key-in-use", value=others[0])
        if self._failed.get(key or name, 0) >= _TRIES:
            return Reason("gave-up", value=_TRIES)
        card = attempt(lambda: Card.from_json(hello.card), f"the card of the data of {name}")
        if isinstance(card, Reason):
            return card
        self.new[name] = JoiningClient(node, key, card)
        return None

    def _refuse(self, round: int, name: str, node: int, why: Reason | Exception) -> None:
        self._done.add(node)
        self.node.pop(name, None) if self.node.get(name) == node else None
        self._say(round, name, f"refused: {why}")

    def _put_off(self, round: int, name: str, node: int, why: Reason) -> None:
        """Greet a client that gave no description again after a pause; refuse it if that cannot help, or has not."""
        self.new.pop(name)
        if why.code not in _PASSING:
            self._refuse(round, name, node, why)
            return
        key = self._keys.get(node) or name
        self._failed[key] = failed = self._failed.get(key, 0) + 1
        self._say(round, name, f"does not join yet: {why}")
        if failed >= _TRIES:
            self._refuse(round, name, node, Reason("gave-up", value=failed))
            return
        self._done.discard(node)
        self.node.pop(name, None)
        self._greeted[node] = self._clock.now()

    # ---- first words ----------------------------------------------------------------------------------------------
    def _ask(self, known: int, round: int) -> None:
        """Request the descriptions of joining clients that have not been asked on their node."""
        seconds, under_way = self._clerk.settings.hosts.reply_timeout, {asked.node for asked in self._asked.values()}
        number = {name: i for i, name in enumerate(sorted(self.new), start=known)}
        name_at = {n.node: name for name, n in self.new.items() if n.said is None and n.node not in under_way}
        messages = {
            node: self._clerk.write("describe", round, seconds, client=number[name], inline=True)
            for node, name in name_at.items()
        }
        tickets = self._post.post(messages, seconds) if messages else {}
        for node, name in name_at.items():
            if node in tickets:
                self._asked[tickets[node]] = _Pending(node, self._clock.now() + seconds, name)
            else:
                self._put_off(round, name, node, Reason("undelivered"))

    def _hear(self, round: int, schema: Bundle) -> None:
        """Take in the descriptions that have arrived; put off clients whose description cannot be used or is late."""
        late: dict[str, WireMessage | Code] = {
            ticket: "expired" for ticket, asked in self._asked.items() if asked.end <= self._clock.now()
        }
        for ticket, got in {**late, **self._answers(self._asked)}.items():
            asked = self._asked.pop(ticket)
            came = self.new.get(asked.name)
            if came is None or came.node != asked.node:  # it has left since, and is asked again where it is
                continue
            read = self._clerk.read(got, "describe", asked.name)
            result = attempt(partial(self._described, came, read, schema), f"the description of {asked.name}")
            if isinstance(result, JoiningClient):
                self.new[asked.name] = result
            else:
                self._put_off(round, asked.name, asked.node, result)

    def _described(self, came: JoiningClient, read: object, schema: Bundle) -> JoiningClient | Reason:
        """Return a joining client with its description, or why that cannot be used."""
        if not isinstance(read, Reply) or not isinstance(read.head, heads.Description):
            return read if isinstance(read, Reason) else Reason("garbled")
        hosts, secure = self._clerk.settings.hosts, self._clerk.settings.aggregation.secure
        result = read.body
        if why := refusal(result, schema, _COUNTS):
            return why
        if why := outside("size", int(result.size), 1, hosts.max_samples):
            return why
        counts = {name: t for name, t in result.items() if not t.is_floating_point() and t.numel()}
        ends = ((name, int(end)) for name, t in counts.items() for end in (t.min(), t.max()))
        if why := next(filter(None, (outside(name, end, 0, _COUNTS) for name, end in ends)), None):
            return why
        if secure and read.head.public is None:
            return Reason("no-public-key")
        return replace(came, said=result, public=read.head.public or "", signature=read.head.signature)
