"""Messages as the server writes them, and the reading of the clients' answers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from fedkin.core import Bundle, DataError
from fedkin.core.refusals import Code, Reason
from fedkin.experiment.settings import Settings, table_of
from fedkin.privacy.secure_sum import SecureGroup
from fedkin_hosts import heads
from fedkin_hosts.heads import FORMAT, WireError, WireMessage
from fedkin_hosts.participants import Members
from fedkin_hosts.tensors import bundle, wire_message

log = logging.getLogger("fedkin_hosts")
T = TypeVar("T")


class Channel(Protocol):
    """A network that reaches nodes. Node numbers belong to the network and change when a node is restarted."""

    def nodes(self) -> Mapping[int, str]:
        """Return the connected nodes, each with the fingerprint of its key, or "" where nodes have none."""

    def names(self) -> Mapping[int, str] | None:
        """Return the registered name of each node's key; None where the network does not register keys."""

    def post(self, messages: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        """Send messages to nodes, each to be answered within ``seconds``; return a ticket for each accepted message."""

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | Code]:
        """Return the answers that have arrived, or why there is none; each is returned once."""


@dataclass(frozen=True)
class OtherUpload:
    """The client continues from another upload than the server assumes.

    Attributes:
        have: number of that upload, 0 if the client remembers nothing.
    """

    have: int


@dataclass(frozen=True)
class OtherKey:
    """The client has another key for masks than the server assumes.

    Attributes:
        public: the public key.
        signature: the node's signature of it; "" where nodes have no keys.
    """

    public: str
    signature: str = ""


@dataclass(frozen=True)
class NoSetup:
    """The client does not have the run's setup, as its disk was lost or the setup has changed."""


@dataclass(frozen=True)
class Reply:
    """A usable answer: its head, as the type that belongs to the message, and its tensors."""

    head: heads.Accepted
    body: Bundle


Heard: TypeAlias = Reply | OtherUpload | OtherKey | NoSetup


@dataclass
class Clerk:
    """Writes the messages of one run and one session of its server, and reads the answers.

    Attributes:
        session: increases with every start of the server, so that messages of an earlier start are recognised.
        network: fingerprint of the network that all clients work with.
    """

    settings: Settings
    members: Members
    session: int = field(default_factory=time.time_ns)
    network: str = ""

    def write(
        self,
        kind: heads.Kind,
        round: int,
        seconds: float,
        *,
        client: int = -1,
        seq: int = 0,
        ack: int = 0,
        body: Bundle | None = None,
        pool: SecureGroup | None = None,
        inline: bool = False,
    ) -> WireMessage:
        """Return a message that is to be answered within ``seconds``, with the run's setup if it is ``inline``."""
        setup = self.setup()
        head = heads.RequestHead(
            format=FORMAT,
            kind=kind,
            run=self.members.run,
            session=self.session,
            round=round,
            client=client,
            seq=seq,
            ack=ack,
            deadline=min(math.ceil(max(seconds, 0.1) * 10) / 10, heads.LONGEST),
            setup=setup.name,
            inline=setup if inline else None,
            pool=None if pool is None else self._pool_head(pool),
        )
        return wire_message(msgspec.to_builtins(head), body)

    def setup(self) -> heads.RunSetup:
        """Return what all clients of the run have in common, as far as it is known."""
        card = self.members.card
        if card is None:
            return heads.RunSetup(table_of(self.settings))
        return heads.RunSetup(table_of(self.settings), card.to_json(), self.network)

    def _pool_head(self, pool: SecureGroup) -> heads.PoolHead:
        listed = [(i, w, self.members.listed[i]) for i, w in zip(pool.members, pool.weights, strict=True)]
        return heads.PoolHead(
            tuple(heads.PoolMember(i, m.public, w, m.client if m.signature else "", m.signature) for i, w, m in listed)
        )

    def read(self, got: WireMessage | Code, kind: heads.Kind, name: str, seq: int = 0) -> Heard | Reason:
        """Return a client's answer to a message of this kind and number, or why it cannot be used.

        A client may also be at another upload, have another key or lack the setup. Never raises for the content of an
        answer.
        """
        if isinstance(got, str):
            return Reason(got)
        return attempt(lambda: self._read(got, kind, name, seq), f"the answer of {name}")

    def _read(self, got: WireMessage, kind: heads.Kind, name: str, seq: int) -> Heard | Reason:
        answer_head = heads.decode(got, heads.AnswerHead)
        expected = {"kind": kind, "run": self.members.run, "session": self.session, "seq": seq, "client": name}
        if any(getattr(answer_head, what) != value for what, value in expected.items()):
            return Reason("other-message")
        if answer_head.ok:
            return Reply(heads.decode(got, heads.ANSWERS[kind]), bundle(got))
        refused = heads.decode(got, heads.Refusal)
        if refused.code == "out-of-step" and refused.have is not None:
            return OtherUpload(refused.have)
        if refused.code == "new-key" and refused.public is not None:
            return OtherKey(refused.public, refused.signature)
        if refused.code == "setup":
            return NoSetup()
        return Reason(refused.code)


def attempt(read: Callable[[], T], what: str) -> T | Reason:
    """Return the result of reading something that a client sent; any exception becomes a reason to refuse it.

    The bytes of one client must not end a run, not even in cases that were not foreseen.
    """
    try:
        return read()
    except Exception as e:
        log.warning("%s cannot be read: %s", what, e, exc_info=None if isinstance(e, WireError | DataError) else e)
        return Reason("garbled")
