"""Reading folders of the MNIST family."""

from __future__ import annotations

import gzip
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
    assert d.official_test is not None
    assert len(d.official_test) == 3
    assert d.client is None


def test_without_test_files(mnist_like: Path) -> None:
    """The test files may be missing."""
    for path in mnist_like.glob("t10k*"):
        path.unlink()
    assert load(mnist_like).official_test is None


def test_wrong_magic(mnist_like: Path, write_idx: Write) -> None:
    """A file with another magic number is refused with both."""
    write_idx(mnist_like / IMAGES, np.zeros(6))
    with pytest.raises(DataError):
        load(mnist_like)
    (mnist_like / IMAGES).write_bytes(gzip.compress(b""))
    with pytest.raises(DataError):
        load(mnist_like)


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_size(mnist_like: Path, change: int) -> None:
    """A byte too few or too many is refused with the sizes."""
    raw = gzip.decompress((mnist_like / IMAGES).read_bytes())
    (mnist_like / IMAGES).write_bytes(gzip.compress(raw[:-1] if change < 0 else raw + b"x"))
    with pytest.raises(DataError):
        load(mnist_like)


def test_damaged_gzip(mnist_like: Path) -> None:
    """A gzip file that was cut short, and one that is no gzip file, are refused by name."""
    whole = (mnist_like / LABELS).read_bytes()
    for content in (whole[:-9], b"not gzip"):
        (mnist_like / LABELS).write_bytes(content)
        with refuses(DataError, "train-labels-idx1-ubyte.gz"):
            load(mnist_like)


def test_numbers_differ(mnist_like: Path, write_idx: Write) -> None:
    """Images and labels must be equally many, and some."""
    write_idx(mnist_like / LABELS, np.zeros(5))
    with pytest.raises(DataError):
        load(mnist_like)
    write_idx(mnist_like / LABELS, np.zeros(0))
    write_idx(mnist_like / IMAGES, np.zeros((0, 2, 3)))
    with pytest.raises(DataError):
        load(mnist_like)


def test_missing_and_double_files(mnist_like: Path, write_idx: Write) -> None:
    """A missing file is named; two sets in one folder are refused."""
    write_idx(mnist_like / "letters-train-labels-idx1-ubyte.gz", np.zeros(6))
    with pytest.raises(DataError):
        load(mnist_like)
    for path in mnist_like.glob("*train-labels*"):
        path.unlink()
    with pytest.raises(DataError):
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
    assert d.client is not None
    assert d.test_client is not None
    assert d.groups is not None
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
