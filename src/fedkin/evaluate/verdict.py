"""Did it pay? A method against a reference, client by client, and one honest sentence about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkin.core.errors import ConfigError, DataError


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
    """One sentence: how far the method is above or below the reference, for how many clients, how sure.

    Args:
        method: its display name.
        comparison: one per seed.
        reference: the display name of what it was compared with.

    With several seeds a mean gain no larger than its spread over them (sample standard deviation) is called "no clear
    difference". A method whose every client equals the reference to the last digit is said to have collapsed to it.

    Raises:
        ConfigError: no comparison was given.
    """
    seeds = [comparison] if isinstance(comparison, Against) else list(comparison)
    gain = spread([a.mean for a in seeds])
    if gain is None:
        raise ConfigError(f"{method}: a verdict needs at least one comparison with {reference}, got none")
    if all(a.identical for a in seeds):
        collapsed = "local training" if reference == "Local" else reference
        return f"{method}: identical to {reference}: it has collapsed to {collapsed}"
    runs = "one seed" if gain.std is None else f"{len(seeds)} seeds"
    if gain.std is not None and abs(gain.mean) <= gain.std:
        points = f"{100 * gain.mean:+.1f} ± {100 * gain.std:.1f} points"
        return f"{method}: no clear difference from {reference} ({points} over {runs}; {_counts(seeds, gain.mean)})"
    return f"{method}: {_difference(gain, reference)} ({_counts(seeds, gain.mean)}; {runs})"


def _difference(gain: Spread, reference: str) -> str:
    if gain.mean == 0:
        return f"no difference from {reference} on average"
    side = "above" if gain.mean > 0 else "below"
    size = abs(100 * gain.mean)
    if size < 0.05:
        return f"less than 0.1 points {side} {reference} on average"
    amount = f"{size:.1f}" if gain.std is None else f"{size:.1f} ± {100 * gain.std:.1f}"
    return f"{amount} points {side} {reference} on average"


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
