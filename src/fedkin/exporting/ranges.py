"""Ranges of the training data: of columns and pixels, and texts of columns, as ``ranges.json`` next to a model.

Ranges of one client's training part are exact, since its export stays with the client. Ranges of all clients together,
for a shared model, are quantiles that leave at least `BEYOND` values outside, to two digits; extremes would be single
samples.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from fedkin.core.samples import ClientData
from fedkin.data import Federation
from fedkin.data.columns import digits, unscaled
from fedkin.data.preparation import Preparation
from fedkin.data.standalone import Input, Raw

BEYOND = 10
"""Minimum number of values outside a range of all clients, on each side."""
FEW_VALUES = 5  # a column with at most this many distinct values is probably a code, whose values are kept
ENOUGH = 20  # training rows from which on all values of a code are expected to occur
_MOST = 5_000_000  # maximum number of values for mean, deviation and quantiles; more samples are thinned evenly
_QUANTILE = 0.01

Values = npt.NDArray[np.float64]


def of_client(shard: ClientData, preparation: Preparation | None) -> dict[str, Any]:
    """Return the ranges of one client's training part.

    Args:
        shard: the client's data.
        preparation: preparation of its inputs; None where that is not known.
    """
    x = shard.train.x.numpy()
    found: dict[str, Any] = {"of": "the client's training samples", "samples": len(x)}
    found["inputs"] = _inputs(_thinned(x, x.size), float(x.min()), float(x.max()))
    if _is_table(preparation):
        columns = preparation.columns
        raw = unscaled(x, columns)
        found["columns"] = {c.name: _column(raw[:, j], c) for j, c in enumerate(columns)}
    return found


def of_all(federation: Federation, *, exact: bool = False) -> dict[str, Any]:
    """Return the ranges of the training parts of all clients together.

    Args:
        federation: the clients' data.
        exact: return extremes and all digits, for a comparison that stays on this machine.
    """
    made, n = federation.preparation, int(federation.sizes()[:, 0].sum()) * prod(federation.shape)
    each = [_thinned(shard.train.x.numpy(), n) for shard in federation.clients]
    x = np.concatenate(each)
    inputs = _inputs(x, float(x.min()), float(x.max()))
    found: dict[str, Any] = {"of": "the training samples of all clients"}
    found["inputs"] = inputs if exact else _coarse(inputs, x)
    if _is_table(made):
        raw = np.concatenate([unscaled(part, made.of(i).columns) for i, part in enumerate(each)])
        columns = {c.name: (_column(raw[:, j], c), raw[:, j]) for j, c in enumerate(made.columns) if c.kind == "number"}
        found["columns"] = {
            n: statistics if exact else _coarse(statistics, values) for n, (statistics, values) in columns.items()
        }
    return found


def _is_table(preparation: Preparation | None) -> TypeGuard[Preparation]:
    return preparation is not None and preparation.kind == "table"


def _column(values: Raw, column: Input) -> dict[str, Any]:
    """Return the range or the texts of one column."""
    if column.kind == "text":
        return {"texts": [column.categories[int(i)] for i in np.unique(values) if i >= 0]}
    there = values[~np.isnan(values)]
    if not len(there):
        return {"values": []}
    places = digits(max(column.std)) if max(column.std) > 0 else 15
    low, high = np.quantile(there, (_QUANTILE, 1 - _QUANTILE))
    statistics = {"min": there.min(), "max": there.max(), "low": low, "high": high}
    found: dict[str, Any] = {name: round(float(value), places) for name, value in statistics.items()}
    different = np.unique(there)
    if len(different) <= FEW_VALUES and len(there) >= ENOUGH:
        found["values"] = different.tolist()
    return found


def _inputs(x: Values, least: float, most: float) -> dict[str, Any]:
    """Return the range of inputs ``[n, ...]``; mean and deviation per channel of images ``[n, channels, h, w]``."""
    low, high = np.quantile(x, (_QUANTILE, 1 - _QUANTILE))
    statistics = {"min": least, "max": most, "low": low, "high": high, "mean": x.mean(), "std": x.std()}
    found: dict[str, Any] = {name: _digits(value, 6) for name, value in statistics.items()}
    found["pixels"] = x.ndim == 4
    if x.ndim == 4:
        found["channels"] = {
            "mean": [_digits(v, 6) for v in x.mean(axis=(0, 2, 3))],
            "std": [_digits(v, 6) for v in x.std(axis=(0, 2, 3))],
        }
    return found


def _coarse(statistics: dict[str, Any], values: Values) -> dict[str, Any]:
    """Return a range without extremes: quantiles with enough values outside, to two digits; empty for few values."""
    there = values[~np.isnan(values)]
    if there.size < 10 * BEYOND:
        return {}
    fraction = max(_QUANTILE, BEYOND / there.size)
    low, high = np.quantile(there, (fraction, 1 - fraction))
    kept: dict[str, Any] = {
        "low": low,
        "high": high,
        **{name: statistics[name] for name in ("mean", "std") if name in statistics},
    }
    found: dict[str, Any] = {name: _digits(value, 2) for name, value in kept.items()}
    return found | {name: statistics[name] for name in ("pixels",) if name in statistics}


def _thinned(x: npt.NDArray[Any], n: int) -> Values:
    """Return evenly chosen samples of ``x [m, ...]`` where all ``n`` values would be too many; at least the first."""
    return np.ascontiguousarray(x[:: max(1, -(-n // _MOST))], dtype=np.float64)


def _digits(value: Any, count: int) -> float:
    return float(f"{float(value):.{count}g}")
