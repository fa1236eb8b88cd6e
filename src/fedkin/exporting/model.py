"""An exported model, read with msgspec and onnxruntime, and the files that it predicts: tables, images, arrays.

A folder may come from anywhere: nothing in it is imported, its values are decoded into types, and its program is
checked and run with limited memory.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fedkin.core import DataError, ModelError, RunFolderError
from fedkin.data.arrays import channels_first
from fedkin.data.checks import listed, refuse_first
from fedkin.data.columns import Row, raw_rows
from fedkin.data.sources import csv_files
from fedkin.data.sources.npz import read_array, read_arrays, scale_of
from fedkin.data.sources.tables import read_csv
from fedkin.display import printable
from fedkin.exporting.card import ExportCard
from fedkin.exporting.program import OUTPUTS, feed, feed_rows, inputs_of, require_harmless, run, session
from fedkin.exporting.ranges import Ranges, unusual_inputs, unusual_rows
from fedkin.report.tables import cells

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_LARGEST = 2 << 30  # bytes of a file, as ONNX limits them
_MOST = 10**8  # numbers of one input
Array = npt.NDArray[Any]
Probabilities = npt.NDArray[np.float32]
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Predicted:
    """Predictions of a model for a file.

    Attributes:
        rows: identifies each prediction: the number of the row, from 1, or the name of the image.
        probabilities: float32 ``[n, C]``.
        labels: names of the classes.
        notes: differences from the training data, a sentence per column: values on another scale, texts and columns
            that training did not have.
    """

    rows: tuple[str, ...]
    probabilities: Probabilities
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the predicted class of each row."""
        return tuple(self.labels[i] for i in self.probabilities.argmax(1).tolist())


class Export:
    """An exported model.

    Attributes:
        card: description and origin of the model.
        labels: names of the classes, in the order of the probabilities.
        ranges: ranges of the training data; None where they are not there.
    """

    def __init__(self, card: ExportCard, program: Any, ranges: Ranges | None = None) -> None:
        self.card, self.labels, self.ranges, self._program = card, tuple(card.classes), ranges, program

    def predict(self, x: Any) -> npt.NDArray[np.int64]:
        """Return the number of the predicted class of each input, ``[n]``.

        Args:
            x: rows of a table, as mappings from column to value or as a table of pandas; or an array or tensor
                ``[n, *shape]``, of floats as in training or of whole numbers as in the data's files.

        Raises:
            DataError: a column is missing, a field is not a number, inputs of another shape, values that are not
                finite.
        """
        result: npt.NDArray[np.int64] = self.probabilities(x).argmax(1)
        return result

    def probabilities(self, x: Any) -> Probabilities:
        """Return the probability of each class, ``[n, C]``; arguments and errors as of `predict`.

        Values unlike those of training raise a warning (`warnings.warn`).
        """
        if hasattr(x, "itertuples"):  # a table of pandas
            table = self.card.preparation.kind == "table"
            x = x.astype(object).where(x.notna(), None).to_dict("records") if table else x.to_numpy()
        rows = isinstance(x, Sequence) and len(x) and isinstance(x[0], dict)
        result, notes = self._of_rows(x, None) if rows else self._of_array(np.asarray(x))
        for note in notes:
            warnings.warn(printable(note), stacklevel=2)
        return result

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
        path, own = Path(path), self.card.preparation.kind
        suffix = path.suffix.lower()
        kind = "image" if path.is_dir() or suffix in _IMAGES else "array" if suffix in (".npz", ".npy") else "table"
        if not path.exists() or (kind != own and kind != "array") or (array is not None and suffix != ".npz"):
            what = f"{path} cannot be read by this model" if path.exists() else f"no file {path}"
            raise DataError(f"{what}; {self._takes()}")
        rows: Sequence[str] = ()
        if kind == "table":
            table = read_csv(csv_files([path]), path.name, encoding)
            result, notes = self._of_rows(table.records(), table.places)
        elif kind == "image":
            files = _image_files(path)
            rows = [str(f.relative_to(path)) if path.is_dir() else f.name for f in files]
            result, notes = self._of_array(self.card.preparation.apply(files).numpy())
        else:
            result, notes = self._of_array(*_array(path, array))
        return Predicted(tuple(rows or map(str, range(1, len(result) + 1))), result, self.labels, tuple(notes))

    def _of_rows(self, rows: Sequence[Row], places: Sequence[str] | None) -> tuple[Probabilities, list[str]]:
        """Return the probabilities of rows of a table, and notes on them."""
        made = self.card.preparation
        if made.kind != "table":
            raise DataError(f"this model does not accept rows of a table; {self._takes()}")
        raw = raw_rows(rows, made.columns, places)
        notes = unusual_rows(rows, raw, made.columns, self.ranges, self.card.unused)
        return self._run(feed_rows(made, raw)), notes

    def _of_array(self, x: Array, scale: float | None = None) -> tuple[Probabilities, list[str]]:
        """Return the probabilities of an array, and notes on it; ``scale`` is a file's own factor."""
        made, shape = self.card.preparation, self.card.preparation.shape
        if x.shape[1:] != shape and (first := channels_first(x)).shape[1:] == shape:
            x = first
        if scale is not None or (made.kind != "table" and made.factor != 1 and x.dtype.kind in "iu"):
            x = x.astype(np.float32) * np.float32(scale or made.factor)
        refuse_first("the inputs", self._faults(x))
        x = x.astype(self.card.dtype)
        return self._run(feed(made, x)), unusual_inputs(x, self.ranges)

    def _run(self, given: dict[str, Array]) -> Probabilities:
        result = run(self._program, given)
        fault = "gives no number (nan) for these inputs: they are too large, or it has diverged"
        refuse_first("the model", [fault] if np.isnan(result).any() else [])
        return result

    def _faults(self, x: Array) -> Iterator[str]:
        shape = self.card.preparation.shape
        if x.dtype.kind not in "iufb" or x.shape[1:] != shape:
            yield f"expected numbers [n, {', '.join(map(str, shape))}], got {x.dtype} {list(x.shape)}"
        if not np.isfinite(x).all():
            yield "they hold values that are not finite (nan or infinity); fill or drop them"
        if self.card.dtype == "int64" and (x != x.astype(np.int64)).any():
            yield "they hold fractions; this model takes whole numbers, such as numbers of words"

    def _takes(self) -> str:
        shape = ", ".join(map(str, self.card.preparation.shape))
        words = {"table": "a .csv or .parquet file with the columns of the training data, or ",
                 "image": "an image or a folder of images, or "}  # fmt: skip
        files = words.get(self.card.preparation.kind, "")
        return f"the model takes {files}an .npz or .npy file with inputs [n, {shape}] as in training"


