"""The privacy spent by private training: every answer reports the total that its client has spent in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedkin.deploy.heads import SpentHead
from fedkin.deploy.wire_format import WireError, WireMessage, convert
from fedkin.privacy.budget import Spent, add


@dataclass
class _Heard:
    """Reports of one client.

    Attributes:
        mark: mark of the record on its disk that the report came from.
        now: the last report.
        before: reports from records that the client does not have any more.
    """

    mark: str
    now: dict[float, int]
    before: dict[float, int] = field(default_factory=dict)

    def all(self) -> dict[float, int]:
        """Return the steps at each sampling rate of all records together."""
        found = dict(self.before)
        add(found, self.now)
        return found

    def renew(self, mark: str, now: dict[float, int]) -> None:
        """Take in a later report. A lower total means that the disk was lost or restored: then both records count."""
        if mark != self.mark or _less(now, self.now):
            add(self.before, self.now)
        self.mark, self.now = mark, now


class Spending:
    """Reports of all clients of a run. A client's next report includes answers that were lost or late; a repeated
    answer adds nothing."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}

    def record(self, client: int, answer: WireMessage | str) -> str | None:
        """Take in the report of an answer; return why it cannot be used, or None."""
        reported = _told(answer) if isinstance(answer, WireMessage) else None
        if reported is None:
            return "it does not report, or not in usable numbers, what private training has spent"
        if client in self._heard:
            self._heard[client].renew(*reported)
        else:
            self._heard[client] = _Heard(*reported)
        return None

    def beyond(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """Return the steps beyond those counted already, by client and sampling rate."""
        found: dict[int, dict[float, int]] = {}
        for i, heard in sorted(self._heard.items()):
            before = counted.get(i, {})
            if _less(heard.all(), before):  # counted before the server's restart, lost by the client since
                heard.before = dict(before)
            more = {rate: n - before.get(rate, 0) for rate, n in heard.all().items()}
            if any(more.values()):
                found[i] = {rate: n for rate, n in more.items() if n}
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
