"""Verdict on a method against a reference, client by client, and one sentence that summarises it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate.answers import Answers, Changed, changed
from fedkin.evaluate.harm import Harmed, clear_clients, counts, harmed_range
from fedkin.evaluate.paired import Difference, difference, gain_over


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
        tolerance: maximum change, as a fraction, of a client that is drawn as unchanged.
        changed: client id -> changes for its single test samples in the last evaluated round; empty where these are not
            known.
        same_answers: number of test samples in the last evaluated round, if both are right about the same ones at every
            client; 0 where they are not, or where this is not known.
    """

    gains: dict[int, float]
    mean: float
    identical: bool
    left_out: int
    tolerance: float
    changed: Mapping[int, Changed] = field(default_factory=dict)
    collapsed: bool = False
    same_answers: int = 0


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
    same = len(known) == len(common) and not any(one.net.any() for one in known.values())
    return Against(
        gains=gains,
        mean=gain_over(math.fsum(gains.values()) / len(gains), 0.0),
        identical=identical,
        left_out=len(local.keys() ^ method.keys()),
        tolerance=tolerance,
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
    """

    difference: Difference
    harmed: Harmed | None = None
    of: str = "clients"
    gaining: tuple[int, ...] = ()
    losing: tuple[int, ...] = ()
    collapsed: bool = False
    same_answers: int = 0


def judge(comparison: Against | Sequence[Against], same_clients: bool | None = None) -> Conclusion:
    """Return the conclusions from a method's comparisons with a reference, one per seed.

    Args:
        comparison: one per seed.
        same_clients: whether a client id means the same client in every seed. If unknown (None), the interval treats
            clients as the same, and single clients as different: both are the conservative choice.

    Raises:
        DataError: no comparison was given.
    """
    seeds = [comparison] if isinstance(comparison, Against) else list(comparison)
    found = difference([a.gains for a in seeds], same_clients=same_clients)
    if not all(a.changed for a in seeds):
        return Conclusion(found)
    one = bool(same_clients) or len(seeds) == 1
    counted = counts([a.changed for a in seeds], one)
    up, down = clear_clients(counted) if one else ((), ())
    of, same = "clients" if one else "client results", [a.same_answers for a in seeds]
    collapsed = all(a.collapsed for a in seeds)
    return Conclusion(found, harmed_range(counted), of, up, down, collapsed, sum(same) * all(same))


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
    the clients that clearly move against the mean. A method whose every client predicts with the numbers of the
    reference is said to have collapsed to it (see `Against`), unless the two are Local and Local (full), or it is a
    safe form, whose clients may choose so.

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
