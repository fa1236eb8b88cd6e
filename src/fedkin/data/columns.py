"""Columns of a table as inputs of a network: from fields as texts to numbers that are not yet scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import DataError
from fedkin.data import standalone
from fedkin.data.standalone import Input, Raw, RawError, text_of

__all__ = ["Input", "Raw", "fitted", "raw_rows", "recoded", "text_of", "unscaled"]


def raw_rows(
    rows: Sequence[Mapping[str, object]], columns: Sequence[Input], places: Sequence[str] | None = None
) -> Raw:
    """Do the same as `fedkin.data.standalone.raw_rows`, with `DataError` in place of its error."""
    try:
        return standalone.raw_rows(rows, columns, places)
    except RawError as error:
        raise DataError(str(error)) from error


def fitted(column: Input, values: Raw, parts: Sequence[npt.NDArray[np.int64]], own: bool) -> Input:
    """Return the column with what was counted and averaged over the rows of each part."""
    if column.kind == "text":
        if own:
            return column
        seen = np.unique(values[parts[0]])
        categories = tuple(column.categories[int(i)] for i in seen if i >= 0)
        return replace(column, categories=categories, gaps="" in categories)
    means, stds = [], []
    for part in parts:
        there = values[part][~np.isnan(values[part])]
        varies = len(there) > 0 and there.min() < there.max()
        # the mean of equal numbers is not always that number
        means.append(float(there.mean() if varies else there[0]) if len(there) else 0.0)
        stds.append(float(there.std()) if varies else 0.0)
    gaps = column.gaps if own else bool(np.isnan(values[parts[0]]).any())
    return replace(column, gaps=gaps, mean=tuple(means), std=tuple(stds))


def recoded(raw: Raw, old: Sequence[Input], new: Sequence[Input]) -> Raw:
    """Return the same rows with texts numbered by the categories of ``new``; -1 for texts that are not among them."""
    out = raw.copy()
    for j, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.kind == "text" and before.categories != after.categories:
            place_of = {category: i for i, category in enumerate(after.categories)}
            table = np.array([*(place_of.get(c, -1) for c in before.categories), -1], dtype=np.float64)
            out[:, j] = table[raw[:, j].astype(np.int64)]
    return out


def unscaled(x: npt.NDArray[np.floating[Any]], columns: Sequence[Input]) -> Raw:
    """Return the rows ``[n, columns]`` whose inputs are ``x [n, inputs]``, the inverse of `standalone.scaled`.

    It is exact to the fifth digit of a column's deviation. A column of numbers without deviation gives its mean.
    """
    out = np.empty((len(x), len(columns)), dtype=np.float64)
    at = 0
    for j, column in enumerate(columns):
        values = x[:, at : at + column.width].astype(np.float64)
        if column.kind == "text":
            out[:, j] = np.where(values.any(axis=1), values.argmax(axis=1), -1) if column.width else -1
        else:
            mean, std = column.mean[0], column.std[0]
            out[:, j] = mean if std == 0 else np.round(values[:, 0] * std + mean, digits(std)) + 0.0  # -0.0 is 0.0
            if column.gaps:
                out[values[:, 1] > 0, j] = np.nan
        at += column.width
    return out


def digits(std: float) -> int:
    """Return the decimal places, possibly negative, with which a number of this deviation is worth writing."""
    return 5 - math.floor(math.log10(std))
