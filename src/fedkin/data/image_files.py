"""Image files as arrays of bytes, and images as inputs of a network; decoded by Pillow, with reports of progress."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.arrays import Array, pixels
from fedkin.data.checks import optional, readable

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Formats of an image file, regardless of its name: Pillow knows more, and runs other programs for some of them."""
_USUAL = 64  # pixels: what small networks are made for

T = TypeVar("T")
Listener = Callable[[str], None]
_EVERY = 0.1  # seconds between two reports, so that their cost is negligible

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def prepared(raw: Sequence[Any], shape: tuple[int, ...], mode: str, resized: bool, factor: float) -> Tensor:
    """Return images as inputs of a network that was trained on such images: see `Preparation.apply`."""
    arrays = list[Array]()
    for i, one in enumerate(each(raw, "reading images")):
        file = isinstance(one, str | Path)
        value = read_image(Path(one)) if file else np.asarray(one)
        if value.dtype == np.uint8 and value.shape != shape:
            value = value.transpose(1, 2, 0) if value.ndim == 3 and value.shape[2] not in (1, 3) else value
            if value.ndim == 2 or value.shape[2:] in ((1,), (3,)):
                image = _pillow().fromarray(value[:, :, 0] if value.shape[2:] == (1,) else value)
                value = _array(image, shape[1] if resized else None, mode)
                value = value[None] if value.ndim == 2 else value.transpose(2, 0, 1)
        if value.dtype != np.uint8 or value.shape != shape:
            raise DataError(
                f"{one if file else f'image {i + 1}'}: {value.dtype} {list(value.shape)}, the network was trained on "
                f"images of bytes (uint8) {list(shape)}; bring it to this size first"
            )
        arrays.append(value)
    stacked = np.stack(arrays) if arrays else np.zeros((0, *shape), dtype=np.uint8)
    return pixels(stacked) if factor == 1 / 255 else torch.from_numpy(stacked.astype(np.float32) * np.float32(factor))


def read_images(files: Sequence[Path], side: int | None) -> Array:
    """Read image files as bytes ``[n, 1 or 3, height, width]``; grey only if all of them are.

    They are resized to ``side`` pixels in height and width; without, all must have the same size.
    """
    return _stacked((str(path), read_image(path, side)) for path in each(files, "reading images"))


def images_of(images: Iterable[Any], where: str, side: int | None) -> Array:
    """Convert Pillow's images to bytes; result and errors as of `read_images`, and none may be missing (None)."""

    def named() -> Iterable[tuple[str, Array]]:
        for i, image in enumerate(images):
            if image is None:
                raise DataError(f"{where}, image {i}: it is missing (None); add it or remove its row")
            yield f"{where}, image {i}", _array(image, side)

    return _stacked(named())


def read_image(path: Path, side: int | None = None) -> Array:
    """Read one image file, the right way up, as bytes ``[h, w]`` or ``[h, w, 3]``; errors as of `read_images`."""
    pillow = _pillow()
    with readable(path, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata
        with pillow.open(path, formats=FORMATS) as image:
            return _array(importlib.import_module("PIL.ImageOps").exif_transpose(image), side)


def _stacked(images: Iterable[tuple[str, Array]]) -> Array:
    arrays, first = list[Array](), ""
    for where, array in images:
        arrays.append(array)
        first = first or where
        if array.shape[:2] != arrays[0].shape[:2]:
            sizes = [" x ".join(map(str, a.shape[:2])) for a in (array, arrays[0])]
            raise DataError(
                f"{where}: {sizes[0]} pixels, {first} has {sizes[1]}; all images need the same size; resize them, "
                f"or let fedkin do it: --image-size {min(_USUAL, *arrays[0].shape[:2])}"
            )
    if all(a.ndim == 2 for a in arrays):
        return np.stack(arrays)[:, None]
    return np.stack([a.transpose(2, 0, 1) if a.ndim == 3 else np.stack([a] * 3) for a in arrays])


def _array(image: Any, side: int | None, mode: str | None = None) -> Array:
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would clip: the upper 8 of them
        image = _pillow().fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    image = image.convert(mode or ("L" if image.mode in ("L", "1", "LA") else "RGB"))
    if side is not None and image.size != (side, side):
        image = image.resize((side, side), _pillow().Resampling.BILINEAR)
    return np.asarray(image)


def _pillow() -> Any:
    return optional("PIL.Image", "images", "reading images")


@contextmanager
def listening(by: Listener) -> Iterator[None]:
    """Within this context, call ``by`` with what is being read and how much is done, and with "" at the end."""
    token = _listener.set(by)
    try:
        yield
    finally:
        _listener.reset(token)


def each(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items one after another and report "``what``, 1,200 of 20,000" now and then."""
    listener, last = _listener.get(), time.monotonic()
    for i, item in enumerate(items):
        if listener is not None and time.monotonic() - last >= _EVERY:
            listener(f"{what}, {i:,} of {len(items):,}")
            last = time.monotonic()
        yield item
    if listener is not None:
        listener("")
