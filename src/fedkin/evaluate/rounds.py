"""The final figures of a run, from the lines of its evaluated rounds.

A *line* is a mapping with ``round`` and the keys of :func:`fedkin.evaluate.summarise`, as in ``rounds.jsonl``; lines
with ``evaluated: false`` count for cost only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.evaluate.scores import ClientScore, summarise

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
    "majority_balanced",
)
"""What :func:`final` averages; `GROUPED` and `OTHER_MOMENT` are added where a run has them."""
GROUPED = ("ari", "ari_evaluated")
"""Adjusted Rand index of the clusters that the server used, and of those that clients chose at the evaluation."""
OTHER_MOMENT = ("accuracy_trained", "accuracy_delivered")
"""Accuracy of the model after a client's last local training; where that is the headline, of the model with which it
would predict now."""
MOST = 10
"""Maximum number of rounds that final figures are averaged over."""
RULE = f"evaluated rounds of the last fifth of the run, at most {MOST}"
"""The rule of `window` in words, for captions that stand above several runs."""
BEST = "each run's best round on validation data"
"""The rounds of `best` in words, for the same captions where figures are of these rounds."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class TargetReached:
    """A target was reached in ``round``, after ``rounds`` rounds and ``bytes`` sent up and down in total."""

    round: int
    rounds: int
    bytes: int


