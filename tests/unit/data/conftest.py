"""Files and data sets that several tests need."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.data import Dataset, Pool


@pytest.fixture
def make_pool() -> Callable[..., Pool]:
    """Labels only: so many samples of each class."""

    def make(*sizes: int) -> Pool:
        return Pool(y=np.repeat(np.arange(len(sizes)), sizes), classes=len(sizes), name="toy")

    return make


@pytest.fixture
def make_dataset() -> Callable[..., Dataset]:
    """Samples whose single input number is the sample's number, labels going round."""

    def make(n: int = 60, classes: int = 3, **more: object) -> Dataset:
        x, y = torch.arange(n, dtype=torch.float32)[:, None], torch.arange(n) % classes
        return Dataset(x=x, y=y, classes=classes, name="toy", **more)

    return make


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], None]:
    """Writes an array of bytes as an idx file, gzipped when the name ends in .gz."""

    def write(path: Path, values: np.ndarray) -> None:
        head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
        raw = head + values.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)

    return write


@pytest.fixture
def mnist_like(tmp_path: Path, write_idx: Callable[[Path, np.ndarray], None]) -> Path:
    """A folder as MNIST's: 6 training and 3 test images of 2 x 3 pixels, three classes."""
    rng = np.random.default_rng(0)
    for part, n, suffix in (("train", 6, ".gz"), ("t10k", 3, "")):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", rng.integers(0, 256, (n, 2, 3)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", np.arange(n) % 3)
    return tmp_path
