"""FLamby's Fed-Heart-Disease: four hospitals, their rows, inputs and split as in owkin/FLamby (fed_heart_disease).

The files are read from ``$FEDKIN_DATA/heart-disease`` (default ``~/.cache/fedkin/data/heart-disease``): for each
hospital UCI's ``processed.NAME.data``, or ``NAME.csv`` with a header line. Used as ``--data ./flamby.py:federation``.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from fedkin.core import Samples
from fedkin.core.errors import DataError
from fedkin.data import ClientData, Federation

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14  # age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak, slope, ca, thal, target
DROPPED = (10, 11, 12)  # slope, ca, thal: mostly missing outside Cleveland
CATEGORIES = (2, 6)  # cp, restecg
TARGET = 13
_MISSING = ("", "?")

Rows = npt.NDArray[np.float64]


def federation() -> Federation:
    """The four hospitals with FLamby's training and test rows, inputs standardised per hospital; no validation part."""
    return split(read_hospitals(folder()), "FLamby heart disease")


def folder() -> Path:
    """Where the files of the hospitals are looked for."""
    return Path(os.environ.get("FEDKIN_DATA", "~/.cache/fedkin/data")).expanduser() / "heart-disease"


def split(hospitals: Mapping[str, Rows], name: str) -> Federation:
    """A federation of the hospitals' complete rows; a hospital's mean and deviation are those of its training rows.

    Args:
        hospitals: name -> rows ``[n, 11]`` as `read_hospitals` gives them.
        name: of the federation.
    """
    clients = []
    for train, test in unscaled(hospitals):
        nothing = Samples(train.x[:0], train.y[:0])
        own = (Samples(scaled(part.x, train.x), part.y) for part in (train, test))
        clients.append(ClientData(next(own), nothing, next(own)))
    return Federation(tuple(clients), 2, name, labels=("healthy", "ill"), client_names=tuple(hospitals))


def unscaled(hospitals: Mapping[str, Rows]) -> list[tuple[Samples, Samples]]:
    """Training and test rows of each hospital, inputs ``[n, 13]`` as they are; label 1: ill (target > 0)."""
    levels = [np.unique(np.concatenate([rows[:, c] for rows in hospitals.values()]))[1:] for c in CATEGORIES]
    found = []
    for rows in hospitals.values():
        x, y = inputs(rows, levels), torch.from_numpy((rows[:, -1] > 0).astype(np.int64))
        train, test = (torch.from_numpy(index) for index in train_and_test(y.numpy()))
        found.append((Samples(x[train], y[train]), Samples(x[test], y[test])))
    return found


def read_hospitals(where: Path) -> dict[str, Rows]:
    """The rows without a missing value of each hospital, float64 ``[n, 11]``: ten columns and the target.

    Raises:
        DataError: a file is missing, or a line has another number of fields.
    """
    return {name: _read(_file(where, name)) for name in HOSPITALS}


def _file(where: Path, name: str) -> Path:
    for file in (where / f"processed.{name}.data", where / f"{name}.csv"):
        if file.is_file():
            return file
    raise DataError(
        f"{where} has neither processed.{name}.data nor {name}.csv; put the four processed files of UCI's heart "
        "disease data there (archive.ics.uci.edu, data set 45), or set FEDKIN_DATA to the folder above heart-disease/"
    )


def _read(file: Path) -> Rows:
    kept = [c for c in range(COLUMNS) if c not in DROPPED]
    rows = []
    with file.open(newline="", encoding="utf-8") as lines:
        for number, fields in enumerate(csv.reader(lines), 1):
            if not fields or fields[0] == "age":
                continue
            if len(fields) != COLUMNS:
                raise DataError(f"{file}, line {number}: {len(fields)} fields, expected {COLUMNS}")
            if all(fields[c].strip() not in _MISSING for c in kept):
                rows.append([float(fields[c]) for c in kept])
    return np.array(rows)


def inputs(rows: Rows, levels: list[Rows]) -> Tensor:
    """The inputs of rows ``[n, 11]``, float32 ``[n, 13]``: numbers, then one column per category but the first."""
    numbers = [c for c in range(rows.shape[1] - 1) if c not in CATEGORIES]
    dummies = [rows[:, c, None] == found for c, found in zip(CATEGORIES, levels, strict=True)]
    return torch.from_numpy(np.concatenate([rows[:, numbers], *dummies], axis=1).astype(np.float32))


def train_and_test(y: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """FLamby's rows for training and testing, in the order of the file.

    Stratified by label where there are two labels and each occurs more than twice; not so in Switzerland, which has one
    healthy patient.
    """
    counts = np.bincount(y, minlength=2)
    train, test = train_test_split(
        np.arange(len(y)),
        test_size=1.0 - 0.66,
        train_size=0.66,
        random_state=43,
        shuffle=True,
        stratify=y if counts.min() > 2 else None,
    )
    return np.sort(train), np.sort(test)


def scaled(x: Tensor, of: Tensor) -> Tensor:
    """Inputs ``[n, 13]`` standardised by mean and sample deviation of the rows ``of``; a constant column becomes 0."""
    return (x - of.mean(0)) / (of.std(0) + 1e-9)
