"""Data from a user-defined function, by import path."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.arrays import array_of, channels_first, class_numbers
from fedkin.data.checks import check_client_names
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.pixels import Array, numbers, pixels
from fedkin.data.preparation import Preparation, image_preparation
from fedkin.user_code.loading import find

_EXPECTED = (
    "expected a fedkin Dataset or Federation, a list with one (x, y) per client (arrays or tensors), a mapping from "
    "client to (x, y), a list of torch Datasets, one per client, or without clients one (x, y) or one torch Dataset of "
    "(input, label)"
)


def read_function(spec: str) -> Dataset | Federation:
    """Return the result of ``package.module:function`` or ``./file.py:function``, called without arguments.

    Inputs of bytes (uint8) count as pixels and become 0..1; all other numbers keep their values.

    Args:
        spec: see `fedkin.user_code.loading.find`; it may also name the data themselves.

    Raises:
        DataError: it cannot be found, failed, or gave something else; the message states what was found and what is
            expected.
    """
    found = find(spec, DataError)
    if callable(found) and not isinstance(found, Dataset | Federation):
        try:
            found = found()
        except Exception as error:  # anything that a user's function raises
            raise DataError(f"{spec}: reading the data failed: {type(error).__name__}: {error}") from error
    if isinstance(found, Dataset | Federation):
        return found
    name = spec.rpartition("/")[2]
    if isinstance(found, torch.utils.data.Dataset):
        return _joined([_pairs(found, spec)], None, name, spec)
    if isinstance(found, dict):
        return _client_by_client(list(found.values()), tuple(map(str, found)), name, spec)
    if _is_pair(found) and _is_pair_of_arrays(tuple(found)):
        return _joined([(array_of(found[0], spec, "inputs"), array_of(found[1], spec, "labels"))], None, name, spec)
    if isinstance(found, list | tuple) and (not _is_pair(found) or all(_is_client(part) for part in found)):
        return _client_by_client(found, tuple(f"client {k}" for k in range(len(found))), name, spec)
    raise DataError(f"{spec}: {_EXPECTED}; got {_what(found)}")


def _client_by_client(parts: Sequence[Any], names: tuple[str, ...], name: str, spec: str) -> Dataset:
    if not parts:
        raise DataError(f"{spec}: {_EXPECTED}; got none at all")
    found = []
    for k, part in enumerate(parts):
        where = f"{spec}, {names[k]}"
        if isinstance(part, torch.utils.data.Dataset):
            found.append(_pairs(part, where))
        elif _is_pair(part):
            found.append((array_of(part[0], where, "inputs"), array_of(part[1], where, "labels")))
        else:
            raise DataError(f"{where}: {_EXPECTED}; got {_what(part)}")
    return _joined(found, names, name, spec)


def _joined(parts: list[tuple[Array, Array]], names: tuple[str, ...] | None, name: str, spec: str) -> Dataset:
    for k, (x, y) in enumerate(parts):
        where = spec if names is None else f"{spec}, {names[k]}"
        if x.ndim < 2 or x.dtype.kind not in "iufb":
            raise DataError(f"{where}: inputs must be numbers [n, ...], got {x.dtype} of shape {list(x.shape)}")
        if y.ndim < 1 or len(x) != len(y):
            raise DataError(f"{where}: {len(x)} inputs but {y.size} labels; each input needs one label")
        if len(x) == 0:
            raise DataError(
                f"{where}: no samples; expected at least one" + (", or leave the client out" if names else "")
            )
        if (y.dtype.kind in "US", y.shape[1:]) != (parts[0][1].dtype.kind in "US", parts[0][1].shape[1:]):
            raise DataError(
                f"{where}: labels of {y.dtype} and shape {list(y.shape[1:])}, the first has {parts[0][1].dtype} and "
                f"{list(parts[0][1].shape[1:])}; all need numbers, or all texts, one per sample"
            )
        if x.shape[1:] != parts[0][0].shape[1:] or (x.dtype == np.uint8) != (parts[0][0].dtype == np.uint8):
            raise DataError(
                f"{where}: inputs of {x.dtype} and shape {list(x.shape[1:])}, the first has "
                f"{parts[0][0].dtype} and {list(parts[0][0].shape[1:])}; all need the same"
            )
    check_client_names(names or (), spec)
    numbers, labels = class_numbers(np.concatenate([y for _, y in parts]), spec)
    inputs, preparation = _inputs(np.concatenate([x for x, _ in parts]), labels)
    sizes = torch.tensor([len(x) for x, _ in parts])
    return Dataset(
        x=inputs,
        y=numbers,
        classes=int(numbers.max()) + 1,
        name=name,
        client=None if names is None else torch.arange(len(parts)).repeat_interleave(sizes),
        client_names=names,
        labels=labels,
        preparation=preparation,
    )


def _inputs(values: Array, labels: tuple[str, ...] | None) -> tuple[Tensor, Preparation]:
    if values.dtype == np.uint8:
        x = pixels(channels_first(values))
        return x, image_preparation(tuple(x.shape[1:]), labels)
    x = numbers(values)
    return x, Preparation("array", tuple(x.shape[1:]), labels)


def _pairs(data: Any, where: str) -> tuple[Array, Array]:
    """Return all samples of a torch Dataset, one after another."""
    try:
        total = len(data)
    except TypeError as error:
        raise DataError(f"{where}: a torch Dataset with a length is needed, this one has none ({error})") from error
    inputs, labels = [], []
    for i in range(total):
        item = data[i]
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise DataError(f"{where}, sample {i}: expected (input, label), got {_what(item)}")
        inputs.append(array_of(item[0], f"{where}, sample {i}", "input"))
        labels.append(array_of(item[1], f"{where}, sample {i}", "label"))
        if inputs[i].shape != inputs[0].shape:
            raise DataError(
                f"{where}, sample {i}: an input of shape {list(inputs[i].shape)}, the first has "
                f"{list(inputs[0].shape)}; all need the same"
            )
    if not inputs:
        raise DataError(f"{where}: no samples; expected at least one")
    return np.stack(inputs), np.stack(labels).reshape(total, -1)


def _is_pair(part: Any) -> bool:
    """Return whether this is ``(x, y)`` of one client, rather than a list of two clients."""
    return (
        isinstance(part, list | tuple)
        and len(part) == 2
        and not any(isinstance(p, torch.utils.data.Dataset) or _is_pair_of_arrays(p) for p in part)
    )


def _is_client(part: Any) -> bool:
    """Return whether this is ``(x, y)`` with many values each, rather than the inputs or the labels of two samples."""
    return _is_pair(part) and all(isinstance(p, Sized) and not isinstance(p, str) for p in part)


def _is_pair_of_arrays(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(isinstance(p, Tensor | np.ndarray) for p in part)


def _what(thing: object) -> str:
    if isinstance(thing, list | tuple):
        inside = sorted({type(one).__name__ for one in thing})
        return f"a {type(thing).__name__} of {len(thing)} ({', '.join(inside) or 'empty'})"
    if isinstance(thing, Tensor | np.ndarray):
        return f"an array of shape {list(thing.shape)}"
    return f"an object of type {type(thing).__name__}"
