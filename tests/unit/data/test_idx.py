"""Reading folders of the MNIST family."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import DataError
from fedkin.data import load
from fedkin.data.sources import read_idx
from refusals import refuses

Write = Callable[[Path, np.ndarray], None]
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def test_reads_plain_and_gzipped(mnist_like: Path) -> None:
    """Pixels are divided by 255, get a channel, and the t10k files become the official test part."""
    d = load(mnist_like)
    assert (d.shape, d.classes, len(d)) == ((1, 2, 3), 3, 6)
    raw = read_idx(mnist_like / IMAGES, 3)
    assert np.allclose(d.x[:, 0].numpy() * 255, raw)
    assert d.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(d.official_test) == 3
    assert d.client is None


def test_without_test_files(mnist_like: Path) -> None:
    """The test files may be missing."""
    for path in mnist_like.glob("t10k*"):
        path.unlink()
    assert load(mnist_like).official_test is None


def packed(values: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


WHOLE = gzip.decompress(packed(np.zeros((6, 2, 3))))
DAMAGE: dict[str, dict[str, bytes | None]] = {
    "two dimensions too few": {IMAGES: packed(np.zeros(6))},
    "empty": {IMAGES: gzip.compress(b"")},
    "a byte too few": {IMAGES: gzip.compress(WHOLE[:-1])},
    "a byte too many": {IMAGES: gzip.compress(WHOLE + b"x")},
    "cut short": {LABELS: packed(np.zeros(6))[:-9]},
    "not packed": {LABELS: b"not gzip"},
    "fewer labels": {LABELS: packed(np.zeros(5))},
    "no samples": {LABELS: packed(np.zeros(0)), IMAGES: packed(np.zeros((0, 2, 3)))},
    "two sets": {"letters-train-labels-idx1-ubyte.gz": packed(np.zeros(6))},
    "no labels": {LABELS: None},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(damage: str, mnist_like: Path) -> None:
    """Refused with the name of the file or of the folder."""
    for name, content in DAMAGE[damage].items():
        (mnist_like / name).write_bytes(content or b"")
        if content is None:
            (mnist_like / name).unlink()
    with refuses(DataError, mnist_like.name):
        load(mnist_like)


def test_writers(mnist_like: Path) -> None:
    """With a file of writers these are the clients, numbered over both parts, and the series are their groups."""
    arrays = {
        "train_writer": np.array([7, 7, 3, 3, 3, 9]),
        "train_series": np.array([4, 4, 0, 0, 0, 4]),
        "test_writer": np.array([3, 20, 20]),
        "test_series": np.array([0, 4, 4]),
    }
    np.savez(mnist_like / "mnist-writers.npz", **arrays)
    d = load(mnist_like)
    assert d.client.tolist() == [1, 1, 0, 0, 0, 2]
    assert d.test_client.tolist() == [0, 3, 3]
    assert d.client_names == ("writer 3", "writer 7", "writer 9", "writer 20")
    assert d.groups.tolist() == [0, 1, 1, 1]
    np.savez(mnist_like / "mnist-writers.npz", **{k: v[:2] for k, v in arrays.items()})
    with pytest.raises(DataError):
        load(mnist_like)
    np.savez(mnist_like / "mnist-writers.npz", train_writer=np.zeros(6))
    with pytest.raises(DataError):
        load(mnist_like)
