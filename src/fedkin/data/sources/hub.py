"""Data sets in the format of Hugging Face's ``datasets``: from the hub by name, or from a local folder."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.core.errors import ConfigError, DataError, similar, typed
from fedkin.core.settings import DataSettings
from fedkin.data.checks import listed, optional, readable, refuse_first
from fedkin.data.columns import text_of
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.image_files import images_of
from fedkin.data.sources.tables import Table, from_table, named, names_in, refuse_unused

PREFIX = "hf:"
_LABELS = ("label", "labels", "fine_label", "target", "y", "class", "character")
_CLIENTS = ("client", "client_id", "writer", "writer_id", "user", "user_id", "subject", "hospital", "site")
_TRAIN = ("train", "validation", "valid", "val")  # all of them are trained on, as MedMNIST's
_IMAGES, _LISTS = ("Image",), ("List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D")
_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")
_log = logging.getLogger("fedkin.data")


@dataclass(frozen=True)
class Opened:
    """Data set before its samples are read, and the roles of its columns.

    Attributes:
        spec: as it was asked for.
        splits: name and rows of each part, those to train on first.
        target, client, inputs: names of columns; without ``inputs`` all other columns are a table.
        guessed: which of the three were not given: ``label``, ``client``, ``input``.
        notes: what is to be known of splits that are not used.
    """

    spec: str
    splits: list[tuple[str, Any]]
    target: str
    client: str | None
    inputs: str | None
    guessed: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the data set."""
        return Path(self.spec.removeprefix(PREFIX)).name

    @property
    def tests(self) -> int:
        """Number of rows of the official test part, which are the last."""
        return sum(len(part) for name, part in self.splits if name == "test")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where the column of the label has them."""
        return getattr(self.splits[0][1].features[self.target], "names", None)

    @property
    def taken(self) -> tuple[tuple[str, str], ...]:
        """Roles that columns were taken for, see `Preparation.taken`."""
        roles = {"label": self.target, "client": self.client, "input": self.inputs or "all other columns"}
        return tuple((role, column) for role, column in roles.items() if column is not None)

    def description(self) -> tuple[str, ...]:
        """Return the same as text, and the number of rows of each split."""
        sizes = [f"split {name}: {len(part):,} rows" for name, part in self.splits]
        flags = {"label": "--target", "client": "--client-column"}
        guesses = {role: f" (guessed; {flag} overrides it)" for role, flag in flags.items() if role in self.guessed}
        named = [f"{role}: {column}{guesses.get(role, '')}" for role, column in self.taken]
        return (*sizes, *self.notes, *named, *(() if self.client else ("client: none (--client-column names one)",)))


def open_hub(spec: str, how: DataSettings) -> Opened:
    """Return what `read_hub` would read, without reading it; errors as there."""
    splits, notes = _splits(_opened(spec), spec)
    first = splits[0][1]
    columns = [c for c in first.column_names if c not in names_in(how.drop)]
    target = how.target or next((name for name in _labelled(first) if name in columns), None)
    client = how.client_column or next((name for name in _CLIENTS if name in columns), None)
    if target is None or target not in columns or client == target or client not in (None, *columns):
        roles = f"the label is column {target!r}, the client {client!r}"
        raise DataError(
            f"{spec}: {roles}; name two columns with --target and --client-column: there are {listed(columns)}"
        )
    kinds = {name: type(first.features[name]).__name__ for name in columns if name not in (target, client)}
    inputs = next((name for wanted in (_IMAGES, _LISTS) for name, kind in kinds.items() if kind in wanted), None)
    asked = {"label": how.target, "client": how.client_column, "input": None}
    guessed = tuple(role for role, name in asked.items() if name is None)
    result = Opened(spec, splits, target, client, inputs, guessed, notes)
    needed = [target, *([client] if client else []), *([inputs] if inputs else kinds)]
    refuse_first(spec, _faults(result, needed))
    return result


def read_hub(spec: str, how: DataSettings) -> Dataset:
    """Read ``hf:NAME``, ``hf:NAME@CONFIG`` or ``hf:FOLDER``: a folder of `save_to_disk`, or files of `datasets`.

    The split ``test`` is the official test part; ``train`` and ``validation`` are shared out. A column of images is the
    input; else a column of lists of numbers; else all other columns are a table. The columns of label and client are
    found by their type and usual names; the choice is written to the log ``fedkin.data`` and to the preparation.

    Args:
        spec: see above.
        how: ``target`` is the column with the label, ``client`` that with the client.
    """
    result = open_hub(spec, how)
    _log.info(
        "%s: label '%s', client '%s', input '%s'",
        spec, result.target, result.client or "none", result.inputs or "all other columns",
    )  # fmt: skip
    taken = ("target", "client_column", "drop", *(("image_size",) if _has_images(result) else ()))
    what = "a table" if result.inputs is None else f"whole inputs, '{result.inputs}'"
    refuse_unused(how, taken if result.inputs else ("binary", "scaling", *taken), f"{spec} holds {what}")
    if result.inputs is not None:
        made = _samples(result, how.image_size)
    else:
        made = from_table(
            table_of(result), how.but(target=result.target, client_column=result.client), tests=result.tests
        )
    preparation = made.preparation and replace(made.preparation, taken=result.taken)
    table = made.table and replace(made.table, taken=result.taken)
    return replace(made, table=table, preparation=preparation, notes=(*result.notes, *made.notes))


def table_of(result: Opened) -> Table:
    """Return all splits as one table, the test part last; class names stand for their numbers, "" for a missing one."""
    first = result.splits[0][1]
    from pandas import DataFrame

    columns = tuple(first.column_names)
    names = [getattr(first.features[c], "names", None) for c in columns]  # of classes, in any column
    rows, places = [], []
    for split, part in result.splits:
        fields = [part[c] if c in part.column_names else [None] * len(part) for c in columns]  # lacking: a dropped one
        for i, row in enumerate(zip(*fields, strict=True)):
            rows.append([
                _class_name(v, classes).strip() if classes else text_of(v)
                for classes, v in zip(names, row, strict=True)
            ])  # fmt: skip
            places.append(f"{split}, row {i + 1}")
    texts = frozenset(c for c in columns if "string" in str(getattr(first.features[c], "dtype", "")))
    return Table(DataFrame(rows, columns=list(columns), index=places, dtype=object), result.name, texts=texts)


def _class_name(value: Any, names: Sequence[str]) -> str:
    """Return a class by name; "" where it is missing, which the format writes as None or -1."""
    if isinstance(value, int):
        return names[value] if value >= 0 else ""
    return text_of(value)


def from_hub(name: str, inputs: str, target: str, client: str | None) -> tuple[Dataset | None, str]:
    """Return a data set of the hub, or None and why not."""
    settings = ("HTTPS_PROXY", "https_proxy", "HF_ENDPOINT", "HF_HUB_OFFLINE")
    try:
        if not any(map(os.environ.get, settings)):  # else this machine's name service does not decide
            socket.getaddrinfo("huggingface.co", 443)  # `datasets` tries for most of a minute before it gives up
        return read_hub(f"{PREFIX}{name}", DataSettings(target=target, client_column=client)), ""
    except OSError:
        return None, "the Hugging Face hub cannot be reached from here"
    except (ConfigError, DataError) as error:
        return None, str(error)


def _opened(spec: str) -> Any:
    datasets = optional("datasets", "hf", "reading data of Hugging Face")
    place, _, config = spec.removeprefix(PREFIX).partition("@")
    folder = Path(place).expanduser()
    if not folder.exists() and (place.startswith(("/", ".", "~")) or place.endswith("/") or place.count("/") > 1):
        around = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        raise DataError(f"{spec}: there is no folder {place}{similar(folder.name, around)}")
    with readable(spec, "a folder of datasets" if folder.exists() else "data of the hub, and is not a folder here"):
        if is_saved(folder):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder) if folder.exists() else place, config or None)


def is_saved(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`."""
    return folder.is_dir() and any((folder / name).is_file() for name in _SAVED)


