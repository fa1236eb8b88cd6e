"""Folders of image files: ``root/class/*.png`` or, with natural clients, ``root/client/class/*.png``; both perhaps
below ``root/train/``, ``root/val/`` and ``root/test/``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedkin.core.errors import DataError
from fedkin.data.checks import check_range, listed
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.image_files import read_images

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
    """
    if side is not None:
        check_range("image_size", side, least=1)
    train, test = _parts(root)
    files, n = [*train, *test], len(train)
    clients = {name: i for i, name in enumerate(sorted({c for _, _, c in files}, key=by_number))}
    if not train or ("" in clients and len(clients) > 1):
        raise DataError(
            f"{root}: expected images ({', '.join(sorted(SUFFIXES))}) in root/class/ or root/client/class/, all "
            f"alike; got {'both' if train else 'none'}"
        )
    x, y = read_images([path for path, _, _ in files], side), np.array([label for _, label, _ in files])
    ids = None if "" in clients else np.array([clients[c] for _, _, c in files])
    parts = [RawSamples(x[at], y[at], None if ids is None else ids[at]) for at in (slice(n), slice(n, None))]
    return dataset_of(
        root.resolve().name, *parts[: 1 + bool(test)], client_names=tuple(clients), resized=side is not None
    )


def _parts(root: Path) -> tuple[list[Found], list[Found]]:
    """Return training and test images."""
    known = dict.fromkeys((*TRAIN, *_VALIDATION), 0) | dict.fromkeys(_TEST, 1)
    folders = _folders(root)
    if not any(folder.name.lower() in TRAIN for folder in folders):
        return _listing(root), []
    if others := [p.name for p in (*folders, *_images(root)) if p.name.lower() not in known]:
        raise DataError(
            f"{root}: next to a folder of training images there is {listed(others, 3)}; expected train/, val/ and "
            "test/ only, or folders of classes or clients only"
        )
    result = ([], [])  # type: tuple[list[Found], list[Found]]
    for folder in sorted(folders, key=lambda folder: (folder.name.lower() not in TRAIN, folder)):
        result[known[folder.name.lower()]].extend(_listing(folder))
    return result


def _listing(root: Path) -> list[Found]:
    """Return files with their class and, in the deeper layout, their client."""
    flat = [("", sub) for sub in _folders(root) if _images(sub)]
    of = flat or [(sub.name, low) for sub in _folders(root) for low in _folders(sub)]
    result = [(file, folder.name, client) for client, folder in of for file in _images(folder)]
    read = {file for file, _, _ in result}
    images = (p.relative_to(root) for p in sorted(root.rglob("*")) if _is_image(p) and p not in read)
    if left := [str(p) for p in images if not any(part.startswith(".") for part in p.parts)]:
        raise DataError(
            f"{root}: images that lie at another depth than the others: {listed(left, limit=3)}; put all of them into "
            "root/class/ or root/client/class/, or remove them"
        )
    return result


def by_number(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a sort key that puts "writer 2" before "writer 10"."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), name


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if _is_image(p))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
