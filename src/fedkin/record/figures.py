"""The final figures of a run, from its lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fedkin.record.lines import ClientLine, Figures, FinalFigures, RoundLine

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
"""Figures of every evaluation."""
GROUPED = ("ari", "ari_evaluated")
"""Figures of runs with clusters and known groups."""
OTHER_MOMENT = ("accuracy_trained", "accuracy_delivered")
"""Accuracy of the model after a client's last local training; where that is the headline, of the model with which it
would predict now."""
MOST = 10
"""Maximum number of rounds that final figures are averaged over."""
RULE = f"evaluated rounds of the last fifth of the run, at most {MOST}"
"""The rule of `window` in words, for captions that stand above several runs."""
BEST = "each run's best round on validation data"
"""The rounds of `best` in words, for the same captions where figures are of these rounds."""


@dataclass(frozen=True)
class TargetReached:
    """A target was reached in ``round``, after ``rounds`` rounds and ``bytes`` sent up and down in total."""

    round: int
    rounds: int
    bytes: int


def evaluated(rounds: Iterable[RoundLine]) -> list[tuple[int, Figures]]:
    """Return the evaluated rounds, each with its figures."""
    return [(line.round, line.figures) for line in rounds if line.figures is not None]


def without_test(line: RoundLine) -> RoundLine:
    """Return the line of a trial's round without test figures, by which nobody should choose."""
    return replace(line, figures=line.figures and Figures(validation=line.figures.validation))


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
    result = set(texts)
    return result.pop() if len(result) == 1 else RULE


def over(rounds: str) -> str:
    """Return the text of `span` or `spans`, or `BEST`, to follow "mean over clients": "and rounds 81 to 100", "in round
    1"."""
    return f"in {rounds}" if rounds.startswith(("round ", BEST)) else f"and {rounds}"


def final(
    rounds: Iterable[RoundLine], chosen: int | None = None, clients: Callable[[], Iterable[ClientLine]] = tuple
) -> FinalFigures:
    """Return the final figures of a run: the mean of each metric over the rounds of `window`.

    A metric that is missing in some of these rounds is averaged over the others, None if missing in all. A client that
    is missing in some of them (it joined late, or could not be reached) counts there with the mean of its evaluations
    in the others, or with its last one, so that every figure is over the same clients in each round.

    Args:
        rounds: the lines of all rounds of the run, including those without an evaluation.
        chosen: an evaluated round whose figures are returned instead, such as that of `best`.
        clients: returns the lines of ``clients.jsonl``; called only where clients are missing. Without them, the
            figures are those of the clients that were there.
    """
    everything = list(rounds)
    by_round = {line.round: line for line in everything if line.figures is not None}
    averaged = window(by_round, max((line.round for line in everything), default=0)) if chosen is None else [chosen]
    figures = [f for t in averaged if (f := by_round[t].figures) is not None]
    if _some_missing(by_round, averaged) and (there := _of_all(clients(), averaged)):
        figures = [
            replace(of_all, ari=f.ari, ari_evaluated=f.ari_evaluated, views={**f.views, **of_all.views})
            for f, of_all in zip(figures, there, strict=True)
        ]
    views = sorted({name for f in figures for name in f.views})
    means = {metric: _mean(f.of(metric) for f in figures) for metric in (*METRICS, *GROUPED)}
    shown = {name: _mean(f.views.get(name) for f in figures) for name in views}
    return replace(FinalFigures(views=shown, rounds=tuple(averaged)), **means)


def _some_missing(by_round: Mapping[int, RoundLine], averaged: Sequence[int]) -> bool:
    """Return whether clients that are known were not evaluated in one of the averaged rounds."""
    tested = {t: line.figures.clients for t, line in by_round.items() if line.figures is not None}
    lines = [by_round[t] for t in averaged]
    return any(line.absent or line.missing("evaluate-query", "evaluate") for line in lines) or any(
        tested[t] < max(tested.values()) for t in averaged
    )


def _of_all(clients: Iterable[ClientLine], averaged: Sequence[int]) -> list[Figures]:
    """Return the figures of each averaged round over all clients; empty without lines of clients."""
    there: dict[int, dict[int, ClientLine]] = {}
    last: dict[int, ClientLine] = {}
    for line in clients:
        if line.round in averaged:
            there.setdefault(line.client, {})[line.round] = line
        if line.client not in last or line.round >= last[line.client].round:
            last[line.client] = line
    before = {i: list(there.get(i, {}).values()) or [line] for i, line in last.items()}
    figures = []
    for t in averaged if last else ():
        own = [[there[i][t]] if t in there.get(i, {}) else before[i] for i in sorted(last)]
        views = sorted({name for lines in own for line in lines for name in line.views})
        result = {v: _mean(_mean(line.views.get(v) for line in lines) for lines in own) for v in views}
        validation = _mean(_mean(line.validation for line in lines) for lines in own)
        figures.append(replace(summarise([_combined(lines) for lines in own]), views=result, validation=validation))
    return figures


