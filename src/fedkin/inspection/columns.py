"""Findings on single columns of a table, or of rows of numbers."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from fedkin.core.errors import counted
from fedkin.data.card import MAX_CATEGORIES
from fedkin.data.checks import Indices, is_nameless
from fedkin.data.conversion import MOSTLY
from fedkin.data.sources.csvfile import Table
from fedkin.inspection.fields import FEWEST_ROWS, Field, Fields
from fedkin.inspection.finding import EXAMPLES, Finding, first

FAR = 1e6  # ratio of a column's width to the median
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")
TOLD = 0.99  # balanced accuracy of a column alone from which it gives the class away
_FEW_OF_A_CLASS = 3
_FEW_CODES, _ALIKE = 10, 0.6  # of a column that a client may write in codes; rows of two clients with values of both
_ID = re.compile(r"(^|[_\W])(id|uuid|guid|index|idx|key|nr|no|number)$", re.IGNORECASE)


def constant(fields: Fields) -> list[Finding]:
    """Return findings on columns with one value in every row."""
    names = [f.name for f in fields.inputs if f.distinct == 1 and not f.missing.any()]
    if not names or len(fields.inputs[0].missing) < 2:
        return []
    return [
        Finding(
            "constant-column",
            "warning",
            f"{counted(len(names), 'column')} with the same value in every row: {first(names)}",
            "a constant carries no information on the class; it may be a field that was never filled in",
            "drop it, or find out why it does not vary",
            columns=tuple(names),
        )
    ]


def constant_at_client(fields: Fields) -> list[Finding]:
    """Return findings on columns that vary, but not at some client with enough rows."""
    if fields.client is None:
        return []
    order = np.argsort(fields.client, kind="stable")
    start = np.flatnonzero(np.diff(fields.client[order], prepend=-1))
    size = np.diff(start, append=len(order))
    shown, columns, clients = [], [], set()
    numbers = {f.name for f in fields.inputs if _of_client(f, fields)}
    for f in fields.inputs:
        if f.name in numbers:
            continue
        codes = f.codes[order]
        low, high = np.minimum.reduceat(codes, start), np.maximum.reduceat(codes, start)
        for i in np.flatnonzero((low == high) & (low >= 0) & (size >= FEWEST_ROWS)) if f.distinct > 2 else ():
            row = order[start[i]]
            name = fields.client_names[fields.client[row]]
            value = f.texts[row] if f.texts is not None else f"{f.numbers[row]:g}"
            shown.append(f"{f.name} is {value} at {name}")
            columns.append(f.name)
            clients.add(name)
    if not shown:
        return []
    return [
        Finding(
            "constant-at-client",
            "warning",
            f"one value in every row of a client: {first(shown)}",
            "the column was probably not measured there, and now shows which client a row is from",
            "leave these fields empty if the value stands for unknown, or drop the column",
            columns=tuple(dict.fromkeys(columns)),
            clients=tuple(sorted(clients)),
        )
    ]


def client_numbers(fields: Fields) -> list[Finding]:
    """Return findings on columns that number or name the clients."""
    names = [f.name for f in fields.inputs if _of_client(f, fields)]
    if not names:
        return []
    return [
        Finding(
            "client-number",
            "warning",
            f"one value in all rows of each client, and another one at every client: {first(names)}",
            "it is the number or the name of the client in another form, and a shared model may learn that instead of "
            "the class",
            "drop the column",
            columns=tuple(names),
        )
    ]


def codes_of_clients(fields: Fields) -> list[Finding]:
    """Return findings on columns of few values in which a client has other values than the largest client has."""
    found: list[Finding] = []
    for f in fields.inputs:
        if fields.client is None or not 2 < f.distinct <= MAX_CATEGORIES:
            continue
        counts = np.zeros((len(fields.client_names), f.distinct))
        np.add.at(counts, (fields.client[f.codes >= 0], f.codes[f.codes >= 0]), 1)
        has, rows = counts > 0, np.maximum(counts.sum(axis=1), 1)
        judged = (rows >= FEWEST_ROWS) & (has.sum(axis=1) > 1) & (has.sum(axis=1) <= _FEW_CODES)
        usual = int(np.argmax(judged * rows))
        alike = (counts @ has[usual] / rows + has @ counts[usual] / rows[usual]) / 2
        clients = [usual, *np.flatnonzero(judged & (alike <= _ALIKE))]
        if judged[usual] and len(clients) > 1:
            written = dict(zip(f.codes.tolist(), f.texts or [f"{v:g}" for v in f.numbers], strict=True))
            shown = [f"{'/'.join(written[v] for v in np.flatnonzero(has[k]))} at {fields.client_names[k]}"
                     for k in clients]  # fmt: skip
            found.append(
                Finding(
                    "codes-differ",
                    "warning",
                    f"{f.name} has other values at some clients: {first(shown, 3)}",
                    "if they are other codes or units of the same thing, a shared model takes them for other things",
                    "write the values alike at all clients, or drop the column",
                    columns=(f.name,),
                    clients=tuple(fields.client_names[k] for k in clients[:100]),
                )
            )
    return found


def _of_client(f: Field, fields: Fields) -> bool:
    """Return whether every client has a value of its own in all of its rows, and at least two have enough of them.

    Rows that name no client may be of any.
    """
    if fields.client is None:
        return False
    nameless = [k for k, name in enumerate(fields.client_names) if is_nameless(name)]
    named = ~np.isin(fields.client, nameless)
    client, codes = fields.client[named], f.codes[named]
    if (codes < 0).any() or int((np.bincount(client) >= FEWEST_ROWS).sum()) < 2:
        return False
    pairs = len(np.unique(client * (int(codes.max()) + 1) + codes))
    return len(np.unique(client)) == len(np.unique(codes)) == pairs


def odd_numbers(fields: Fields) -> list[Finding]:
    """Return findings on values that are not finite."""
    found = []
    for f in fields.inputs:
        wild = np.flatnonzero(np.isinf(f.numbers) | (np.isnan(f.numbers) & ~f.missing if f.texts is None else False))
        if len(wild):
            found.append(
                Finding(
                    "non-finite",
                    "error",
                    f"{counted(len(wild), 'value')} of {f.name} that are not finite numbers",
                    "one such value turns a model's weights into NaN, and the reader refuses it",
                    "correct these fields, or leave them empty",
                    columns=(f.name,),
                    rows=fields.at(wild),
                )
            )
    return found


def conversions(table: Table, fields: Fields) -> list[Finding]:
    """Return findings on columns whose texts were merged or left out, or look like numbers and are none."""
    found = []
    for f in fields.inputs:
        made = table.converted(f.name)
        if made.code:
            many = made.code == "numbers-as-texts" and f.distinct > MAX_CATEGORIES
            what, _, todo = made.note.partition("; ")
            found.append(
                Finding(
                    made.code,
                    "error" if many else "note" if made.code == "same-number" else "warning",
                    what,
                    "a model sees what a text is read as, not the text",
                    todo,
                    columns=(f.name,),
                    rows=tuple(table.places[i] for i in made.odd[:EXAMPLES]),
                )
            )
    return found


def texts(fields: Fields) -> list[Finding]:
    """Return findings on dates, and texts that cannot become inputs."""
    found = []
    for f in fields.inputs:
        date = _dated(f)
        if f.kind != "text" or (not date and (_unique(f) or f.distinct <= MAX_CATEGORIES)):
            continue
        found.append(
            Finding(
                "date-column" if date else "too-many-texts",
                "error" if f.distinct > MAX_CATEGORIES else "warning",
                f"{f.name} holds {'dates' if date else 'texts'}, {f.distinct:,} different ones",
                f"each text becomes an input of its own, at most {MAX_CATEGORIES} of a column; "
                + ("for a model no date is near another" if date else "a text that comes once teaches nothing"),
                "turn it into numbers that matter (age in days, year, weekday) or drop it"
                if date
                else "group the texts into fewer, or drop the column",
                columns=(f.name,),
                rows=fields.at(f.odd),
            )
        )
    return found


def ids(fields: Fields) -> list[Finding]:
    """Return findings on columns that number or name the rows."""
    found = []
    for f in fields.inputs:
        if not _unique(f) or not (_numbering(f) or (f.kind == "text" and not _dated(f))):
            continue
        refused = f.kind == "text" and f.distinct > MAX_CATEGORIES
        found.append(
            Finding(
                "id-column",
                "error" if refused else "warning",
                f"{f.name} has {f.distinct:,} different values in {len(f.codes):,} rows: it looks like the number or "
                "the name of a row",
                "a model can learn single rows by it, and rows of one client or class often have neighbouring numbers"
                + (f"; the reader takes at most {MAX_CATEGORIES} different texts" if refused else ""),
                "drop it",
                columns=(f.name,),
            )
        )
    return found


def scales(fields: Fields, *, standardised: bool) -> list[Finding]:
    """Return findings on columns whose numbers vary far more than those of the others.

    Args:
        standardised: whether the reader brings columns to one scale, as it does for tables.
    """
    wide = [(f.name, _spread(f)) for f in fields.inputs if f.kind == "number"]
    wide = [(name, s) for name, s in wide if s > 0]
    if len(wide) < 2:
        return []
    middle = float(np.median([s for _, s in wide]))
    smallest = min(s for _, s in wide)
    reference = smallest if len(wide) == 2 else middle
    names = [name for name, s in wide if s >= FAR * reference]
    if not names:
        return []
    return [
        Finding(
            "scale",
            "note" if standardised else "warning",
            f"{first(names)}: values vary a million times more than those of the other columns",
            "fedkin standardises columns, so this alone does no harm; often it is another unit, or a code for a "
            "missing value such as 999999"
            if standardised
            else "such a column drowns the others, and steps of SGD diverge",
            "look at the largest values" if standardised else "bring the columns to one scale",
            columns=tuple(names),
        )
    ]


def leaks(fields: Fields) -> list[Finding]:
    """Return findings on columns that give the class away, however rare a class is.

    The most frequent class of each value, or of each side of a threshold, is right for nearly all rows of each class.
    """
    label = fields.label
    if label is None or len(label) < FEWEST_ROWS:
        return []
    names = [f.name for f in fields.inputs if _tells(f, label)]
    if not names:
        return []
    return [
        Finding(
            "target-leak",
            "warning",
            f"{first(names)} alone determines the class of (nearly) every row",
            "a column that was filled in after the outcome was known, or is the outcome in other words, makes every "
            "method look perfect and is not there when the model is used",
            "drop it, unless it is really known beforehand",
            columns=tuple(names),
        )
    ]


def _tells(f: Field, label: Indices) -> bool:
    """Return whether the balanced accuracy of the best rule on this column alone is `TOLD` or more.

    Classes of which few rows could be told apart by chance are left out.
    """
    n = np.bincount(label)
    classes = np.flatnonzero(n >= _FEW_OF_A_CLASS)
    if len(classes) < 2:
        return False
    for codes in (f.codes + 1, f.missing.astype(np.int64)):  # an empty field counts as a value
        pairs, rows = np.unique(codes * len(n) + label, return_counts=True)
        order = np.lexsort((rows, pairs // len(n)))
        most = order[
            np.flatnonzero(np.diff(pairs[order] // len(n), append=-1))
        ]  # the most frequent class of each value
        right = np.bincount(pairs[most] % len(n), rows[most], len(n)) / np.maximum(n, 1)
        values = np.bincount(pairs[most] % len(n), minlength=len(n))
        if right[classes].mean() >= TOLD and (values[classes] <= n[classes] / 2).all():
            return True
    if f.kind != "number" or f.missing.any():
        return False
    parts = sorted((np.sort(f.numbers[label == c]) for c in classes), key=np.mean)
    gaps = [
        (np.searchsorted(a, a, "right") / len(a) - np.searchsorted(b, a, "right") / len(b)).max()
        for a, b in pairwise(parts)
    ]  # twice the balanced accuracy of the best threshold between two classes, less 1
    return bool(min(gaps) >= 2 * TOLD - 1)


def _dated(f: Field) -> bool:
    """Return whether nearly all fields are dates."""
    if f.kind != "text" or f.texts is None:
        return False
    return sum(bool(_DATE.match(f.texts[i])) for i in f.odd.tolist()) > 0.9 * len(f.odd)


def _unique(f: Field) -> bool:
    """Return whether nearly all rows have a value of their own; half of them, if the column's name is that of an id."""
    return len(f.codes) >= FEWEST_ROWS and f.distinct >= (0.5 if _ID.search(f.name) else MOSTLY) * len(f.codes)


def _numbering(f: Field) -> bool:
    """Return whether these are whole numbers that are consecutive, in order, or are called a number."""
    values = f.numbers[~f.missing]
    if f.kind != "number" or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return False
    span = values.max() - values.min() + 1
    return bool(_ID.search(f.name)) or span <= 1.5 * len(values) or bool((np.diff(values) >= 0).all())


def _spread(f: Field) -> float:
    values = f.numbers[np.isfinite(f.numbers)]
    return float(values.std()) if len(values) else 0.0
