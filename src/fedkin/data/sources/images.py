"""Folders of image files: ``root/class/*.png`` or, with natural clients, ``root/client/class/*.png``; both perhaps
below ``root/train/``, ``root/val/`` and ``root/test/``."""

from __future__ import annotations

import importlib
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError
from fedkin.core.samples import Samples
from fedkin.data.dataset import Dataset
from fedkin.data.limits import Budget
from fedkin.data.preparation import image_preparation
from fedkin.data.progress import each
from fedkin.data.sources.files import AS_FLOATS, Array, pixels

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
TRAIN, _TEST = ("train", "training"), ("test", "testing")
_VALIDATION = ("val", "valid", "validation")  # trained on, as MedMNIST's: a client's validation part is drawn anew

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""What an image file may hold, whatever its name is: Pillow knows more, and runs other programs for some of them."""
FAULTS = (
    OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, ArithmeticError, AttributeError, TypeError,
    AssertionError, NotImplementedError, MemoryError, zlib.error,
)  # fmt: skip
"""What Pillow raises for damaged files (SyntaxError for a broken PNG)."""
_AT_WORK = 20  # bytes of memory that a pixel takes at most while it is decoded, converted and scaled
_USUAL = 64  # pixels: what small networks are made for

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
        DataError: no images, images of different sizes without ``side``, a file that is not an image.
    """
    if side is not None and side < 1:
        raise ConfigError(f"image_size must be at least 1 pixel, got {side}")
    train, test = _parts(root)
    found = [*train, *test]
    if not train:
        raise DataError(f"{root}: no images in root/class/ or root/client/class/ ({', '.join(sorted(SUFFIXES))})")
    labels = {name: i for i, name in enumerate(sorted({c for _, c, _ in found}))}
    clients = {name: i for i, name in enumerate(sorted({c for _, _, c in found if c}, key=by_number))}
    x = pixels(_read_all([path for path, _, _ in found], side))
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


def prepared(raw: Sequence[Any], shape: tuple[int, ...], mode: str, resized: bool, factor: float) -> Tensor:
    """Images as a network was trained on them: see `Preparation.apply`."""
    arrays, budget = list[Array](), Budget()
    for i, one in enumerate(each(raw, "reading images")):
        file = Path(one) if isinstance(one, str | Path) else None
        value: Any = np.asarray(one) if file is None else _read(file, _pillow())
        where = f"image {i + 1}" if file is None else str(file)
        if value.dtype != np.uint8:
            raise DataError(f"{where}: expected pixels as bytes (uint8), got {value.dtype}")
        if value.ndim == 3 and value.shape != shape and value.shape[2] in (1, 3):
            value = value.transpose(2, 0, 1)
        value = value[None] if value.ndim == 2 else value
        if value.shape[0] == 1 and mode == "RGB":
            value = np.repeat(value, 3, axis=0)
        if value.shape[0] == 3 and mode == "L":
            value = np.asarray(_pillow().fromarray(value.transpose(1, 2, 0)).convert("L"))[None]
        if resized and value.shape[1:] != shape[1:]:
            value = _resized(value, shape[1])
        if value.shape != shape:
            raise DataError(
                f"{where}: {' x '.join(map(str, value.shape[1:]))} pixels, the network was trained on images of "
                f"{' x '.join(map(str, shape[1:]))}; bring it to this size first"
            )
        if file is not None:
            budget.take(file, file.stat().st_size, AS_FLOATS * value.size)
        arrays.append(value)
    stacked = np.stack(arrays) if arrays else np.zeros((0, *shape), dtype=np.uint8)
    return pixels(stacked) if factor == 1 / 255 else torch.from_numpy(stacked.astype(np.float32) * np.float32(factor))


def _parts(root: Path) -> tuple[list[Found], list[Found]]:
    """Return training and test images."""
    by_name = {folder.name.lower(): folder for folder in _folders(root)}
    if not any(name in by_name for name in TRAIN):
        return _listing(root), []
    others = [name for name in by_name if name not in (*TRAIN, *_VALIDATION, *_TEST)]
    if others:
        raise DataError(
            f"{root}: next to a folder of training images there is {others[0]}/; expected train/, val/ and test/ only, "
            "or folders of classes or clients only"
        )
    train = [f for name in (*TRAIN, *_VALIDATION) if name in by_name for f in _listing(by_name[name])]
    test = [f for name in _TEST if name in by_name for f in _listing(by_name[name])]
    if train and test and bool(train[0][2]) != bool(test[0][2]):
        raise DataError(f"{root}: train/ and test/ differ in depth; use class/ or client/class/ below both")
    return train, test


