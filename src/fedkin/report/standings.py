"""A method against a reference, client by client: helped, unchanged or harmed, within or beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkin.evaluate import Against, Conclusion, Difference
from fedkin.evaluate.intervals import half_width
from fedkin.report.folder import Run
from fedkin.report.references import FULL, LOCAL

NOTICEABLE = 0.0005
"""Minimum change, a fraction, of a client that is not unchanged: a smaller one is 0.0 points on the page."""
_LEAST = 6  # test samples: five that all change to one side are chance with p = 0.06 (McNemar's exact test)


@dataclass(frozen=True)
class ClientGain:
    """A client under a method and under a reference, in one seed; fractions.

    Attributes:
        seed: the seed; client: its number.
        gain: final accuracy of the method minus that of the reference.
        accuracy: final accuracy of the method.
        n_test: number of test samples, 0 if not known.
        kind: 1 helped, -1 harmed, 0 unchanged.
        strong: the gain is larger than half of the 95 % interval (Wilson) of the accuracy on the client's test part,
            which has six samples or more.
    """

    seed: int
    client: int
    gain: float
    accuracy: float
    n_test: int
    kind: int
    strong: bool


@dataclass(frozen=True)
class Standing:
    """A method against a reference.

    Attributes:
        title: the method; reference: what it is compared with.
        seeds: the gain of every client, seed by seed.
        difference: the mean gain with its interval.
        collapsed: the two predict alike, see `fedkin.evaluate.Against`.
    """

    title: str
    reference: str
    seeds: tuple[tuple[ClientGain, ...], ...]
    difference: Difference
    collapsed: bool = False

    @property
    def gains(self) -> list[ClientGain]:
        """All gains of all seeds."""
        return [one for seed in self.seeds for one in seed]

    @property
    def clients(self) -> int:
        """Number of clients, the largest of a seed."""
        return max(map(len, self.seeds))

    @property
    def word(self) -> str:
        """The verdict: better, worse or unclear, by the side of zero on which the interval lies."""
        found = self.difference
        if found.low is None or found.high is None or found.identical:
            return "unclear"
        return "better" if found.low > 0 else "worse" if found.high < 0 else "unclear"

    @property
    def identical(self) -> bool:
        """Whether no client's accuracy differs from the reference's."""
        return self.difference.identical

    def counts(self, kind: int) -> list[int]:
        """Return the number of clients of a kind, by seed."""
        return [sum(one.kind == kind for one in seed) for seed in self.seeds]

    def beyond(self, kind: int) -> int:
        """Return the number of gains of a kind that are larger than chance explains, over all seeds."""
        return sum(one.kind == kind and one.strong for one in self.gains)


def alone(reference: str) -> bool:
    """Return whether a reference is training alone: only then its clients are helped or harmed."""
    return reference in (LOCAL, FULL)


def standing(
    title: str,
    reference: str,
    runs: Sequence[Run],
    compared: Mapping[int, Against],
    finding: Conclusion,
) -> Standing:
    """Return a method against a reference.

    Args:
        title: the method; reference: title of the reference.
        runs: the method's runs.
        compared: seed -> comparison.
        finding: the joint conclusion.
    """
    each = {run.seed: run for run in runs}
    return Standing(title, reference, tuple(_seed(each[s], a) for s, a in compared.items()), finding.difference,
                    finding.collapsed)  # fmt: skip


def _seed(run: Run, compared: Against) -> tuple[ClientGain, ...]:
    level, found = max(compared.tolerance, NOTICEABLE), []
    for client, gain in compared.gains.items():
        accuracy, n = run.by_client[client], run.test_parts.get(client, (0, None))[0]
        kind = 0 if abs(gain) < level or abs(gain) <= compared.tolerance else round(math.copysign(1, gain))
        strong = bool(kind and n >= _LEAST and abs(gain) > half_width(min(accuracy, 1.0), n))
        found.append(ClientGain(run.seed, client, gain, accuracy, n, kind, strong))
    return tuple(found)
