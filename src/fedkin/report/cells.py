"""Cells of CSV files that a spreadsheet shows and does not compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cells(row: Iterable[Any]) -> list[Any]:
    """Return a row with an apostrophe before texts that a spreadsheet would interpret as a formula.

    Names of clients, classes and columns come from data files. Numbers stay as they are, including negative ones, those
    that are written as text, and those with a standard deviation ("-7.9 ± 4.4").
    """
    return [_cell(value) for value in row]


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        list(map(float, value.split(" ± ", 1)))
    except ValueError:
        return f"'{value}"
    return value
