"""Verdict on a method against a reference, client by client, and one sentence that summarises it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate.harm import Harmed, clear_clients, counts, harmed_range, holm
from fedkin.evaluate.paired import (
    SEED_EFFECT,
    Changed,
    Difference,
    changed,
    difference,
    gain_over,
    of_these_clients,
    seed_effect,
)
from fedkin.record.lines import ClientLine

TEST_SHARE = 0.2
"""Fraction of a client's samples that are tested, unless a setting says otherwise."""


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and sample standard deviation (n - 1); ``std`` is None for a single seed."""

    mean: float
    std: float | None
    values: tuple[float, ...]


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and spread of the values that exist; None if none does."""
    known = tuple(float(v) for v in values if v is not None)
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Spread(mean, None, known)
    return Spread(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)), known)


@dataclass(frozen=True)
class Against:
    """A method against a reference on the same federation (one seed).

    Attributes:
        gains: client id -> final accuracy of the method minus that of the reference, a fraction.
        mean: mean gain over clients, a fraction.
        identical: every single gain is exactly zero.
        collapsed: beyond that, the logits of every client are known to be those of the reference, in the last evaluated
            round. Different models that are right about the same samples have not collapsed.
        left_out: clients for which only one of the two has a figure; they are not compared.
        single: client id -> the gain in the last evaluated round, the moment of all statements on single clients.
        changed: client id -> changes for its single test samples in the last evaluated round; empty where these are not
            known.
        same_answers: number of test samples in the last evaluated round, if both are right about the same ones at every
            client; 0 where they are not, or where this is not known.
    """

    gains: dict[int, float]
    mean: float
    identical: bool
    left_out: int
    single: dict[int, float]
    changed: Mapping[int, Changed] = field(default_factory=dict)
    collapsed: bool = False
    same_answers: int = 0


def against(
    local: Mapping[int, float],
    method: Mapping[int, float],
    answers: tuple[Mapping[int, ClientLine], Mapping[int, ClientLine]] | None = None,
    single: tuple[Mapping[int, float], Mapping[int, float]] | None = None,
) -> Against:
    """Compare final accuracies client by client.

    Args:
        local: the reference, client id -> final accuracy, as from `fedkin.record.figures.final_by_client`.
        method: the method, likewise; gains are method minus local.
        answers: single test samples of the reference and of the method by client, where known.
        single: accuracies of both in the last evaluated round. Default: the final ones.

    Raises:
        DataError: the two share no client.
    """
    common = sorted(local.keys() & method.keys())
    if not common:
        raise DataError(
            f"nothing to compare: the reference has {len(local)} clients, the method {len(method)}, they share none; "
            "compare runs on the same federation and seed"
        )
    gains = {client: gain_over(method[client], local[client]) for client in common}
    before, after = single or (local, method)
    first, second = answers or ({}, {})
    both = {c: changed(first[c], second[c]) for c in common if c in first and c in second}
    known = {client: one for client, one in both.items() if one is not None}
    identical = not any(gains.values())
    same = len(known) == len(common) and not any(one.net.any() for one in known.values())
    return Against(
        gains=gains,
        mean=gain_over(math.fsum(gains.values()) / len(gains), 0.0),
        identical=identical,
        left_out=len(local.keys() ^ method.keys()),
        single={client: gain_over(after[client], before[client]) for client in common},
        changed=known,
        collapsed=identical and same and all(one.alike for one in known.values()),
        same_answers=sum(len(one.net) for one in known.values()) if same else 0,
    )


@dataclass(frozen=True)
class Conclusion:
    """Conclusions from the comparisons of all seeds together.

    Attributes:
        difference: the mean gain with its interval.
        harmed: a range for the number of harmed clients in the last evaluated round; None where single test samples are
            not known, or clients are too few.
        of: unit of the count: "clients", or "client results" where each seed has different clients.
        collapsed: the two predict alike in every seed, see `Against`.
        same_answers: test samples of all seeds, as of `Against`; 0 where it is 0 for a seed.
        gaining, losing: clients that are significantly better, or worse, in these runs (see
            :func:`fedkin.evaluate.clear_clients`); empty where seeds have different clients.
        these: the mean gain with an interval for these very clients (`of_these_clients`), where ``difference`` is for
            clients like these; None unless several seeds have the same clients.
        p: two-sided p-value of the mean gain by Holm's procedure for the comparisons of its table; None without an
            interval, and for a method that is judged alone. comparisons: their number.
    """

    difference: Difference
    harmed: Harmed | None = None
    of: str = "clients"
    gaining: tuple[int, ...] = ()
    losing: tuple[int, ...] = ()
    collapsed: bool = False
    same_answers: int = 0
    these: Difference | None = None
    p: float | None = None
    comparisons: int = 1


