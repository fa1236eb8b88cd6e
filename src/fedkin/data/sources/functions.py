"""Data from a user-defined function, by import path."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.arrays import array_of, together
from fedkin.data.checks import readable
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.federation import Federation
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
    """
    found = find(spec, DataError)
    if callable(found) and not isinstance(found, Dataset | Federation):
        with readable(spec, "data", "correct the function"):
            found = found()
    if isinstance(found, Dataset | Federation):
        return found
    name, names = spec.rpartition("/")[2], None
    if isinstance(found, dict):
        names, found = tuple(map(str, found)), list(found.values())
    elif isinstance(found, torch.utils.data.Dataset) or (_is_pair(found) and _is_pair_of_arrays(tuple(found))):
        found = [found]
    elif isinstance(found, list | tuple) and found and (not _is_pair(found) or all(_is_client(part) for part in found)):
        names = tuple(f"client {k}" for k in range(len(found)))
    else:
        raise DataError(f"{spec}: {_EXPECTED}; got {_what(found)}")
    parts = [_arrays(part, f"{spec}, {names[k]}" if names else spec) for k, part in enumerate(found)]
    x, y = (together([part[i] for part in parts], spec) for i in range(2))
    client = None if names is None else np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    return dataset_of(name, RawSamples(x, y, client), client_names=names)


def _arrays(part: Any, where: str) -> tuple[Any, Any]:
    """Return the inputs and labels of one client, as many of one as of the other."""
    if isinstance(part, torch.utils.data.Dataset):
        part = _samples(part, where)
    if not _is_pair(part):
        raise DataError(f"{where}: {_EXPECTED}; got {_what(part)}")
    x, y = array_of(part[0], where, "inputs"), array_of(part[1], where, "labels")
    if not len(x) or len(x) != len(y):
        raise DataError(f"{where}: {len(x)} inputs and {y.size} labels; expected one label per input, at least one")
    return x, y


def _samples(data: Any, where: str) -> list[Any]:
    """Return inputs and labels of a torch Dataset, one after another."""
    with readable(where, "a torch Dataset with a length and pairs (input, label), inputs of one shape", "correct it"):
        pairs = [(np.asarray(x), np.asarray(y)) for x, y in (data[i] for i in range(len(data)))]
        return [np.stack(arrays) for arrays in zip(*pairs, strict=True)]


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
