"""Folders of image files: ``root/class/*.png`` or, with natural clients, ``root/client/class/*.png``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.core.errors import ConfigError, DataError
from fedkin.data.dataset import Dataset
from fedkin.data.sources.files import Array, pixels

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})


def is_image_folder(folder: Path) -> bool:
    """Do folders one or two levels below hold images?"""
    return any(_images(sub) or any(_images(deep) for deep in _folders(sub)) for sub in _folders(folder))


def read_image_folder(root: Path) -> Dataset:
    """Images as float32 ``[1 or 3, height, width]`` in 0..1; grey only when all of them are.

    The classes are the folders' names in alphabetical order, gathered over all clients.

    Raises:
        ConfigError: Pillow is not installed.
        DataError: no images, images of different sizes, a file that is no image.
    """
    files, class_of, client_of = _listing(root)
    if not files:
        raise DataError(f"{root}: no images in root/class/ or root/client/class/ ({', '.join(sorted(SUFFIXES))})")
    labels = tuple(sorted(set(class_of)))
    names = tuple(sorted(set(client_of))) if client_of else None
    return Dataset(
        x=pixels(_read_all(files)),
        y=torch.tensor([labels.index(c) for c in class_of], dtype=torch.int64),
        classes=len(labels),
        name=root.resolve().name,
        client=None if names is None else torch.tensor([names.index(c) for c in client_of], dtype=torch.int64),
        client_names=names,
        labels=labels,
    )


def _listing(root: Path) -> tuple[list[Path], list[str], list[str]]:
    """Files with their class and, in the deeper layout, their client."""
    files: list[Path] = []
    class_of: list[str] = []
    client_of: list[str] = []
    flat = [sub for sub in _folders(root) if _images(sub)]
    deep = [(sub, low) for sub in _folders(root) for low in _folders(sub) if _images(low)]
    if flat and deep:
        raise DataError(
            f"{root}: {flat[0].name}/ holds images, {deep[0][0].name}/ holds folders of images; "
            "use root/class/ or root/client/class/, not both"
        )
    for client, folder in [("", sub) for sub in flat] or [(sub.name, low) for sub, low in deep]:
        found = _images(folder)
        files += found
        class_of += [folder.name] * len(found)
        client_of += [client] * len(found) if client else []
    return files, class_of, client_of


def _read_all(files: list[Path]) -> Array:
    pillow = _pillow()
    arrays: list[Array] = []
    for path in files:
        try:
            with pillow.open(path) as image:
                grey = image.mode in ("L", "1", "I;16")
                arrays.append(np.asarray(image.convert("L" if grey else "RGB")))
        except OSError as error:
            raise DataError(f"{path}: not a readable image ({error})") from error
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{path}: {_size(arrays[-1])} pixels, {files[0]} has {_size(arrays[0])}; "
                "all images need the same size, resize them first"
            )
    if all(a.ndim == 2 for a in arrays):
        return np.stack(arrays)
    return np.stack([a.transpose(2, 0, 1) if a.ndim == 3 else np.stack([a] * 3) for a in arrays])


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(
            'reading images needs Pillow, which is not installed: pip install "fedkin[images]"'
        ) from error


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)


def _size(image: Array) -> str:
    return f"{image.shape[0]} x {image.shape[1]}"
