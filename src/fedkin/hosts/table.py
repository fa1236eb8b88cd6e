"""What a site is told of those with whom its upload is added up, and on what terms it masks one for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from fedkin.engines.secure import LEAST
from fedkin.hosts.members import KEY
from fedkin.hosts.wire import LetterError

_MOST, _LONGEST = 10_000, 200  # members of a pool; characters of a name or a signature


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
        told = head.get("pool")
        if not isinstance(told, Mapping) or not isinstance(told.get("members"), list):
            raise LetterError("no table of those whose uploads are added up")
        weight, total = told.get("weight"), told.get("total")
        if not (_is_number(weight) and _is_number(total) and 0 < weight <= total < 2.0**53):
            raise LetterError(f"weights that cannot be: {str(weight)[:40]} of {str(total)[:40]}")
        listed = told["members"]
        if not LEAST <= len(listed) <= _MOST:
            raise LetterError(f"a sum of {len(listed)} uploads; at least {LEAST} are needed, at most {_MOST} taken")
        for one in listed:
            if not (isinstance(one, list) and len(one) in (2, 4) and type(one[0]) is int and _is_key(one[1])):
                raise LetterError("a member is listed by its number and its public key")
            if not all(isinstance(text, str) and len(text) <= _LONGEST for text in one[2:]):
                raise LetterError("a member's name and signature are texts")
        numbers, keys = {one[0] for one in listed}, {one[1] for one in listed}
        if len(numbers) < len(listed) or len(keys) < len(listed):
            raise LetterError("a member is listed twice, or two have one key")
        members = tuple(sorted((one[0], one[1]) for one in listed))
        signed = {one[0]: (one[2], one[3]) for one in listed if len(one) == 4}
        return cls(str(head["run"]), int(head["round"]), members, float(weight), float(total), signed)

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


def _is_key(text: object) -> bool:
    return isinstance(text, str) and KEY.fullmatch(text) is not None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
