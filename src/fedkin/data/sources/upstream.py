"""Readers of the formats in which MNIST's family, CIFAR, SVHN, Tiny-ImageNet and LEAF's data are given out."""

from __future__ import annotations

import gzip
import importlib
import json
import math
import string
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedkin.core.errors import DataError
from fedkin.data.arrays import numbered
from fedkin.data.checks import listed, readable
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.image_files import read_images
from fedkin.data.sources.npz import read_arrays
from fedkin.data.sources.tables import read_bytes

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

WRITERS = "mnist-writers.npz"
_SIDE = 28  # of an image of LEAF
_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ARCHIVES = (".tar.gz", ".tgz", ".zip")
_KRIZ = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Files:
    """Files by name, in a folder, in folders up to two below it, or in an archive (.tar.gz, .zip) in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = {p.name: p for depth in ("*/*/*", "*/*", "*") for p in sorted(folder.glob(depth)) if p.is_file()}
        packed = sorted(p for p in folder.iterdir() if p.name.endswith(_ARCHIVES))
        self.archives = [p for p in packed if not p.name.endswith("-python.tar.gz")]  # of CIFAR: pickles

    def folder_of(self, *names: str) -> Path:
        """Return the folder that holds a file of one of these names, perhaps with .gz, unpacked."""
        both = (name + end for name in names for end in ("", ".gz"))
        result = next((self.there[name] for name in both if name in self.there), None)
        return self._there(result, names[0]).parent

    def content(self, name: str) -> bytes | None:
        """Return a file's bytes, wherever it is, decompressed if it is a .gz; None if it is nowhere."""
        for end in ("", ".gz"):
            if name + end in self.there:
                return read_bytes(self.there[name + end])
        packed = (_from_archive(archive, name) for archive in self.archives)
        return next((content for content in packed if content is not None), None)

    def needed(self, name: str, more: str = "") -> bytes:
        """Do the same as `content`; raise DataError if the file is nowhere, with what ``more`` there is to know."""
        return self._there(self.content(name), name, more)

    def _there(self, result: T | None, name: str, more: str = "") -> T:
        if result is None:
            inside = sorted(p.name for p in self.folder.iterdir())
            arrays = next((f", or give {self.folder / n} as the data" for n in inside if n.endswith(".npz")), "")
            held = listed(inside, limit=5) or "nothing"
            raise DataError(
                f"{self.folder}: no file {name}, the folder holds {held}; put it there as its makers publish it{arrays}"
                f"{more}"
            )
        return result


def read_cifar(folder: Path, *, fine: bool, first: int = 100) -> Dataset:
    """Read CIFAR-10, or with ``fine`` the ``first`` fine classes of CIFAR-100, in the binary version.

    The test file is the test part.

    A record is one byte with the label (CIFAR-100: two, coarse and fine), then 3072 bytes: red, green, blue, each
    32 rows of 32 (https://www.cs.toronto.edu/~kriz/cifar.html).
    """
    files = Files(folder)
    train = ["train.bin"] if fine else [f"data_batch_{i}.bin" for i in range(1, 6)]
    test, names = ("test.bin", "fine_label_names.txt") if fine else ("test_batch.bin", "batches.meta.txt")
    label_bytes, classes = (2, 100) if fine else (1, 10)
    binary = (
        f". The binary version is needed, cifar-{classes}-binary.tar.gz of {_KRIZ}: that for Python holds pickled "
        "objects, which are never read"
    )
    records = [_records(files.needed(name, binary), f"{folder}: {name}", label_bytes) for name in (*train, test)]
    if first < classes:
        records = [(x[y < first], y[y < first]) for x, y in records]
    x, y = (np.concatenate([record[i] for record in records[:-1]]) for i in range(2))
    read_names = (files.content(names) or b"").decode("utf-8", "replace").split()
    labels = tuple(read_names[:first]) if len(read_names) == classes else None if fine else _CIFAR10
    name, classes = "cifar100" if fine else "cifar10", min(classes, first)
    return dataset_of(name, RawSamples(x, y), RawSamples(*records[-1]), classes=classes, labels=labels, packed=True)


