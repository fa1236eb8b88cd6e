"""The members of a secure sum as a client receives them, and the conditions for masking an upload for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedkin.core.refusals import OfHost
from fedkin.privacy.secure_sum import LEAST, MOST
from fedkin_hosts.heads import PoolHead
from fedkin_hosts.wire_format import WireError, WireMessage, convert


class Unmasked(Exception):
    """An upload was not masked and therefore is not sent.

    Attributes:
        code: reason that is sent to the server.
        more: further entries that are sent.

    Args:
        words: reason for this client's own log.
    """

    def __init__(self, code: OfHost, words: str = "", **more: str) -> None:
        super().__init__(f"no masks: {words or code}")
        self.code, self.more = code, more


@dataclass(frozen=True)
class MemberTable:
    """The members of a secure sum of one round and what they are asked, as the server described it to one of them.

    Attributes:
        run, round: identify the sum.
        members: number, public key and weight of each member, ascending by number.
        asked: fingerprint of all that steers the members' step and is the same for all of them: the name of the run's
            setup, and the tensors that were sent.
        signed: by number, the name of a member and its node's signature of its key; members without one are missing.
    """

    run: str
    round: int
    members: tuple[tuple[int, str, float], ...]
    asked: str
    signed: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, of: WireMessage) -> MemberTable:
        """Read the table from a message.

        Raises:
            WireError: it does not fit, has too few members, or lists one twice.
        """
        head = of.head
        listed = convert(head.get("pool"), PoolHead, "the table of those whose uploads are added up").members
        if len(listed) < LEAST:
            raise WireError(f"a sum of {len(listed)} uploads; at least {LEAST} are needed")
        members = tuple(sorted((m.number, m.key, m.weight) for m in listed))
        if len({m.number for m in listed}) < len(members) or len({m.key for m in listed}) < len(members):
            raise WireError("a member is listed twice, or two have one key")
        steers = json.dumps([head["setup"], head.get("tensors")])
        asked = hashlib.sha256(steers.encode() + of.body).hexdigest()
        signed = {m.number: (m.name, m.signature) for m in listed if m.signature}
        return cls(str(head["run"]), int(head["round"]), members, asked, signed)

    @property
    def total(self) -> float:
        """Total weight of all members."""
        return sum(weight for *_, weight in self.members)

    def weight(self, number: int) -> float:
        """Return the weight of a member."""
        return next(weight for i, _, weight in self.members if i == number)

    def require(self, number: int, key: str, last: int, signature: str = "") -> None:
        """Check that this member may mask an upload for this table.

        Args:
            number: number of the member.
            key: public key of the member.
            last: round of its last masked upload.
            signature: signature of its public key by its node, if there is one.

        Raises:
            Unmasked: it has masked for this round before, other members received another key, or its weight is more
                than `MOST` of all.
        """
        if self.round <= last:
            raise Unmasked("masked")
        if (number, key) not in [(i, public) for i, public, _ in self.members]:
            raise Unmasked("new-key", public=key, **({"signature": signature} if signature else {}))
        if (weight := self.weight(number)) > MOST * self.total:
            raise Unmasked(
                "settings",
                f"this client's weight is {weight:g} of {self.total:g}, and with more than {MOST:g} of all its upload "
                f"could be read from the sum; ask the link's operator for [hosts] max_share = {MOST:g} or less",
            )
