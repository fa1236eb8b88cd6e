"""Folders of idx files: MNIST, Fashion-MNIST, EMNIST and their kin, plain or gzipped.

Layout of an idx file (LeCun): two zero bytes, one byte for the type (8 = bytes), one for the number of dimensions,
each dimension as big-endian uint32, then the values.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedkin.core.errors import DataError
from fedkin.data.arrays import numbered
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.sources.files import listed, read_bytes
from fedkin.data.sources.npz import read_arrays

WRITERS = "mnist-writers.npz"


def is_idx_folder(folder: Path) -> bool:
    """Return whether the folder holds idx files."""
    return any(folder.glob("*-ubyte")) or any(folder.glob("*-ubyte.gz"))


def read_idx_folder(folder: Path, *, site: bool = False) -> Dataset:
    """Return a set of the MNIST family: float32 ``[1, height, width]`` in 0..1.

    The ``t10k`` files are the official test part.

    Where the folder also holds ``mnist-writers.npz`` (arrays ``train_writer``, ``train_series`` and the same for
    test), the writers are the natural clients and the two series, employees and high-school students, their groups.

    Args:
        folder: where the files are.
        site: they are one site's, see `class_numbers`.

    Raises:
        DataError: a file is missing or double, not idx, cut short, or images and labels differ in number.
    """
    tests = next((name for name in ("t10k", "test") if any(folder.glob(f"*{name}-*"))), None)
    names = ["train"] if tests is None else ["train", tests]
    parts = [[_read(folder, name, what, d) for what, d in (("images", 3), ("labels", 1))] for name in names]
    path = folder / WRITERS
    stored = read_arrays(path) if path.is_file() else {}
    keys = [f"{name}_{what}" for what in ("writer", "series") for name in ("train", "test")[: len(parts)]]
    if stored and not all(key in stored for key in keys):
        raise DataError(f"{path}: expected the arrays {listed(keys)}; it holds {listed(sorted(stored))}")
    train, *test = (RawSamples(x, y, stored.get(key)) for (x, y), key in zip(parts, keys, strict=False))
    found = dataset_of(folder.resolve().name, train, *test, prefix="writer ", site=site)
    if not stored:
        return found
    series = numbered(np.concatenate([stored[key] for key in keys[len(parts) :]]))[0]
    ids = torch.cat([part for part in (found.client, found.test_client) if part is not None])
    groups = torch.zeros(len(found.client_names or ()), dtype=torch.int64)
    groups[ids] = series
    return replace(found, groups=groups)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return one idx file of bytes as an array with that many dimensions.

    Raises:
        DataError: not an idx file of bytes, another number of dimensions, or not of the size that it states.
    """
    return parse_idx(read_bytes(path), str(path), dimensions)


def parse_idx(raw: bytes, path: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """Do the same as `read_idx`, from the content of a file."""
    head = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", raw[4:head]) if len(raw) >= head else ()
    if raw[:4] != bytes((0, 0, 8, dimensions)) or len(raw) - head != math.prod(shape):
        raise DataError(
            f"{path}: expected an idx file of bytes with {dimensions} dimensions, got {len(raw)} bytes that begin with "
            f"{raw[:4].hex(' ')} and the sizes {list(shape)}; it is cut short or damaged, fetch it again"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape)


def _read(folder: Path, part: str, what: str, dimensions: int) -> npt.NDArray[np.uint8]:
    pattern = f"*{part}-{what}?idx{dimensions}-ubyte"
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(pattern + ".gz"))
    if len(found) != 1:
        raise DataError(
            f"{folder}: expected one file {part}-{what}-idx{dimensions}-ubyte, or the same with .gz, got "
            f"{listed([file.name for file in found]) or 'none'}"
        )
    return read_idx(found[0], dimensions)
