"""A method against a reference, client by client: measured higher, equal or lower, and clear by itself or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkin.evaluate import Against, Conclusion, Difference, clear_clients, client_p, counts, spread
from fedkin.record.result import Result

NOTICEABLE = 0.0005
"""Minimum change, a fraction, of a client that is not equal: a smaller one is 0.0 points on the page."""


@dataclass(frozen=True)
class ClientGain:
    """A client under a method and under a reference, in the last evaluated round of one seed; fractions.

    Attributes:
        seed: the seed; client: its number.
        gain: the headline metric of the method minus that of the reference.
        value: the metric of the method.
        n_test: number of test samples, 0 if not known.
        kind: 1 measured higher, -1 lower, 0 equal.
        p: exact p-value of the difference in accuracy on its test samples; None where these are not known.
        clear: the difference in accuracy is significant after Holm's correction for all clients.
    """

    seed: int
    client: int
    gain: float
    value: float
    n_test: int
    kind: int
    p: float | None = None
    clear: bool = False


@dataclass(frozen=True)
class Standing:
    """A method against a reference.

    Attributes:
        title: the method; reference: what it is compared with.
        seeds: the gain of every client, seed by seed.
        finding: the joint conclusion.
        before: the reference's final metric over the same clients and seeds, a fraction.
    """

    title: str
    reference: str
    seeds: tuple[tuple[ClientGain, ...], ...]
    finding: Conclusion
    before: float

    @property
    def difference(self) -> Difference:
        """The mean gain with its interval; its ``word`` is the verdict."""
        return self.finding.difference

    @property
    def gains(self) -> list[ClientGain]:
        """All gains of all seeds."""
        return [one for seed in self.seeds for one in seed]

    @property
    def clients(self) -> int:
        """Number of clients, the largest of a seed."""
        return max(map(len, self.seeds))

    @property
    def clear(self) -> set[object]:
        """Clients whose gain or loss is clear by itself; where seeds have different clients, of each seed."""
        by_client = self.finding.of == "clients"
        return {one.client if by_client else (one.seed, one.client) for one in self.gains if one.clear}

    @property
    def marks(self) -> list[tuple[int, bool]]:
        """Kind and clearness of every client's gain, higher ones first."""
        return sorted(((one.kind, one.clear) for one in self.gains), key=lambda one: (-one[0], -one[1] * one[0]))

    @property
    def harmed(self) -> str:
        """The range for the number of harmed clients: 0–4, of 60 results where seeds have different clients."""
        found = self.finding.harmed
        if found is None:
            return "–"
        of = "" if self.finding.of == "clients" else f" of {found.of}"
        return f"{found.low}{f'–{found.high}' if found.high > found.low else ''}{of}"

    def counts(self, kind: int) -> list[int]:
        """Return the number of clients of a kind, by seed."""
        return [sum(one.kind == kind for one in seed) for seed in self.seeds]


def standing(
    title: str,
    reference: str,
    runs: Sequence[Result],
    compared: Mapping[int, Against],
    finding: Conclusion,
    metric: str,
) -> Standing:
    """Return a method against a reference.

    Args:
        title: the method; reference: title of the reference.
        runs: the method's runs.
        compared: seed -> comparison.
        finding: the joint conclusion.
        metric: the headline metric.
    """
    each = {run.seed: run for run in runs}
    # clients of different seeds are different tests: each seed gets its part of the level
    level = 1 - 0.05 / (1 if finding.of == "clients" else len(compared))
    seeds = []
    for seed, one in compared.items():
        own = None if finding.of == "clients" else clear_clients(counts([one.changed], True), level)
        seeds.append(_seed(each[seed], one, own or (finding.gaining, finding.losing), metric))
    finals = [spread([each[seed].averaged(metric)[c] for c in one.gains]) for seed, one in compared.items()]
    after = spread([found.mean for found in finals if found])
    return Standing(title, reference, tuple(seeds), finding, (after.mean if after else 0.0) - finding.difference.mean)


def _seed(
    run: Result, compared: Against, clear: tuple[Sequence[int], Sequence[int]], metric: str
) -> tuple[ClientGain, ...]:
    values, found = run.single(metric), []
    for client, gain in compared.single.items():
        net, n = compared.changed.get(client), run.test_parts.get(client, (0, None))[0]
        p = None if net is None else client_p(int((net.net > 0).sum()), int((net.net < 0).sum()), exact=True)
        kind = 0 if abs(gain) < NOTICEABLE else 1 if gain > 0 else -1
        found.append(ClientGain(run.seed, client, gain, values[client], n, kind, p, client in clear[gain < 0]))
    return tuple(found)