def load_export(folder: Path | str) -> Export:
    """Return the model in a folder that `fedkin.export` wrote.

    Nothing in the folder is imported, whatever its files contain.

    Raises:
        RunFolderError: the folder is not an export, is incomplete or damaged, or holds weights only.
    """
    place = Path(folder)
    if not place.is_dir():
        there = sorted(p.parent.name for p in place.parent.glob("*/card.json"))
        hint = f"in {place.parent} there are {listed(there)}" if there else "fedkin export RUN --client 7 makes one"
        raise RunFolderError(f"no exported model {place}; {hint}")
    card = read_card(place)
    if card.weights_only is not None:
        raise RunFolderError(
            f"{place} holds weights only: {card.weights_only}. Load model.safetensors into the network "
            f"{card.network.name} in Python"
        )
    file = place / "model.onnx"
    with _undamaged(file):
        content = file.read_bytes()
        require_harmless(content)
        program = session(content)
        model = Export(card, program, _decoded(r, Ranges) if (r := place / "ranges.json").exists() else None)
        _require_fitting(model, program)
    return model


def read_card(place: Path) -> ExportCard:
    """Return the card of an export."""
    return _decoded(place / "card.json", ExportCard)


def _require_fitting(model: Export, program: Any) -> None:
    """Raise `ModelError` unless a program has the inputs and classes of its card, and predicts one sample."""
    card = model.card
    shape = card.preparation.shape
    wanted = {i.name: (f"tensor({i.type})", i.shape[1:]) for i in inputs_of(card.preparation, card.dtype)}
    result = {i.name: (i.type, i.shape[1:]) for i in program.get_inputs()}
    outputs = {o.name: o.shape[1:] for o in program.get_outputs()}
    if prod(shape) > _MOST or wanted != result or outputs != {OUTPUTS[0]: [], OUTPUTS[1]: [len(card.classes)]}:
        raise ModelError(f"its inputs or outputs are not those of the card ({list(result)}, {outputs})")
    run(program, feed(card.preparation, np.zeros((1, *shape), card.dtype)))


def _decoded(file: Path, kind: type[S]) -> S:
    with _undamaged(file):
        return msgspec.json.decode(file.read_bytes(), type=kind)


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    """Turn errors of reading a file of an export into a `RunFolderError`; no pipe or device is waited for."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            raise FileNotFoundError(f"it is no file of at most {_LARGEST:,} bytes")
        yield
    except (OSError, ValueError, OverflowError, RecursionError, ModelError, DataError) as e:
        raise RunFolderError(f"{file} is missing or damaged ({str(e)[:300]}); export the model again") from e


def write_csv(predictions: Predicted) -> bytes:
    """Return ``row,label`` and the probability of each class, a line per row."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "label", *(f"probability {label}" for label in predictions.labels)])
    for row, name, p in zip(predictions.rows, predictions.names, predictions.probabilities.tolist(), strict=True):
        writer.writerow(cells([row, name, *(f"{v:.6g}" for v in p)]))
    return text.getvalue().encode(errors="backslashreplace")


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


def _array(path: Path, name: str | None) -> tuple[Array, float | None]:
    """Return the array with the inputs, and the factor ``scale`` of an npz file with fixed-point numbers."""
    if path.suffix.lower() == ".npy":
        return read_array(path), None
    result = read_arrays(path)
    if name is None:
        name = "x" if "x" in result else next(iter(result)) if len(result) == 1 else ""
    if name not in result:
        inputs = [key for key, values in result.items() if values.ndim > 1]
        such = next((key for key in inputs if "test" in key), inputs[0] if inputs else "NAME")
        missing = f"no {name}, but " if name else ""
        raise DataError(
            f"{path} holds {missing}{listed(list(result)) or 'nothing'}; name the array with the inputs, such as "
            f"--array {such}"
        )
    return result[name], scale_of(result, path)
