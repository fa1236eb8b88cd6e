"""Caveats to read before trusting the results of a run: pure functions on lines of its files."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedkin.core.settings import cohort_size
from fedkin.evaluate.harm import client_p
from fedkin.evaluate.paired import Changed
from fedkin.evaluate.verdict import Against
from fedkin.record.divergence import diverged, sentence
from fedkin.record.figures import evaluated
from fedkin.record.lines import RoundLine

NEARLY_ALL = 0.9
"""A cluster with more than this fraction of the clients holds nearly all clients."""
STILL_RISING = 0.01
"""Accuracy still rises if it grew by more than this (a fraction) over the last fifth of the evaluated rounds."""
SMALLER = 0.95
"""Cohorts are smaller than planned if they have on average less than this fraction of the planned clients."""
OFTEN = 0.2
"""A client was refused often if it was refused in more than this fraction of its rounds."""
APART = 0.1
"""Seeds of a method are not alike if its accuracy differs by more than this (a fraction) between two of them."""
_NAMED = 8


@dataclass(frozen=True)
class Warning:
    """A caveat. ``kind`` is a short stable name, ``text`` a sentence or two."""

    kind: str
    text: str


def data(notes: Iterable[str]) -> list[Warning]:
    """Return the notes of the conversion of data to clients as warnings."""
    return [Warning("data", f"{note}.") for note in notes]


def collapsed(against: Against, reference: str, safe: bool) -> list[Warning]:
    """Warn if every client predicts as under the reference (`Against.collapsed`).

    Args:
        against: the comparison.
        reference: role of the reference: "alone", "alone-full", "average" or "".
        safe: whether the method is a safe form.
    """
    if not against.collapsed:
        return []
    alone = reference.startswith("alone")
    if safe and alone:
        return [Warning("collapse", "held-out samples showed none a gain.")]
    average = "what it does beyond that has no effect" if reference == "average" else "the two do the same"
    return [Warning("collapse", f"{'no client learns from another' if alone else average}. Check its settings.")]


def small_tests(n_test: Mapping[int, int], changed: Mapping[int, Changed]) -> list[Warning]:
    """Warn if chance alone explains most clients' differences on their own test parts (`client_p`, 5 %)."""
    moved = [one.net for one in changed.values() if one.net.any()]
    unsure = [net for net in moved if client_p(int((net > 0).sum()), int((net < 0).sum()), exact=True) > 0.05]
    if not moved or 2 * len(unsure) <= len(moved):
        return []
    middle = statistics.median(n_test.values())
    return [Warning(
        "small tests",
        f"Chance alone explains the differences of most clients on their own test parts (median: {middle:g} samples): "
        "do not interpret single clients.",
    )]  # fmt: skip


def constant(accuracy: float | None, majority: float | None, what: str = "accuracy") -> list[Warning]:
    """Warn if the method is not above always predicting each client's most frequent training class; both fractions.

    Args:
        accuracy: of the method.
        majority: of that constant answer, by the same measure.
        what: name of the measure.
    """
    if accuracy is None or majority is None or accuracy > majority:
        return []
    return [Warning(
        "constant",
        f"{what[0].upper()}{what[1:]} is {100 * accuracy:.1f} % on average, not above the {100 * majority:.1f} % of "
        "always predicting each client's most frequent class.",
    )]  # fmt: skip


def participation(rounds: Sequence[RoundLine], clients: int, names: Sequence[str] = ()) -> list[Warning]:
    """Warn of clients that never took part, clients refused often, and rounds that were abandoned."""
    answered = Counter(i for line in rounds for i in line.answered)
    unused = (one for line in rounds for one in line.unused("update"))
    refused = Counter(one.client for one in unused if one.code != "pool-broken")  # which is due to another client
    result = []
    never = [i for i in range(clients) if not answered[i]]
    if never and rounds:
        result.append(Warning("never", f"Took part in no training: {_clients(never, names)}. The models measured there "
                                      "saw none of their data."))  # fmt: skip
    often = [i for i in sorted(refused) if refused[i] > OFTEN * (refused[i] + answered[i])]
    if often:
        result.append(Warning("refused", f"Uploads of {_clients(often, names)} were refused in more than "
                                        f"{100 * OFTEN:.0f} % of their rounds; rounds.jsonl says why."))  # fmt: skip
    lost = [line.round for line in rounds if line.abandoned]
    if lost:
        verb = "was" if len(lost) == 1 else "were"
        result.append(Warning("abandoned", f"{len(lost)} of {len(rounds)} rounds {verb} abandoned for too few answers "
                                          f"(the first is {lost[0]})."))  # fmt: skip
    return result


