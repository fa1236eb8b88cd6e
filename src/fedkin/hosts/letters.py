"""How the server writes to clients, and how it reads what they answer."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkin.config import Settings
from fedkin.core import Bundle
from fedkin.engines.secure import Pool
from fedkin.hosts.members import KEY, SIGNATURE, Members
from fedkin.hosts.post import CODES
from fedkin.hosts.tensors import bundle, letter
from fedkin.hosts.wire import FORMAT, Letter, LetterError


@dataclass(frozen=True)
class OtherUpload:
    """A client goes on from another upload than the server thinks.

    Attributes:
        have: the number of that upload, 0 if it remembers nothing.
    """

    have: int


@dataclass(frozen=True)
class OtherKey:
    """A client has another key for masks than the server thinks.

    Attributes:
        public: the public one.
        signature: of its node; "" where nodes have no keys.
    """

    public: str
    signature: str = ""


@dataclass
class Clerk:
    """Writes letters of one run and one session of its server, and reads the answers.

    Attributes:
        session: grows with every start of the server, so that letters of a former life are known as such.
        network: fingerprint of the network that everybody works with.
    """

    settings: Settings
    members: Members
    session: int = field(default_factory=time.time_ns)
    network: str = ""

    def write(
        self,
        kind: str,
        round: int,
        seconds: float,
        *,
        client: int = -1,
        seq: int = 0,
        ack: int = 0,
        body: Bundle | None = None,
        pool: Pool | None = None,
    ) -> Letter:
        """A letter that is to be answered within so many seconds."""
        head: dict[str, Any] = {
            "format": FORMAT,
            "kind": kind,
            "run": self.members.run,
            "session": self.session,
            "round": round,
            "client": client,
            "seq": seq,
            "ack": ack,
            "deadline": math.ceil(max(seconds, 0.1) * 10) / 10,
            "settings": self.settings.table(),
        }
        if self.members.card is not None:
            head |= {"card": self.members.card.to_json(), "network": self.network}
        if pool is not None:
            listed = [(i, self.members.listed[i]) for i in pool.members]
            members = [[i, m.public, *([m.client, m.signature] if m.signature else [])] for i, m in listed]
            head["pool"] = {"members": members, "weight": pool.weight, "total": pool.total}
        return letter(head, body)

    def stamped(self, got: Letter, kind: str, name: str | None, seq: int = 0) -> str | None:
        """Why an answer is not the one to a letter of this kind and number; None if it is."""
        expected: Mapping[str, Any] = {"kind": kind, "run": self.members.run, "session": self.session, "seq": seq}
        if name is not None:
            expected = {**expected, "client": name}
        for what, value in expected.items():
            if got.head.get(what) != value or type(got.head.get(what)) is not type(value):
                return f"its answer is to another letter ({what} is {str(got.head.get(what))[:40]!r}, not {value!r})"
        return None

    def read(self, got: Letter | str, kind: str, name: str, seq: int = 0) -> Bundle | OtherUpload | OtherKey | str:
        """The tensors of an answer; or that the client is at another upload, or has another key; or why it cannot be
        used."""
        if isinstance(got, str):
            return CODES.get(got, CODES["flower"])
        if why := self.stamped(got, kind, name, seq):
            return why
        if got.head.get("ok") is not True:
            have = got.head.get("have")
            if got.head.get("code") == "out-of-step" and type(have) is int and have >= 0:
                return OtherUpload(have)
            public = got.head.get("public")
            if got.head.get("code") == "other-key" and isinstance(public, str) and KEY.fullmatch(public):
                return OtherKey(public, signature_in(got))
            return no(got)
        try:
            return bundle(got, self.settings.hosts.max_reply_mb << 20)
        except LetterError as e:
            return f"its answer cannot be read: {e}"


def signature_in(got: Letter) -> str:
    """Return the signature of a public key in the head of an answer; "" if there is none."""
    found = got.head.get("signature")
    return found if isinstance(found, str) and SIGNATURE.fullmatch(found) else ""


def no(got: Letter) -> str:
    """What a client that says no means."""
    return CODES.get(str(got.head.get("code")), "it did not answer as a client does")
