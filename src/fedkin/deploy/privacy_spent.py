"""The privacy spent by private training: every answer reports the total that its client has spent in the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedkin.deploy.heads import SpentHead
from fedkin.deploy.wire_format import WireError, WireMessage, convert
from fedkin.privacy.budget import Spent, add

_MOST_RATES = 64
"""Different sampling rates of one client in a run; its batch size and number of samples do not change by themselves."""


@dataclass(frozen=True)
class SpentRecord:
    """Reports of one client.

    Attributes:
        mark: mark of the record on its disk that the report came from.
        now: the last report.
        before: reports from records that the client does not have any more.
    """

    mark: str
    now: Spent
    before: Spent = field(default_factory=dict)

    def all(self) -> dict[float, int]:
        """Return the steps at each sampling rate of all records together."""
        return _sum(self.before, self.now)

    def renewed(self, mark: str, now: Spent) -> SpentRecord:
        """Take in a later report. A lower total means that the disk was lost or restored: then both records count."""
        lost = mark != self.mark or _less(now, self.now)
        return SpentRecord(mark, now, self.all() if lost else self.before)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SpentRecord:
        """Read the values that `to_json` returned.

        Raises:
            ValueError: a number of steps is negative, or a rate is not a number above 0.
        """
        return cls(str(found["mark"]), _steps(found["now"]), _steps(found["before"]))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        pairs = {name: [[rate, n] for rate, n in s.items()] for name, s in (("now", self.now), ("before", self.before))}
        return {"mark": self.mark, **pairs}


class Spending:
    """Reports of all clients of a run. A client's next report includes answers that were lost or late; a repeated
    answer adds nothing.

    Attributes:
        records: the reports of each client, those before the server's restart included.
    """

    def __init__(self, records: Mapping[int, SpentRecord] | None = None) -> None:
        self.records = dict(records or {})

    def record(self, client: int, answer: WireMessage | str) -> str | None:
        """Take in the report of an answer; return why it cannot be used, or None."""
        reported = _told(answer) if isinstance(answer, WireMessage) else None
        if reported is None:
            return "it does not report, or not in usable numbers, what private training has spent"
        known = self.records.get(client)
        found = SpentRecord(*reported) if known is None else known.renewed(*reported)
        if len(found.all()) > _MOST_RATES:  # each takes the server time to account for
            return f"it reports private training at more than {_MOST_RATES} sampling rates"
        self.records[client] = found
        return None

    def beyond(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """Return the steps beyond those counted already, by client and sampling rate."""
        found: dict[int, dict[float, int]] = {}
        for i, record in sorted(self.records.items()):
            before = counted.get(i, {})
            if _less(record.all(), before):  # the records here are an older copy, and the client lost its own
                self.records[i] = record = replace(record, before=before)
            more = {rate: n - before.get(rate, 0) for rate, n in record.all().items()}
            if any(more.values()):
                found[i] = {rate: n for rate, n in more.items() if n}
        return found


def _sum(a: Spent, b: Spent) -> dict[float, int]:
    found = dict(a)
    add(found, b)
    return found


def _steps(pairs: Any) -> dict[float, int]:
    found = {float(rate): int(n) for rate, n in pairs}
    if any(not (0 < rate < math.inf and n >= 0) for rate, n in found.items()):
        raise ValueError(f"steps of private training {found}")
    return found


def _less(a: Spent, b: Spent) -> bool:
    """Return whether ``a`` lacks steps that ``b`` has."""
    return any(a.get(rate, 0) < n for rate, n in b.items())


def _told(answer: WireMessage) -> tuple[str, dict[float, int]] | None:
    """Return a client's report: the mark of its record, and steps at each sampling rate; None if it is malformed."""
    try:
        reported = convert(answer.head.get("spent"), SpentHead, "spent")
    except WireError:
        return None
    steps = {step.rate: step.count for step in reported.steps}
    return (reported.mark, steps) if len(steps) == len(reported.steps) else None
