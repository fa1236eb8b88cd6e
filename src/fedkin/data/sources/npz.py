"""numpy ``.npz`` files: four ways of naming the arrays, never a pickle.

| arrays | written by |
| --- | --- |
| ``x``, ``y`` | custom data; with ``scale``: ``x`` is fixed point and is multiplied by it |
| ``x_train``, ``y_train``, perhaps ``x_test``, ``y_test`` | CIFAR and others in plain form |
| ``train_images``, ``train_labels``, perhaps ``val_*``, ``test_*`` | MedMNIST; its validation part is trained on |

Natural clients: an array named by the caller, or ``client``, ``subject`` or ``writer``, one id per sample; where the
file has a test part, the same name with ``_train`` and ``_test``. ``unit`` or ``segment`` marks samples that must stay
on one side of a client's split, with the same endings. ``label_names`` may name the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from torch import Tensor

from fedkin.core.errors import DataError, meant
from fedkin.core.samples import Samples
from fedkin.data.arrays import channels_first, class_numbers, decoded, numbered
from fedkin.data.dataset import Dataset
from fedkin.data.pixels import Array, numbers, pixels
from fedkin.data.preparation import Preparation, image_preparation
from fedkin.data.sources.files import listed

_CLIENT_KEYS = ("client", "subject", "writer")
_UNIT_KEYS = ("unit", "segment")
_LAYOUTS = (
    ((("x", "y"),), None),
    ((("x_train", "y_train"),), ("x_test", "y_test")),
    ((("train_images", "train_labels"), ("val_images", "val_labels")), ("test_images", "test_labels")),
)


def read_npz(path: Path, *, client: str | None = None, site: bool = False) -> Dataset:
    """Return a data set from one ``.npz`` file.

    uint8 inputs count as pixels and become 0..1; three dimensions of pixels, or of square floats, are images of one
    channel; channels may come first or last. Other inputs keep their values and shape; whole numbers are int64.

    Args:
        path: the file.
        client: name of the array with the client of each sample; at a site it need not be there.
        site: the file is one site's, see `class_numbers`.

    Raises:
        DataError: not an npz file, pickled arrays, unknown names, sizes that differ, labels or values out of range.
    """
    arrays = read_arrays(path)
    train, test = _layout(arrays, path)
    single = [key for pair in (*train, test or ()) for key in pair if arrays[key].ndim == 0]
    if single:
        raise DataError(f"{path}: {single[0]} is a single value; expected an array with an entry for each sample")
    if len({arrays[key].shape[1:] for key, _ in train}) > 1:
        shapes = " and ".join(str(list(arrays[key].shape)) for key, _ in train)
        raise DataError(
            f"{path}: {' and '.join(key for key, _ in train)} have the shapes {shapes}; expected equal samples"
        )
    x = np.concatenate([arrays[key] for key, _ in train])
    label_names = [key for _, key in (*train, *([test] if test else []))]
    label_arrays = [arrays[key] for key in label_names]
    columns = [_column(a) for a in label_arrays]
    if len({c.ndim for c in columns}) > 1:
        raise DataError(
            f"{path}: expected one label per sample, got arrays of {listed([str(a.shape) for a in columns])}"
        )
    y, labels = class_numbers(np.concatenate(columns), str(path), site)
    n = len(x)
    classes = int(y.max()) + 1
    if "label_names" in arrays:
        y, labels = _renumbered(y, labels, tuple(str(name) for name in arrays["label_names"].ravel()), path)
        classes = max(classes, len(labels))
    if n + (len(arrays[test[0]]) if test else 0) != len(y):
        raise DataError(f"{path}: {n} inputs in {train[0][0]} but {len(y)} labels in {train[0][1]}; each needs one")
    official = Samples(_inputs(arrays[test[0]], arrays, path), y[n:]) if test else None
    if client is not None and any(client + end in label_names for end in ("", "_train", "_test")):
        raise DataError(
            f"{path}: the array '{client}' holds the classes; name another for the clients (--client-column)"
        )
    there = client is not None and any(client + end in arrays for end in ("", "_train", "_test"))
    client = client if there or not site else None
    ids, names = _clients(arrays, path, client, n, len(y) - n if test else None)
    unit, notes = _units(arrays, path, n, test is not None)
    inputs = _inputs(x, arrays, path)
    return Dataset(
        x=inputs,
        y=y[:n],
        classes=classes,
        name=path.stem,
        official_test=official,
        client=None if ids is None else ids[:n],
        test_client=None if ids is None or test is None else ids[n:],
        client_names=names,
        unit=None if unit is None else unit[:n],
        test_unit=None if unit is None or len(unit) == n else unit[n:],
        labels=labels,
        preparation=_preparation(x, arrays, inputs, labels),
        notes=notes,
    )


def _units(arrays: Mapping[str, Array], path: Path, n: int, tests: bool) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the units of the training samples, and those of the test samples after them if the file has them.

    Also a note where it has a test part without.
    """
    for key in _UNIT_KEYS:
        if tests and key + "_train" in arrays and key + "_test" in arrays:
            if (given := len(arrays[key + "_train"])) != n:
                raise DataError(f"{path}: {key}_train has {given} entries for {n} training samples; each needs one")
            return numbered(np.concatenate([arrays[key + "_train"], arrays[key + "_test"]]))[0], ()
        if (found := next((k for k in (key, key + "_train") if k in arrays), None)) is not None:
            lacking = (
                f"the array {found} has no values for the test part ({key}_test): its samples are dealt one by one, "
            )
            more = "also those of a unit that is trained on; --split official keeps the test part apart"
            return numbered(arrays[found])[0], (lacking + more,) if tests else ()
    return None, ()