def _listing(root: Path) -> list[Found]:
    """Return files with their class and, in the deeper layout, their client."""
    flat = [sub for sub in _folders(root) if _images(sub)]
    deep = [(sub, low) for sub in _folders(root) for low in _folders(sub) if _images(low)]
    if flat and deep:
        raise DataError(
            f"{root}: {flat[0].name}/ holds images, {deep[0][0].name}/ holds folders of images; "
            "use root/class/ or root/client/class/, not both"
        )
    of = [("", sub) for sub in flat] or [(sub.name, low) for sub, low in deep]
    return [(file, folder.name, client) for client, folder in of for file in _images(folder)]


def _read_all(files: list[Path], side: int | None) -> Array:
    pillow, budget = _pillow(), Budget()
    arrays: list[Array] = []
    for path in each(files, "reading images"):
        arrays.append(_read(path, pillow, side))
        budget.take(path, path.stat().st_size, AS_FLOATS * arrays[-1].size)
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{path}: {_size(arrays[-1])} pixels, {files[0]} has {_size(arrays[0])}; all images need the same "
                f"size, resize them first, or let fedkin do it: --image-size {usual_side(min(arrays[0].shape[:2]))}"
            )
    return _stacked(arrays)


def _stacked(arrays: list[Array]) -> Array:
    if all(a.ndim == 2 for a in arrays):
        return np.stack(arrays)[:, None]
    return np.stack([a.transpose(2, 0, 1) if a.ndim == 3 else np.stack([a] * 3) for a in arrays])


def read_image(path: Path) -> Array:
    """One image as bytes, ``[h, w]`` or ``[h, w, 3]``. Raises DataError, ConfigError as `read_image_folder`."""
    return _read(path, _pillow())


def images_of(found: Iterable[Any], where: str, side: int | None) -> Array:
    """Pillow's images as bytes ``[n, 1 or 3, h, w]``; grey only when all of them are."""
    arrays: list[Array] = []
    for i, image in enumerate(found):
        arrays.append(_bytes(image, _pillow(), side))
        if arrays[i].shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{where}, image {i}: {_size(arrays[i])} pixels, the first has {_size(arrays[0])}; all images need the "
                f"same size, let fedkin bring them to one: --image-size {usual_side(min(arrays[0].shape[:2]))}"
            )
    return _stacked(arrays)


def _read(path: Path, pillow: Any, side: int | None = None) -> Array:
    """One image as bytes, ``[h, w]`` or ``[h, w, 3]``, the right way up."""
    try:
        with opened(path, pillow) as found:
            image = importlib.import_module("PIL.ImageOps").exif_transpose(found)
            return _bytes(image, pillow, side)
    except FAULTS as error:
        raise DataError(f"{path}: not a readable image ({error or type(error).__name__})") from error


@contextmanager
def opened(path: Path, pillow: Any) -> Iterator[Any]:
    """Open an image file of a known format, whose size has been checked; its pixels are not decoded yet.

    Args:
        path: the file.
        pillow: the module ``PIL.Image``.

    Raises:
        DataError: the image has more pixels than the limit allows.
        OSError: and others of `FAULTS`: not an image of `FORMATS`.
    """
    largest, pillow.MAX_IMAGE_PIXELS = pillow.MAX_IMAGE_PIXELS, None  # the limit on data stands for Pillow's own
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            with pillow.open(path, formats=FORMATS) as found:
                width, height = found.size
                Budget().take(path, path.stat().st_size, _AT_WORK * width * height)
                yield found
    finally:
        pillow.MAX_IMAGE_PIXELS = largest


def _bytes(image: Any, pillow: Any, side: int | None) -> Array:
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would clip: the upper 8 of them
        image = pillow.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    image = image.convert("L" if image.mode in ("L", "1", "LA") else "RGB")
    if side is not None and image.size != (side, side):
        image = image.resize((side, side), pillow.Resampling.BILINEAR)
    return np.asarray(image)


def _resized(value: Array, side: int) -> Array:
    image = _pillow().fromarray(value[0] if len(value) == 1 else value.transpose(1, 2, 0))
    made = _bytes(image, _pillow(), side)
    return made[None] if made.ndim == 2 else made.transpose(2, 0, 1)


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(
            'reading images needs Pillow, which is not installed: pip install "fedkin[images]"'
        ) from error


def usual_side(smallest: int) -> int:
    """A size to propose for images whose smallest side is that."""
    return min(_USUAL, smallest)


def by_number(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a sort key that puts "writer 2" before "writer 10"."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), name


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))


def _size(image: Array) -> str:
    return f"{image.shape[0]} x {image.shape[1]}"