def read_emnist(folder: Path, split: str) -> Dataset:
    """Read a split of EMNIST (``letters``, ``byclass``), upright: its files hold every image transposed.

    Letters are numbered from 1 in the files and from 0 here; the classes of byclass are digits, capitals and small
    letters (Cohen et al., EMNIST, 2017).
    """
    files, parts = Files(folder), []
    labels = string.ascii_uppercase if split == "letters" else _CLASSES
    for part in ("train", "test"):
        names = [f"emnist-{split}-{part}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")]
        x, y = (parse_idx(files.needed(name), f"{folder}: {name}", d) for name, d in zip(names, (3, 1), strict=True))
        parts.append(RawSamples(x.transpose(0, 2, 1), y.astype(np.int64) - (split == "letters")))
    return dataset_of(f"emnist-{split}", *parts, labels=tuple(labels), packed=True)


def read_svhn(folder: Path) -> Dataset:
    """Read Street View House Numbers, cropped digits (format 2).

    ``X [32, 32, 3, n]`` and ``y [n, 1]``, where 10 is digit 0 (http://ufldl.stanford.edu/housenumbers).
    """
    files, parts = Files(folder), []
    for part in ("train", "test"):
        name = f"{part}_32x32.mat"
        path = files.folder_of(name) / name
        with readable(path, "a .mat file of cropped digits, X [32, 32, 3, n] and y"):
            arrays = importlib.import_module("scipy.io").loadmat(path, variable_names=["X", "y"])
            x, y = np.asarray(arrays["X"], dtype=np.uint8).transpose(3, 2, 0, 1), np.asarray(arrays["y"])
        parts.append(RawSamples(x, np.where(y == 10, 0, y)))
    return dataset_of("svhn", *parts, classes=10, labels=tuple(string.digits), packed=True)


def read_tiny_imagenet(folder: Path) -> Dataset:
    """Read Tiny-ImageNet.

    ``train/WNID/images`` is the training part and ``val`` with ``val_annotations.txt`` the test part; the images of
    ``test`` have no labels. Classes are numbered in the order of ``wnids.txt``.
    """
    root = Files(folder).folder_of("wnids.txt")
    wnids = (root / "wnids.txt").read_text().split()
    number = {wnid: i for i, wnid in enumerate(wnids)}
    train = [(p, number[wnid]) for wnid in wnids for p in sorted((root / "train" / wnid / "images").glob("*.JPEG"))]
    table = root / "val" / "val_annotations.txt"
    with readable(table, "lines of a file in val/images/ and a class of wnids.txt"):
        lines = [line.split("\t") for line in table.read_text().splitlines() if line]
        test = [(root / "val" / "images" / line[0], number[line[1]]) for line in lines]
    with readable(root, "images in train/WNID/images/*.JPEG and val/images/"):
        parts = [RawSamples(read_images(list(paths), None), np.array(own))
                 for paths, own in (zip(*part, strict=True) for part in (train, test))]  # fmt: skip
    return dataset_of("tiny-imagenet", *parts, classes=len(wnids), labels=_words(root, wnids), packed=True)


def _words(root: Path, wnids: list[str]) -> tuple[str, ...]:
    path = root / "words.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    word = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = tuple(word.get(wnid, wnid).split(",")[0] for wnid in wnids)
    return tuple(name if names.count(name) == 1 else wnid for name, wnid in zip(names, wnids, strict=True))


def _records(raw: bytes, where: str, label_bytes: int) -> tuple[Bytes, Bytes]:
    with readable(where, f"records of {label_bytes + 3072} bytes", "it is cut short or another file"):
        table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, label_bytes + 3072)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1]


def _from_archive(archive: Path, name: str) -> bytes | None:
    """Return a member by the last part of its name, perhaps with .gz, decompressed."""
    with readable(archive, "an archive"):
        for member, content in _members(archive, {name, f"{name}.gz"}):
            return gzip.decompress(content) if member.endswith(".gz") else content
    return None


