"""Image files as arrays of bytes, and images as inputs of a network; decoded by Pillow."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError
from fedkin.data.pixels import Array, pixels
from fedkin.data.progress import each

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Formats of an image file, regardless of its name: Pillow knows more, and runs other programs for some of them."""
_USUAL = 64  # pixels: what small networks are made for


def prepared(raw: Sequence[Any], shape: tuple[int, ...], mode: str, resized: bool, factor: float) -> Tensor:
    """Return images as inputs of a network that was trained on such images: see `Preparation.apply`."""
    arrays = list[Array]()
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
        arrays.append(value)
    stacked = np.stack(arrays) if arrays else np.zeros((0, *shape), dtype=np.uint8)
    return pixels(stacked) if factor == 1 / 255 else torch.from_numpy(stacked.astype(np.float32) * np.float32(factor))


def read_images(files: Sequence[Path], side: int | None) -> Array:
    """Read image files as bytes ``[n, 1 or 3, height, width]``; grey only if all of them are.

    Args:
        files: the files.
        side: resize every image to this height and width in pixels; None: all must have the same size.

    Raises:
        ConfigError: Pillow is not installed.
        DataError: a file is not an image, or sizes differ without ``side``.
    """
    pillow = _pillow()
    arrays: list[Array] = []
    for path in each(files, "reading images"):
        arrays.append(_read(path, pillow, side))
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
    """Read one image file as bytes, ``[h, w]`` or ``[h, w, 3]``. Raises DataError, ConfigError as `read_images`."""
    return _read(path, _pillow())


def images_of(found: Iterable[Any], where: str, side: int | None) -> Array:
    """Convert Pillow's images to bytes ``[n, 1 or 3, h, w]``; grey only if all of them are.

    Raises:
        DataError: an image is missing (None), or sizes differ without ``side``.
    """
    arrays: list[Array] = []
    for i, image in enumerate(found):
        if image is None:
            raise DataError(
                f"{where}, image {i}: it is missing (None), each sample needs one; add it or remove its row"
            )
        arrays.append(_bytes(image, _pillow(), side))
        if arrays[i].shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{where}, image {i}: {_size(arrays[i])} pixels, the first has {_size(arrays[0])}; all images need the "
                f"same size, let fedkin bring them to one: --image-size {usual_side(min(arrays[0].shape[:2]))}"
            )
    return _stacked(arrays)


def _read(path: Path, pillow: Any, side: int | None = None) -> Array:
    """Return one image as bytes, ``[h, w]`` or ``[h, w, 3]``, the right way up."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            with pillow.open(path, formats=FORMATS) as found:
                return _bytes(importlib.import_module("PIL.ImageOps").exif_transpose(found), pillow, side)
    except Exception as error:  # of a dozen classes, for damaged files
        raise DataError(f"{path}: not a readable image ({error or type(error).__name__})") from error


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
    """Return a size to propose for images whose smallest side is that."""
    return min(_USUAL, smallest)


def _size(image: Array) -> str:
    return f"{image.shape[0]} x {image.shape[1]}"
