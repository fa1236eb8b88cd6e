"""Folders of idx files: MNIST, Fashion-MNIST, EMNIST and their kin, plain or gzipped.

Layout of an idx file (LeCun): two zero bytes, one byte for the type (8 = bytes), one for the number of dimensions,
each dimension as big-endian uint32, then the values.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import DataError
from fedkin.core.samples import Samples
from fedkin.data.arrays import class_numbers, numbered
from fedkin.data.dataset import Dataset
from fedkin.data.pixels import pixels
from fedkin.data.preparation import image_preparation
from fedkin.data.sources.files import listed, read_bytes
from fedkin.data.sources.npz import read_arrays

_BYTES = 0x08
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
    x, y = _pair(folder, "train")
    classes, test = int(y.max()) + 1, None
    if list(folder.glob("*t10k-*")) or list(folder.glob("*test-*")):
        test_x, test_y = _pair(folder, "t10k" if list(folder.glob("*t10k-*")) else "test")
        classes = max(classes, int(test_y.max()) + 1)
        test = Samples(pixels(test_x), class_numbers(test_y, str(folder), site)[0])
    train_y, _ = class_numbers(y, str(folder), site)
    base = Dataset(
        x=pixels(x),
        y=train_y,
        classes=classes,
        name=folder.resolve().name,
        official_test=test,
        preparation=image_preparation((1, *x.shape[1:])),
    )
    return _with_writers(base, folder / WRITERS) if (folder / WRITERS).is_file() else base


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return one idx file of bytes as an array with that many dimensions.

    Raises:
        DataError: not an idx file of bytes, another number of dimensions, more or fewer bytes than it states.
    """
    return parse_idx(read_bytes(path), str(path), dimensions)


def parse_idx(raw: bytes, path: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """Do the same as `read_idx`, from the content of a file."""
    head = 4 + 4 * dimensions
    expected = bytes([0, 0, _BYTES, dimensions])
    if len(raw) < head or raw[:4] != expected:
        raise DataError(
            f"{path}: expected an idx file of bytes with {dimensions} dimensions (it starts with {expected.hex(' ')}), "
            f"got {raw[:4].hex(' ') or 'an empty file'}; check that this is the right file"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:head])
    wanted = math.prod(shape)  # of Python, whose whole numbers have no end
    if len(raw) - head != wanted:
        raise DataError(
            f"{path}: the header says {' x '.join(map(str, shape))} = {wanted} bytes, the file has {len(raw) - head}; "
            "it is cut short or damaged, fetch it again"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape)


def _pair(folder: Path, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images, labels = _find(folder, part, "images", 3), _find(folder, part, "labels", 1)
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise DataError(f"{images.name} holds {len(x)} images, {labels.name} {len(y)} labels; they belong together")
    if len(x) == 0:
        raise DataError(f"{images}: no images; expected at least one")
    return x, y


def _find(folder: Path, part: str, what: str, dimensions: int) -> Path:
    pattern = f"*{part}-{what}?idx{dimensions}-ubyte"
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(pattern + ".gz"))
    if len(found) > 1:
        raise DataError(f"{folder}: more than one data set here ({listed([f.name for f in found])}); keep one a folder")
    if not found:
        raise DataError(
            f"{folder}: expected a file {part}-{what}-idx{dimensions}-ubyte or the same with .gz, found none"
        )
    return found[0]


def _with_writers(base: Dataset, path: Path) -> Dataset:
    """Return the same samples with natural clients and groups."""
    arrays, parts = read_arrays(path), ("train",) if base.official_test is None else ("train", "test")
    missing = [key for part in parts for key in (f"{part}_writer", f"{part}_series") if key not in arrays]
    if missing:
        raise DataError(f"{path}: no array {listed(missing)}; it holds {listed(sorted(arrays))}")
    writers, series = [arrays[f"{part}_writer"] for part in parts], [arrays[f"{part}_series"] for part in parts]
    sizes = [len(base), 0 if base.official_test is None else len(base.official_test)]
    if [len(w) for w in writers] != sizes[: len(writers)] or [len(s) for s in series] != sizes[: len(series)]:
        raise DataError(
            f"{path}: {' + '.join(str(len(w)) for w in writers)} writer ids for "
            f"{' + '.join(map(str, sizes[: len(writers)]))} images; it belongs to another set"
        )
    ids, names = numbered(np.concatenate(writers))
    group, _ = numbered(np.concatenate(series))
    groups = group.new_zeros(len(names))
    groups[ids] = group
    train, test = ids[: sizes[0]], ids[sizes[0] :]
    return Dataset(
        x=base.x,
        y=base.y,
        classes=base.classes,
        name=base.name,
        official_test=base.official_test,
        client=train,
        test_client=test if base.official_test is not None else None,
        client_names=tuple(f"writer {name}" for name in names),
        groups=groups,
        preparation=base.preparation,
    )
