"""Columns of a table, or of rows of numbers, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedkin.data.checks import Indices
from fedkin.data.sources.csvfile import Table
from fedkin.data.standalone import MISSING
from fedkin.inspection.finding import EXAMPLES, ColumnSummary, first

Mask = npt.NDArray[np.bool_]
FEWEST_ROWS = 20  # with fewer, any column may look like an id or like the target by chance


@dataclass(frozen=True)
class Field:
    """Column of a table.

    Attributes:
        name: as in the header.
        numbers: float64 ``[n]``, NaN where the field is empty or not a number.
        missing: whether each field is empty, ``[n]``.
        texts: the fields as they were read, ``[n]``; None for rows of numbers.
    """

    name: str
    numbers: npt.NDArray[np.float64]
    missing: Mask
    texts: Sequence[str] | None = None

    @classmethod
    def read(cls, name: str, table: Table, role: str = "input") -> Field:
        """Return a column of a table as its reader has it; a client may be called NA."""
        texts, found = table.column(name, role), table.converted(name).numbers
        nothing = {""} if role == "client" else MISSING
        missing = np.array([t.lower() in nothing for t in texts], dtype=np.bool_)
        return cls(name, np.full(len(texts), np.nan) if found is None or role == "client" else found, missing, texts)

    @cached_property
    def odd(self) -> Indices:
        """Rows whose field is neither empty nor read as a number."""
        return np.flatnonzero(np.isnan(self.numbers) & ~self.missing)

    @cached_property
    def codes(self) -> Indices:
        """Number of each different value, int64 ``[n]``; -1 where there is none."""
        codes = np.full(len(self.missing), -1, dtype=np.int64)
        if self.texts is not None and len(self.odd):
            codes[~self.missing] = numbered([t for t, m in zip(self.texts, self.missing, strict=True) if not m])[1]
        else:
            codes[~self.missing] = np.unique(self.numbers[~self.missing], return_inverse=True)[1]
        return codes

    @property
    def distinct(self) -> int:
        """Number of different values, the empty field not counted."""
        return int(self.codes.max(initial=-1)) + 1

    @property
    def kind(self) -> str:
        """Kind of the column, see `ColumnSummary`."""
        given = int((~self.missing).sum())
        if not given:
            return "empty"
        if not len(self.odd):
            return "number"
        return "mixed" if len(self.odd) < given else "text"

    def summary(self, role: str) -> ColumnSummary:
        """Return a summary to show."""
        if self.kind == "number":
            values = f"{np.nanmin(self.numbers):.4g} to {np.nanmax(self.numbers):.4g}"
        else:
            values = first(sorted({t for t, m in zip(self.texts or (), self.missing, strict=True) if not m}))
        return ColumnSummary(self.name, role, self.kind, self.distinct, float(self.missing.mean()), values)


@dataclass(frozen=True)
class Fields:
    """Columns of a table.

    Attributes:
        inputs: what a network would see.
        label: number of each row's class, int64 ``[n]``; None where it is not known.
        client: number of each row's client, int64 ``[n]``; None where there are none.
        client_names: their names.
        places: file and line of each row; empty for rows of numbers.
    """

    inputs: tuple[Field, ...]
    label: Indices | None = None
    client: Indices | None = None
    client_names: tuple[str, ...] = ()
    places: Sequence[str] = ()

    def at(self, rows: Indices) -> tuple[str, ...]:
        """Return the places of the first of these rows; none if they are most rows: it is the column that is meant."""
        if 2 * len(rows) > max((len(f.missing) for f in self.inputs), default=len(rows)):
            return ()
        return tuple(self.places[i] if self.places else f"sample {i}" for i in rows[:EXAMPLES].tolist())


def numbered(texts: Sequence[str]) -> tuple[tuple[str, ...], Indices]:
    """Return the different texts in alphabetical order, and the number of each text among them, ``[n]``."""
    names = tuple(sorted(set(texts)))
    place_of = {name: i for i, name in enumerate(names)}
    return names, np.array([place_of[text] for text in texts], dtype=np.int64)
