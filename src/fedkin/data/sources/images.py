"""Folders of image files: ``root/class/*.png`` or, with natural clients, ``root/client/class/*.png``; both perhaps
below ``root/train/``, ``root/val/`` and ``root/test/``."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from fedkin.core.errors import ConfigError, DataError, counted
from fedkin.core.samples import Samples
from fedkin.data.dataset import Dataset
from fedkin.data.image_files import read_images
from fedkin.data.pixels import pixels
from fedkin.data.preparation import image_preparation
from fedkin.data.sources.files import listed

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
TRAIN, _TEST = ("train", "training"), ("test", "testing")
_VALIDATION = ("val", "valid", "validation")  # trained on, as MedMNIST's: a client's validation part is drawn anew

Found = tuple[Path, str, str]
"""A file, its class, and its client or ""."""


def is_image_folder(folder: Path) -> bool:
    """Do folders one or two levels below, or three below ``train``, hold images?"""
    roots = [folder, *(f for f in _folders(folder) if f.name.lower() in TRAIN)]
    subs = [sub for root in roots for sub in _folders(root)]
    return any(_images(sub) or any(_images(deep) for deep in _folders(sub)) for sub in subs)


def has_client_folders(folder: Path) -> bool:
    """Return whether there are folders of clients above those of the classes."""
    roots = [f for f in _folders(folder) if f.name.lower() in TRAIN] or [folder]
    return any(_images(deep) for root in roots for sub in _folders(root) for deep in _folders(sub))


def read_image_folder(root: Path, *, side: int | None = None) -> Dataset:
    """Return images as float32 ``[1 or 3, height, width]`` in 0..1; grey only if all of them are.

    The classes are the folders' names in alphabetical order, gathered over all clients and parts; clients are in the
    order of the numbers in their names. Where there is a
    folder ``train``, the images below ``test`` are the official test part, and those below ``val`` are trained on.

    Args:
        root: the folder.
        side: resize every image to this height and width in pixels; None: all must have the same size.

    Raises:
        ConfigError: Pillow is not installed, or a side below 1.
        DataError: no images, images outside the folders, two folders of one part (``train``, ``Train``), images of
            different sizes without ``side``, a file that is not an image.
    """
    if side is not None and side < 1:
        raise ConfigError(f"image_size must be at least 1 pixel, got {side}")
    train, test = _parts(root)
    found = [*train, *test]
    if not train:
        raise DataError(f"{root}: no images in root/class/ or root/client/class/ ({', '.join(sorted(SUFFIXES))})")
    labels = {name: i for i, name in enumerate(sorted({c for _, c, _ in found}))}
    clients = {name: i for i, name in enumerate(sorted({c for _, _, c in found if c}, key=by_number))}
    x = pixels(read_images([path for path, _, _ in found], side))
    y = torch.tensor([labels[c] for _, c, _ in found], dtype=torch.int64)
    ids = torch.tensor([clients[c] for _, _, c in found], dtype=torch.int64) if clients else None
    n = len(train)
    return Dataset(
        x=x[:n],
        y=y[:n],
        classes=len(labels),
        name=root.resolve().name,
        official_test=Samples(x[n:], y[n:]) if test else None,
        client=None if ids is None else ids[:n],
        test_client=None if ids is None or not test else ids[n:],
        client_names=tuple(clients) or None,
        labels=tuple(labels),
        preparation=image_preparation(tuple(x.shape[1:]), tuple(labels), resized=side is not None),
    )


def _parts(root: Path) -> tuple[list[Found], list[Found]]:
    """Return training and test images."""
    by_name = {folder.name.lower(): folder for folder in _folders(root)}
    if not any(name in by_name for name in TRAIN):
        return _listing(root), []
    _check_loose(root)
    for folder in _folders(root):
        other = by_name[folder.name.lower()]
        if other != folder:
            raise DataError(
                f"{root}: {folder.name}/ and {other.name}/ name the same part of the data; expected one folder, put "
                "the images of both into it"
            )
    others = [name for name in by_name if name not in (*TRAIN, *_VALIDATION, *_TEST)]
    if others:
        raise DataError(
            f"{root}: next to a folder of training images there is {others[0]}/; expected train/, val/ and test/ only, "
            "or folders of classes or clients only"
        )
    train = [f for name in (*TRAIN, *_VALIDATION) if name in by_name for f in _listing(by_name[name])]
    test = [f for name in _TEST if name in by_name for f in _listing(by_name[name])]
    if len({bool(client) for _, _, client in (*train, *test)}) > 1:
        there = [by_name[name].name for name in (*TRAIN, *_VALIDATION, *_TEST) if name in by_name]
        raise DataError(
            f"{root}: {'/ and '.join(there)}/ differ in depth; use class/ or client/class/ below each of them"
        )
    return train, test


def _listing(root: Path) -> list[Found]:
    """Return files with their class and, in the deeper layout, their client."""
    _check_loose(root)
    flat = [sub for sub in _folders(root) if _images(sub)]
    deep = [(sub, low) for sub in _folders(root) for low in _folders(sub) if _images(low)]
    if flat and deep:
        raise DataError(
            f"{root}: {flat[0].name}/ holds images, {deep[0][0].name}/ holds folders of images; "
            "use root/class/ or root/client/class/, not both"
        )
    of = [("", sub) for sub in flat] or [(sub.name, low) for sub, low in deep]
    found = [(file, folder.name, client) for client, folder in of for file in _images(folder)]
    _check_below(root, {folder for _, folder in of})
    return found


def _check_below(root: Path, read: set[Path]) -> None:
    """Raise DataError if images lie in folders below ``root`` that are not among those that are read."""
    waiting = [*_folders(root)]
    while waiting:
        folder = waiting.pop()
        if folder not in read and (more := _images(folder)):
            raise DataError(
                f"{folder}: {counted(len(more), 'image')} deeper than those of other folders, such as {more[0].name}; "
                "use root/class/ or root/client/class/ for all, or remove them"
            )
        waiting += _folders(folder)


def _check_loose(folder: Path) -> None:
    """Raise DataError if images lie next to the folders, where they have no class."""
    loose = [file.name for file in _images(folder)]
    if loose:
        raise DataError(
            f"{folder}: images outside the folders of classes: {listed(loose, limit=3)}; put each into the folder of "
            "its class, or remove it"
        )


def by_number(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a sort key that puts "writer 2" before "writer 10"."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), name


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
