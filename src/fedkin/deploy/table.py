"""The members of a secure sum as a client receives them, and the conditions for masking an upload for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkin.deploy.heads import PoolHead
from fedkin.deploy.wire_format import WireError, convert
from fedkin.privacy.secure_sum import LEAST


class Unmasked(Exception):
    """An upload was not masked and therefore is not sent.

    Attributes:
        code: reason that is sent to the server.
        more: further entries that are sent.

    Args:
        words: reason for this client's own log.
    """

    def __init__(self, code: str, words: str = "", **more: str) -> None:
        super().__init__(f"no masks: {words or code}")
        self.code, self.more = code, more


@dataclass(frozen=True)
class MemberTable:
    """The members of a secure sum of one round, as the server described it to one of them.

    Attributes:
        run, round: identify the sum.
        members: number and public key of each member, ascending by number.
        weight: weight of the receiver.
        total: total weight of all members.
        signed: by number, the name of a member and its node's signature of its key; members without one are missing.
    """

    run: str
    round: int
    members: tuple[tuple[int, str], ...]
    weight: float
    total: float
    signed: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> MemberTable:
        """Read the table from the head of a message.

        Raises:
            WireError: it does not fit, has too few members, or lists one twice.
        """
        head_pool = convert(head.get("pool"), PoolHead, "the table of those whose uploads are added up")
        if head_pool.weight > head_pool.total:
            raise WireError(f"a weight above the total: {head_pool.weight:g} of {head_pool.total:g}")
        if len(head_pool.members) < LEAST:
            raise WireError(f"a sum of {len(head_pool.members)} uploads; at least {LEAST} are needed")
        members = tuple(sorted((m.number, m.key) for m in head_pool.members))
        if len({n for n, _ in members}) < len(members) or len({key for _, key in members}) < len(members):
            raise WireError("a member is listed twice, or two have one key")
        signed = {m.number: (m.name, m.signature) for m in head_pool.members if m.signature}
        return cls(str(head["run"]), int(head["round"]), members, head_pool.weight, head_pool.total, signed)

    def require(self, number: int, key: str, size: int, last: int, signature: str = "") -> None:
        """Check that this member may mask an upload for this table.

        Args:
            number: number of the member.
            key: public key of the member.
            size: number of its training samples.
            last: round of its last masked upload.
            signature: signature of its public key by its node, if there is one.

        Raises:
            WireError: its weight is larger than its number of samples, or than the places that are drawn.
            Unmasked: it has masked for this round before, or other members received another key.
        """
        if not (self.weight.is_integer() and self.weight <= max(size, len(self.members))):
            raise WireError(f"a weight of {self.weight:g} for {size} samples")
        if self.round <= last:
            raise Unmasked("masked")
        if dict(self.members).get(number) != key:
            raise Unmasked("other-key", public=key, **({"signature": signature} if signature else {}))
