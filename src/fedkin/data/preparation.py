"""Preparation of raw data for a network, small enough to go with a model: names and numbers as JSON.

preparation.apply([{"age": "54", "sex": "f"}])     # rows of a table, as texts -> inputs of a network
preparation.apply(["scan.png"])                    # images: files, or arrays of bytes
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.arrays import numbers
from fedkin.data.checks import check_range, readable, refuse_first
from fedkin.data.columns import Input, Raw, fitted, raw_rows, recoded, scaled
from fedkin.data.image_files import prepared


@dataclass(frozen=True)
class Preparation:
    """Conversion of raw data to inputs of a network, and the names of the results.

    Attributes:
        kind: ``table`` (rows with named columns), ``image`` (grey or colour pixels) or ``array`` (numbers as they are).
        shape: of one input of a network.
        labels: names of the classes; None: they are numbers.
        target: tables: the column with the class, which rows to predict need not have.
        binary: tables: the classes are target > 0 and the rest.
        columns: tables: the inputs, in order.
        size: images: height and width in pixels; files of another size are resized only where ``resized``.
        mode: images: ``L`` (grey) or ``RGB``.
        resized: images: whether they were brought to this size when read.
        factor: what whole pixels and fixed-point values are multiplied by (images: 1/255).
        taken: where the reader had to find out: what a column was taken for, and its name (``("label", "digit")``).

    Raises:
        DataError: parts that do not fit each other.
    """

    kind: Literal["table", "image", "array"]
    shape: tuple[int, ...]
    labels: tuple[str, ...] | None = None
    target: str | None = None
    binary: bool = False
    columns: tuple[Input, ...] = ()
    size: tuple[int, int] | None = None
    mode: Literal["L", "RGB"] | None = None
    resized: bool = False
    factor: float = 1.0
    taken: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        refuse_first("preparation", self._faults())

    def _faults(self) -> Iterator[str]:
        shape, numbers = self.shape, [c for c in self.columns if c.kind == "number"]
        if self.kind == "table":
            shape = (sum(column.width for column in self.columns),)
        elif self.kind == "image":
            shape = ({"L": 1, "RGB": 3}.get(self.mode or "", 0), *(self.size or ()))
        counts = {len(values) for c in numbers for values in (c.mean, c.std)}
        good = all(math.isfinite(mean) for c in numbers for mean in c.mean)
        good &= all(0 <= std < math.inf for c in numbers for std in c.std)
        texts = any(c.mean or c.std for c in self.columns if c.kind == "text")
        if self.shape != shape or min(shape, default=0) < 1:
            yield f"its shape is {list(self.shape)}, its columns or images have {list(shape)}"
        if texts or not good or len(counts - {0}) != bool(numbers) or len(counts) > 1:
            yield "columns of numbers need as many finite means as deviations, texts have none"

    @property
    def per_client(self) -> int:
        """Number of clients with statistics of their own; 0 if all share the same."""
        own = max((len(c.mean) for c in self.columns), default=1)
        return own if own > 1 else 0

    def of(self, client: int) -> Preparation:
        """Return the same for one client: with its own statistics, if clients have their own."""
        if not self.per_client:
            return self
        check_range("client", client, least=0, most=self.per_client - 1)
        columns = tuple(
            replace(c, mean=c.mean[client : client + 1], std=c.std[client : client + 1]) for c in self.columns
        )
        return replace(self, columns=columns)

    def apply(self, raw: Any) -> Tensor:
        """Return the inputs of a network, float32 ``[n, *shape]``.

        Args:
            raw: tables: rows as mappings from column to text or number, other columns are not looked at; images:
                files, or arrays of bytes ``[h, w]``, ``[h, w, 3]`` or of the shape itself; arrays: numbers
                ``[n, *shape]``.

        Raises:
            DataError: a column is not there, a field is not a number, an image has another size; or clients have
                their own statistics and `of` did not select one.
        """
        if self.kind == "table":
            return self.scaled(raw_rows(raw, self.columns))
        if self.kind == "image":
            return prepared(raw, self.shape, self.mode or "L", self.resized, self.factor)
        values = np.asarray(raw)
        if values.dtype.kind not in "iufb" or values.shape[1:] != self.shape:
            raise DataError(
                f"expected numbers of shape [n, {', '.join(map(str, self.shape))}], got {values.dtype} of shape "
                f"{list(values.shape)}"
            )
        return numbers(values) if self.factor == 1 else numbers(values.astype(np.float32) * np.float32(self.factor))

    def scaled(self, raw: Raw) -> Tensor:
        """Return the rows that `raw_rows` read, scaled: float32 ``[n, inputs]``."""
        if self.per_client:
            raise DataError("each client has its own means; choose one: preparation.of(client)")
        return torch.from_numpy(scaled(raw, self.columns))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a JSON text."""
        return cast(dict[str, Any], json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, value: object, where: str = "preparation") -> Preparation:
        """Return a preparation from the result of `json.loads`.

        Raises:
            DataError: other keys or types than those of `to_json`, or parts that do not fit each other.
        """
        with readable(where, "a preparation"):
            return msgspec.convert(value, cls)


@dataclass(frozen=True)
class Rows:
    """Table before scaling, and how it is to be scaled.

    Attributes:
        raw: see `Raw`.
        columns: names, kinds and all categories, without statistics.
        own: each client has its own mean and deviation; categories and gaps stay those of ``columns``.
        target, binary, labels, taken: of the preparation.
    """

    raw: Raw
    columns: tuple[Input, ...]
    own: bool = False
    target: str | None = None
    binary: bool = False
    labels: tuple[str, ...] | None = None
    taken: tuple[tuple[str, str], ...] = ()

    def fit(self, training: Sequence[npt.NDArray[np.int64]]) -> Preparation:
        """Return the preparation by the training rows of the clients, given as row numbers, and by no others."""
        parts = list(training) if self.own else [np.concatenate(list(training))]
        made = tuple(fitted(column, self.raw[:, j], parts, self.own) for j, column in enumerate(self.columns))
        width = sum(column.width for column in made)
        return Preparation("table", (width,), self.labels, self.target, self.binary, columns=made, taken=self.taken)

    def scaled(self, preparation: Preparation, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return some of the rows as inputs of a network, ``[n, inputs]``."""
        return preparation.scaled(recoded(self.raw[rows], self.columns, preparation.columns))


def image_preparation(
    shape: Sequence[int], labels: Sequence[str] | None = None, *, resized: bool = False
) -> Preparation:
    """Return the preparation of pixels in 0..1, ``[1 or 3, height, width]``.

    Other numbers of channels make an ``array`` of bytes.
    """
    names, shape = None if labels is None else tuple(labels), tuple(shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        return Preparation("array", shape, names, factor=1 / 255)
    mode: Literal["L", "RGB"] = "L" if shape[0] == 1 else "RGB"
    size = (shape[1], shape[2])
    return Preparation("image", shape, names, size=size, mode=mode, resized=resized, factor=1 / 255)
