"""Verdict on a method against a reference, client by client, and one sentence that summarises it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate.answers import Answers, Changed, changed
from fedkin.evaluate.harm import Harmed, clear_clients, counts, harmed_range, holm
from fedkin.evaluate.paired import SEED_EFFECT, Difference, difference, gain_over, of_these_clients, seed_effect

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
        collapsed: beyond that, the two predict alike as far as is known: no test sample has another outcome, and some
            client's accuracy is neither 0 nor 1, which different models share by chance.
        left_out: clients for which only one of the two has a figure; they are not compared.
        tolerance: maximum change, as a fraction, of a client that is drawn as unchanged.
        changed: client id -> changes for its single test samples in the last evaluated round; empty where these are not
            known.
    """

    gains: dict[int, float]
    mean: float
    identical: bool
    left_out: int
    tolerance: float
    changed: Mapping[int, Changed] = field(default_factory=dict)
    collapsed: bool = False


def against(
    local: Mapping[int, float],
    method: Mapping[int, float],
    tolerance: float = 0.0,
    answers: tuple[Mapping[int, Answers], Mapping[int, Answers]] | None = None,
) -> Against:
    """Compare final accuracies client by client.

    Args:
        local: the reference, client id -> final accuracy, as from :func:`fedkin.evaluate.final_by_client`.
        method: the method, likewise; gains are method minus local.
        tolerance: gains of at most this size, as a fraction, are drawn as unchanged.
        answers: single test samples of the reference and of the method by client, where known.

    Raises:
        ConfigError: the tolerance is negative.
        DataError: the two share no client.
    """
    if not tolerance >= 0:
        raise ConfigError(f"expected tolerance >= 0 (a fraction of accuracy), got {tolerance}")
    common = sorted(local.keys() & method.keys())
    if not common:
        raise DataError(
            f"nothing to compare: the reference has {len(local)} clients, the method {len(method)}, they share none; "
            "compare runs on the same federation and seed"
        )
    gains = {client: gain_over(method[client], local[client]) for client in common}
    first, second = answers or ({}, {})
    both = {c: changed(first[c], second[c]) for c in common if c in first and c in second}
    known = {client: one for client, one in both.items() if one is not None}
    identical = not any(gains.values())
    alike = not any(one.net.any() for one in known.values()) and any(0 < method[c] < 1 for c in common)
    return Against(
        gains=gains,
        mean=gain_over(math.fsum(gains.values()) / len(gains), 0.0),
        identical=identical,
        left_out=len(local.keys() ^ method.keys()),
        tolerance=tolerance,
        changed=known,
        collapsed=identical and alike,
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
    found = {title: judge(seeds, same_clients, effect, test_share) for title, seeds in compared.items()}
    tails = {title: tail for title, one in found.items() if (tail := one.difference.tail) is not None}
    p = dict(zip(tails, holm(np.array([2 * min(tail, 1 - tail) for tail in tails.values()])).tolist(), strict=True))
    return {title: replace(one, p=p.get(title), comparisons=len(p)) for title, one in found.items()}


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
    gains, collapsed = [a.gains for a in seeds], all(a.collapsed for a in seeds)
    found = difference(gains, same_clients=same_clients, seed_effect=effect)
    parts = [{client: one.digest for client, one in a.changed.items()} for a in seeds]
    redrawn = not all(parts) or len({*chain(*(part.items() for part in parts))}) > len(set().union(*parts))
    these = of_these_clients(found, gains, test_share if redrawn else 0.0) if same_clients else None
    if not all(parts):
        return Conclusion(found, collapsed=collapsed, these=these)
    one = bool(same_clients) or len(seeds) == 1
    counted, unit = counts([a.changed for a in seeds], one), "clients" if one else "client results"
    up, down = clear_clients(counted) if one else ((), ())
    return Conclusion(found, harmed_range(counted), unit, up, down, collapsed, these)


def verdict(
    method: str,
    comparison: Against | Sequence[Against] | Conclusion,
    reference: str = "Local",
    same_clients: bool | None = None,
    names: Sequence[str] = (),
) -> str:
    """Return one sentence: better, worse or no clear difference, by how much, with which interval, how many are harmed.

    "Better" and "worse" require that the whole 95 % interval of :func:`fedkin.evaluate.difference` lies on one side of
    zero, and two seeds or more. One seed is "ahead", "behind" or "level" in this one run. Where single test
    samples are known, the sentence gives a range for the number of harmed clients (:func:`fedkin.evaluate.harmed`) and
    the clients that clearly move against the mean. A method whose every client equals the reference to the last digit
    is said to have collapsed to it, unless the two are Local and Local (full), or it is a safe form, whose clients may
    choose so, or only the accuracies are equal (see `Against`).

    Args:
        method: display name of the method.
        comparison: one per seed, or the result of `judge`.
        reference: display name of the reference.
        same_clients: as for `judge`.
        names: names of the clients, by number.

    Raises:
        ConfigError: no comparison was given.
    """
    if not isinstance(comparison, (Against, Conclusion)) and not comparison:
        raise ConfigError(f"{method}: a verdict needs at least one comparison with {reference}, got none")
    finding = comparison if isinstance(comparison, Conclusion) else judge(comparison, same_clients)
    found = finding.difference
    if found.identical:
        if {method, reference} == {"Local", "Local (full)"}:  # as without validation data: neither has collapsed
            return f"{method}: identical to {reference}"
        if stays_alone(method, reference):
            return f"{method}: identical to {reference}: held-out samples showed no client a gain"
        if not finding.collapsed:
            return f"{method}: the same accuracy as {reference} for every client"
        collapsed = "local training" if reference == "Local" else reference
        return f"{method}: identical to {reference}: it has collapsed to {collapsed}"
    by, mean = f"by {_points(abs(found.mean))} on average", _points(found.mean, sign=True)
    head, lead = {
        "better": (f"better than {reference}, {by}", ""),
        "worse": (f"worse than {reference}, {by}", ""),
        "no clear difference": (f"no clear difference from {reference} on average", f"{mean}, "),
        "ahead": (f"ahead of {reference} in this one run, {by}", ""),
        "behind": (f"behind {reference} in this one run, {by}", ""),
        "level": (f"level with {reference} in this one run", f"{mean}, "),
        "too few": (f"too few figures to tell it from {reference}", f"{mean} on average"),
    }[found.word]
    facts = "; ".join(filter(None, (lead + _interval(found), harmed_text(finding))))
    return f"{method}: {head} ({facts}){_for_whom(finding, names)}"


def stays_alone(method: str, reference: str) -> bool:
    """Return whether a method that equals the reference is a safe form whose clients all chose their model alone."""
    return reference.startswith("Local") and "-safe" in method


def harmed_text(finding: Conclusion) -> str:
    """Return the range for the number of harmed clients in words; "" where there is none."""
    found = finding.harmed
    if found is None:
        return ""
    if found.low < found.high:
        return f"between {found.low} and {found.high} of {found.of} {finding.of} are harmed"
    return f"{found.low} of {found.of} {finding.of} {'is' if found.low == 1 else 'are'} harmed"


def _points(value: float, sign: bool = False) -> str:
    if 0 < abs(value) < 0.0005:
        side = "" if not sign else " above" if value > 0 else " below"
        return f"less than 0.1 points{side}"
    return f"{100 * value:+.1f} points" if sign else f"{100 * value:.1f} points"


def _interval(found: Difference) -> str:
    """Return the interval and its seeds and clients; only the latter where there are too few figures."""
    if found.low is None or found.high is None:
        return "; one seed" if found.seeds == 1 else f" over {found.seeds} seeds"
    over = "clients" if found.seeds == 1 else f"{found.seeds} seeds"
    return f"{100 * found.level:g} % interval {100 * found.low:+.1f} to {100 * found.high:+.1f} over {over}"


def _for_whom(finding: Conclusion, names: Sequence[str]) -> str:
    """Return the clients for which the result clearly differs from the average."""
    word = finding.difference.word
    gain = (
        f"better for {_clients(finding.gaining, names)}" if finding.gaining and word not in ("better", "ahead") else ""
    )
    lose = f"worse for {_clients(finding.losing, names)}" if finding.losing and word not in ("worse", "behind") else ""
    parts = " and ".join(filter(None, (gain, lose)))
    return f", but clearly {parts}" if parts else ""


def _clients(ids: Sequence[int], names: Sequence[str]) -> str:
    """Return the clients' names, "client 3", "clients 3 and 7", or their number where the list would be long."""
    if len(ids) > 5:
        return f"{len(ids)} clients"
    named = all(i < len(names) for i in ids)
    called = [names[i] if named else str(i) for i in ids]
    listed = " and ".join(filter(None, (", ".join(called[:-1]), called[-1])))
    return listed if named else f"client{'s' if len(ids) > 1 else ''} {listed}"
