"""Reading npz files in four layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.core.errors import DataError
from fedkin.data import Dataset, load
from fedkin.data.sources import read_npz
from refusals import refuses

RNG = np.random.default_rng(0)


def saved(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "own.npz", **arrays)  # type: ignore[arg-type]
    return folder / "own.npz"


def read(folder: Path, **arrays: object) -> Dataset:
    return load(saved(folder, **arrays))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((6, 4, 5), "uint8", (1, 4, 5)), ((6, 3, 4, 5), "uint8", (3, 4, 5)), ((6, 4, 5, 3), "uint8", (3, 4, 5)),
        ((6, 4, 5, 1), "float32", (1, 4, 5)), ((6, 4, 4), "float64", (1, 4, 4)), ((6, 9, 4), "float64", (9, 4)),
        ((6, 7), "int32", (7,)),
    ],
)  # fmt: skip
def test_shapes(shape: tuple[int, ...], dtype: str, expected: tuple[int, ...], tmp_path: Path) -> None:
    """Images get their channels in front; sequences and rows keep their shape; bytes are divided by 255."""
    x = RNG.integers(0, 200, shape).astype(dtype)
    d = read(tmp_path, x=x, y=np.arange(6) % 2)
    assert (d.shape, d.classes, d.name) == (expected, 2, "own")
    scale = 255 if dtype == "uint8" else 1
    moved = x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[3] < 4 else x.reshape(6, *expected)
    assert np.allclose(d.x.numpy() * scale, moved)


def test_train_and_test(tmp_path: Path) -> None:
    """x_train and x_test are the samples and the official test part; classes are counted over both."""
    x = np.zeros((4, 3, 2, 2), np.uint8)
    d = read(tmp_path, x_train=x, y_train=np.arange(4) % 2, x_test=x[:3], y_test=np.array([0, 1, 2]))
    assert (len(d), len(d.official_test), d.classes) == (4, 3, 3)


def test_fixed_point_subjects_and_segments(tmp_path: Path) -> None:
    """``scale`` multiplies whole numbers; subjects are clients, segments are units."""
    d = read(
        tmp_path,
        x=np.full((4, 2, 3), 8, np.int16),
        scale=np.float32(0.25),
        y=np.array([0, 1, 0, 1]),
        subject=np.array([5, 5, 9, 9]),
        segment=np.array([1, 2, 3, 3]),
    )
    assert d.x.unique().tolist() == [2.0]
    assert d.client.tolist() == [0, 0, 1, 1]
    assert d.client_names == ("subject 5", "subject 9")
    assert d.unit.tolist() == [0, 1, 2, 2]


def test_units_of_both_parts(tmp_path: Path) -> None:
    """``unit_train`` and ``unit_test`` are numbered together; without the second a note says what happens."""
    both = {"x_train": np.zeros((4, 2)), "y_train": [0, 1, 0, 1], "x_test": np.zeros((2, 2)), "y_test": [0, 1]}
    d = read(tmp_path, **both, unit_train=np.array([7, 7, 9, 9]), unit_test=np.array([9, 8]))
    assert (d.unit.tolist(), d.test_unit.tolist(), d.notes) == ([0, 0, 2, 2], [2, 1], ())
    with pytest.raises(DataError):
        read(tmp_path, **both, unit_train=np.arange(3), unit_test=np.arange(3))
    assert read(tmp_path, x=np.zeros((4, 2)), y=[0, 1, 0, 1], unit=np.array([7, 7, 9, 9])).notes == ()
    for name in ("unit", "segment_train"):
        d = read(tmp_path, **both, **{name: np.array([7, 7, 9, 9])})
        assert d.unit.tolist() == [0, 0, 1, 1]
        assert d.test_unit is None
        (note,) = d.notes
        assert note.startswith(f"the array {name} has no values for the test part ({name.removesuffix('_train')}_test)")


def test_texts_that_are_bytes(tmp_path: Path) -> None:
    """As h5py gives them: names without b'...', and another encoding is an error."""
    x = np.zeros((4, 2))
    told = {"client": np.array([b"ward a", b"ward b"] * 2), "label_names": np.array([b"cold", b"warm"])}
    d = read(tmp_path, x=x, y=np.array([b"warm", b"cold", b"warm", b"cold"]), **told)
    assert (d.client_names, d.labels) == (("client ward a", "client ward b"), ("cold", "warm"))
    assert d.y.tolist() == [1, 0, 1, 0]
    with pytest.raises(DataError):
        read(tmp_path, x=x, y=np.array(["kälte".encode("latin1"), b"warm"] * 2))


def test_named_client_array(tmp_path: Path) -> None:
    """Any array can be named as the clients', in both parts; a wrong name is answered with the right one."""
    x, y = np.zeros((4, 2)), np.arange(4) % 2
    path = saved(tmp_path, x=x, y=y, hospital=np.array(["b", "a", "b", "a"]))
    d = load(path, client="hospital")
    assert d.client_names == ("hospital a", "hospital b")
    assert load(path).client is None
    with refuses(DataError, "'hospitl'", "'hospital'"):
        load(path, client="hospitl")
    both = {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]}
    d = read(tmp_path, **both, client_train=np.array([1, 1, 2, 2]), client_test=np.array([2, 4]))
    assert d.client.tolist() == [0, 0, 1, 1]
    assert d.test_client.tolist() == [1, 2]
    assert read(tmp_path, **both, client=np.zeros(4)).client is None
    with pytest.raises(DataError):
        read(tmp_path, x=x, y=y, client=np.zeros(3))
    for named, arrays in (("y", {"x": x, "y": y}), ("ward", {**both, "ward": np.array([0, 0, 1, 1])})):
        with refuses(DataError, named):
            load(saved(tmp_path, **arrays), client=named)


