"""Why an answer of a client is not used, or did not arrive: data, and the one place that makes a sentence of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec

Stage: TypeAlias = Literal["join", "query", "update", "evaluate-query", "evaluate", "keep"]
Unused: TypeAlias = Literal[
    "names", "shape", "not-finite", "too-large", "outlier", "sent-not-finite", "out-of-range", "duplicate", "mismatch",
    "not-summable", "pool-broken", "pool-numbers",
]  # fmt: skip
OfHost: TypeAlias = Literal[
    "versions", "unreadable", "data", "disk", "failed", "settings", "code", "budget", "deadline", "died", "late",
    "not-summable", "masked", "new-key", "strangers", "keeps-scores", "out-of-step", "setup",
]  # fmt: skip
Absent: TypeAlias = Literal[
    "left-out", "expired", "gone", "undelivered", "too-many-bytes", "garbled", "other-message", "newer-start",
    "two-uploads", "passed-over",
    "misfit", "no-public-key", "other-key", "key-in-use", "other-name", "gave-up",
]  # fmt: skip
Code: TypeAlias = Literal[Unused, OfHost, Absent]

_OWN_LOG = "; its own log says why"
_TEXTS: Mapping[Code, str] = {
    # form: what arrived is not what an honest client sends
    "names": "it sent other tensors than {expected}",
    "shape": "{tensor} is {value}, expected {expected}",
    "not-finite": "{tensor} holds NaN or infinity; the training may diverge",
    "too-large": "{tensor} holds {value}, at most {expected} is used; the training may diverge",
    "outlier": "its {tensor} is {value} times the median of the round, at most {expected} is used",
    "sent-not-finite": "its answer is not used ({value}), and the server had sent it NaN or infinity in {tensor}",
    "out-of-range": "{tensor} is {value}, expected {expected}",
    "duplicate": "{tensor} holds {value} twice",
    "mismatch": "{tensor} is {value}, expected {expected}",
    # secure sums
    "not-summable": "its numbers cannot be added up: they are not finite, or above {expected}",
    "left-out": "sits out: the size of its group is {value} in this round, a secure sum needs {expected}",
    "pool-broken": "cannot be read without the upload of client {value}",
    "pool-numbers": "the mean of clients {value} is not finite or too large, or an upload was false",
    # reported by a host. Only codes are sent: the text of a client's exception may contain its data
    "versions": "it runs another version of fedkin",
    "unreadable": "it could not read the message",
    "data": "its data do not fit this run" + _OWN_LOG,
    "disk": "its disk could not be written or read" + _OWN_LOG,
    "failed": "its program failed" + _OWN_LOG,
    "settings": "it cannot use the run's settings" + _OWN_LOG,
    "code": "its owner does not allow the code that the run names (fedkin node --allow-code)" + _OWN_LOG,
    "budget": "the privacy budget of its owner is spent (--max-epsilon, --max-metadata-epsilon)" + _OWN_LOG,
    "deadline": "it needed longer than the deadline",
    "died": "its process died",
    "late": "the message came too late",
    "masked": "it has masked an upload of this round for others, and does so only once",
    "new-key": "its key for masks is a new one, as its program was restarted; it is used from the next round on",
    "strangers": "it does not know a client with whom its upload would be added up (--peers)" + _OWN_LOG,
    "keeps-scores": "its owner lets no results of evaluations leave (--keep-scores)",
    "out-of-step": "it does not know the upload from which it is to go on",
    # of the way between server and client
    "setup": "it does not have the settings of the run",
    "expired": "no answer within the deadline",
    "gone": "it is not connected",
    "undelivered": "Flower could not deliver the message or its answer",
    "too-many-bytes": "its answer is larger than 1 GiB",
    "garbled": "its answer cannot be read; the link's log says why",
    "other-message": "its answer is to another message",
    "newer-start": "it has answered a later start of the server: the run folder is an older copy, or the server's "
    "clock was set back",
    "two-uploads": "it reported two different uploads from which it goes on",
    "passed-over": "came too late",
    # at joining
    "misfit": "its data do not fit those of the other clients",
    "no-public-key": "it sent no public key, which secure aggregation needs",
    "other-key": "it came with another key ({value}) than before ({expected})",
    "key-in-use": "it came with the key of client {value}",
    "other-name": "its key is registered as {expected}, and it came as {value}; start it with --client-id {expected}, "
    "or set free_names = true in [hosts]",
    "gave-up": "it gave no description in {value} tries; it is asked again when the run is submitted again",
}

UNUSED: frozenset[Code] = frozenset(get_args(Unused))
"""Codes of answers that were computed and are not used; with every other code, none was."""
DIVERGING: frozenset[Code] = frozenset({"not-finite", "too-large", "sent-not-finite", "not-summable", "pool-numbers"})
"""Codes of uploads with numbers that are not finite or too large, as those of a training that diverges."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Why an answer of a client is not used, or did not arrive.

    Attributes:
        tensor: name of the tensor that it is about, one that the server expects; names that a client chose are not
            kept.
        value: what was there, a finite number or a text.
        expected: what is expected instead.
    """

    code: Code
    tensor: str = ""
    value: float | str | None = None
    expected: str = ""

    def __str__(self) -> str:
        """Return the sentence; a value that the code's text has no place for stands at its end."""
        text = _TEXTS[self.code]
        value = self.value or "" if not isinstance(self.value, float | int) else _written(self.value)
        end = f": {value}" if value and "{value}" not in text else ""
        return text.format(tensor=self.tensor, value=value, expected=self.expected) + end

    def at(self, stage: Stage, client: int) -> Refused:
        """Return the reason with its stage and its client."""
        return Refused(self.code, self.tensor, self.value, self.expected, stage=stage, client=client)


class Refused(Reason, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A client's answer that was not used, or did not arrive, in a stage of a round.

    Attributes:
        client: its number.
    """

    stage: Stage
    client: Annotated[int, msgspec.Meta(ge=0)]


def outside(tensor: str, value: float, least: float, most: float) -> Reason | None:
    """Return the reason to refuse a number that is not ``least`` to ``most``; None if it is."""
    if least <= value <= most:
        return None
    expected = f"{_written(least)} to {_written(most)}" if most < math.inf else f"at least {_written(least)}"
    return Reason("out-of-range", tensor, value if math.isfinite(value) else f"{value:g}", expected)


def _written(value: float) -> str:
    return f"{value:.15g}" if value == int(value) else f"{value:g}"