def evaluated(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of evaluated rounds, by round; of two lines of one round the later counts."""
    by_round = {int(line["round"]): line for line in lines if line.get("evaluated", True)}
    return [by_round[key] for key in sorted(by_round)]


def window(rounds: Iterable[int], total: int) -> list[int]:
    """Return the rounds that final figures are averaged over, ascending: the evaluated ``rounds`` in the last fifth of
    a run, ``5 t > 4 total``, at most the last ten of them; where none lies there, the last one.

    Every table, figure, sweep and verdict uses this rule. A fifth, because a mean over more includes the climb of a
    short run; ten, because a mean over more rounds of a long run costs more evaluations than it reduces noise.

    Args:
        rounds: the evaluated rounds, from 1.
        total: the last round of the run, evaluated or not.
    """
    known = sorted(set(rounds))
    return [t for t in known if 5 * t > 4 * total][-MOST:] or known[-1:]


def span(rounds: Sequence[int]) -> str:
    """Return ascending rounds as text: "rounds 81 to 100", "round 1", or "no round"."""
    if not rounds:
        return "no round"
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"


def spans(texts: Iterable[str]) -> str:
    """Return the text of `span` that several runs share, else the rule in words."""
    found = set(texts)
    return found.pop() if len(found) == 1 else RULE


def over(rounds: str) -> str:
    """Return the text of `span` or `spans`, or `BEST`, to follow "mean over clients": "and rounds 81 to 100", "in round
    1"."""
    return f"in {rounds}" if rounds.startswith(("round ", BEST)) else f"and {rounds}"


def final(
    rounds: Iterable[Line], chosen: int | None = None, clients: Callable[[], Iterable[Line]] = tuple
) -> dict[str, Any]:
    """Return the final figures of a run: the mean of each metric over the rounds of `window`.

    A metric that is missing in some of these rounds is averaged over the others, None if missing in all. A client that
    is missing in some of them (it joined late, or could not be reached) counts there with the mean of its evaluations
    in the others, or with its last one, so that every figure is over the same clients in each round.

    Args:
        rounds: the lines of all rounds of the run, including those without an evaluation.
        chosen: an evaluated round whose figures are returned instead, such as that of `best`.
        clients: returns the lines of ``clients.jsonl``; called only where clients are missing. Without them, the
            figures are those of the clients that were there.

    Returns:
        The metrics (floats or None), and the rounds that were averaged: ``rounds`` as text, such as "rounds 81 to 100",
        ``rounds_averaged`` (their number), ``first_round`` and ``last_round`` (None without an evaluated round).
    """
    everything = list(rounds)
    by_round = {int(line["round"]): line for line in evaluated(everything)}
    total = max((int(line["round"]) for line in everything), default=0)
    averaged = window(by_round, total) if chosen is None else [chosen]
    lines = [by_round[t] for t in averaged]
    if _some_missing(by_round, averaged) and (there := _of_all(clients(), averaged)):
        lines = [{**line, **figures} for line, figures in zip(lines, there, strict=True)]
    some = [m for m in (*GROUPED, *OTHER_MOMENT) if any(_number(line.get(m)) is not None for line in lines)]
    result: dict[str, Any] = {metric: _mean(line.get(metric) for line in lines) for metric in (*METRICS, *some)}
    result["rounds"] = span(averaged)
    result["rounds_averaged"] = len(averaged)
    result["first_round"], result["last_round"] = (averaged[0], averaged[-1]) if averaged else (None, None)
    return result


def _some_missing(by_round: Mapping[int, Line], averaged: Sequence[int]) -> bool:
    """Return whether clients that are known were not evaluated in one of the averaged rounds."""
    tested = {t: int(line.get("clients") or 0) for t, line in by_round.items()}
    lines = [by_round[t] for t in averaged]
    told = any(line.get("absent") or line.get("unevaluated") for line in lines)
    return told or any(tested[t] < max(tested.values()) for t in averaged)


def _of_all(clients: Iterable[Line], averaged: Sequence[int]) -> list[dict[str, float | int | None]]:
    """Return the figures of each averaged round over all clients; empty without lines of clients."""
    there: dict[int, dict[int, Line]] = {}
    last: dict[int, Line] = {}
    for line in clients:
        t, client = int(line["round"]), int(line["client"])
        if t in averaged:
            there.setdefault(client, {})[t] = line
        if client not in last or t >= int(last[client]["round"]):
            last[client] = line
    means = {i: _combined(list(there.get(i, {}).values()) or [line]) for i, line in last.items()}
    figures = []
    for t in averaged if last else ():
        own = [_combined([there[i][t]]) if t in there.get(i, {}) else means[i] for i in sorted(last)]
        views = {m: _mean(views.get(m) for _, views in own) for m in OTHER_MOMENT}
        found = summarise([score for score, _ in own])
        figures.append({**found, **{m: v for m, v in views.items() if v is not None}})
    return figures


def _combined(lines: Sequence[Line]) -> tuple[ClientScore, dict[str, float | None]]:
    """Return one client's score as the mean over lines of ``clients.jsonl``, and its accuracies of `OTHER_MOMENT`."""

    def mean(name: str) -> float | None:
        return _mean(line.get(name) for line in lines)

    def pair(name: str) -> tuple[float, float]:
        right, of = ([(line.get(name) or (0, 0))[k] for line in lines] for k in (0, 1))
        return sum(right) / len(lines), sum(of) / len(lines)

    score = ClientScore(
        client=int(lines[0]["client"]), n_test=mean("n_test") or 0, correct=mean("correct") or 0,
        accuracy=mean("accuracy"), macro_f1=mean("macro_f1"), balanced=mean("balanced"),
        majority=mean("majority"),
        test_classes=mean("test_classes") or 0, n_validation=mean("n_validation") or 0,
        validation_accuracy=mean("validation_accuracy"), few=pair("few"), medium=pair("medium"), many=pair("many"),
        unseen=pair("unseen"),
    )  # fmt: skip
    return score, {name: mean(name) for name in OTHER_MOMENT}


def latest(rounds: Iterable[Line]) -> dict[str, float | int | None] | None:
    """Return the last evaluated round: ``round`` and its metrics; None if no round was evaluated."""
    lines = evaluated(rounds)
    return _one(lines[-1]) if lines else None


def best(rounds: Iterable[Line]) -> dict[str, float | int | None] | None:
    """Return the round with the highest *validation* accuracy, the earliest of equals; the test part is not used.

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
    return _one(chosen)


def stop_round(rounds: Iterable[Line], after: int | None) -> int | None:
    """Return the round after which a run with ``stop_after`` ends early: the first that completes ``after`` evaluations
    in a row whose *validation* accuracy (mean over clients) is not above the highest before them.

    An evaluation without a validation accuracy (no client could be reached) is not counted.

    Args:
        rounds: the lines of all rounds so far.
        after: number of evaluations without a gain; None: the run does not end early.

    Returns:
        The round; None while the run goes on.
    """
    top, without = -math.inf, 0
    for line in evaluated(rounds) if after is not None else ():
        value = _number(line.get("validation"))
        if value is not None:
            top, without = (value, 0) if value > top else (top, without + 1)
            if without == after:
                return int(line["round"])
    return None


def to_target(rounds: Iterable[Line], target: float, metric: str = "accuracy") -> TargetReached | None:
    """Return rounds and bytes until ``metric`` first reaches ``target`` (a fraction); None if it never does.

    Needs *all* rounds, not only the evaluated ones: ``bytes_up`` and ``bytes_down`` of every round are added up.
    """
    spent = 0
    by_round = {int(line["round"]): line for line in rounds}
    for count, key in enumerate(sorted(by_round), start=1):
        line = by_round[key]
        spent += int(line.get("bytes_up") or 0) + int(line.get("bytes_down") or 0)
        value = _number(line.get(metric)) if line.get("evaluated", True) else None
        if value is not None and value >= target:
            return TargetReached(round=key, rounds=count, bytes=spent)
    return None


def final_by_client(
    clients: Iterable[Line], total: int | None = None, metric: str = "accuracy", chosen: int | None = None
) -> dict[int, float]:
    """Return each client's final figure: the mean of ``metric`` over the client's evaluations in the rounds of
    `window`, or its last evaluation where it has none there.

    Args:
        clients: lines with ``round``, ``client`` and the metric, as in ``clients.jsonl``.
        total: the last round of the run; None: the last round of the lines.
        metric: key of the metric.
        chosen: an evaluated round that is taken instead of the `window`.

    Returns:
        Client id -> mean, by id. Clients for which the metric never exists (no test samples) are omitted.
    """
    series: dict[int, dict[int, float]] = {}
    seen: set[int] = set()
    for line in clients:
        seen.add(int(line["round"]))
        value = _number(line.get(metric))
        if value is not None:
            series.setdefault(int(line["client"]), {})[int(line["round"])] = value
    averaged = [chosen] if chosen is not None else window(seen, max(seen, default=0) if total is None else total)
    return {client: _mean_in(series[client], averaged) for client in sorted(series)}


def _mean_in(by_round: Mapping[int, float], averaged: Sequence[int]) -> float:
    keys = [t for t in averaged if t in by_round] or [max(by_round)]
    return math.fsum(by_round[key] for key in keys) / len(keys)


def _one(line: Line) -> dict[str, float | int | None]:
    """Return the metrics of one round."""
    metrics = [*METRICS, *(m for m in (*GROUPED, *OTHER_MOMENT) if m in line)]
    return {"round": int(line["round"]), **{metric: _number(line.get(metric)) for metric in metrics}}


def _mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the finite numbers; None without any."""
    known = [v for v in map(_number, values) if v is not None]
    return math.fsum(known) / len(known) if known else None


def _number(value: Any) -> float | None:
    """Return a finite number, or None for everything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
