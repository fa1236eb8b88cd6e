"""FEMNIST as LEAF's scripts write it: handwritten characters by writer, in JSON.

A file holds ``users`` (names), ``num_samples`` and ``user_data``: for each user ``x``, images as 784 numbers in 0..1
row by row, and ``y``, classes: digits, capitals, small letters (Caldas et al., LEAF, 2018).
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np

from fedkin.core.errors import DataError
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.sources.files import listed

_SIDE = 28
_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase


def read_leaf(folder: Path) -> Dataset:
    """Return the writers as natural clients; inputs are float32 ``[1, 28, 28]``, white is 1.

    The files in ``test/`` are the official test part, those in ``train/``, ``all_data/`` or the folder itself are
    shared out.

    Raises:
        DataError: no such files, or a file that is not LEAF's; the message names the file and the user.
    """
    roots = [folder, folder / "data", *sorted(p for p in folder.iterdir() if p.is_dir())]
    root = next((r for r in roots if (r / "train").is_dir() or (r / "all_data").is_dir()), folder)
    train = next((files for name in ("train", "all_data", ".") if (files := sorted((root / name).glob("*.json")))), [])
    test = sorted((root / "test").glob("*.json")) if (root / "train").is_dir() else []
    if not train:
        inside = listed(sorted(p.name for p in folder.iterdir()), limit=5) or "nothing"
        raise DataError(f"{folder}: no .json files in train/, all_data/ or the folder itself; it holds {inside}")
    return dataset_of("femnist", _part(train), _part(test) if test else None, labels=tuple(_CLASSES), prefix="writer ")


def _part(paths: list[Path]) -> RawSamples:
    users = [user for path in paths for user in _users(path)]
    x, y, client = (np.concatenate(arrays) for arrays in zip(*users, strict=True))
    return RawSamples(x, y, client)


def _users(path: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    where, found = str(path), []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for name in map(str, content["users"]):
            where, own = f"{path}, user {name}", content["user_data"][name]
            x, y = np.asarray(own["x"], dtype=np.float32).reshape(-1, 1, _SIDE, _SIDE), np.asarray(own["y"])
            found.append((x, y, np.full(len(x), name)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{where}: not a file of LEAF, which has users and user_data with images x of 784 numbers and labels y "
            f"({type(error).__name__}: {error})"
        ) from error
    return found
