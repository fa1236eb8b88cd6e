"""`load` finds the right reader and says what is wrong with a name or a path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import load
from fedkin.data.sources import brings_clients
from refusals import refuses


def test_digits() -> None:
    """The bundled digits: 1,797 images of 8 x 8 in 0..1, ten classes of about 180."""
    d = load("digits")
    assert (len(d), d.shape, d.classes) == (1797, (1, 8, 8), 10)
    assert (float(d.x.min()), float(d.x.max())) == (0.0, 1.0)
    assert int(d.y.bincount().min()) == 174
    assert d.official_test is None


def test_synthetic() -> None:
    """The built-in synthetic data have natural clients with true groups."""
    d = load("synthetic")
    assert d.client is not None
    assert d.groups is not None
    assert len(d.groups) == int(d.client.max()) + 1


@pytest.mark.parametrize(
    ("spec", "hint"), [("digit", "did you mean 'digits'"), ("sythetic", "did you mean 'synthetic'")]
)
def test_unknown_name(spec: str, hint: str) -> None:
    """An unknown name is answered with the built-in names and the nearest one."""
    with pytest.raises(DataError, match=f"no data called '{spec}': neither a built-in name .digits, synthetic.*{hint}"):
        load(spec)


def test_unknown_path(tmp_path: Path) -> None:
    """A path that is not there is answered with the nearest one beside it."""
    (tmp_path / "fashion").mkdir()
    for missing in ("fashoin", "nothing.npz", "nothing.csv"):
        with pytest.raises(DataError):
            load(tmp_path / missing)
    with refuses(DataError, "'fashion'"):
        load(str(tmp_path / "fashoin"))
    with pytest.raises(DataError):  # not: that it is no table
        load(str(tmp_path / "fashoin"), target="y", binary=True)


def test_a_built_in_name_is_that_whatever_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the same name is meant by its path."""
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    np.savez("digits/a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    assert (len(load("digits")), brings_clients("digits")) == (1797, False)
    assert len(load("./digits")) == 3


def test_folder_without_data(tmp_path: Path) -> None:
    """A folder without data is refused with what is in it."""
    with pytest.raises(DataError):
        load(tmp_path)
    (tmp_path / "readme.txt").write_text("no data")
    with pytest.raises(DataError):
        load(tmp_path)


def test_other_files(tmp_path: Path) -> None:
    """A file of another kind is refused, with what is read; a spreadsheet with how to save it."""
    for name, advice in (("a.npz.xz", "expected"), ("a.sav", "expected"), ("a.xlsx", r"save it as \.csv")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match=advice):
            load(tmp_path / name)
    for given in (tmp_path, tmp_path / "a.xlsx"):
        with pytest.raises(DataError):
            load(given, target="y")


def test_folder_with_one_archive(tmp_path: Path) -> None:
    """A folder with a single npz file stands for it; with two, one has to be named."""
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    assert len(load(tmp_path)) == 3
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2)), y=np.arange(3))
    with pytest.raises(DataError):
        load(tmp_path)


def test_options_of_other_readers(tmp_path: Path) -> None:
    """Options that do not belong to the kind of data are refused by name rather than ignored."""
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n")
    for data, setting in (
        ("digits", {"target": "y"}), ("digits", {"client": "writer"}), ("digits", {"image_size": 8}),
        ("digits", {"drop": ["a"]}), ("digits", {"encoding": "cp1252"}), (tmp_path / "a.npz", {"target": "y"}),
        (tmp_path / "a.csv", {"image_size": 8}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"takes no {next(iter(setting))}"):
            load(data, **setting)
    for none in (["digits", "synthetic"], []):
        with pytest.raises(ConfigError):
            load(none)


def test_real_sets(shared_data: Path) -> None:
    """Small real sets read as their descriptions say."""
    har = load(shared_data / "uci-har")
    assert (len(har), har.shape, har.classes) == (10299, (9, 128), 6)
    assert har.y.bincount().tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert har.client_names is not None
    assert len(har.client_names) == 30
    assert har.unit is not None
    assert int(har.unit.max()) == 856
    assert abs(float(har.x[:, 6].mean()) - 0.81) < 0.01
    chest = load(shared_data / "pneumoniamnist")
    assert (len(chest), chest.shape, chest.classes) == (2428 + 270, (1, 28, 28), 2)
    assert chest.official_test is not None
    assert chest.official_test.y.bincount().tolist() == [234, 234]
    heart = load(shared_data / "heart-disease", target="target", binary=True)
    assert heart.client is not None
    assert heart.client.bincount().tolist() == [303, 294, 123, 200]
    assert heart.client_names == ("cleveland", "hungarian", "switzerland", "va")
    sick = [round(100 * float(heart.y[heart.client == k].float().mean())) for k in range(4)]
    assert sick == [46, 36, 93, 74] or sick == [46, 36, 93, 75]


def test_mnist_writers(shared_data: Path) -> None:
    """MNIST comes with its writers as clients, none of them in both parts, and two groups of writers."""
    d = load(shared_data / "mnist")
    assert (len(d), d.shape, d.classes) == (60000, (1, 28, 28), 10)
    assert d.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(float(d.x.mean()) - 0.1307) < 1e-4
    assert d.client is not None
    assert d.test_client is not None
    assert d.groups is not None
    assert len(d.client.unique()) == 539
    assert len(d.test_client.unique()) == 297
    assert not set(d.client.tolist()) & set(d.test_client.tolist())
    assert d.groups[d.client].bincount().tolist() == [30950, 29050]
