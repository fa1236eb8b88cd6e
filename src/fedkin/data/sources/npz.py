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

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedkin.core.errors import DataError, similar
from fedkin.data.arrays import Array, channels_first, decoded, together
from fedkin.data.checks import listed, readable
from fedkin.data.dataset import Dataset, RawSamples, dataset_of

_CLIENTS = ("client", "subject", "writer")
_UNITS = ("unit", "segment")
_ENDS = ("", "_train", "_test")
_LAYOUTS = (
    ((("x", "y"),), None),
    ((("x_train", "y_train"),), ("x_test", "y_test")),
    ((("train_images", "train_labels"), ("val_images", "val_labels")), ("test_images", "test_labels")),
)
_INPUTS = frozenset(x for layout, test in _LAYOUTS for x, _ in (*layout, *([test] if test else [])))
_NAMED = _INPUTS | {y for layout, test in _LAYOUTS for _, y in (*layout, *([test] if test else []))}
"""Arrays of inputs and of labels."""


def read_npz(
    path: Path, *, client: str | None = None, site: bool = False, labels: tuple[str, ...] | None = None
) -> Dataset:
    """Return a data set from one ``.npz`` file.

    uint8 inputs count as pixels and become 0..1; three dimensions of pixels, or of square floats, are images of one
    channel; channels may come first or last. Other inputs keep their values and shape; whole numbers are int64.
    ``client`` names the array with the client of each sample, which at a site need not be there, and ``labels`` the
    classes, where the file does not.
    """
    arrays = read_arrays(path)
    pairs, test = _layout(arrays, path)
    if site and not any(f"{client}{end}" in arrays for end in _ENDS):
        client = None
    ends, keys = ("",) if test is None else ("_train", "_test"), _CLIENTS if client is None else (client,)
    key = next((k for k in keys if all(k + end in arrays for end in ends) and k + ends[0] not in _NAMED), None)
    if client is not None and key is None:
        raise DataError(
            f"{path}: no array {' and '.join(repr(client + end) for end in ends)} with the client of each sample"
            f"{similar(client, arrays.keys() - _NAMED)}; it holds {listed(sorted(arrays))}"
        )
    unit, notes = _units(arrays, test is not None)
    factor = scale_of(arrays, path)

    def part(x: Array, y: Array, at: int) -> RawSamples:
        own = None if key is None else arrays[key + ends[at]]
        return RawSamples(_inputs(x, factor), y, own, unit[at] if at < len(unit) else None)

    train = [together([arrays[names[i]] for names in pairs], str(path)) for i in range(2)]
    return dataset_of(
        path.stem, part(train[0], train[1], 0), None if test is None else part(arrays[test[0]], arrays[test[1]], 1),
        labels=tuple(map(str, arrays["label_names"].ravel())) if "label_names" in arrays else labels,
        prefix=f"{key} ", factor=factor, site=site, notes=notes,
    )  # fmt: skip


def _units(arrays: Mapping[str, Array], tests: bool) -> tuple[tuple[Array, ...], tuple[str, ...]]:
    """Return the units of the training samples and, where the file has them, those of the test samples.

    Also a note where it has a test part without.
    """
    for key in _UNITS:
        if tests and key + "_train" in arrays and key + "_test" in arrays:
            return (arrays[key + "_train"], arrays[key + "_test"]), ()
        if (result := next((k for k in (key, key + "_train") if k in arrays), None)) is not None:
            note = (
                f"the array {result} has no values for the test part ({key}_test): its samples are dealt one by one, "
                "also those of a unit that is trained on; --split official keeps the test part apart"
            )
            return (arrays[result],), (note,) if tests else ()
    return (), ()


def scale_of(arrays: Mapping[str, Array], path: Path) -> float | None:
    """Return the factor of fixed-point inputs that a file holds as ``scale``."""
    if "scale" not in arrays:
        return None
    with readable(f"{path}, scale", "one number", "correct it"):
        return float(np.float32(arrays["scale"].item()))


def read_arrays(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Array]:
    """Read the arrays of an npz file by name, those whose name is ``wanted``."""
    mend = "fetch it again, or save named arrays of numbers or texts (numpy.savez): objects are never unpickled"
    with readable(path, "an npz file", mend), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        return {key: decoded(file[key]) for key in file.files if wanted(key)}


def read_array(path: Path) -> Array:
    """Read a single array, an npy file."""
    with readable(path, "an array of numbers"):
        return np.asarray(np.load(path, allow_pickle=False))


def likely_clients_of(path: Path) -> tuple[str, ...]:
    """Return the array of a file that has a name of clients, such as ``subject``, or those that may be one: a whole
    number or text for each training sample, two to half as many different values as samples.

    Inputs are not read. Nothing is returned where the file cannot be read.
    """
    try:
        arrays = read_arrays(path, lambda name: name not in _INPUTS)
    except DataError:  # the reader reports what is wrong
        return ()
    if any(key + end in arrays for key in _CLIENTS for end in ("", "_train")):
        return tuple(key for key in _CLIENTS if key in arrays)
    labels = [y for layout, _ in _LAYOUTS if layout[0][1] in arrays for _, y in layout if y in arrays]
    n = sum(arrays[y].size for y in labels)
    named = _NAMED | {"scale", "label_names", *(key + end for key in _UNITS for end in _ENDS)}
    return tuple(
        key.removesuffix("_train")
        for key, a in arrays.items()
        if key not in named and a.shape == (n,) and a.dtype.kind in "iuUS" and 2 <= len(np.unique(a)) <= n / 2
    )


def _layout(arrays: Mapping[str, Array], path: Path) -> tuple[tuple[tuple[str, str], ...], tuple[str, str] | None]:
    for parts, test in _LAYOUTS:
        if all(key in arrays for key in parts[0]):
            train = tuple(pair for pair in parts if all(key in arrays for key in pair))
            return train, test if test and all(key in arrays for key in test) else None
    raise DataError(
        f"{path}: expected arrays x and y, or x_train and y_train, or train_images and train_labels; "
        f"it holds {listed(sorted(arrays))}"
    )


def _inputs(values: Array, factor: float | None) -> Array:
    """Return inputs as they are taken: fixed-point numbers multiplied, images with their channels first."""
    if factor is not None and values.dtype.kind in "iuf":
        return values.astype(np.float32) * np.float32(factor)
    square = values.ndim == 3 and values.shape[1] == values.shape[2]
    return channels_first(values) if square or values.ndim == 4 else values
