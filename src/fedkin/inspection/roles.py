"""The columns with the class and with the client: whether they exist and can have that role."""

from __future__ import annotations

import numpy as np

from fedkin.core.errors import counted, meant
from fedkin.data.card import MAX_CLASSES, numbers_of
from fedkin.data.checks import NAMELESS, Indices
from fedkin.data.conversion import looks_measured
from fedkin.data.sources.csvfile import Table
from fedkin.inspection.fields import Field
from fedkin.inspection.finding import EXAMPLES, Finding, first

_USUAL = ("target", "label", "class", "y", "outcome", "diagnosis", "num")


def check_target(table: Table, target: str | None, binary: bool) -> tuple[Indices | None, list[Finding]]:
    """Return the class of each row, int64 ``[n]``, and findings on the target."""
    if target is None:
        likely = [c for c in table.columns if c.lower() in _USUAL] or [table.columns[-1]]
        return None, [
            _error(
                "no-target",
                f"no target was named; the columns are {first(table.columns, 30)}",
                "a setting has to name the column that holds the class",
                f"name it, perhaps: --target {likely[0]}",
            )
        ]
    if target not in table.columns:
        return None, [
            _error(
                "unknown-target",
                f"there is no column {target!r}{meant(target, table.columns)}",
                "the target is the column with the class",
                "give the name as it stands in the header",
                columns=(target,),
            )
        ]
    field = Field.read(target, table)
    if field.missing.any():
        rows = np.flatnonzero(field.missing)
        return None, [
            _error(
                "missing-target",
                f"{counted(len(rows), 'row')} without a value of the target {target}",
                table.differences
                if target in table.lacking
                else "a row without a class can neither be trained on nor tested",
                "remove these rows, or fill in the class",
                columns=(target,),
                rows=_places(table, rows),
            )
        ]
    return _labels(field, binary, table)


def check_client(table: Table, client: str | None) -> list[Finding]:
    """Return findings on the column that names the client."""
    if client is None:
        return []
    if client not in table.columns:
        return [
            _error(
                "unknown-client-column",
                f"there is no column {client!r}{meant(client, table.columns)}",
                "the client column names the client of each row",
                "give the name as it stands in the header",
                columns=(client,),
            )
        ]
    field = Field.read(client, table, "client")
    found = []
    if field.missing.any():
        rows = np.flatnonzero(field.missing)
        found.append(
            Finding(
                "missing-client",
                "warning",
                f"{counted(len(rows), 'row')} without a value in {client}",
                f"they are one client, {NAMELESS!r}, although they may be from several",
                "fill in the client, or remove these rows",
                columns=(client,),
                rows=_places(table, rows),
            )
        )
    if field.distinct > len(table.rows) / 3 and field.distinct > 3:
        found.append(
            Finding(
                "many-clients",
                "warning",
                f"{client} has {field.distinct:,} different values in {len(table.rows):,} rows",
                "a client with a row or two cannot be trained and tested; the column may number rows, not clients",
                "name another column with --client-column, or group these clients",
                columns=(client,),
            )
        )
    return found


def _labels(field: Field, binary: bool, table: Table) -> tuple[Indices | None, list[Finding]]:
    name, texts = field.name, field.texts or ()
    if binary:
        if (signed := numbers_of(texts)) is None:
            return None, [
                _error(
                    "target-texts",
                    f"the target {name} holds texts, such as {texts[field.odd[0]]!r}",
                    "--binary asks whether a number is above 0",
                    "leave --binary out, or give numbers",
                    columns=(name,),
                    rows=_places(table, field.odd),
                )
            ]
        return (np.array(signed) > 0).astype(np.int64), []
    values = field.numbers
    fractions = ~np.isfinite(values) | (values != np.floor(values))
    broken = np.flatnonzero(fractions & (len(field.odd) == 0))
    refused = len(broken) > 0 or field.distinct > MAX_CLASSES
    if not (refused or looks_measured(texts)):
        return field.codes, []
    numbers = "texts" if len(field.odd) else "numbers"
    finding = Finding(
        "continuous-target",
        "error" if refused else "warning",
        f"the target {name} has {field.distinct:,} different {numbers}"
        + (", not all of them whole numbers" if len(broken) else ""),
        "fedkin classifies: every different value is a class"
        + (f", at most {MAX_CLASSES}" if field.distinct > MAX_CLASSES else ""),
        "cut it into a few classes, or ask whether it is above 0 with --binary; or name another column with --target",
        columns=(name,),
        rows=_places(table, broken),
    )
    return field.codes, [finding]


def _places(table: Table, rows: Indices) -> tuple[str, ...]:
    """Return the places of the first of these rows; none if they are most rows: it is the column that is meant."""
    return () if 2 * len(rows) > len(table.rows) else tuple(table.places[i] for i in rows[:EXAMPLES].tolist())


def _error(
    code: str, what: str, why: str, todo: str, columns: tuple[str, ...] = (), rows: tuple[str, ...] = ()
) -> Finding:
    return Finding(code, "error", what, why, todo, columns=columns, rows=rows)
