"""An export opened with fedkin, and the files that it predicts: rows of a table, images, arrays."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedkin.core import DataError, RunFolderError
from fedkin.data.preparation import Preparation
from fedkin.exporting import loader

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_TABLES = (".csv", ".parquet")
_ARRAYS = (".npz", ".npy")


@dataclass(frozen=True)
class Predicted:
    """What a model says of a file.

    Attributes:
        rows: what each prediction is of: the number of the row, from 1, or the name of the image.
        probabilities: float ``[n, C]``.
        labels: names of the classes.
    """

    rows: tuple[str, ...]
    probabilities: Tensor
    labels: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the predicted class of each row."""
        return tuple(self.labels[i] for i in self.probabilities.argmax(1).tolist())


class Export:
    """A model that was taken home.

    Attributes:
        card: what it is and how it was made, as in ``card.json``.
        labels: names of the classes, in the order of the probabilities.
        preparation: how raw data become inputs; None where inputs are taken as they were in training.
    """

    def __init__(self, model: loader.Model, preparation: Preparation | None = None) -> None:
        self.model, self.preparation = model, preparation
        self.card, self.labels = model.card, model.labels

    def predict(self, x: Any) -> Tensor:
        """The number of the predicted class of each input, int64 ``[n]``.

        Args:
            x: inputs ``[n, *shape]`` as in training, array or tensor.

        Raises:
            DataError: inputs of another shape, or values that are not finite.
        """
        return _told(lambda: self.model.predict(x))

    def probabilities(self, x: Any) -> Tensor:
        """The softmax of the logits, ``[n, C]``; errors as of `predict`."""
        return _told(lambda: self.model.probabilities(x))

    def predict_file(self, path: Path | str) -> Predicted:
        """Reads a file or a folder of images as the training data were read, and predicts it.

        Raises:
            DataError: a file of a kind that this model does not take, a column is not there, an image of another size.
        """
        rows, x = self.read(Path(path))
        return Predicted(tuple(rows), self.probabilities(x), self.labels)

    def read(self, path: Path) -> tuple[Sequence[str], Any]:
        """What each input is, and the inputs ``[n, *shape]``; errors as of `predict_file`."""
        kind = path.suffix.lower()
        if not path.exists():
            raise DataError(f"no file {path}")
        if kind in _TABLES:
            preparation = self._preparation("table", path, "rows of a table")
            rows = read_rows(path)
            return [str(i + 1) for i in range(len(rows))], preparation.apply(rows)
        if path.is_dir() or kind in _IMAGES:
            preparation = self._preparation("image", path, "images")
            files = _image_files(path)
            return [str(f.relative_to(path)) if path.is_dir() else f.name for f in files], preparation.apply(files)
        if kind in _ARRAYS:
            x, made = _array(path), self.preparation
            raw = made is not None and made.kind != "table" and x.dtype.kind in "iu"
            return [str(i + 1) for i in range(len(x))], made.apply(x) if made is not None and raw else x
        raise DataError(f"{path}: cannot be read; {self._takes()}")

    def _preparation(self, kind: str, path: Path, what: str) -> Preparation:
        if self.preparation is None or self.preparation.kind != kind:
            raise DataError(f"{path}: this model does not take {what}; {self._takes()}")
        return self.preparation

    def _takes(self) -> str:
        shape = ", ".join(map(str, self.model.shape))
        arrays = f"an .npz or .npy file with inputs [n, {shape}] as in training"
        words = {"table": "a .csv or .parquet file with the columns of the training data, or ",
                 "image": "an image or a folder of images, or "}  # fmt: skip
        return f"give it {words.get(getattr(self.preparation, 'kind', ''), '')}{arrays}"


def load_export(folder: Path | str, network: Callable[[], nn.Module] | None = None) -> Export:
    """The model in the folder that `fedkin.export` wrote.

    Args:
        network: makes the network, where the folder does not describe it and fedkin does not know its name.

    Raises:
        RunFolderError: the folder is no export, not whole, or needs a network that cannot be made.
    """
    place = Path(folder)
    try:
        model = loader.load(place, network)
    except loader.ExportError as e:
        raise RunFolderError(str(e)) from e
    file = place / "preparation.json"
    if not file.exists():
        return Export(model)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as e:
        raise RunFolderError(f"{file} is damaged ({e}); export the model again") from e
    return Export(model, Preparation.from_json(told, str(file)))


def write_csv(found: Predicted) -> bytes:
    """``row,label`` and the probability of each class, a line per row."""
    from io import StringIO

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "label", *(f"probability {label}" for label in found.labels)])
    for row, name, p in zip(found.rows, found.names, found.probabilities.tolist(), strict=True):
        writer.writerow([row, name, *(f"{v:.6g}" for v in p)])
    return text.getvalue().encode()


def _told(f: Callable[[], Tensor]) -> Tensor:
    try:
        return f()
    except loader.ExportError as e:
        raise DataError(str(e)) from e


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a csv or parquet file, by column.

    Raises:
        DataError: it cannot be read, or has no rows.
    """
    if path.suffix.lower() not in _TABLES or not path.is_file():
        raise DataError(f"{path} is no .csv or .parquet file")
    return _csv_rows(path) if path.suffix.lower() == ".csv" else _parquet_rows(path)


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, restkey="", skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise DataError(f"{path} cannot be read as csv: {e}") from e
    if not rows:
        raise DataError(f"{path} has no rows under its header")
    for i, row in enumerate(rows, start=1):
        if "" in row or None in row.values():
            raise DataError(f"{path}: row {i} has another number of fields than the header")
    return rows


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as e:
        raise DataError(f'reading {path} needs pyarrow: pip install "fedkin[parquet]"') from e
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as e:  # whatever pyarrow says of a damaged file
        raise DataError(f"{path} cannot be read as parquet: {e}") from e
    return [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]


def _image_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in _IMAGES)
    if not files:
        raise DataError(f"{path} holds no image ({', '.join(_IMAGES)})")
    return files


def _array(path: Path) -> np.ndarray[Any, Any]:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as e:
        raise DataError(f"{path} cannot be read as arrays of numbers: {e}") from e
    if isinstance(found, np.ndarray):
        x = found
    else:
        names = list(found.files)
        name = "x" if "x" in names else names[0] if len(names) == 1 else ""
        if not name:
            raise DataError(f"{path} holds {', '.join(names) or 'nothing'}; the inputs must be called x")
        try:
            x = found[name]
        except ValueError as e:
            raise DataError(f"{path}: {name} is no array of numbers ({e})") from e
    if x.dtype.kind not in "iufb" or x.ndim == 0:
        raise DataError(f"{path}: expected an array of numbers, got {x.dtype} of shape {list(x.shape)}")
    return x
