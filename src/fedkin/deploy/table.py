"""What a site is told of those with whom its upload is added up, and on what terms it masks one for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkin.deploy.heads import PoolTold
from fedkin.deploy.wire import LetterError, convert
from fedkin.privacy.secure_sum import LEAST


class Unmasked(Exception):
    """An upload was not masked, and so does not leave.

    Attributes:
        code: why, as the server is told.
        more: what else it is told.

    Args:
        words: what this client's own log says.
    """

    def __init__(self, code: str, words: str = "", **more: str) -> None:
        super().__init__(f"no masks: {words or code}")
        self.code, self.more = code, more


@dataclass(frozen=True)
class Table:
    """Who adds up with whom in a round, as the server told one of them.

    Attributes:
        run, round: which sum this is.
        members: number and public key of each, ascending by number.
        weight: what the one who was told weighs.
        total: what all weigh together.
        signed: by number, the name of a member and its node's signature of its key; empty for those without.
    """

    run: str
    round: int
    members: tuple[tuple[int, str], ...]
    weight: float
    total: float
    signed: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> Table:
        """From the head of a letter.

        Raises:
            LetterError: it is none, has too few members, or some twice.
        """
        told = convert(head.get("pool"), PoolTold, "the table of those whose uploads are added up")
        if told.weight > told.total:
            raise LetterError(f"weights that cannot be: {told.weight:g} of {told.total:g}")
        if len(told.members) < LEAST:
            raise LetterError(f"a sum of {len(told.members)} uploads; at least {LEAST} are needed")
        members = tuple(sorted((m.number, m.key) for m in told.members))
        if len({n for n, _ in members}) < len(members) or len({key for _, key in members}) < len(members):
            raise LetterError("a member is listed twice, or two have one key")
        signed = {m.number: (m.name, m.signature) for m in told.members if m.signature}
        return cls(str(head["run"]), int(head["round"]), members, told.weight, told.total, signed)

    def require(self, number: int, key: str, size: int, last: int, signature: str = "") -> None:
        """Makes sure that this member may mask an upload for this table.

        Args:
            number: of the member.
            key: its public key.
            size: its training samples.
            last: the round of its last masked upload.
            signature: of its public key by its node, if there is one.

        Raises:
            LetterError: it weighs more than its samples, or than the places there are to be drawn for.
            Unmasked: it has masked for this round before, or others were told another key.
        """
        if not (self.weight.is_integer() and self.weight <= max(size, len(self.members))):
            raise LetterError(f"a weight of {self.weight:g} for {size} samples")
        if self.round <= last:
            raise Unmasked("masked")
        if dict(self.members).get(number) != key:
            raise Unmasked("other-key", public=key, **({"signature": signature} if signature else {}))