def judge_all(
    compared: Mapping[str, Sequence[Against]], same_clients: bool | None = None, test_share: float = TEST_SHARE
) -> dict[str, Conclusion]:
    """Return the conclusions on all methods of a table: together they show the effect of a seed (`seed_effect`).

    ``compared`` is method -> its comparisons with the reference, one per seed; other arguments are those of `judge`.
    """
    effect = seed_effect([[a.gains for a in seeds] for seeds in compared.values()], same_clients)
    result = {title: judge(seeds, same_clients, effect, test_share) for title, seeds in compared.items()}
    tails = {title: tail for title, one in result.items() if (tail := one.difference.tail) is not None}
    p = dict(zip(tails, holm(np.array([2 * min(tail, 1 - tail) for tail in tails.values()])).tolist(), strict=True))
    return {title: replace(one, p=p.get(title), comparisons=len(p)) for title, one in result.items()}


def judge(
    comparison: Against | Sequence[Against],
    same_clients: bool | None = None,
    effect: float = SEED_EFFECT,
    test_share: float = TEST_SHARE,
) -> Conclusion:
    """Return the conclusions from a method's comparisons with a reference, one per seed.

    Args:
        comparison: one per seed.
        same_clients: whether a client id means the same client in every seed. If unknown (None), the interval treats
            clients as the same, and single clients as different: both are the conservative choice.
        effect: prior median of the effect of a seed, see :func:`fedkin.evaluate.difference`.
        test_share: fraction of a client's samples that are tested; for seeds that test others of the same clients.

    Raises:
        DataError: no comparison was given.
    """
    seeds = [comparison] if isinstance(comparison, Against) else list(comparison)
    gains = [a.gains for a in seeds]
    result = difference(gains, same_clients=same_clients, seed_effect=effect)
    parts = [{client: one.digest for client, one in a.changed.items()} for a in seeds]
    redrawn = not all(parts) or len({*chain(*(part.items() for part in parts))}) > len(set().union(*parts))
    these = of_these_clients(result, gains, test_share if redrawn else 0.0) if same_clients else None
    if not all(parts):
        return Conclusion(result, these=these)
    one = bool(same_clients) or len(seeds) == 1
    counted, unit = counts([a.changed for a in seeds], one), "clients" if one else "client results"
    up, down = clear_clients(counted) if one else ((), ())
    same, collapsed = [a.same_answers for a in seeds], all(a.collapsed for a in seeds)
    return Conclusion(result, harmed_range(counted), unit, up, down, collapsed, sum(same) * all(same), these)


def verdict(
    method: str,
    comparison: Against | Sequence[Against] | Conclusion,
    reference: str,
    same_clients: bool | None = None,
    *,
    stays_alone: bool = False,
) -> str:
    """Return one line: the word of :attr:`fedkin.evaluate.Difference.word`, the mean gain and its likely range.

    The likely range is the 95 % interval of :func:`fedkin.evaluate.difference`. "Better" and "worse" require that the
    whole of it lies on one side of zero, and two seeds or more. One seed is "ahead", "behind" or "level" in this one
    run. `details` has the rest. That a method predicts exactly as the reference does is said where their logits are
    known to be equal, not where only the right answers are (see `Against`).

    Args:
        method: display name of the method.
        comparison: one per seed, or the result of `judge`.
        reference: display name of the reference.
        same_clients: as for `judge`.
        stays_alone: the method is a safe form, whose clients may choose what the reference is: a model trained alone.

    Raises:
        ConfigError: no comparison was given.
    """
    if not isinstance(comparison, (Against, Conclusion)) and not comparison:
        raise ConfigError(f"{method}: a verdict needs at least one comparison with {reference}, got none")
    finding = comparison if isinstance(comparison, Conclusion) else judge(comparison, same_clients)
    result = finding.difference
    if result.identical:
        if not finding.collapsed:
            n = finding.same_answers
            known = (
                f"right answers as {reference} on {n} test samples" if n else f"result as {reference} for every client"
            )
            return f"{method}: the same {known}"
        chosen = ": held-out samples showed no client a gain" if stays_alone else ""
        return f"{method}: predicts exactly as {reference} for every client{chosen}"
    by, mean, likely = f"by {_points(abs(result.mean))}", _points(result.mean, sign=True), _likely(result)
    said = {
        "better": f"better than {reference} {by} ({likely})",
        "worse": f"worse than {reference} {by} ({likely})",
        "no clear difference": f"no clear difference from {reference} ({mean}, {likely})",
        "ahead": f"ahead of {reference} in this one run {by} ({likely})",
        "behind": f"behind {reference} in this one run {by} ({likely})",
        "level": f"level with {reference} in this one run ({mean}, {likely})",
        "too few": f"too few figures to tell it from {reference} ({mean})",
    }[result.word]
    return f"{method}: {said}"