def _combined(lines: Sequence[ClientLine]) -> ClientLine:
    """Return the mean of a client's lines, whose counts may be fractions then."""
    one, n = lines[-1], len(lines)
    if n == 1:
        return one
    counts = ("n_test", "correct", "test_classes")
    mean: dict[str, object] = {name: math.fsum(getattr(line, name) for line in lines) / n for name in counts}
    mean |= {name: _mean(line.of(name) for line in lines) for name in ("macro_f1", "balanced", "majority")}
    for name in ("few", "medium", "many", "unseen"):
        mean[name] = tuple(sum(getattr(line, name)[k] for line in lines) / n for k in (0, 1))
    return replace(one, **mean)


def summarise(clients: Sequence[ClientLine]) -> Figures:
    """Return the figures of one evaluated round.

    Clients without test samples are omitted from all figures on the test part, and counted.
    """
    tested = [s for s in clients if s.n_test > 0]
    n = sum(s.n_test for s in tested)
    f1 = [(s.macro_f1, s.n_test) for s in tested if s.macro_f1 is not None]
    each = sorted(s.correct / s.n_test for s in tested)
    mean = _mean(each)
    return Figures(
        accuracy=mean,
        pooled=sum(s.correct for s in tested) / n if n else None,
        std=None if mean is None else math.sqrt(math.fsum((a - mean) ** 2 for a in each) / len(each)),
        worst_decile=_mean(each[: -(-len(each) // 10)]),
        macro_f1=_mean(value for value, _ in f1),
        macro_f1_weighted=math.fsum(value * weight for value, weight in f1) / n if n else None,
        balanced=_mean(s.balanced for s in tested),
        few=_pooled(s.few for s in tested),
        medium=_pooled(s.medium for s in tested),
        many=_pooled(s.many for s in tested),
        unseen=_pooled(s.unseen for s in tested),
        validation=_mean(s.validation for s in clients),
        majority=_mean(s.majority / s.n_test for s in tested if s.majority is not None),
        majority_balanced=_mean(bool(s.majority) / s.test_classes for s in tested if s.majority is not None),
        clients=len(tested),
        untested=len(clients) - len(tested),
    )


def _pooled(parts: Iterable[tuple[int, int]]) -> float | None:
    listed = list(parts)
    total = sum(of for _, of in listed)
    return sum(right for right, _ in listed) / total if total else None


def best(rounds: Iterable[RoundLine]) -> RoundLine | None:
    """Return the round with the highest *validation* accuracy, the earliest of equals; the test part is not used.

    None if no round has a validation accuracy.
    """
    chosen, top = None, -math.inf
    for line in rounds:
        value = None if line.figures is None else line.figures.validation
        if value is not None and value > top:
            chosen, top = line, value
    return chosen


def stop_round(rounds: Iterable[RoundLine], after: int | None) -> int | None:
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
    for round, figures in evaluated(rounds) if after is not None else ():
        if (value := figures.validation) is not None:
            top, without = (value, 0) if value > top else (top, without + 1)
            if without == after:
                return round
    return None


def to_target(rounds: Iterable[RoundLine], target: float) -> TargetReached | None:
    """Return rounds and bytes until the accuracy first reaches ``target`` (a fraction); None if it never does."""
    spent = 0
    for count, line in enumerate(rounds, start=1):
        spent += line.bytes
        if line.accuracy is not None and line.accuracy >= target:
            return TargetReached(round=line.round, rounds=count, bytes=spent)
    return None


def final_by_client(
    clients: Iterable[ClientLine], total: int | None = None, metric: str = "accuracy", chosen: int | None = None
) -> dict[int, float]:
    """Return each client's final figure: the mean of ``metric`` over the client's evaluations in the rounds of
    `window`, or its last evaluation where it has none there.

    Args:
        clients: the lines of clients.
        total: the last round of the run; None: the last round of the lines.
        metric: as of `ClientLine.of`.
        chosen: an evaluated round that is taken instead of the `window`.

    Returns:
        Client id -> mean, by id. Clients for which the metric never exists (no test samples) are omitted.
    """
    series: dict[int, dict[int, float]] = {}
    seen: set[int] = set()
    for line in clients:
        seen.add(line.round)
        if (value := line.of(metric)) is not None:
            series.setdefault(line.client, {})[line.round] = value
    averaged = [chosen] if chosen is not None else window(seen, max(seen, default=0) if total is None else total)
    return {client: _mean_in(series[client], averaged) for client in sorted(series)}


def _mean_in(by_round: Mapping[int, float], averaged: Sequence[int]) -> float:
    keys = [t for t in averaged if t in by_round] or [max(by_round)]
    return math.fsum(by_round[key] for key in keys) / len(keys)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the numbers; None without any."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None
