"""Reading and checking of files, shared by several readers."""

from __future__ import annotations

import gzip
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.arrays import numbered_texts
from fedkin.data.card import MAX_CLASSES
from fedkin.data.checks import NAMELESS
from fedkin.data.limits import Budget
from fedkin.data.pixels import Array


def read_bytes(path: Path, budget: Budget | None = None, factor: int = 1) -> bytes:
    """Read a file's content, decompressed when its name ends in ``.gz`` or it lies in a zip file.

    Args:
        path: the file; ``archive.zip/wards/north.csv`` is a file in an archive.
        budget: memory that is left; None: all of the limit.
        factor: how many bytes of memory each byte takes in the end.

    Raises:
        DataError: the file cannot be read, or takes more memory than is left.
    """
    budget = budget or Budget()
    try:
        archive = next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)
        disk = (archive or path).stat().st_size
        if archive is not None:
            with zipfile.ZipFile(archive) as members, members.open(path.relative_to(archive).as_posix()) as member:
                found = budget.unpacked(member, path, disk, factor)
        elif path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                found = budget.unpacked(file, path, disk, factor)
        else:
            budget.take(path, disk, factor * disk)
            found = path.read_bytes()
        return found
    except (OSError, EOFError, LookupError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read, it may be cut short or damaged ({error}); fetch it again") from error


def stem(path: Path) -> str:
    """Return a file's name without its ending, also where that is double, as ``.csv.gz``."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def channels_first(values: Array) -> Array:
    """Return images as ``[n, channels, height, width]``; arrays that are not images are returned as they are.

    A last dimension of 1, 3 or 4 that is smaller than the first of a sample is taken for the channels.
    """
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[3] in (1, 3, 4) and values.shape[3] < values.shape[1]:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


def decoded(values: Array, where: str) -> Array:
    """Return texts that are stored as bytes as texts; other arrays unchanged.

    Raises:
        DataError: they are not UTF-8.
    """
    if values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(np.asarray(values, dtype=np.bytes_), "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: texts that are stored as bytes are not UTF-8 ({error}); store them as texts"
        ) from error


def class_numbers(
    values: Array, where: str, site: bool = False, names: Sequence[str] | None = None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return labels as int64 tensor, with class names if they were texts or are known.

    Args:
        values: whole numbers from 0, or texts, ``[n]`` or ``[n, 1]``.
        where: put in front of messages.
        site: these are the labels of one site, which may have few samples and large labels.
        names: of the classes, in order. Default: the texts, sorted.

    Raises:
        DataError: more than one label per sample, negative, fractional, infinite, or absurdly large labels, or texts
            that are not among the names.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{where}: expected one label per sample, got an array of shape {list(values.shape)}")
    if len(values) == 0:
        raise DataError(f"{where}: no labels; expected at least one")
    if values.dtype.kind in "US":
        return numbered_texts(decoded(values, where), where, names)
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: labels must be whole numbers or texts, got an array of {values.dtype}")
    numbers = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
    if len(bad):
        raise DataError(
            f"{where}: label {values[bad[0]]} of sample {bad[0]} is not a whole number; number the classes from 0"
        )
    if values.min() < 0:
        at = int(np.argmin(values))
        raise DataError(f"{where}: label {values[at]} of sample {at} is negative; number the classes from 0")
    if int(values.max()) >= max(len(values), MAX_CLASSES if site else 2):
        raise DataError(
            f"{where}: the largest label is {int(values.max())} with only {len(values)} samples; "
            "number the classes 0, 1, 2, ..."
        )
    return torch.from_numpy(values.astype(np.int64)), None if names is None else tuple(names)


def numbered(values: Array) -> tuple[Tensor, tuple[str, ...]]:
    """Return ids ``0..K-1`` in the order of the values, and the values as names; an empty text is `NAMELESS`.

    Raises:
        DataError: bytes that are not UTF-8.
    """
    names, numbers = np.unique(decoded(values, "names of clients"), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) or NAMELESS for name in names)


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Return the names, comma separated, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
