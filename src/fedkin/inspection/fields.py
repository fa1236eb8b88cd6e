"""Columns of a data set, as values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedkin.data.checks import Indices
from fedkin.data.dataset import Dataset
from fedkin.inspection.finding import ColumnSummary, first

Mask = npt.NDArray[np.bool_]
FEWEST_ROWS = 20  # with fewer, any column may look like an id or like the target by chance
_MOST_VALUES = 20_000_000  # of rows of numbers whose columns are looked at one by one


@dataclass(frozen=True)
class Field:
    """Column of a table, or of rows of numbers.

    Attributes:
        name: as in the header.
        numbers: float64 ``[n]``, NaN where the field is empty; of texts their places among ``texts``.
        texts: the different texts; empty for a column of numbers.
    """

    name: str
    numbers: npt.NDArray[np.float64]
    texts: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> Mask:
        """Whether each field is empty, ``[n]``."""
        return np.isnan(self.numbers)

    @cached_property
    def codes(self) -> Indices:
        """Number of each different value, int64 ``[n]``; -1 where there is none."""
        codes = np.full(len(self.numbers), -1, dtype=np.int64)
        codes[~self.missing] = np.unique(self.numbers[~self.missing], return_inverse=True)[1]
        return codes

    @property
    def distinct(self) -> int:
        """Number of different values, the empty field not counted."""
        return int(self.codes.max(initial=-1)) + 1

    def shown(self, row: int) -> str:
        """Return the value of a row as text."""
        value = float(self.numbers[row])
        return self.texts[int(value)] if self.texts else f"{value:g}"

    def summary(self) -> ColumnSummary:
        """Return a summary to show."""
        kind = "text" if self.texts else "number"
        ends = f"{np.nanmin(self.numbers):.4g} to {np.nanmax(self.numbers):.4g}" if self.distinct else ""
        values = first([t for t in self.texts if t]) if self.texts else ends
        return ColumnSummary(self.name, kind, self.distinct, float(self.missing.mean()), values)


@dataclass(frozen=True)
class Fields:
    """Columns of a data set: what a network would see, and the numbers of each row's class and client, int64 ``[n]``;
    ``client`` is None where there are none."""

    inputs: tuple[Field, ...]
    label: Indices
    client: Indices | None = None
    client_names: tuple[str, ...] = ()


def fields_of(dataset: Dataset) -> Fields | None:
    """Return the columns of a table, or of inputs that are plain rows of numbers; the official test part is left out.

    None for other inputs: pixels have no meaning one by one.
    """
    if len(dataset.shape) != 1 or dataset.x.numel() > _MOST_VALUES:
        return None
    if dataset.table is None:
        x = dataset.x.numpy().astype(np.float64)
        return Fields(tuple(Field(f"input {j}", x[:, j]) for j in range(x.shape[1])), dataset.y.numpy())
    raw, made = dataset.table.raw[: len(dataset)], []
    for j, column in enumerate(dataset.table.columns):
        values = raw[:, j].copy()
        if "" in column.categories:
            values[values == column.categories.index("")] = np.nan
        made.append(Field(column.name, values, column.categories))
    client = None if dataset.client is None else dataset.client.numpy()
    names = dataset.client_names or tuple(f"client {k}" for k in range(0 if client is None else int(client.max()) + 1))
    return Fields(tuple(made), dataset.y.numpy(), client, names)
