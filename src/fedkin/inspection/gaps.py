"""Empty fields of a table, and zeros that may stand for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedkin.core.errors import counted
from fedkin.inspection.fields import FEWEST_ROWS, Field, Fields
from fedkin.inspection.finding import Finding, first, percent

_NINES = re.compile(r"-?9+")
MUCH_MISSING = 0.2  # share of the rows from which gaps are a warning


def zeros(fields: Fields) -> list[Finding]:
    """Return findings on columns of positive numbers far from 0 in which 0 is frequent.

    A zero there may stand for a missing value.
    """
    found = []
    for f in fields.inputs:
        values = f.numbers[np.isfinite(f.numbers)]
        if f.kind != "number" or f.distinct < FEWEST_ROWS or (values < 0).any():
            continue
        others, share = values[values > 0], float((values == 0).mean())
        # the smallest other value is far above 0, measured by how much the values differ among themselves
        if share and len(others) and others.min() > max(others.std(), 0.2 * np.median(others)):
            found.append((f, share))
    if not found:
        return []
    found.sort(key=lambda pair: -pair[1])
    zero = np.flatnonzero(found[0][0].numbers == 0)
    return [
        Finding(
            "zeros",
            "note",
            "0 may stand for a missing value: "
            + first([f"{f.name} is 0 in {percent(share)} of the rows" for f, share in found]),
            "the other values are far from 0, so a model takes these for the lowest there are",
            "leave these fields empty if nothing was measured",
            columns=tuple(f.name for f, _ in found),
            rows=fields.at(zero),
        )
    ]


def sentinels(fields: Fields) -> list[Finding]:
    """Return findings on numbers of nines, such as -999, far below or above all other values of a column."""
    found = []
    for f in fields.inputs:
        values = np.unique(f.numbers[np.isfinite(f.numbers)])
        if f.kind != "number" or len(values) < 3:
            continue
        for end, others in ((values[0], values[1:]), (values[-1], values[:-1])):
            nines = _NINES.fullmatch(f"{end:.15g}") and (end < 0 or len(f"{end:g}") > 1)
            if nines and (end < 0 <= others[0] or np.abs(others - end).min() > np.ptp(others)):
                at = np.flatnonzero(f.numbers == end)
                found.append(
                    Finding(
                        "sentinel",
                        "warning",
                        f"{f.name} is {end:g} in {counted(len(at), 'row')}, the other values are {others[0]:g} to "
                        f"{others[-1]:g}",
                        "such a number often stands for a missing value, and a model takes it for a measured one",
                        "leave these fields empty if nothing was measured",
                        columns=(f.name,),
                        clients=()
                        if fields.client is None
                        else tuple(fields.client_names[k] for k in np.unique(fields.client[at])),
                        rows=fields.at(at),
                    )
                )
    return found


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
