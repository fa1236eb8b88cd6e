"""Labelled samples from a reader, not yet shared out to clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError, counted
from fedkin.core.samples import Samples
from fedkin.data.arrays import Array, array_of, channels_first, class_numbers, numbered, numbers, pixels, together
from fedkin.data.checks import Indices, faults_of_names, faults_of_samples, refuse_first
from fedkin.data.preparation import Preparation, Rows, image_preparation


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
        refuse_first(self.name, self._faults())

    def _faults(self) -> Iterator[str]:
        yield from faults_of_samples(self.x, self.y, self.classes, pixels=True)
        if len(self.y) == 0:
            yield "no samples; expected at least one"
        test, tests = self.official_test, 0 if self.official_test is None else len(self.official_test)
        if test is not None:
            result = faults_of_samples(test.x, test.y, self.classes, self.x, "the training part", pixels=True)
            yield from (f"official test part: {fault}" for fault in result)
        yield from faults_of_names(self.labels, self.classes, "classes")
        yield from faults_of_names(self.client_names, len(self.client_names or ()), "clients")
        marked = 0 if self.unit is None else tests
        for field, of, count in (
            ("client", self.client, len(self)), ("test_client", self.test_client, tests),
            ("unit", self.unit, len(self)), ("test_unit", self.test_unit, marked),
        ):  # fmt: skip
            if of is not None and (of.shape != (count,) or of.dtype != torch.int64 or (of < -1).any()):
                yield (
                    f"{field} is {of.dtype} {list(of.shape)}; expected a whole number from 0, or -1 where it is not "
                    f"known, for each of {count} samples"
                )
        ids = [int(part.max()) for part in (self.client, self.test_client) if part is not None and len(part)]
        clients = 1 + max(ids, default=-1)
        for name, entries in (("client_names", self.client_names), ("groups", self.groups)):
            if entries is not None and len(entries) < clients:
                yield f"{len(entries)} {name} for {counted(clients, 'client')}, numbered from 0"

    def _take_arrays(self) -> None:
        """Put tensors in the place of arrays, and numbers with their names in that of texts."""
        made: dict[str, object] = {}
        for name in ("x", "y", "client", "test_client", "groups", "unit", "test_unit"):
            given = getattr(self, name)
            if given is None or isinstance(given, Tensor):
                continue
            values = array_of(given, self.name, {"x": "inputs", "y": "labels"}.get(name, name))
            if name == "x":
                made[name] = inputs_of(values, packed=True)
            elif name == "y":
                made[name], made["labels"] = class_numbers(values, self.name, self.classes > 0, self.labels)
            elif name in ("client", "unit") and values.dtype.kind == "U":
                made[name], names = numbered(values)
                made |= {"client_names": names} if name == "client" else {}
            else:
                made[name] = torch.tensor(values, dtype=torch.int64 if values.dtype.kind in "iub" else None)
        for name, value in made.items():
            object.__setattr__(self, name, value)
        if self.classes == 0 and len(self.y):
            object.__setattr__(self, "classes", len(self.labels) if self.labels else 1 + int(self.y.max()))

    def __len__(self) -> int:
        return int(self.y.shape[0])

    def __repr__(self) -> str:
        sizes = f"{counted(len(self), 'sample')}, {counted(self.classes, 'class')}, inputs {list(self.shape)}"
        return f"Dataset({self.name!r}, {sizes})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    def pool(self, split: Literal["pooled", "official"] = "pooled") -> Pool:
        """Return the labels that a partition sees; ``pooled`` merges the official test part into the samples."""
        test, y = self.official_test, self.y.numpy()
        client = None if self.client is None else self.client.numpy()
        own = None if self.test_client is None else self.test_client.numpy()
        if split == "official":
            if test is None:
                raise ConfigError(f"split 'official' needs an official test part, {self.name} has none; use 'pooled'")
            return Pool(y, self.classes, self.name, client, self.client_names, self.groups, test.y.numpy(), own)
        if test is not None and client is not None:
            client = np.concatenate([client, np.full(len(test), -1) if own is None else own])
        return Pool(self.all_labels.numpy(), self.classes, self.name, client, self.client_names, self.groups)

    @cached_property
    def all_labels(self) -> Tensor:
        """Labels of the samples, then those of the official test part."""
        return self.y if self.official_test is None else torch.cat([self.y, self.official_test.y])

    @property
    def all_units(self) -> Indices | None:
        """Units of the same; each sample of an official test part whose units are not known is one of its own."""
        if self.unit is None or self.official_test is None:
            return None if self.unit is None else self.unit.numpy()
        own, test = self.unit.numpy(), self.test_unit
        return np.concatenate(
            [own, own.max() + 1 + np.arange(len(self.official_test)) if test is None else test.numpy()]
        )

    def rows(self, index: Indices, preparation: Preparation | None = None) -> Samples:
        """Return the samples with these numbers, copied; numbers from ``n`` on are those of the official test part.

        Args:
            index: int64 ``[m]``.
            preparation: tables: how to scale them, see `Rows.fit`; None: by all rows.
        """
        picked = torch.from_numpy(np.array(index, dtype=np.int64))
        y = self.all_labels[picked]
        if self.table is not None and preparation is not None:
            return Samples(self.table.scaled(preparation, picked.numpy()), y)
        n = len(self)
        x, own = self.x[picked % n], picked < n
        if self.official_test is not None and not bool(own.all()):
            x[~own] = self.official_test.x[picked[~own] - n]
        return Samples(x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x, y)  # as `arrays.pixels`


class RawSamples(NamedTuple):
    """Samples of the training part or of the official test part, as a reader has read them.

    Attributes:
        x: inputs ``[n, ...]``; bytes are pixels.
        y: labels ``[n]`` or ``[n, 1]``, whole numbers or texts.
        client: number or name of the client of each sample, ``[n]``.
        unit: number or name of the unit of each sample, ``[n]``.
    """

    x: Array
    y: Array
    client: Array | None = None
    unit: Array | None = None


def dataset_of(
    name: str,
    train: RawSamples,
    test: RawSamples | None = None,
    *,
    classes: int = 0,
    labels: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    prefix: str = "",
    factor: float | None = None,
    resized: bool = False,
    packed: bool = False,
    site: bool = False,
    notes: tuple[str, ...] = (),
) -> Dataset:
    """Return the data set of the arrays that a reader has read: the one check of all readers of arrays.

    Args:
        name: of the data set.
        train, test: the samples, and those of the official test part.
        classes: smallest number of classes.
        labels: names of the classes. Default: labels that are texts, sorted.
        client_names: names of the clients, which are numbers then. Default: the clients' numbers or names, sorted, with
            ``prefix`` in front.
        factor: what raw numbers were multiplied by to become the inputs. Default: bytes are divided by 255.
        resized: images were brought to one size.
        packed: keep pixels as bytes, a quarter of the memory.
        site: see `class_numbers`.
        notes: of the data set.
    """
    parts = [train] if test is None else [train, test]
    for part in parts:
        size = len(part.x) if part.x.ndim > 1 and part.x.dtype.kind in "iufb" else 0
        if not size or any(a is not None and a.shape[:1] != (size,) for a in part):
            arrays = zip(("inputs", "labels", "clients", "units"), part, strict=True)
            raise DataError(
                f"{name}{', official test part' if part is test else ''}: expected numbers [n, ...] as inputs and an "
                f"entry for each, got {', '.join(f'{w} {a.dtype} {list(a.shape)}' for w, a in arrays if a is not None)}"
            )
    values = together([part.y.reshape(len(part.y), -1) for part in parts], name)
    y, names = class_numbers(values, name, site or classes > 0, labels)
    pixels = train.x.dtype == np.uint8 and factor is None
    xs = [inputs_of(part.x, packed) for part in parts]
    n, shape = len(train.x), tuple(xs[0].shape[1:])
    owners = [part.client for part in parts if part.client is not None]
    ids, result = numbered(np.concatenate(owners)) if owners else (None, ())
    units = [part.unit for part in parts if part.unit is not None]
    unit = numbered(np.concatenate(units))[0] if units else None
    made = Preparation("array", shape, names, factor=1.0 if factor is None else factor)
    made = image_preparation(shape, names, resized=resized) if pixels else made
    return Dataset(
        x=xs[0], y=y[:n], classes=max(classes, int(y.max()) + 1, len(names or ())), name=name,
        official_test=None if test is None else Samples(xs[1], y[n:]), client=None if ids is None else ids[:n],
        test_client=None if ids is None or test is None else ids[n:],
        client_names=None if ids is None else tuple(client_names or [prefix + own for own in result]),
        unit=None if unit is None else unit[:n], test_unit=unit[n:] if unit is not None and len(units) > 1 else None,
        labels=names,
        preparation=made,
        notes=notes,
    )  # fmt: skip


def inputs_of(values: Array, packed: bool = False) -> Tensor:
    """Return bytes as pixels in 0..1, with their channels first, or ``packed`` as they are; other numbers as inputs."""
    if values.dtype != np.uint8:
        return numbers(values)
    return torch.tensor(channels_first(values)) if packed else pixels(channels_first(values))
