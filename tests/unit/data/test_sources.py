"""`load` finds the right reader and says what is wrong with a name or a path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import load
from fedkin.data.sources import brings_clients
from refusals import refuses


def test_a_name_or_path_that_is_no_data_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """With the built-in names, or what lies beside; a folder or file of another kind with what is read instead."""
    for name in ("fashion", "empty", "two"):
        (tmp_path / name).mkdir()
    for name in ("fashion/a", "two/a", "two/b"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((3, 2)), y=np.arange(3))
    assert len(load(tmp_path / "fashion")) == 3  # a folder with a single npz file stands for it
    for name in ("a.npz.xz", "a.sav", "a.xlsx"):
        (tmp_path / name).write_bytes(b"x")
    for spec, facts in (
        ("digit", ("'digit'", "synthetic", "did you mean 'digits'")), (tmp_path / "fashoin", ("'fashion'",)),
        (tmp_path / "nothing.npz", ("nothing.npz",)), (tmp_path / "nothing.csv", ("nothing.csv",)),
        (tmp_path / "empty", ("holds nothing",)), (tmp_path / "two", ("a.npz, b.npz",)),
        (tmp_path / "a.npz.xz", (".csv, .parquet or .npz",)), (tmp_path / "a.sav", (".csv, .parquet or .npz",)),
        (tmp_path / "a.xlsx", ("spreadsheet", "save it as .csv")), (tmp_path, ("spreadsheet",)),
    ):  # fmt: skip
        for target in (None, "y"):  # not: that it is no table
            if (spec, target) != (tmp_path / "two", "y"):
                with refuses(DataError, *facts):
                    load(spec, target=target)


def test_a_built_in_name_is_that_whatever_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    np.savez("digits/a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    assert (len(load("digits")), brings_clients("digits")) == (1797, False)
    assert len(load("./digits")) == 3


def test_options_of_other_readers(tmp_path: Path) -> None:
    """Options that do not belong to the kind of data are refused by name rather than ignored."""
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.arange(3))
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n")
    for data, setting in (
        ("digits", {"target": "y"}), ("digits", {"client": "writer"}), ("digits", {"image_size": 8}),
        ("digits", {"drop": ["a"]}), ("digits", {"encoding": "cp1252"}), (tmp_path / "a.npz", {"target": "y"}),
        (tmp_path / "a.csv", {"image_size": 8}),
    ):  # fmt: skip
        with refuses(ConfigError, f"takes no {next(iter(setting))}"):
            load(data, **setting)
    for none in (["digits", "synthetic"], []):
        with pytest.raises(DataError):
            load(none)
