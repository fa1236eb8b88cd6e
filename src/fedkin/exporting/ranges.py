"""Ranges of the training data, as ``ranges.json`` next to a model, and notes on inputs that are unlike them.

Ranges of one client's training part are exact, since its export stays with the client. Ranges of all clients together,
for a shared model, are quantiles that leave at least `BEYOND` values outside, to two digits; extremes would be single
samples.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from fedkin.core.samples import ClientData
from fedkin.data import Federation
from fedkin.data.checks import listed
from fedkin.data.columns import Input, Raw, Row, digits, text_of, unscaled
from fedkin.data.preparation import Preparation

BEYOND = 10
"""Minimum number of values outside a range of all clients, on each side."""
FAR = 3.0  # widths of the training range beyond its ends; values further out are probably on another scale
FAR_PIXELS = 0.25  # the same for images, whose range is bounded
TINY = 1 / 50  # inputs all below this fraction of the training's magnitude are probably on another scale
SOME = 16  # number of values from which TINY is applied
ROUNDED = 1e-4  # part of a column's deviation by which rounding may have moved the ends of its range
ALL_OUTSIDE = 5  # number of rows from which a note says that all lie outside the training range
FEW_VALUES = 5  # a column with at most this many distinct values is probably a code, whose values are kept
ENOUGH = 20  # training rows from which on all values of a code are expected to occur
_MOST = 5_000_000  # maximum number of values for deviation and quantiles; more samples are thinned evenly
_QUANTILE = 0.01
_SHOWN = 5

Values = npt.NDArray[np.float64]


class Seen(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What training had in a column, or in all inputs.

    Attributes:
        low, high: quantiles at 1 % and 99 %; None where there were no values, or too few.
        min, max: extremes; None: not kept.
        std: deviation of all inputs; None for a column.
        values: all values of a column with few different ones.
        texts: categories of a column that occur.
        pixels: whether the inputs are images.
    """

    low: float | None = None
    high: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    values: tuple[float, ...] = ()
    texts: tuple[str, ...] | None = None
    pixels: bool = False

    @property
    def ends(self) -> tuple[float, float] | None:
        """Extremes, or quantiles where these are not kept; None without values."""
        if self.low is None or self.high is None:
            return None
        return self.low if self.min is None else self.min, self.high if self.max is None else self.max

    def limits(self, far: float, std: float = 0.0) -> tuple[float, float]:
        """Bounds beyond which values are far from all training values; infinite if the range is not informative."""
        if self.ends is None or self.low is None or self.high is None:
            return -math.inf, math.inf
        start, end = self.ends
        width = max(self.high - self.low or end - start, std)
        if not width and self.min is None:
            return -math.inf, math.inf
        return min(start, self.low - far * width), max(end, self.high + far * width)


class Ranges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``ranges.json``: whose samples, all inputs together as in training, and columns of a table."""

    of: str
    inputs: Seen = Seen()
    columns: dict[str, Seen] = {}


def of_client(shard: ClientData, preparation: Preparation | None) -> Ranges:
    """Return the ranges of one client's training part; ``preparation`` is that of its inputs."""
    x = shard.train.x.numpy()
    columns = dict[str, Seen]()
    if _is_table(preparation):
        raw = unscaled(x, preparation.columns)
        columns = {c.name: _column(raw[:, j], c) for j, c in enumerate(preparation.columns)}
    inputs = _inputs(_thinned(x, x.size), float(x.min()), float(x.max()))
    return Ranges("the client's training samples", inputs, columns)


