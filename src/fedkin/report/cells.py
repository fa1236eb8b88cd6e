"""Cells of CSV files that a spreadsheet shows and never computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cells(row: Iterable[Any]) -> list[Any]:
    """A row in which texts that a spreadsheet would take for a formula begin with an apostrophe, so that it does not.

    Names of clients, classes and columns come from data files. Numbers stay numbers, also negative ones, and those that
    are written as text.
    """
    return [_cell(value) for value in row]


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
