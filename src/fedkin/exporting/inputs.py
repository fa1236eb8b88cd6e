"""Loading of an export with fedkin, and the files that it predicts: rows of a table, images, arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.core import DataError, RunFolderError
from fedkin.data.arrays import channels_first
from fedkin.data.columns import raw_rows
from fedkin.data.preparation import Preparation
from fedkin.data.sources import csv_files
from fedkin.data.sources.csvfile import read_csv
from fedkin.data.sources.files import listed
from fedkin.data.sources.npz import read_array, read_arrays
from fedkin.data.standalone import unusual_inputs, unusual_rows
from fedkin.exporting import loader
from fedkin.exporting.decoding import check_folder, check_network
from fedkin.models import get_model
from fedkin.report.cells import cells

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_ARRAYS = (".npz", ".npy")


@dataclass(frozen=True)
class Predicted:
    """Predictions of a model for a file.

    Attributes:
        rows: identifies each prediction: the number of the row, from 1, or the name of the image.
        probabilities: float ``[n, C]``.
        labels: names of the classes.
        notes: differences from the training data, a sentence per column: values on another scale, texts and columns
            that training did not have.
    """

    rows: tuple[str, ...]
    probabilities: Tensor
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the predicted class of each row."""
        return tuple(self.labels[i] for i in self.probabilities.argmax(1).tolist())


class Export:
    """An exported model.

    Attributes:
        card: description and origin of the model, as in ``card.json``.
        labels: names of the classes, in the order of the probabilities.
        preparation: preparation of raw data; None where inputs are used as they were in training.
    """

    def __init__(self, model: loader.Model, preparation: Preparation | None = None) -> None:
        self.model, self.preparation = model, preparation
        self.card, self.labels = model.card, model.labels

    def predict(self, x: Any) -> Tensor:
        """Return the number of the predicted class of each input, int64 ``[n]``.

        Args:
            x: inputs ``[n, *shape]`` as in training, array or tensor.

        Raises:
            DataError: inputs of another shape, or values that are not finite.
        """
        return _told(lambda: self.model.predict(x))

    def probabilities(self, x: Any) -> Tensor:
        """Return the softmax of the logits, ``[n, C]``; errors as of `predict`."""
        return _told(lambda: self.model.probabilities(x))

    def predict_file(self, path: Path | str, encoding: str | None = None, array: str | None = None) -> Predicted:
        """Read a file or a folder of images as the training data were read, and predict it.

        Args:
            path: the file or the folder.
            encoding: text encoding of a csv file; None: UTF-8.
            array: name of the array with the inputs in an npz file; None: ``x``, or the only one.

        Raises:
            DataError: the model does not accept this kind of file, a column or an array is missing, an image has
                another size.
        """
        rows, x, notes = self._read(Path(path), encoding, array)
        logits = _told(lambda: self.model.logits(x))
        strange = None if self._is_table(Path(path)) else self._unusual(x)
        found = (*notes, *([strange] if strange else []))
        return Predicted(tuple(rows), logits.softmax(1), self.labels, found)

    def read(self, path: Path) -> tuple[Sequence[str], Any]:
        """Return a name for each input, and the inputs ``[n, *shape]``; errors as of `predict_file`."""
        return self._read(path)[:2]

    def _read(
        self, path: Path, encoding: str | None = None, array: str | None = None
    ) -> tuple[Sequence[str], Any, tuple[str, ...]]:
        kind = path.suffix.lower()
        if array is not None and kind != ".npz":
            raise DataError(f"{path} is not an npz file, so it has no array {array}; leave the name out")
        if not path.exists():
            raise DataError(f"no file {path}")
        if self._is_table(path):
            preparation = self._preparation("table", path, "rows of a table")
            table = read_csv(csv_files([path]), path.name, encoding)
            rows, columns = table.records(), preparation.columns
            raw = raw_rows(rows, columns, table.places)
            unused = (*self.model.unused_columns(), preparation.target)
            notes = unusual_rows(rows, raw, columns, self.model.ranges().get("columns", {}), unused)
            return [str(i + 1) for i in range(len(raw))], preparation.scaled(raw), tuple(notes)
        if path.is_dir() or kind in _IMAGES:
            preparation = self._preparation("image", path, "images")
            files = _image_files(path)
            return [str(f.relative_to(path)) if path.is_dir() else f.name for f in files], preparation.apply(files), ()
        if kind in _ARRAYS:
            x = self._array_inputs(*_array(path, array))
            return [str(i + 1) for i in range(len(x))], x, ()
        raise DataError(f"{path}: cannot be read; {self._takes()}")

    def _array_inputs(self, x: np.ndarray[Any, Any], scale: float | None) -> Any:
        """Return an array as the reader of training data converts it: pixels without channels or with these last, whole
        pixels and fixed-point numbers multiplied; ``scale`` is the file's own factor."""
        made = self.preparation
        if x.shape[1:] != self.model.shape and (first := channels_first(x)).shape[1:] == self.model.shape:
            x = first
        if scale is not None:
            return x.astype(np.float32) * np.float32(scale)
        bare = made is not None and made.kind != "table" and x.dtype.kind in "iu"
        return made.apply(x) if made is not None and bare else x

    def _is_table(self, path: Path) -> bool:
        return path.is_file() and bool(csv_files([path]))

    def _unusual(self, x: Any) -> str | None:
        return unusual_inputs(np.asarray(x), self.model.ranges().get("inputs", {}))

    def _preparation(self, kind: str, path: Path, what: str) -> Preparation:
        if self.preparation is None or self.preparation.kind != kind:
            raise DataError(f"{path}: this model does not accept {what}; {self._takes()}")
        return self.preparation

    def _takes(self) -> str:
        shape = ", ".join(map(str, self.model.shape))
        arrays = f"an .npz or .npy file with inputs [n, {shape}] as in training"
        words = {"table": "a .csv or .parquet file with the columns of the training data, or ",
                 "image": "an image or a folder of images, or "}  # fmt: skip
        return f"the model takes {words.get(getattr(self.preparation, 'kind', ''), '')}{arrays}"