def test_text_labels_and_class_names(tmp_path: Path) -> None:
    """Texts become classes in alphabetical order; label_names names numbered classes, also absent ones."""
    x = np.zeros((3, 2))
    d = read(tmp_path, x=x, y=np.array(["dog", "cat", "dog"]))
    assert (d.y.tolist(), d.labels) == ([1, 0, 1], ("cat", "dog"))
    d = read(tmp_path, x=x, y=np.array([0, 1, 0]), label_names=np.array(["a", "b", "c"]))
    assert (d.classes, d.labels) == (3, ("a", "b", "c"))
    d = read(tmp_path, x=x, y=np.array(["dog", "cat", "dog"]), label_names=np.array(["dog", "bird", "cat"]))
    assert (d.y.tolist(), d.classes, d.labels) == ([0, 2, 0], 3, ("dog", "bird", "cat"))


def test_damaged_files(tmp_path: Path) -> None:
    """A file cut short, one that is no archive, and a bare array are refused."""
    path = saved(tmp_path, x=np.zeros((30, 20)), y=np.arange(30) % 2)
    path.write_bytes(path.read_bytes()[:-200])
    with refuses(DataError, "own.npz"):
        load(path)
    path.write_bytes(b"plain text")
    with refuses(DataError, "own.npz"):
        load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError):
        load(path)


SINGLE, TEXTS = np.float32(1), np.array(["a"] * 6)
TWO, THREE = np.zeros((2, 2)), np.zeros((3, 2))
LABELS = ([0, 1], [0, -2, 1], [0.0, 1.5, 1.0], [0, 1, 900], [[0, 1], [1, 0], [0, 1]], [np.nan, 0, 1])
INPUTS = (np.array([[0.0], [np.nan], [1.0]]), np.array([["a"], ["b"], ["c"]]), np.zeros(3), np.zeros((0, 2)))


@pytest.mark.parametrize(
    "arrays",
    [
        *({"x": THREE, "y": np.array(y)} for y in LABELS),
        *({"x": x, "y": np.arange(len(x))} for x in INPUTS),
        {"data": THREE, "targets": np.arange(3)},
        {"x": np.array([{"a": 1}, None], dtype=object), "y": np.arange(2)},
        {"x": TWO, "y": np.array(["a", "b"]), "label_names": np.array(["a", "c"])},
        {"x": TWO, "y": np.arange(2), "label_names": np.array(["a", "a"])},
        {"x": SINGLE, "y": np.zeros(6)},
        {"x": np.zeros((6, 2)), "y": SINGLE},
        {"x": np.zeros((6, 2)), "y": np.zeros(6), "scale": TEXTS},
        {"x": np.zeros((6, 2)), "y": np.zeros(6), "scale": np.array("a")},
        {"x_train": np.zeros((6, 2)), "y_train": np.zeros((6, 2, 2)), "x_test": np.zeros((6, 2)),
         "y_test": np.zeros(6)},
        {"train_images": np.zeros((6, 2)), "train_labels": np.zeros(6), "val_images": np.zeros((6, 3)),
         "val_labels": np.zeros(6)},
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_each_other(arrays: dict[str, Any], tmp_path: Path) -> None:
    """Each is refused with the name of the data; pickles are never loaded."""
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError):
        read_npz(tmp_path / "a.npz")