def drift(rounds: Sequence[RoundLine], start: int | None) -> list[Warning]:
    """Warn if the run ended before the round from which clients' data drift; None: they do not."""
    last = max((line.round for line in rounds), default=0)
    if start is None or not last or last >= start:
        return []
    text = f"No client's data drifted: the drift is planned for round {start}, and the run ended with round {last}."
    return [Warning("no drift", text)]


def cohorts(rounds: Sequence[RoundLine], participation: float) -> list[Warning]:
    """Warn if the method drew clearly fewer different clients than ``participation``, in (0, 1], specifies.

    It then trained less, and sent less, than a method next to it that trains whole cohorts.
    """
    known, asked, drawn = 0, 0, 0
    for line in rounds:
        known += len(line.joined)
        asked += min(cohort_size(participation, known), known - len(line.absent))
        drawn += len(line.cohort)
    if drawn >= SMALLER * asked:
        return []
    n = len(rounds)
    return [Warning("smaller cohorts", f"On average {drawn / n:.1f} different clients trained in a round, where "
                                       f"participation asks for {asked / n:.1f}: less training and traffic than with "
                                       "whole cohorts.")]  # fmt: skip


def course(rounds: Sequence[RoundLine], ended_early: bool = False) -> list[Warning]:
    """Warn of accuracy that still rises at the end, and of runs that diverged.

    Args:
        rounds: the lines of all rounds.
        ended_early: the run had more rounds to go (``stop_after``), so that more rounds alone would change nothing.
    """
    result = []
    if (first := diverged(rounds)) is not None:
        said = sentence(first, rounds)
        result.append(Warning("diverged", f"{said[0].upper()}{said[1:]}."))
    known = [f.accuracy for _, f in evaluated(rounds) if f.accuracy is not None]
    fifth = len(known) // 5
    if fifth >= 2:
        before, last = known[-2 * fifth : -fifth], known[-fifth:]
        rise = sum(last) / fifth - sum(before) / fifth
        if rise > STILL_RISING:
            advice = "end later, with a larger stop_after" if ended_early else "train for more rounds"
            result.append(Warning("rising", "Accuracy still rises at the end (by more than a point from one fifth "
                                           f"of the rounds to the next): {advice}."))  # fmt: skip
    return result


def clusters(usual: Sequence[int], title: str = "") -> list[Warning]:
    """Warn if one cluster holds nearly all clients; ``usual`` is each client's cluster towards the end, -1 unknown."""
    sizes = Counter(int(c) for c in usual if c >= 0)
    total = sum(sizes.values())
    if total < 3 or not sizes:
        return []
    label, size = sizes.most_common(1)[0]
    if size <= NEARLY_ALL * total:
        return []
    who = f"{title}: cluster" if title else "Cluster"
    return [Warning("one cluster", f"{who} {label} holds {size} of {total} clients: nearly all clients train one "
                                   "common model.")]  # fmt: skip


def unsteady(accuracies: Sequence[float | None]) -> list[Warning]:
    """Warn if a method's accuracy differs by more than `APART` between seeds; ``accuracies`` are by seed."""
    known = [a for a in accuracies if a is not None]
    if not known or max(known) - min(known) <= APART:
        return []
    return [Warning("unsteady", f"Accuracy is {100 * min(known):.1f} % in one seed and {100 * max(known):.1f} % in "
                                "another. Verdicts assume seeds that are alike: run more of them.")]  # fmt: skip


def seeds(count: int) -> list[Warning]:
    """Warn of a comparison with one seed."""
    if count > 1:
        return []
    return [Warning("one seed", "One seed only: another seed gives other initial weights, other data unless they are "
                                "fixed, and may rank the methods differently. Compare several (fedkin compare --seeds "
                                "0 1 2).")]  # fmt: skip


def _clients(ids: Sequence[int], names: Sequence[str]) -> str:
    shown = [names[i] if i < len(names) else str(i) for i in ids[:_NAMED]]
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{'client' if len(ids) == 1 else 'clients'} {', '.join(shown)}{more}"