def load_export(folder: Path | str, network: Callable[[], nn.Module] | str | None = None) -> Export:
    """Return the model in a folder that `fedkin.export` wrote.

    Nothing in the folder is run or imported, whatever its files contain.

    Args:
        folder: the folder.
        network: makes the network, where neither the folder nor fedkin has it: a function, or an import path as of
            `fedkin.models.get_model`, whose code is run.

    Raises:
        RunFolderError: the folder is not an export, is incomplete or damaged, or needs a network that is not given.
        ModelError: ``network`` cannot be imported, or does not accept the model's inputs.
    """
    place = Path(folder)
    if not place.is_dir():
        there = sorted(p.parent.name for p in place.parent.glob("*/card.json"))
        hint = f"in {place.parent} there are {listed(there)}" if there else "fedkin export RUN --client 7 makes one"
        raise RunFolderError(f"no exported model {place}; {hint}")
    card = check_folder(place)
    if network is None:
        check_network(place, card)
    make = _by_name(network, card) if isinstance(network, str) else network
    try:
        model = loader.load(place, make)
        _try(model, place)
    except loader.ExportError as e:
        raise RunFolderError(str(e)) from e
    if odd := [name for name, t in model.tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]:
        raise RunFolderError(
            f"{place / 'model.safetensors'}: {odd[0]} holds values that are not finite (nan or infinity), so the model "
            "predicts nothing; export a model that has not diverged"
        )
    file = place / "preparation.json"
    if not file.exists():
        return Export(model)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise RunFolderError(f"{file} is damaged ({e}); export the model again") from e
    preparation = Preparation.from_json(stored, str(file))
    if preparation.shape != model.shape:
        raise RunFolderError(
            f"{file} makes inputs of shape {list(preparation.shape)}, the model takes {list(model.shape)}; export the "
            "model again"
        )
    return Export(model, preparation)


def _by_name(network: str, card: Mapping[str, Any]) -> Callable[[], nn.Module]:
    return lambda: get_model(network, tuple(card["input"]["shape"]), card["classes"])


def _try(model: loader.Model, place: Path) -> None:
    """Run a single input through the model, which checks weights and rule as well as shapes."""
    classes = len(model.labels)
    try:
        with torch.no_grad():
            out = model.program(torch.ones(1, *model.shape, dtype=model.dtype))
    except loader.ExportError:
        raise
    except Exception as e:  # the network may be the user's code
        raise RunFolderError(
            f"{place}: an input of shape {list(model.shape)} cannot go through its model ({type(e).__name__}: "
            f"{' '.join(str(e).split())[:300]}); export the model again"
        ) from e
    if tuple(out.shape) != (1, classes):
        raise RunFolderError(f"{place}: its model gives {list(out.shape)} for one input, expected [1, {classes}]")


def write_csv(found: Predicted) -> bytes:
    """Return ``row,label`` and the probability of each class, a line per row."""
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "label", *(f"probability {label}" for label in found.labels)])
    for row, name, p in zip(found.rows, found.names, found.probabilities.tolist(), strict=True):
        writer.writerow(cells([row, name, *(f"{v:.6g}" for v in p)]))
    return text.getvalue().encode(errors="backslashreplace")


def _told(f: Callable[[], Tensor]) -> Tensor:
    try:
        return f()
    except loader.ExportError as e:
        raise DataError(str(e)) from e


def _image_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(
        f
        for f in path.rglob("*")
        if f.suffix.lower() in _IMAGES and not any(part.startswith(".") for part in f.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{path} holds no image ({', '.join(_IMAGES)})")
    return files


def _array(path: Path, name: str | None) -> tuple[np.ndarray[Any, Any], float | None]:
    """Return the array with the inputs, and the factor ``scale`` of an npz file with fixed-point numbers."""
    scale = None
    if path.suffix.lower() == ".npy":
        x = read_array(path)
    else:
        found = read_arrays(path)
        if name is None:
            name = "x" if "x" in found else next(iter(found)) if len(found) == 1 else ""
        if name not in found:
            inputs = [key for key, values in found.items() if values.ndim > 1]
            such = next((key for key in inputs if "test" in key), inputs[0] if inputs else "NAME")
            missing = f"no {name}, but " if name else ""
            raise DataError(
                f"{path} holds {missing}{listed(list(found)) or 'nothing'}; name the array with the inputs, such as "
                f"--array {such}"
            )
        x, scale = found[name], found.get("scale")
    if x.dtype.kind not in "iufb" or x.ndim == 0:
        raise DataError(f"{path}: expected an array of numbers, got {x.dtype} of shape {list(x.shape)}")
    if scale is not None and (scale.size != 1 or scale.dtype.kind not in "iuf"):
        raise DataError(f"{path}: scale must be one number, got {scale.dtype} of shape {list(scale.shape)}")
    return x, None if scale is None else float(scale.item())