def _members(archive: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if info.filename.rpartition("/")[2] in names:
                    yield info.filename, packed.read(info)
        return
    with tarfile.open(archive) as packed_tar:
        for member in packed_tar:
            file = packed_tar.extractfile(member) if member.name.rpartition("/")[2] in names else None
            if file is not None:
                yield member.name, file.read()


def is_idx_folder(folder: Path) -> bool:
    """Return whether the folder holds idx files."""
    return any(folder.glob("*-ubyte")) or any(folder.glob("*-ubyte.gz"))


def read_idx_folder(folder: Path, *, site: bool = False) -> Dataset:
    """Return a set of the MNIST family: float32 ``[1, height, width]`` in 0..1; ``site`` as of `class_numbers`.

    The ``t10k`` files are the official test part. Where the folder also holds ``mnist-writers.npz`` (arrays
    ``train_writer``, ``train_series`` and the same for test), the writers are the natural clients and the two series,
    employees and high-school students, their groups.
    """
    tests = next((name for name in ("t10k", "test") if any(folder.glob(f"*{name}-*"))), None)
    names = ["train"] if tests is None else ["train", tests]
    parts = [[_read(folder, name, what, d) for what, d in (("images", 3), ("labels", 1))] for name in names]
    path = folder / WRITERS
    stored = read_arrays(path) if path.is_file() else {}
    keys = [f"{name}_{what}" for what in ("writer", "series") for name in ("train", "test")[: len(parts)]]
    with readable(path, f"the arrays {listed(keys)}", "write all of them"):
        numbers = [stored[key] for key in keys] if stored else []
    train, *test = (RawSamples(x, y, stored.get(key)) for (x, y), key in zip(parts, keys, strict=False))
    result = dataset_of(folder.resolve().name, train, *test, prefix="writer ", site=site)
    if not stored:
        return result
    series = numbered(np.concatenate(numbers[len(parts) :]))[0]
    ids = torch.cat([part for part in (result.client, result.test_client) if part is not None])
    groups = torch.zeros(len(result.client_names or ()), dtype=torch.int64)
    groups[ids] = series
    return replace(result, groups=groups)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return one idx file of bytes as an array with that many dimensions."""
    return parse_idx(read_bytes(path), str(path), dimensions)


def parse_idx(raw: bytes, path: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """Do the same as `read_idx`, from the content of a file.

    It is (LeCun) two zero bytes, one byte for the type (8 = bytes), one for the number of dimensions, each dimension as
    big-endian uint32, then the values.
    """
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
    result = sorted(folder.glob(pattern)) or sorted(folder.glob(pattern + ".gz"))
    if len(result) != 1:
        raise DataError(
            f"{folder}: expected one file {part}-{what}-idx{dimensions}-ubyte, or the same with .gz, got "
            f"{listed([file.name for file in result]) or 'none'}"
        )
    return read_idx(result[0], dimensions)


def read_leaf(folder: Path) -> Dataset:
    """Return the writers as natural clients; inputs are float32 ``[1, 28, 28]``, white is 1.

    The files in ``test/`` are the official test part, those in ``train/``, ``all_data/`` or the folder itself are
    shared out. A file holds ``users`` (names) and ``user_data``: for each user ``x``, images as 784 numbers in 0..1 row
    by row, and ``y``, classes: digits, capitals, small letters (Caldas et al., LEAF, 2018).
    """
    roots = [folder, folder / "data", *sorted(p for p in folder.iterdir() if p.is_dir())]
    root = next((r for r in roots if (r / "train").is_dir() or (r / "all_data").is_dir()), folder)
    train = next((files for name in ("train", "all_data", ".") if (files := sorted((root / name).glob("*.json")))), [])
    test = sorted((root / "test").glob("*.json")) if (root / "train").is_dir() else []
    if not train:
        inside = listed(sorted(p.name for p in folder.iterdir()), limit=5) or "nothing"
        raise DataError(f"{folder}: no .json files in train/, all_data/ or the folder itself; it holds {inside}")
    return dataset_of("femnist", _part(train), _part(test) if test else None, labels=tuple(_CLASSES), prefix="writer ")


def _part(paths: list[Path]) -> RawSamples:
    users = [user for path in paths for user in _users(path)]
    x, y, client = (np.concatenate(arrays) for arrays in zip(*users, strict=True))
    return RawSamples(x, y, client)


def _users(path: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    result, what = [], "of LEAF, with users and user_data, images x of 784 numbers and labels y"
    with readable(path, f"a file {what}"):
        content = json.loads(path.read_text(encoding="utf-8"))
        users, data = [*map(str, content["users"])], dict(content["user_data"])
    for name in users:
        with readable(f"{path}, user {name}", f"one {what}"):
            x = np.asarray(data[name]["x"], dtype=np.float32).reshape(-1, 1, _SIDE, _SIDE)
            result.append((x, np.asarray(data[name]["y"]), np.full(len(x), name)))
    return result
