"""What private training took, as the server hears of it: every answer tells all that its client spent in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedkin.deploy.heads import SpentTold
from fedkin.deploy.wire import Letter, LetterError, convert
from fedkin.privacy.budget import Spent, add


@dataclass
class _Heard:
    """Of one client.

    Attributes:
        mark: of the record on its disk that it told from.
        now: what it told last.
        before: what it told from records that it has no longer.
    """

    mark: str
    now: dict[float, int]
    before: dict[float, int] = field(default_factory=dict)

    def all(self) -> dict[float, int]:
        found = dict(self.before)
        add(found, self.now)
        return found

    def renew(self, mark: str, now: dict[float, int]) -> None:
        """A later word. A client that tells of less than before has lost its disk or put it back: both count."""
        if mark != self.mark or _less(now, self.now):
            add(self.before, self.now)
        self.mark, self.now = mark, now


class Spending:
    """Of all clients of a run. Answers that were lost or came too late are in what the next one tells; one that is
    repeated tells nothing new."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}

    def hear(self, client: int, answer: Letter | str) -> str | None:
        """Takes what an answer tells; why it cannot be used, or None."""
        told = _told(answer) if isinstance(answer, Letter) else None
        if told is None:
            return "it does not tell, or not in usable numbers, what private training has spent"
        if client in self._heard:
            self._heard[client].renew(*told)
        else:
            self._heard[client] = _Heard(*told)
        return None

    def beyond(self, counted: Mapping[int, Spent]) -> dict[int, dict[float, int]]:
        """What clients told beyond what is counted already, by client, as steps at each sampling rate."""
        found: dict[int, dict[float, int]] = {}
        for i, heard in sorted(self._heard.items()):
            before = counted.get(i, {})
            if _less(heard.all(), before):  # counted by a former life of the server, lost by the client since
                heard.before = dict(before)
            more = {rate: n - before.get(rate, 0) for rate, n in heard.all().items()}
            if any(more.values()):
                found[i] = {rate: n for rate, n in more.items() if n}
        return found


def _less(a: Spent, b: Spent) -> bool:
    """Whether ``a`` lacks steps that ``b`` has."""
    return any(a.get(rate, 0) < n for rate, n in b.items())


def _told(answer: Letter) -> tuple[str, dict[float, int]] | None:
    """A client's word: the mark of its record, and steps at each sampling rate; None if it is not one."""
    try:
        told = convert(answer.head.get("spent"), SpentTold, "spent")
    except LetterError:
        return None
    steps = {step.rate: step.count for step in told.steps}
    return (told.mark, steps) if len(steps) == len(told.steps) else None
