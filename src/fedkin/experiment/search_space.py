"""What a sweep tries: the values of a grid, or draws from ranges by Optuna or a Sobol sequence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedkin.core import ConfigError
from fedkin.core.grammar import Table
from fedkin.core.seeds import key

Value = int | float | bool | str
Values = dict[str, Value]
_END = 0.05  # the share of a range that is its end
_DIMENSIONS = 16


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``log``: even on a logarithmic scale; ``whole``: integers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        """As it is written in a file."""
        ends = (int(self.low), int(self.high)) if self.whole else (float(self.low), float(self.high))
        return f"{'log:' if self.log else 'int:' if self.whole else ''}{ends[0]}..{ends[1]}"


Space = Mapping[str, tuple[Value, ...] | Range]


def space_from(entries: Table, where: str) -> Space:
    """Read a search space: for each setting a list of values, or a range such as ``log:1e-3..1e-1`` or ``int:1..5``.

    Raises:
        ConfigError: an entry is neither, or a range is empty; it names the entry.
    """
    return {name: _one(entry, f"{where}: {name}") for name, entry in entries.items()}


def _one(entry: Any, where: str) -> tuple[Value, ...] | Range:
    if isinstance(entry, str) and ".." in entry:
        return _range(entry, where)
    if not isinstance(entry, list) or not entry or not all(isinstance(v, (int, float, bool, str)) for v in entry):
        raise ConfigError(f"{where} must be a list of values such as [0.01, 0.1] or a range, got {entry!r}")
    if len({(type(v), v) for v in entry}) < len(entry):
        raise ConfigError(f"{where}: each value once, got {entry!r}")
    return tuple(entry)


def _range(text: str, where: str) -> Range:
    kind, _, ends = text.partition(":") if ":" in text else ("", "", text)
    low, _, high = ends.partition("..")
    try:
        result = Range(float(low), float(high), kind == "log", kind == "int")
    except ValueError:
        result = Range(math.nan, math.nan)
    whole = not result.whole or (result.low.is_integer() and result.high.is_integer())
    if kind not in ("", "log", "int") or not result.low < result.high < math.inf or not whole:
        raise ConfigError(f"{where}: a range is log:1e-3..1e-1, 0.1..0.9 or int:1..5, lower end first, got {text!r}")
    if result.log and result.low <= 0:
        raise ConfigError(f"{where}: a range with log needs ends above 0, got {text!r}")
    return result


def grid_of(space: Space) -> list[Values]:
    """Return every combination; the last setting changes fastest.

    Raises:
        ConfigError: a setting has a range, whose values cannot be enumerated.
    """
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(f"{name} is a range, from which --trials N are drawn; a grid needs values")
    lists = [[(name, v) for v in values] for name, values in space.items() if not isinstance(values, Range)]
    return [dict(combination) for combination in itertools.product(*lists)]


def corners(space: Space) -> list[Values]:
    """Return each value and each end of a range once, so that all can be checked before anything is run."""
    ends = {n: _ends(v) if isinstance(v, Range) else v for n, v in space.items()}
    most = max((len(v) for v in ends.values()), default=0)
    return [{n: v[min(i, len(v) - 1)] for n, v in ends.items()} for i in range(most)]


def _ends(range: Range) -> tuple[Value, ...]:
    return (int(range.low), int(range.high)) if range.whole else (range.low, range.high)


def proposal(space: Space, before: Sequence[tuple[Values, float | None]], seed: int) -> Values:
    """Return the settings to try next, by Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).

    It depends on nothing but the arguments, so that a sweep that was killed goes on as if it had not been.

    Args:
        space: the search space.
        before: settings tried so far, in order, with scores (higher is better); None where a run failed.
        seed: of the draws.

    Raises:
        ConfigError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as e:
        raise ConfigError(
            '--trials needs Optuna: pip install "fedkin[optuna]"; or, in a file, [sweep] sampler = "sobol"'
        ) from e
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ways: dict[str, Any] = {n: _distribution(optuna.distributions, v) for n, v in space.items()}
    sampler = optuna.samplers.TPESampler(seed=key(seed, "sweep", len(before)) % 2**32)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, score in before:
        state = optuna.trial.TrialState.FAIL if score is None else optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.trial.create_trial(params=values, distributions=ways, value=score, state=state))
    return dict(study.ask(ways).params)


def _distribution(kinds: Any, values: tuple[Value, ...] | Range) -> Any:
    if not isinstance(values, Range):
        return kinds.CategoricalDistribution(values)
    if values.whole:
        return kinds.IntDistribution(int(values.low), int(values.high))
    return kinds.FloatDistribution(values.low, values.high, log=values.log)


def quasi_random(space: Space, number: int, seed: int) -> Values:
    """Return the settings at a place of a scrambled Sobol sequence, which covers the space evenly.

    They do not depend on what was found before. Of ranges that are not whole, three digits are used.

    Args:
        space: the search space.
        number: the place, from 0.
        seed: of the scrambling.
    """
    # of a fixed dimension: what two spaces begin with, such as the step size, is drawn alike in both
    engine = torch.quasirandom.SobolEngine(max(len(space), _DIMENSIONS), scramble=True, seed=key(seed, "sweep"))
    point = engine.draw(number + 1, dtype=torch.float64)[number].tolist()
    return {name: _at(values, u) for (name, values), u in zip(space.items(), point, strict=False)}


def _at(values: tuple[Value, ...] | Range, u: float) -> Value:
    """Return the value at ``u`` in [0, 1)."""
    if not isinstance(values, Range):
        return values[int(u * len(values))]
    low, high = values.low, values.high
    if values.whole:
        return int(low) + int(u * (high - low + 1))
    result = low * (high / low) ** u if values.log else low + u * (high - low)
    return min(max(float(f"{result:.3g}"), low), high)


def end_at(values: tuple[Value, ...] | Range, value: Value) -> tuple[Literal["lower", "upper"], Value] | None:
    """Return the end of the tried numbers at which a value lies, or beyond which, and a number outside that end.

    The end of a range that is not whole is its last twentieth. None elsewhere, and for words.
    """
    ends = (values.low, values.high) if isinstance(values, Range) else values
    numbers = [v for v in (value, *ends) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) <= len(ends) or len(set(ends)) < 2:
        return None
    low, high = first, last = min(numbers[1:]), max(numbers[1:])
    if isinstance(values, Range) and not values.whole:
        inner = (last / first) ** _END if values.log else _END * (last - first)
        low, high = (first * inner, last / inner) if values.log else (first + inner, last - inner)
    whole = isinstance(value, int)
    if numbers[0] <= low:
        return "lower", int(first) - 1 if whole else first / 2 or -1.0
    if numbers[0] >= high:
        return "upper", int(last) + 1 if whole else 2 * last or 1.0
    return None
