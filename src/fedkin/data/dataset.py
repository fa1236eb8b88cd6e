"""Labelled samples from a reader, not yet shared out to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError, counted
from fedkin.core.samples import Samples
from fedkin.data.arrays import array_of, channels_first, class_numbers, numbered
from fedkin.data.checks import Indices, check_samples
from fedkin.data.pixels import numbers
from fedkin.data.preparation import Preparation, Rows

SPLITS = ("pooled", "official")


@dataclass(frozen=True)
class Pool:
    """View of the data for a partition: labels and client ids of the samples, never the inputs.

    Samples are numbered ``0..n-1``; those of the official test part, where it is kept apart, go on from ``n``.

    Attributes:
        y: labels of the ``n`` samples that are shared out.
        classes: number of classes.
        name: name of the data set, for messages.
        client: natural client of each sample, ``-1`` where it is not known; None: no natural clients.
        client_names: names of the natural clients.
        groups: true group of each natural client, int64.
        test_y: labels of the official test part; None when there is none or it is part of the pool.
        test_client: natural client of each sample of the official test part.
    """

    y: Indices
    classes: int
    name: str = "data"
    client: Indices | None = None
    client_names: tuple[str, ...] | None = None
    groups: Tensor | None = None
    test_y: Indices | None = None
    test_client: Indices | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """Labelled samples of one source.

    Tensors may be given as arrays, lists, or columns of pandas; classes and clients, then, also as texts.

    Attributes:
        x: inputs, float32 ``[n, *shape]``, or int64 for whole numbers, such as those of words; or pixels as bytes,
            uint8, which `rows` makes 0..1: a quarter of the memory.
        y: labels, int64 ``[n]`` in ``0..classes-1``.
        classes: number of classes. Default: one more than the largest label, or the number of names.
        name: name of the data set.
        official_test: the test part that the source itself keeps apart, where it does.
        client: natural client of each sample (hospital, writer, subject), int64 ``[n]``, ids ``0..K-1``.
        test_client: the same for the official test part.
        client_names: names of the natural clients, ``K`` of them.
        groups: true group of each natural client, int64 ``[K]``, where the source knows it.
        unit: samples with the same number stay on the same side of a train/test split, int64 ``[n]``: overlapping
            windows of one recording would otherwise be trained on and tested on.
        test_unit: the same for the official test part, numbered together with ``unit``; None: each of its samples is a
            unit of its own.
        labels: names of the classes.
        preparation: how inputs were made of raw data, where the source states it.
        table: rows of a table before scaling, those of the official test part last, to be scaled by training parts
            once these are known (`federate` does); the inputs ``x`` are scaled by all rows.
        notes: facts on what was read that the user should know, such as parts of the source that are not used.

    Raises:
        DataError: parts that do not fit each other, labels out of range, values that are not finite.
    """

    x: Tensor
    y: Tensor
    classes: int = 0
    name: str = "data"
    official_test: Samples | None = None
    client: Tensor | None = None
    test_client: Tensor | None = None
    client_names: tuple[str, ...] | None = None
    groups: Tensor | None = None
    unit: Tensor | None = None
    test_unit: Tensor | None = None
    labels: tuple[str, ...] | None = None
    preparation: Preparation | None = None
    table: Rows | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._take_arrays()
        check_samples(self.x, self.y, self.classes, self.name, pixels=True)
        if len(self.y) == 0:
            raise DataError(f"{self.name}: no samples; expected at least one")
        if self.official_test is not None:
            where = f"{self.name}, official test part"
            check_samples(self.official_test.x, self.official_test.y, self.classes, where, pixels=True)
            if self.official_test.x.dtype != self.x.dtype:
                raise DataError(f"{where}: {self.official_test.x.dtype}, the training part has {self.x.dtype}")
            if self.official_test.x.shape[1:] != self.x.shape[1:]:
                raise DataError(
                    f"{where}: inputs of shape {list(self.official_test.x.shape[1:])}, "
                    f"the training part has {list(self.x.shape[1:])}; both must be the same"
                )
        if self.labels is not None and len(self.labels) != self.classes:
            raise DataError(f"{self.name}: {len(self.labels)} class names for {self.classes} classes")
        self._check_ids("client", self.client, len(self.y))
        self._check_ids("unit", self.unit, len(self.y))
        tests = 0 if self.official_test is None else len(self.official_test)
        self._check_ids("test_client", self.test_client, tests)
        self._check_ids("test_unit", self.test_unit, tests)
        if self.test_unit is not None and self.unit is None:
            raise DataError(f"{self.name}: test_unit goes with unit, numbered together; unit is not given")
        self._check_described()

    def _take_arrays(self) -> None:
        """Put tensors in the place of arrays, and numbers with their names in that of texts.

        Raises:
            DataError: an array that cannot be used.
        """
        made: dict[str, object] = {}
        for name in ("x", "y", "client", "test_client", "groups", "unit", "test_unit"):
            given = getattr(self, name)
            if given is None or isinstance(given, Tensor):
                continue
            values = array_of(given, self.name, {"x": "inputs", "y": "labels"}.get(name, name))
            if name == "x":
                made[name] = torch.tensor(channels_first(values)) if values.dtype == np.uint8 else numbers(values)
            elif name == "y":
                made[name], made["labels"] = class_numbers(values, self.name, self.classes > 0, self.labels)
            elif name in ("client", "unit") and values.dtype.kind == "U":
                made[name], names = numbered(values)
                made |= {"client_names": names} if name == "client" else {}
            else:
                made[name] = torch.tensor(values)  # `_check_ids` refuses fractions
        for name, value in made.items():
            object.__setattr__(self, name, value)
        if self.classes == 0 and len(self.y):
            object.__setattr__(self, "classes", len(self.labels) if self.labels else 1 + int(self.y.max()))

    def _check_described(self) -> None:
        """Raise `DataError` unless every natural client has a name and a group, where these are given."""
        ids = [part for part in (self.client, self.test_client) if part is not None]
        clients = 1 + max((int(part.max()) for part in ids if len(part)), default=-1)
        for field, found in (("client_names", self.client_names), ("groups", self.groups)):
            if found is not None and len(found) < clients:
                raise DataError(
                    f"{self.name}: {field} has length {len(found)} for {counted(clients, 'client')}, numbered from 0 "
                    f"to {clients - 1}; expected an entry for each"
                )

    def _check_ids(self, field: str, ids: Tensor | None, expected: int) -> None:
        if ids is not None and ids.shape != (expected,):
            raise DataError(
                f"{self.name}: {field} has shape {list(ids.shape)} for {expected} samples; expected one id per sample"
            )
        if ids is not None and (ids.is_floating_point() or ids.is_complex()):
            raise DataError(f"{self.name}: {field} has numbers of {ids.dtype}; expected whole numbers, int64")
        if ids is not None and "client" in field and len(ids) and int(ids.min()) < -1:
            raise DataError(
                f"{self.name}: {field} has the id {int(ids.min())}; ids begin at 0, -1 is a client not known"
            )

    def __len__(self) -> int:
        return int(self.y.shape[0])

    def __repr__(self) -> str:
        sizes = f"{counted(len(self), 'sample')}, {counted(self.classes, 'class')}, inputs {list(self.shape)}"
        return f"Dataset({self.name!r}, {sizes})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    def pool(self, split: str = "pooled") -> Pool:
        """Return the labels that a partition sees.

        Args:
            split: ``pooled`` merges the official test part into the samples; ``official`` keeps it apart.

        Raises:
            ConfigError: an unknown split, or ``official`` without an official test part.
        """
        if split not in SPLITS:
            raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got '{split}'")
        if split == "official":
            return self._official_pool()
        y, client, test = self.y.numpy(), _array(self.client), self.official_test
        if test is not None:
            y = np.concatenate([y, test.y.numpy()])
            if client is not None:
                client = np.concatenate([client, _ids_or_unknown(self.test_client, len(test))])
        return Pool(y, self.classes, self.name, client, self.client_names, self.groups)

    def _official_pool(self) -> Pool:
        if self.official_test is None:
            raise ConfigError(f"split 'official' needs an official test part, {self.name} has none; use 'pooled'")
        return Pool(
            y=self.y.numpy(),
            classes=self.classes,
            name=self.name,
            client=_array(self.client),
            client_names=self.client_names,
            groups=self.groups,
            test_y=self.official_test.y.numpy(),
            test_client=_array(self.test_client),
        )

    def rows(self, index: Indices, preparation: Preparation | None = None) -> Samples:
        """Return the samples with these numbers, copied; numbers from ``n`` on are those of the official test part.

        Args:
            index: int64 ``[m]``.
            preparation: tables: how to scale them, see `Rows.fit`; None: by all rows.
        """
        if self.table is not None and preparation is not None:
            rows = np.asarray(index, dtype=np.int64)
            y = self.y if self.official_test is None else torch.cat([self.y, self.official_test.y])
            return Samples(self.table.scaled(preparation, rows), y[torch.from_numpy(rows)])
        picked = torch.from_numpy(np.asarray(index, dtype=np.int64).copy())
        n = len(self)
        if self.official_test is None or not bool((picked >= n).any()):
            return Samples(_scaled(self.x[picked]), self.y[picked])
        x = torch.empty((len(picked), *self.shape), dtype=self.x.dtype)
        y = torch.empty(len(picked), dtype=torch.int64)
        own = picked < n
        x[own], y[own] = self.x[picked[own]], self.y[picked[own]]
        x[~own], y[~own] = self.official_test.x[picked[~own] - n], self.official_test.y[picked[~own] - n]
        return Samples(_scaled(x), y)


def _scaled(x: Tensor) -> Tensor:
    """Return pixels of bytes in 0..1, as `fedkin.data.pixels.pixels` makes them; other inputs as they are."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def _array(t: Tensor | None) -> Indices | None:
    return None if t is None else np.asarray(t.numpy(), dtype=np.int64)


def _ids_or_unknown(t: Tensor | None, n: int) -> Indices:
    return np.full(n, -1, dtype=np.int64) if t is None else np.asarray(t.numpy(), dtype=np.int64)
