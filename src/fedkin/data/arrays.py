"""Arrays as inputs, classes and clients; lists and columns of pandas as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.checks import NAMELESS, readable

Array = npt.NDArray[np.generic]
MAX_CLASSES = 1000


def array_of(values: Any, where: str, what: str) -> Array:
    """Return what a program gives as inputs, labels, clients or units (``what``) as an array of numbers or of texts."""
    with readable(f"{where}: {what}", "an array", "give all of them one shape"):
        result = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    texts, got = what.startswith(("label", "client", "unit")), f"one of {result.dtype}"
    if result.dtype.kind == "O":
        kinds = sorted({type(value).__name__ for value in result.flat})
        result, got = result.astype(str) if kinds == ["str"] else result, f"Python objects ({', '.join(kinds)})"
    if result.dtype.kind in ("iufbUS" if texts else "iufb"):
        return result
    wanted = "numbers, or one of texts alone" if texts else "numbers"
    columns = "; fedkin.load(table, target=COLUMN) reads columns of texts" if hasattr(values, "columns") else ""
    raise DataError(
        f"{where}: {what} must be an array of {wanted}, got {got}; give all of them one type, for example by "
        f"astype{columns}"
    )


def numbered_texts(values: Array, where: str, names: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return the place of each label among the names of the classes, int64 ``[n]``, and these; by default they are
    sorted.
    """
    known = tuple(sorted({str(text) for text in values.flat})) if names is None else tuple(names)
    place = {name: number for number, name in enumerate(known)}
    if unknown := sorted({str(text) for text in values.flat} - place.keys()):
        raise DataError(f"{where}: label {unknown[0]!r} is not one of the classes, {', '.join(known)}")
    return torch.tensor([place[str(text)] for text in values.flat], dtype=torch.int64), known


def channels_first(values: Array) -> Array:
    """Return images as ``[n, channels, height, width]``; arrays that are not images are returned as they are.

    A last dimension of 1, 3 or 4 that is smaller than the first of a sample is taken for the channels.
    """
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[3] in (1, 3, 4) and values.shape[3] < values.shape[1]:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


def decoded(values: Array) -> Array:
    """Return texts that are stored as bytes as texts; other arrays unchanged."""
    return np.char.decode(np.asarray(values, np.bytes_), "utf-8") if values.dtype.kind == "S" else values


def together(arrays: Sequence[Array], where: str) -> Array:
    """Return arrays of the same kind as one."""
    kinds = {(a.dtype.kind in "US", a.ndim > 1 and a.dtype == np.uint8, a.shape[1:]) for a in arrays}
    if len(kinds) > 1:
        shown = " and ".join(dict.fromkeys(f"{a.dtype} {list(a.shape)}" for a in arrays))
        raise DataError(f"{where}: arrays of {shown} do not go together; give all of them one type and shape")
    return np.concatenate([np.atleast_1d(a) for a in arrays])


def class_numbers(
    values: Array, where: str, site: bool = False, names: Sequence[str] | None = None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return labels as int64 tensor, with class names if they were texts or are known.

    Args:
        values: whole numbers from 0, or texts, ``[n]`` or ``[n, 1]``.
        where: put in front of messages.
        site: these are the labels of one site, which may have few samples and large labels.
        names: of the classes, in order. Default: the texts, sorted.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind in "US":
        return numbered_texts(decoded(values), where, names)
    numbers = values.astype(np.float64) if values.dtype.kind in "iufb" else np.full(values.shape, np.nan)
    most = np.inf if names is not None else max(len(values), MAX_CLASSES if site else 2)
    bad = np.flatnonzero(~((numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < most)))
    if len(bad):
        raise DataError(
            f"{where}: label {values.flat[bad[0]]} of sample {bad[0]} cannot be a class of {len(values)} samples; "
            "number the classes 0, 1, 2, ..."
        )
    return torch.from_numpy(values.astype(np.int64)), None if names is None else tuple(names)


def numbered(values: Array) -> tuple[Tensor, tuple[str, ...]]:
    """Return ids ``0..K-1`` in the order of the values, and the values as names; an empty text is `NAMELESS`."""
    names, numbers = np.unique(decoded(values), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) or NAMELESS for name in names)


def numbers(values: Array) -> Tensor:
    """Return numbers that are not pixels as inputs: whole numbers as int64, all others and single bytes as float32.

    Whole numbers may be indices, such as those of words, which a network takes as they are. It is given floats if it
    takes only these, see `fedkin.core.net.Net.dtype`.
    """
    whole = values.dtype.kind in "iu" and values.dtype != np.uint8 and np.can_cast(values.dtype, np.int64)
    return torch.from_numpy(np.array(values, dtype=np.int64 if whole else np.float32, order="C"))


def pixels(values: Array) -> Tensor:
    """Return images of bytes, ``[n, h, w]`` or ``[n, c, h, w]``, as float32 ``[n, channels, height, width]`` in 0..1.

    The only place where pixels are scaled: ``value / 255``, nothing else. Papers that use mean 0.5 and standard
    deviation 0.5 differ by a linear map, which a network's first layer takes up.
    """
    return torch.from_numpy((values[:, None] if values.ndim == 3 else values).astype(np.float32)).div_(255)