def of_all(federation: Federation, *, exact: bool = False) -> Ranges:
    """Return the ranges of the training parts of all clients together.

    ``exact`` keeps extremes and all digits, for a comparison that stays on this machine.
    """
    made, n = federation.preparation, int(federation.sizes()[:, 0].sum()) * prod(federation.shape)
    each = [_thinned(shard.train.x.numpy(), n) for shard in federation.clients]
    x = np.concatenate(each)
    inputs, columns = _inputs(x, float(x.min()), float(x.max())), dict[str, Seen]()
    if _is_table(made):
        raw = np.concatenate([unscaled(part, made.of(i).columns) for i, part in enumerate(each)])
        for values, c in zip(raw.T, made.columns, strict=True):
            if c.kind == "number":
                columns[c.name] = _column(values, c) if exact else _coarse(Seen(), values)
        columns = {name: seen for name, seen in columns.items() if exact or seen.ends is not None}
    return Ranges("the training samples of all clients", inputs if exact else _coarse(inputs, x), columns)


def _is_table(preparation: Preparation | None) -> TypeGuard[Preparation]:
    return preparation is not None and preparation.kind == "table"


def _column(values: Raw, column: Input) -> Seen:
    if column.kind == "text":
        return Seen(texts=tuple(column.categories[int(i)] for i in np.unique(values) if i >= 0))
    there = values[~np.isnan(values)]
    if not len(there):
        return Seen()
    places = digits(max(column.std)) if max(column.std) > 0 else 15
    ends = (*np.quantile(there, (_QUANTILE, 1 - _QUANTILE)), there.min(), there.max())
    low, high, least, most = (round(float(value), places) for value in ends)
    different = np.unique(there)
    kept = len(different) <= FEW_VALUES and len(there) >= ENOUGH
    return Seen(low, high, least, most, values=tuple(different.tolist()) if kept else ())


def _inputs(x: Values, least: float, most: float) -> Seen:
    ends = (*np.quantile(x, (_QUANTILE, 1 - _QUANTILE)), least, most, x.std())
    low, high, least, most, std = (_digits(value, 6) for value in ends)
    return Seen(low, high, least, most, std, pixels=x.ndim == 4)


def _coarse(exact: Seen, values: Values) -> Seen:
    """Return a range without extremes: quantiles with enough values outside, to two digits; empty for few values."""
    there = values[~np.isnan(values)]
    if there.size < 10 * BEYOND:
        return Seen()
    fraction = max(_QUANTILE, BEYOND / there.size)
    low, high = (_digits(value, 2) for value in np.quantile(there, (fraction, 1 - fraction)))
    return Seen(low, high, std=exact.std and _digits(exact.std, 2), pixels=exact.pixels)


