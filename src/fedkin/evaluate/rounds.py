"""The final figures of a run, from the lines of its evaluated rounds.

A *line* is a mapping with ``round`` and the keys of :func:`fedkin.evaluate.summarise`, as in ``rounds.jsonl``; lines
with ``evaluated: false`` count for cost only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.core.errors import ConfigError

METRICS = (
    "accuracy",
    "pooled",
    "std",
    "worst_decile",
    "macro_f1",
    "macro_f1_weighted",
    "balanced",
    "few",
    "medium",
    "many",
    "unseen",
    "validation",
    "majority",
)
"""What :func:`final` averages; ``ari`` is added where a run has it."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Reached:
    """A target was reached in ``round``, after ``rounds`` rounds and ``bytes`` sent up and down in all."""

    round: int
    rounds: int
    bytes: int


def evaluated(lines: Iterable[Line]) -> list[Line]:
    """The lines of evaluated rounds, by round; of two lines of one round the later counts."""
    by_round = {int(line["round"]): line for line in lines if line.get("evaluated", True)}
    return [by_round[key] for key in sorted(by_round)]


def final(rounds: Iterable[Line], last: int = 10) -> dict[str, float | int | None]:
    """Mean of the last ``last`` evaluated rounds, per metric; of all of them if there are fewer.

    A metric that is missing in some of these rounds is averaged over the others, None if missing in all.

    Returns:
        the metrics, and ``rounds_averaged``, ``first_round``, ``last_round``: over which rounds.

    Raises:
        ConfigError: ``last`` is below 1.
    """
    _check(last)
    lines = evaluated(rounds)[-last:]
    metrics = [*METRICS, "ari"] if any(_number(line.get("ari")) is not None for line in lines) else METRICS
    result: dict[str, float | int | None] = {}
    for metric in metrics:
        values = [v for v in (_number(line.get(metric)) for line in lines) if v is not None]
        result[metric] = math.fsum(values) / len(values) if values else None
    result["rounds_averaged"] = len(lines)
    result["first_round"] = int(lines[0]["round"]) if lines else None
    result["last_round"] = int(lines[-1]["round"]) if lines else None
    return result


def best(rounds: Iterable[Line]) -> dict[str, float | int | None] | None:
    """The round with the highest *validation* accuracy, the earliest of equals; the test part has no say.

    Returns:
        ``round`` and that round's metrics; None if no round has a validation accuracy.
    """
    chosen: Line | None = None
    top = -math.inf
    for line in evaluated(rounds):
        value = _number(line.get("validation"))
        if value is not None and value > top:
            chosen, top = line, value
    if chosen is None:
        return None
    metrics = [*METRICS, "ari"] if "ari" in chosen else METRICS
    return {"round": int(chosen["round"]), **{metric: _number(chosen.get(metric)) for metric in metrics}}


def to_target(rounds: Iterable[Line], target: float, metric: str = "accuracy") -> Reached | None:
    """Rounds and bytes until ``metric`` first reaches ``target`` (a fraction); None if it never does.

    Needs *all* rounds, not only the evaluated ones: ``bytes_up`` and ``bytes_down`` of every round are added up.
    """
    spent = 0
    by_round = {int(line["round"]): line for line in rounds}
    for count, key in enumerate(sorted(by_round), start=1):
        line = by_round[key]
        spent += int(line.get("bytes_up") or 0) + int(line.get("bytes_down") or 0)
        value = _number(line.get(metric)) if line.get("evaluated", True) else None
        if value is not None and value >= target:
            return Reached(round=key, rounds=count, bytes=spent)
    return None


def final_by_client(clients: Iterable[Line], last: int = 10, metric: str = "accuracy") -> dict[int, float]:
    """Each client's final figure: mean of ``metric`` over the client's own last ``last`` evaluated rounds.

    Args:
        clients: lines with ``round``, ``client`` and the metric, as in ``clients.jsonl``.
        last: how many rounds at most.
        metric: which key.

    Returns:
        client id -> mean, by id. Clients for which the metric never exists (no test samples) are left out.

    Raises:
        ConfigError: ``last`` is below 1.
    """
    _check(last)
    series: dict[int, dict[int, float]] = {}
    for line in clients:
        value = _number(line.get(metric))
        if value is not None:
            series.setdefault(int(line["client"]), {})[int(line["round"])] = value
    return {client: _last(series[client], last) for client in sorted(series)}


def _last(by_round: Mapping[int, float], last: int) -> float:
    keys: Sequence[int] = sorted(by_round)[-last:]
    return math.fsum(by_round[key] for key in keys) / len(keys)


def _check(last: int) -> None:
    if last < 1:
        raise ConfigError(f"expected last >= 1 (how many evaluated rounds to average), got {last}")


def _number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
