"""FEMNIST as LEAF's scripts write it: handwritten characters by writer, in JSON.

A file holds ``users`` (names), ``num_samples`` and ``user_data``: for each user ``x``, images as 784 numbers in 0..1
row by row, and ``y``, classes: digits, capitals, small letters (Caldas et al., LEAF, 2018).
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedkin.core.errors import DataError
from fedkin.core.samples import Samples
from fedkin.data.dataset import Dataset
from fedkin.data.preparation import Preparation
from fedkin.data.sources.files import listed

_SIDE = 28
_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
Part = tuple[str, npt.NDArray[np.float32], npt.NDArray[np.int64]]


def read_leaf(folder: Path) -> Dataset:
    """Return the writers as natural clients; inputs are float32 ``[1, 28, 28]``, white is 1.

    The files in ``test/`` are the official test part, those in ``train/``, ``all_data/`` or the folder itself are
    shared out.

    Raises:
        DataError: no such files, or a file that is not LEAF's; the message names the file and the user.
    """
    roots = [folder, folder / "data", *sorted(p for p in folder.iterdir() if p.is_dir())]
    root = next((r for r in roots if (r / "train").is_dir() or (r / "all_data").is_dir()), folder)
    train = _files(root / "train") or _files(root / "all_data") or _files(root)
    test = _files(root / "test") if (root / "train").is_dir() else []
    if not train:
        inside = listed(sorted(p.name for p in folder.iterdir()), limit=5) or "nothing"
        raise DataError(f"{folder}: no .json files in train/, all_data/ or the folder itself; it holds {inside}")
    parts, tests = ([part for path in paths for part in _users(path)] for paths in (train, test))
    names = tuple(sorted({name for name, _, _ in (*parts, *tests)}))
    number = {name: i for i, name in enumerate(names)}
    x, y, ids = _joined(parts, number)
    official, test_ids = None, None
    if tests:
        test_x, test_y, test_ids = _joined(tests, number)
        official = Samples(test_x, test_y)
    labels = tuple(_CLASSES)
    return Dataset(
        x=x,
        y=y,
        classes=len(labels),
        name="femnist",
        official_test=official,
        client=ids,
        test_client=test_ids,
        client_names=tuple(f"writer {name}" for name in names),
        labels=labels,
        preparation=Preparation("array", tuple(x.shape[1:]), labels),
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _users(path: Path) -> list[Part]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        users, data = list(map(str, found["users"])), dict(found["user_data"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a file of LEAF, which has users, num_samples and user_data ({type(error).__name__}: {error})"
        ) from error
    return [_user(user, data.get(user), path) for user in users]


def _user(name: str, data: Any, path: Path) -> Part:
    where = f"{path}, user {name}"
    try:
        x, y = np.asarray(data["x"], dtype=np.float32), np.asarray(data["y"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: expected lists x and y of numbers ({type(error).__name__}: {error})") from error
    if x.ndim != 2 or x.shape[1] != _SIDE * _SIDE or y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{where}: expected n images of {_SIDE * _SIDE} numbers and n whole labels, got {list(x.shape)} and "
            f"{list(y.shape)} of {y.dtype}"
        )
    if y.min() < 0 or y.max() >= len(_CLASSES):
        raise DataError(f"{where}: labels {y.min()} to {y.max()}; FEMNIST has 0 to {len(_CLASSES) - 1}")
    return name, x.reshape(-1, 1, _SIDE, _SIDE), y.astype(np.int64)


def _joined(parts: list[Part], number: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = np.concatenate([np.full(len(y), number[name], dtype=np.int64) for name, _, y in parts])
    x, y = np.concatenate([x for _, x, _ in parts]), np.concatenate([y for _, _, y in parts])
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(ids)