def _thinned(x: npt.NDArray[Any], n: int) -> Values:
    """Return evenly chosen samples of ``x [m, ...]`` where all ``n`` values would be too many; at least the first."""
    return np.ascontiguousarray(x[:: max(1, -(-n // _MOST))], dtype=np.float64)


def _digits(value: float, count: int) -> float:
    return float(f"{float(value):.{count}g}")


# ---- what training did not have -------------------------------------------------------------------------------------
def unusual_rows(
    rows: Sequence[Row], raw: Raw, columns: Sequence[Input], ranges: Ranges | None, unused: Collection[str | None]
) -> list[str]:
    """Compare rows with the training rows: a sentence per column with other values, with counts.

    Columns that are not in ``ranges`` are compared with their categories only. ``raw`` are the rows from
    `fedkin.data.columns.raw_rows`, ``unused`` columns that training data may have and the network does not use.
    """
    result = []
    for values, column in zip(raw.T, columns, strict=True):
        of = None if ranges is None else ranges.columns.get(column.name)
        if column.kind == "text":
            notes = _texts([text_of(row[column.name]) for row in rows], values, column, of)
        else:
            notes = _numbers(values, column, of)
        result += [f"{column.name}: {text}" for text in notes]
    known = {*unused, *(column.name for column in columns)}
    new = list(dict.fromkeys(name for row in rows for name in row if name not in known))
    if new:
        these = "this column" if len(new) == 1 else "these columns"
        result.append(f"not looked at, since the model does not know {these}: {listed(new, 10)}")
    return result


def unusual_inputs(x: npt.NDArray[Any], ranges: Ranges | None) -> list[str]:
    """Return a sentence if inputs ``[n, ...]`` as in training seem to be on another scale than those of training."""
    seen = Seen() if ranges is None else ranges.inputs
    if not x.size or seen.ends is None:
        return []
    least, most = float(x.min()), float(x.max())
    low, high = seen.limits(FAR_PIXELS if seen.pixels else FAR)
    start, end = seen.ends
    if seen.pixels and start >= 0:  # pixels have two usual scales, of which training images may use a part
        low, high = min(low, 0.0), max(high, 1.0 if end <= 1 else 255.0 if end <= 255 else high)
    size = max(abs(start), abs(end))
    small = x.size >= SOME and least < most and max(abs(least), abs(most)) <= TINY * size <= (seen.std or 0.0)
    if low <= least and most <= high and not small:
        return []
    return [
        f"the inputs lie in {_short(least)}..{_short(most)}, those of training in {_short(start)}..{_short(end)}: "
        "another scale? Prepare them as the training data were"
    ]


def _numbers(values: Raw, column: Input, of: Seen | None) -> list[str]:
    there, n, result = values[~np.isnan(values)], len(values), []
    if len(there) < n and not column.gaps:
        result.append(f"empty in {n - len(there)} of {n} rows, and in no training row; the training mean is taken")
    if not len(there) or of is None:
        return result
    if of.ends is None:
        return [*result, f"filled in {len(there)} of {n} rows, and in no training row"]
    start, end = of.ends
    shown = f"{_short(start)}..{_short(end)}"
    rounded = ROUNDED * max(column.std, default=0.0) or 1e-12 * max(abs(start), abs(end))
    low, high = of.limits(FAR, *column.std[:1])
    far = (there < low - rounded) | (there > high + rounded)
    under, over = there < start - rounded, there > end + rounded
    if far.any():
        result.append(f"{int(far.sum())} of {n} rows outside {shown} ({_some(there[far])}): another scale?")
    elif len(there) >= ALL_OUTSIDE and (under.all() or over.all()):
        result.append(f"all {len(there)} rows outside {shown} ({_some(there)}): another scale?")
    elif of.values:
        new = there[~np.isclose(there[:, None], np.array(of.values)[None]).any(axis=1)]
        if len(new):
            known = ", ".join(map(_short, of.values))
            result.append(f"{_some(new)} in {len(new)} of {n} rows; training had {known}")
    return result


def _texts(texts: Sequence[str], values: Raw, column: Input, of: Seen | None) -> list[str]:
    """Return texts that no training row had, or none of this client's: none of the column's inputs is 1 then."""
    result, n, known = [], len(values), column.categories
    new = np.flatnonzero(values < 0).tolist()
    if new:
        odd = {texts[i] for i in new}
        usual = {_folded(text): text for text in known}
        alike = [f"{t!r} is {usual[_folded(t)]!r}" for t in sorted(odd) if _folded(t) in usual]
        result.append(
            f"{_quoted(odd)} in {len(new)} of {n} rows; training had {listed([c or 'nothing' for c in known], 8)}. "
            "Such a field carries no information for the model"
        )
        if alike:
            result[-1] += f"; {listed(alike, _SHOWN)} but for capitals or the form of its letters (Unicode): write it "
            result[-1] += "in the same way"
    if of is not None and of.texts is not None:
        others = [known[int(i)] for i in values if i >= 0 and known[int(i)] not in of.texts]
        if others:
            result.append(f"{_quoted(others)} in {len(others)} of {n} rows; no training row of this client had it")
    return result


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _quoted(texts: Iterable[str]) -> str:
    return listed([repr(t) if t else "nothing" for t in sorted(set(texts))], _SHOWN)


def _some(values: Raw) -> str:
    different = np.unique(values)
    if len(different) <= 3:
        return ", ".join(map(_short, different))
    return f"{_short(different[0])} to {_short(different[-1])}"


def _short(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e6 and not float(value).is_integer() else f"{value:.15g}"
