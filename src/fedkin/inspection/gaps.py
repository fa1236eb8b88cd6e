"""Empty fields of a table, and zeros that may stand for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedkin.core.errors import counted
from fedkin.inspection.fields import FEWEST_ROWS, Field, Fields
from fedkin.inspection.finding import Finding, first, percent

_NINES = re.compile(r"-9|-?99+")
MUCH_MISSING = 0.2  # share of the rows from which gaps are a warning


def stand_ins(fields: Fields) -> list[Finding]:
    """Return findings on numbers that may stand for missing values.

    These are frequent zeros in columns of positive numbers far from 0, and numbers of nines, such as -999, far from
    all others.
    """
    found: list[tuple[str, Field, float]] = []
    for f in fields.inputs:
        values = f.numbers[np.isfinite(f.numbers)]
        if f.kind != "number" or len(np.unique(values)) < 3:
            continue
        others = values[values > 0]
        # the smallest other value is far above 0, measured by how much the values differ among themselves
        if f.distinct >= FEWEST_ROWS and values.min() == 0 and len(others):
            found += [("zeros", f, 0)] if others.min() > max(others.std(), 0.2 * np.median(others)) else []
        for end in (values.min(), values.max()):
            others = values[values != end]
            far = end < 0 <= others.min() or np.abs(others - end).min() > np.ptp(others)
            found += [("sentinel", f, end)] if far and _NINES.fullmatch(f"{end:.15g}") else []
    return [
        Finding(
            code,
            "note" if code == "zeros" else "warning",
            f"{value:g} may stand for a missing value: {f.name} is {value:g} in "
            f"{percent(float((f.numbers == value).mean()))} of the rows",
            "the other values are far from it, so a model takes these for the lowest or the highest there are",
            "leave these fields empty if nothing was measured",
            columns=(f.name,),
            clients=()
            if fields.client is None
            else tuple(fields.client_names[k] for k in np.unique(fields.client[f.numbers == value])[:100]),
            rows=fields.at(np.flatnonzero(f.numbers == value)),
        )
        for code, f, value in found
    ]


def missing(fields: Fields) -> list[Finding]:
    """Return findings on empty fields: by column, and columns that some client never fills in."""
    found: list[Finding] = []
    empty = [f.name for f in fields.inputs if f.missing.all()]
    if empty:
        found.append(
            Finding(
                "empty-column",
                "error",
                f"{counted(len(empty), 'column')} without any value: {first(empty)}",
                "a column without values cannot be standardised, and the reader refuses it",
                "drop the column",
                columns=tuple(empty),
            )
        )
    gaps = sorted(
        ((float(f.missing.mean()), f) for f in fields.inputs if f.missing.any() and not f.missing.all()),
        key=lambda pair: -pair[0],
    )
    if not gaps:
        return found
    shown = [f"{f.name} {percent(share)}" for share, f in gaps]
    found.append(
        Finding(
            "missing-values",
            "warning" if gaps[0][0] >= MUCH_MISSING else "note",
            f"{counted(len(gaps), 'column')} with empty fields: {first(shown, 8)}",
            "an empty number becomes the column's mean, with a second input that marks it; a column that is often "
            "missing mostly shows that it is missing",
            "drop columns that are mostly empty, or fill them where you know better than the mean",
            columns=tuple(f.name for _, f in gaps),
            rows=fields.at(np.flatnonzero(gaps[0][1].missing)),
        )
    )
    return found + _missing_at_clients(fields, [f for _, f in gaps])


def _missing_at_clients(fields: Fields, gaps: Sequence[Field]) -> list[Finding]:
    """Return findings on columns that one client fills in and another never does."""
    if fields.client is None:
        return []
    sizes = np.bincount(fields.client, minlength=len(fields.client_names))
    shown, columns, clients = [], [], set()
    for f in gaps:
        lacking = np.bincount(fields.client[f.missing], minlength=len(sizes))
        never = np.flatnonzero((lacking == sizes) & (sizes > 0))
        if len(never):
            names = [fields.client_names[k] for k in never]
            shown.append(f"{f.name} at {first(names, 3)}")
            columns.append(f.name)
            clients.update(names)
    if not shown:
        return []
    return [
        Finding(
            "missing-at-client",
            "warning",
            f"{counted(len(shown), 'column')} that some client never fills in: {first(shown)}",
            "such a column shows which client a row is from, and a shared model may learn that instead of the class",
            "drop the column, or compare a run without it",
            columns=tuple(columns),
            clients=tuple(sorted(clients)),
        )
    ]