def _renumbered(
    y: Tensor, texts: tuple[str, ...] | None, names: tuple[str, ...], path: Path
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels as numbers of the names, and the names; so far they may be numbers of ``texts``."""
    if len(set(names)) < len(names):
        raise DataError(
            f"{path}: label_names has a name twice; expected a different one for each class: {listed(names)}"
        )
    if texts is None:
        return y, names
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [text for text in texts if text not in numbers]
    if unknown:
        raise DataError(f"{path}: labels {listed(unknown)} are not among label_names, which are {listed(names)}")
    return torch.tensor([numbers[text] for text in texts])[y], names


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an npz file by name.

    Raises:
        DataError: it cannot be read without unpickling.
    """
    try:
        with path.open("rb") as raw:
            if raw.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                raise DataError(f"{path}: expected several named arrays (numpy.savez), got a single one")
            raw.seek(0)
            file = np.load(raw, allow_pickle=False)
            return {key: decoded(file[key], f"{path}: array '{key}'") for key in file.files}
    except DataError:
        raise
    except Exception as error:  # of a dozen classes: numpy reads headers as Python
        raise DataError(
            f"{path}: cannot be read as an npz file ({_short(error)}); fetch it again, or save plain arrays of numbers "
            "or texts: objects are never unpickled"
        ) from error


def likely_clients(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the names of arrays that may name the clients, where no array has a name that says so.

    They have one whole number or text for each training sample, two to half as many different values as samples, and
    no name with a meaning of its own. The inputs may be missing among ``arrays``.
    """
    pairs = next((p for p, _ in _LAYOUTS if all(label in arrays for _, label in p[:1])), ())
    taken = {key for layout, test in _LAYOUTS for pair in (*layout, test or ()) for key in pair}
    taken |= {"scale", "label_names", *(key + end for key in _UNIT_KEYS for end in ("", "_train", "_test"))}
    n = sum(len(arrays[label]) for _, label in pairs if label in arrays and arrays[label].ndim)
    if any(key + end in arrays for key in _CLIENT_KEYS for end in ("", "_train")):
        return ()
    fit = [
        key
        for key, a in arrays.items()
        if key not in taken and a.ndim == 1 and len(a) == n and a.dtype.kind in "iuUS"
        and 2 <= len(np.unique(a)) <= n / 2
    ]  # fmt: skip
    return tuple(dict.fromkeys(key.removesuffix("_train") for key in fit))


def likely_clients_of(path: Path) -> tuple[str, ...]:
    """Return the array of a file that has a name of clients, such as ``subject``, or its `likely_clients`.

    Inputs are not read. Nothing is returned where the file cannot be read.
    """
    inputs = {key for layout, test in _LAYOUTS for key, _ in (*layout, *([test] if test else []))}
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            named = tuple(key for key in _CLIENT_KEYS if key in file.files)
            return named or likely_clients({key: file[key] for key in file.files if key not in inputs})
    except Exception:
        return ()  # the reader reports what is wrong


def read_array(path: Path) -> Array:
    """Read a single array, an npy file.

    Raises:
        DataError: as `read_arrays`.
    """
    try:
        with path.open("rb") as raw:
            found: Array = np.load(raw, allow_pickle=False)
            return found
    except Exception as error:  # of a dozen classes: numpy reads headers as Python
        raise DataError(f"{path} cannot be read as an array of numbers: {_short(error)}") from error


def _short(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__


def _layout(arrays: Mapping[str, Array], path: Path) -> tuple[tuple[tuple[str, str], ...], tuple[str, str] | None]:
    for parts, test in _LAYOUTS:
        if all(key in arrays for key in parts[0]):
            train = tuple(pair for pair in parts if all(key in arrays for key in pair))
            return train, test if test and all(key in arrays for key in test) else None
    raise DataError(
        f"{path}: expected arrays x and y, or x_train and y_train, or train_images and train_labels; "
        f"it holds {listed(sorted(arrays))}{_renaming(arrays)}"
    )


def _renaming(arrays: Mapping[str, Array]) -> str:
    """Return how to rename arrays whose names differ from the expected ones in capitals only; empty if none do."""
    written = {key.lower(): key for key in arrays}
    for ((x, y), *_), _ in _LAYOUTS:
        if x in written and y in written:
            pairs = [f"{written[key]} to {key}" for key in (x, y) if written[key] != key]
            return f"; rename {' and '.join(pairs)}"
    return ""


def _column(values: Array) -> Array:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _inputs(values: Array, arrays: Mapping[str, Array], path: Path) -> Tensor:
    if values.dtype.kind not in "iufb" or values.ndim < 2:
        raise DataError(
            f"{path}: inputs must be an array of numbers [n, ...], got {values.dtype} of shape {list(values.shape)}"
        )
    if "scale" in arrays and (arrays["scale"].size != 1 or arrays["scale"].dtype.kind not in "iuf"):
        scale = arrays["scale"]
        raise DataError(f"{path}: scale must be one number, got {scale.dtype} of shape {list(scale.shape)}")
    if "scale" in arrays:
        return torch.from_numpy(values.astype(np.float32) * np.float32(arrays["scale"].item()))
    if values.dtype == np.uint8:
        return pixels(channels_first(values))
    square = values.ndim == 3 and values.shape[1] == values.shape[2]
    return numbers(channels_first(values) if square or values.ndim == 4 else values)


def _preparation(
    values: Array, arrays: Mapping[str, Array], inputs: Tensor, labels: tuple[str, ...] | None
) -> Preparation:
    shape = tuple(inputs.shape[1:])
    if "scale" in arrays:
        return Preparation("array", shape, labels, factor=float(np.float32(arrays["scale"].item())))
    return image_preparation(shape, labels) if values.dtype == np.uint8 else Preparation("array", shape, labels)


def _clients(
    arrays: Mapping[str, Array], path: Path, client: str | None, n: int, tests: int | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return client ids of the training and test samples one after the other, and their names."""
    for key in _CLIENT_KEYS if client is None else (client,):
        ends = ("",) if tests is None else ("_train", "_test")
        found = [arrays[key + end] for end in ends if key + end in arrays]
        if len(found) != len(ends):
            continue
        sizes, expected = [len(a) for a in found], [n] if tests is None else [n, tests]
        if sizes != expected or any(a.ndim != 1 for a in found):
            raise DataError(f"{path}: array '{key}' gives {sizes} client ids for {expected} samples; each needs one")
        ids, names = numbered(np.concatenate(found))
        return ids, tuple(f"{key} {name}" for name in names)
    if client is None:
        return None, None
    if tests is not None and client in arrays:
        raise DataError(
            f"{path}: the array '{client}' is of the training part alone, and the file has a test part; expected "
            f"'{client}_train' and '{client}_test'"
        )
    raise DataError(
        f"{path}: no array '{client}' with the client of each sample{meant(client, arrays)}; "
        f"it holds {listed(sorted(arrays))}"
    )
