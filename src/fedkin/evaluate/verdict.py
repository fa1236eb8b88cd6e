"""Did it pay? A method against a reference, client by client, and one honest sentence about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkin.core.errors import ConfigError, DataError
from fedkin.evaluate.intervals import Difference, difference


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and sample standard deviation (n - 1); ``std`` is None for a single seed."""

    mean: float
    std: float | None
    values: tuple[float, ...]


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and spread of the values that exist; None if none does."""
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
        helped: clients with a gain above ``tolerance``.
        harmed: clients with a gain below ``-tolerance``.
        unchanged: the rest.
        identical: every single gain is exactly zero.
        left_out: clients that only one of the two has a figure for; they are not compared.
        tolerance: how far a client may move, as a fraction, and still count as unchanged.
    """

    gains: dict[int, float]
    mean: float
    helped: int
    harmed: int
    unchanged: int
    identical: bool
    left_out: int
    tolerance: float


def against(local: Mapping[int, float], method: Mapping[int, float], tolerance: float = 0.0) -> Against:
    """Compare final accuracies client by client.

    Args:
        local: the reference, client id -> final accuracy, as from :func:`fedkin.evaluate.final_by_client`.
        method: the same for the method; gains are method minus local.
        tolerance: gains of at most this size, as a fraction, count as unchanged.

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
    gains = {client: method[client] - local[client] for client in common}
    helped = sum(gain > tolerance for gain in gains.values())
    harmed = sum(gain < -tolerance for gain in gains.values())
    return Against(
        gains=gains,
        mean=math.fsum(gains.values()) / len(gains),
        helped=helped,
        harmed=harmed,
        unchanged=len(gains) - helped - harmed,
        identical=all(gain == 0 for gain in gains.values()),
        left_out=len(local.keys() ^ method.keys()),
        tolerance=tolerance,
    )


def verdict(method: str, comparison: Against | Sequence[Against], reference: str = "Local") -> str:
    """One sentence: better, worse or no clear difference, by how much, for how many clients, how sure.

    Args:
        method: its display name.
        comparison: one per seed.
        reference: the display name of what it was compared with.

    "Better" and "worse" are said only where the whole 95 % interval of :func:`fedkin.evaluate.difference` lies on one
    side of zero; it counts the luck of seeds and of clients. Where seeds repeat it, the sentence says which clients
    move against the mean. A method whose every client equals the reference to the last digit is said to have collapsed
    to it.

    Raises:
        ConfigError: no comparison was given.
    """
    seeds = [comparison] if isinstance(comparison, Against) else list(comparison)
    if not seeds:
        raise ConfigError(f"{method}: a verdict needs at least one comparison with {reference}, got none")
    found = difference([a.gains for a in seeds])
    if found.identical:
        collapsed = "local training" if reference == "Local" else reference
        return f"{method}: identical to {reference}: it has collapsed to {collapsed}"
    runs = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    facts = [_interval(found), _counts(seeds, found.mean), runs]
    if found.word in ("better", "worse"):
        head = f"{found.word} than {reference}, by {_points(abs(found.mean))} on average"
    elif found.word == "too few":
        head = f"too few figures to tell it from {reference}"
        facts[0] = f"{_points(found.mean, sign=True)} on average"
    else:
        head = f"no clear difference from {reference} on average"
        facts[0] = f"{_points(found.mean, sign=True)}, {facts[0]}"
    return f"{method}: {head}{_for_whom(found)} ({'; '.join(facts)})"


def _points(value: float, sign: bool = False) -> str:
    if 0 < abs(value) < 0.0005:
        side = "" if not sign else " above" if value > 0 else " below"
        return f"less than 0.1 points{side}"
    return f"{100 * value:+.1f} points" if sign else f"{100 * value:.1f} points"


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    what = " over clients" if found.seeds == 1 else ""
    return f"{100 * found.level:g} % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}{what}"


def _for_whom(found: Difference) -> str:
    """For which clients it is clearly otherwise than on average, where seeds repeat it."""
    gain = f"better for {_clients(found.gaining)}" if found.gaining and found.word != "better" else ""
    lose = f"worse for {_clients(found.losing)}" if found.losing and found.word != "worse" else ""
    parts = " and ".join(filter(None, (gain, lose)))
    return f", but clearly {parts}" if parts else ""


def _clients(ids: Sequence[int]) -> str:
    """ "client 3", "clients 3 and 7", or how many where that would be a long list."""
    if len(ids) > 5:
        return f"{len(ids)} clients"
    names = " and ".join(filter(None, (", ".join(map(str, ids[:-1])), str(ids[-1]))))
    return f"client{'s' if len(ids) > 1 else ''} {names}"


def _counts(seeds: Sequence[Against], mean: float) -> str:
    """ "18 of 20 clients gain, 2 lose"; says so where the majority moves against the mean."""
    helped, harmed = sum(a.helped for a in seeds), sum(a.harmed for a in seeds)
    unchanged = sum(a.unchanged for a in seeds)
    total = helped + harmed + unchanged
    noun = "client" if len(seeds) == 1 else "client result"
    against_mean = "only " if mean > 0 and harmed > helped else "though " if mean < 0 and helped > harmed else ""
    first = f"{against_mean}{helped} of {total} {noun}{'' if total == 1 else 's'} {'gains' if helped == 1 else 'gain'}"
    parts = [first, "none loses" if harmed == 0 else f"{harmed} {'loses' if harmed == 1 else 'lose'}"]
    if unchanged:
        tolerance = max(a.tolerance for a in seeds)
        parts.append(f"{unchanged} unchanged" + (f" within {100 * tolerance:g} points" if tolerance else ""))
    return ", ".join(parts)