def details(finding: Conclusion, names: Sequence[str] = ()) -> str:
    """Return what a verdict leaves out: the range for these very clients where all seeds have them, that for the number
    of harmed ones, and those that clearly move against the mean.

    Args:
        finding: the result of `judge`.
        names: names of the clients, by number.

    Returns:
        Clauses that follow a verdict, with a leading semicolon; "" where there are none.
    """
    these = finding.these and f"for these clients themselves {_likely(finding.these)}"
    return "".join(f"; {part}" for part in (these, harmed_text(finding), _for_whom(finding, names)) if part)


def harmed_text(finding: Conclusion) -> str:
    """Return the range for the number of harmed clients in words; "" where there is none."""
    result = finding.harmed
    if result is None:
        return ""
    if result.low < result.high:
        return f"between {result.low} and {result.high} of {result.of} {finding.of} are harmed"
    return f"{result.low} of {result.of} {finding.of} {'is' if result.low == 1 else 'are'} harmed"


def _points(value: float, sign: bool = False) -> str:
    if 0 < abs(value) < 0.0005:
        side = "" if not sign else " above" if value > 0 else " below"
        return f"less than 0.1 points{side}"
    return f"{100 * value:+.1f} points" if sign else f"{100 * value:.1f} points"


def _likely(result: Difference) -> str:
    """Return the interval, and its seeds where there are several."""
    if result.low is None or result.high is None:
        return ""
    over = "" if result.seeds == 1 else f" over {result.seeds} seeds"
    return f"likely {100 * result.low:+.1f} to {100 * result.high:+.1f}{over}"


def _for_whom(finding: Conclusion, names: Sequence[str]) -> str:
    """Return the clients for which the result clearly differs from the average."""
    word = finding.difference.word
    gain = (
        f"higher for {_clients(finding.gaining, names)}" if finding.gaining and word not in ("better", "ahead") else ""
    )
    lose = f"lower for {_clients(finding.losing, names)}" if finding.losing and word not in ("worse", "behind") else ""
    parts = " and ".join(filter(None, (gain, lose)))
    return f"clearly {parts}" if parts else ""


def _clients(ids: Sequence[int], names: Sequence[str]) -> str:
    """Return the clients' names, "client 3", "clients 3 and 7", or their number where the list would be long."""
    if len(ids) > 5:
        return f"{len(ids)} clients"
    named = all(i < len(names) for i in ids)
    called = [names[i] if named else str(i) for i in ids]
    listed = " and ".join(filter(None, (", ".join(called[:-1]), called[-1])))
    return listed if named else f"client{'s' if len(ids) > 1 else ''} {listed}"


LEAST = 0.025
"""A method differs from the highest where the tail of their difference is below this, as in a verdict ..."""
WRONG = 0.10
"""... and below this, divided by the number of comparisons: the probability that the best method is not marked."""


def marked(means: Mapping[str, float], tails: Mapping[str, float | None]) -> set[str]:
    """Choose the methods to mark in a table.

    Methods are compared with that of the highest mean and kept unless they are significantly below it (Bonferroni's
    correction for the number of comparisons). Every method with a mean at or above the lowest mean kept is marked, so
    that no method stays plain while a lower one is marked. Closing upwards only adds methods: where the interval holds
    its size, the truly best method is marked with a probability of at least 90 % (97.5 % for two methods).

    Args:
        means: method -> the mean that the table shows.
        tails: method -> tail of the difference of the highest minus this method (`Difference.tail`); None or missing
            where there is no interval, which keeps the method.

    Returns:
        The marked methods; empty if all of them would be marked.
    """
    least = min((means[title] for title in not_below(means, tails)), default=0.0)
    result = {title for title, mean in means.items() if mean >= least}
    return result if len(result) < len(means) else set()


def not_below(means: Mapping[str, float], tails: Mapping[str, float | None]) -> set[str]:
    """Return the methods that are not significantly below the highest, which is one of them; as for `marked`."""
    limit = min(LEAST, WRONG / max(1, len(means) - 1))
    below = {title for title, tail in tails.items() if tail is not None and tail < limit}
    return {title for title, mean in means.items() if mean == max(means.values()) or title not in below}