def _splits(result: Any, spec: str) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    """Return training splits, then test, and a note on others; a data set without splits is one training split."""
    if not isinstance(result, dict):
        return [("train", result)], ()
    known = [(name, result[name]) for name in (*_TRAIN, "test") if name in result and len(result[name])]
    if len(result) == 1:
        return known[:1] if known and known[0][0] != "test" else [("train", next(iter(result.values())))], ()
    fault = (
        f"expected a split 'train', there are {listed(list(map(str, result)))}; rename them, as by "
        "DatasetDict(train=d[...], test=d[...]).save_to_disk(...)"
    )
    refuse_first(spec, [fault] if not known or known[0][0] == "test" else [])
    unread = [f"'{name}'" for name, part in result.items() if name not in dict(known) and len(part)]
    what = f"split {unread[0]} is" if len(unread) == 1 else f"splits {', '.join(unread)} are"
    return known, (f"{what} not used: only train, validation and test are read",) if unread else ()


def _labelled(data: Any) -> Sequence[str]:
    """Return columns whose type marks them as classes, those of usual names first; else the usual names."""
    result = [name for name, feature in data.features.items() if type(feature).__name__ == "ClassLabel"]
    return sorted(result, key=lambda name: _LABELS.index(name) if name in _LABELS else len(_LABELS)) or _LABELS


def _faults(result: Opened, needed: list[str]) -> Iterator[str]:
    """Yield which split lacks one of these columns, or names its classes in another way than the first."""
    for split, part in result.splits:
        lacking = [column for column in needed if column not in part.column_names]
        if lacking or getattr(part.features[result.target], "names", None) != result.classes:
            what = f"no column '{lacking[0]}'" if lacking else f"other names of the classes of '{result.target}'"
            advice = (
                f"leave it out: --drop {typed(named(lacking[:1]))}" if lacking else "Dataset.align_labels_with_mapping"
            )
            yield f"split '{split}' has {what}, unlike '{result.splits[0][0]}'; make them alike, or {advice}"


def _has_images(result: Opened) -> bool:
    return result.inputs is not None and type(result.splits[0][1].features[result.inputs]).__name__ in _IMAGES


def _samples(result: Opened, side: int | None) -> Dataset:
    spec, inputs, data = result.spec, result.inputs or "", [part for _, part in result.splits]
    with readable(f"{spec}, column '{inputs}'", "images or lists of numbers of one length", "correct it"):
        x = (
            images_of((row for part in data for row in part[inputs]), spec, side)
            if _has_images(result)
            else np.concatenate([part.with_format("numpy")[inputs][:] for part in data])
        )
    y = np.concatenate([np.asarray(part[result.target]) for part in data])
    client = None
    if result.client is not None:
        client = np.array([text_of(value) for part in data for value in part[result.client]])
    n = len(x) - result.tests
    parts = [RawSamples(x[at], y[at], None if client is None else client[at]) for at in (slice(n), slice(n, None))]
    parts = parts[: 1 + bool(result.tests)]
    return dataset_of(result.name, *parts, labels=result.classes, resized=side is not None, packed=True)
