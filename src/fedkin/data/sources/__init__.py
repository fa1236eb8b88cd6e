"""Readers: from files to a `Dataset`, by one function, `load`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError, similar, typed
from fedkin.core.settings import DataSettings
from fedkin.data.arrays import array_of, together
from fedkin.data.checks import Scaling, listed, readable, refuse_first
from fedkin.data.dataset import Dataset, RawSamples, dataset_of
from fedkin.data.federation import Federation
from fedkin.data.sources.hub import PREFIX, is_saved, read_hub
from fedkin.data.sources.images import has_client_folders, is_image_folder, read_image_folder
from fedkin.data.sources.npz import read_npz
from fedkin.data.sources.papers import BY_CLIENT, KNOWN, is_known, read_digits, read_known
from fedkin.data.sources.tables import PARQUET, from_table, named, of_frame, read_tables, refuse_unused, stem
from fedkin.data.sources.upstream import is_idx_folder, read_idx, read_idx_folder
from fedkin.data.synthetic import planted_dataset
from fedkin.user_code.loading import find, is_import_path

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "KNOWN", "SOURCES", "absolute", "brings_clients", "csv_files", "load", "read", "read_digits", "read_idx",
    "read_idx_folder", "read_image_folder", "read_npz", "read_tables",
]  # fmt: skip

SOURCES: dict[str, Callable[[], Dataset]] = {"digits": read_digits, "synthetic": planted_dataset}
"""Data that need no file, by name."""

Kind = Literal["built-in", "known", "function", "hub", "table", "npz", "idx", "images", "unknown"]
WORDS: dict[str, str] = {
    "built-in": "built-in data",
    "known": "a data set that is known by name",
    "function": "what a function gives",
    "hub": "a data set in the format of Hugging Face",
    "table": "a table",
    "idx": "a folder of idx files (MNIST family)",
    "images": "a folder of images",
    "npz": "an npz file",
    "federation": "a federation that is shared out already",
    "unknown": "nothing that can be read",
}
_TAKEN: dict[str, tuple[str, ...]] = {
    "table": ("target", "client_column", "binary", "drop", "scaling", "encoding"),
    "npz": ("client_column", "image_size"),
    "images": ("image_size",),
}
"""Settings that each kind of source takes; one in the format of Hugging Face has a rule of its own."""
_EXPECTED = (
    "expected a fedkin Dataset or Federation, a list with one (x, y) per client (arrays or tensors), a mapping from "
    "client to (x, y), a list of torch Datasets, one per client, or without clients one (x, y) or one torch Dataset of "
    "(input, label)"
)
_TABLES = frozenset({".csv", ".tsv", *PARQUET})
_ALONE = frozenset({".txt", ".zip"})  # in a folder of such files only: others come with a read-me or a backup
_SHEETS = frozenset({".xls", ".xlsx", ".xlsm", ".ods"})


def load(
    spec: str | Path | Sequence[str | Path] | DataFrame,
    *,
    target: str | None = None,
    client: str | None = None,
    binary: bool = False,
    drop: Sequence[str] = (),
    image_size: int | None = None,
    scaling: Scaling = "pooled",
    encoding: str | None = None,
    site: bool = False,
) -> Dataset:
    """Read data by name, path or import path.

    Args:
        spec: a name from `SOURCES`; a folder of idx files, of tables (one per client), of images, or with a single
            npz file; an ``.npz`` file; a table (``.csv``, ``.tsv``, ``.txt``, also with ``.gz``, or ``.parquet``), or
            several (one per client), also in one ``.zip`` file; ``package.module:function`` or
            ``./file.py:function``, which gives the data; a name from `KNOWN`, or ``NAME:FOLDER``; ``hf:NAME`` or
            ``hf:FOLDER``, see `read_hub`; a DataFrame of pandas, which is a table.
        target: tables: the column with the class.
        client: tables: the column with the client; npz: the array with it.
        binary: tables: two classes, target > 0 and the rest.
        drop: tables: columns to leave out.
        image_size: folders of images: resize all to this height and width in pixels.
        scaling: tables: standardise columns of numbers by the values of all clients (``pooled``) or each
            ``client``'s own.
        encoding: csv files: the encoding of their text, such as ``cp1252``; None: UTF-8.
        site: npz, idx: the data are one site's, which may have few samples and not the largest labels.

    Raises:
        DataError: nothing there, or it cannot be used as data.
        ConfigError: an option is missing or does not belong to this kind of data; a function gave a whole federation.
    """
    how = DataSettings(
        target=target, client_column=client, binary=binary, drop=named(drop) or None, image_size=image_size,
        scaling=scaling, encoding=encoding,
    )  # fmt: skip
    result = from_table(of_frame(spec), how) if hasattr(spec, "itertuples") else read(spec, how, site=site)
    if isinstance(result, Federation):
        raise ConfigError(f"{spec} gives a federation, which is shared out already; fedkin.run takes it as it is")
    return result


def read(spec: str | Path | Sequence[str | Path], how: DataSettings, *, site: bool = False) -> Dataset | Federation:
    """Do the same as `load`; a function's federation is returned as it is."""
    paths = [Path(spec)] if isinstance(spec, (str, Path)) else [Path(p) for p in spec]
    name = spec if isinstance(spec, str) else listed(list(map(str, paths)))
    kind = kind_of(spec) if isinstance(spec, (str, Path)) else "table" if paths and csv_files(paths) else "unknown"
    if kind == "unknown":
        raise DataError(_nothing(paths, name))
    first = paths[0]
    if kind != "hub":
        refuse_unused(how, _TAKEN.get(kind, ()), f"{name} is {WORDS[kind]}")
    if kind == "function":
        return read_function(name)
    if kind == "hub":
        return read_hub(name, how)
    if kind == "built-in":
        return SOURCES[name]()
    if kind == "known":
        return read_known(name)
    if kind == "table":
        title = stem(first.resolve()) if len(paths) == 1 else first.resolve().parent.name
        return read_tables(csv_files(paths), how, name=title)
    if kind == "npz":
        return read_npz(min(first.glob("*.npz")) if first.is_dir() else first, client=how.client_column, site=site)
    if kind == "images":
        return read_image_folder(first, side=how.image_size)
    return read_idx_folder(first, site=site)


def kind_of(spec: str | Path) -> Kind:
    """Return the kind of this source; whatever lies here, a name stands for the data of that name."""
    path = Path(spec)
    if isinstance(spec, str):
        if is_function(spec):
            return "function"
        if spec.startswith(PREFIX):
            return "hub"
        if spec in SOURCES:  # a folder of this name is meant by ./NAME
            return "built-in"
        if is_known(spec) and not path.exists():
            return "known"
    if path.is_dir() and is_idx_folder(path):
        return "idx"
    if path.exists() and csv_files([path]):
        return "table"
    if path.suffix.lower() == ".npz" if path.is_file() else len([*path.glob("*.npz")]) == 1:
        return "npz"
    return "images" if path.is_dir() and is_image_folder(path) else "unknown"


def is_function(spec: str) -> bool:
    """Return whether a text names a function that gives data, rather than a data set in the form ``NAME:PLACE``."""
    return is_import_path(spec) and not spec.startswith(PREFIX) and not is_known(spec)


def brings_clients(spec: str) -> bool | None:
    """Return whether the name of these data names the clients: one file per client, folders of clients' images.

    None if only reading them can show it. Natural clients that a file has next to its samples (an array ``subject``)
    are not named by its path.
    """
    if is_function(spec) or spec.startswith(PREFIX):
        return None
    if is_known(spec) and not Path(spec).exists():
        return spec.partition(":")[0] in BY_CLIENT
    path = Path(spec)
    if spec in SOURCES or not path.exists() or is_idx_folder(path):
        return False
    return len(csv_files([path])) > 1 or (path.is_dir() and has_client_folders(path))


def absolute(spec: str) -> str:
    """Return the same data by an absolute path, so that a run can be resumed from any place."""
    for name in (PREFIX.rstrip(":"), *KNOWN):
        front, _, place = spec.partition(":")
        if front == name and place and Path(place).expanduser().exists():
            return f"{name}:{Path(place).expanduser().resolve()}"
    if is_function(spec):
        file, _, attribute = spec.rpartition(":")
        return f"{Path(file).expanduser().resolve()}:{attribute}" if file.endswith(".py") else spec
    return str(Path(spec).resolve()) if spec not in SOURCES and Path(spec).exists() else spec


def csv_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of tables meant, if such files are meant; ``a.zip/b.csv`` is the file ``b.csv`` in ``a.zip``."""
    if len(paths) == 1 and paths[0].is_dir() and not is_idx_folder(paths[0]):
        paths = _tables([p for p in paths[0].iterdir() if not p.name.startswith(".")])
    if not all(_ending(path) in _TABLES | _ALONE for path in paths):
        return []
    for path in paths:
        if not path.is_file():
            raise DataError(_nothing([path], str(path)))
    return [file for path in paths for file in (_members(path) if _ending(path) == ".zip" else [path])]


def _tables(inside: Sequence[Path]) -> list[Path]:
    """Return the tables among the files of a folder."""
    inside = [path for path in inside if path.stem.lower() != "readme"]
    endings = {_ending(path) for path in inside}
    alone = len(endings) == 1 and endings <= _ALONE
    return sorted(path for path in inside if alone or _ending(path) in _TABLES)


def _ending(path: Path) -> str:
    """Return the ending of a file's name in lower case, without that of gzip around a text."""
    inner = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else ""
    return inner if inner in (".csv", ".tsv", ".txt") else path.suffix.lower()


def _members(archive: Path) -> list[Path]:
    """Return the tables of text in a zip file; a single file without an ending is one as well, as pandas writes it."""
    with readable(archive, "a zip file"), zipfile.ZipFile(archive) as file:
        inside = [archive / name for name in file.namelist() if not name.endswith("/")]
    # a name that leads out of the archive is not read
    inside = [
        p for p in inside if p.is_relative_to(archive) and not {"..", "__MACOSX"} & {*p.relative_to(archive).parts}
    ]
    if len(inside) == 1 and not inside[0].suffix:
        return inside
    return [p for p in _tables(inside) if p.suffix.lower() in (".csv", ".tsv", ".txt")]


def _nothing(paths: Sequence[Path], name: str) -> str:
    """Return why paths cannot be read as data."""
    if len(paths) != 1:
        return f"expected a name or a path, or the paths of several csv or parquet files, got {name or 'none'}"
    path = paths[0]
    if not path.exists():
        known = [*SOURCES, *KNOWN]
        around = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = similar(path.name, around if "/" in name else [*known, *around])
        return f"no data called '{name}': neither a built-in name ({listed(known)}) nor a file or folder{near}"
    inside = [p.name for p in sorted(path.iterdir())] if path.is_dir() else [path.name]
    if sheets := [n for n in inside if Path(n).suffix.lower() in _SHEETS and not n.startswith((".", "~"))]:
        return f"{sheets[0]} is a spreadsheet, which is not read; save it as .csv or .parquet"
    if is_saved(path):
        return f"{path}: a folder in the format of Hugging Face; name it --data {typed(PREFIX + name)}"
    return (
        f"{path}: expected a .csv, .parquet or .npz file, or a folder of csv or parquet files, with one npz file, of "
        "idx files or of folders of images; "
        f"{'the folder' if path.is_dir() else 'it'} holds {listed(inside, 5) or 'nothing'}"
    )


# ---- data of a function ----------------------------------------------------------------------------------------------
def read_function(spec: str) -> Dataset | Federation:
    """Return the result of ``package.module:function`` or ``./file.py:function``, called without arguments, or the data
    that it names. Inputs of bytes (uint8) count as pixels and become 0..1; all other numbers keep their values.
    """
    result = find(spec, DataError)
    if callable(result) and not isinstance(result, Dataset | Federation):
        with readable(spec, "data", "correct the function"):
            result = result()
    if isinstance(result, Dataset | Federation):
        return result
    names, parts = None, [result]
    if isinstance(result, dict) and result:
        names, parts = tuple(map(str, result)), list(result.values())
    elif _is_list_of_clients(result):
        names, parts = tuple(f"client {k}" for k in range(len(result))), list(result)
    parts = [_arrays(part, f"{spec}, {names[k]}" if names else spec) for k, part in enumerate(parts)]
    x, y = (together([part[i] for part in parts], spec) for i in range(2))
    client = None if names is None else np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    return dataset_of(spec.rpartition("/")[2], RawSamples(x, y, client), client_names=names)


def _arrays(part: Any, where: str) -> tuple[Any, Any]:
    """Return the inputs and labels of one client, as many of one as of the other."""
    if isinstance(part, torch.utils.data.Dataset):
        part = _samples(part, where)
    if not _is_pair(part):
        raise DataError(f"{where}: {_EXPECTED}; got {_what(part)}")
    x, y = array_of(part[0], where, "inputs"), array_of(part[1], where, "labels")
    fault = f"{len(x)} inputs and {y.size} labels; expected one label per input, at least one"
    refuse_first(where, [] if 0 < len(x) == len(y) else [fault])
    return x, y


def _samples(data: Any, where: str) -> list[Any]:
    """Return inputs and labels of a torch Dataset, one after another."""
    with readable(where, "a torch Dataset with a length and pairs (input, label), inputs of one shape", "correct it"):
        pairs = [(np.asarray(x), np.asarray(y)) for x, y in (data[i] for i in range(len(data)))]
        return [np.stack(arrays) for arrays in zip(*pairs, strict=True)]


def _is_pair(part: Any) -> bool:
    """Return whether this is ``(x, y)`` of one client, rather than a list of two clients."""
    return (
        isinstance(part, list | tuple)
        and len(part) == 2
        and not any(isinstance(p, torch.utils.data.Dataset) or _is_pair_of_arrays(p) for p in part)
    )


def _is_list_of_clients(result: Any) -> bool:
    of_parts = isinstance(result, list | tuple) and len(result) > 0 and not _is_pair_of_arrays(result)
    return of_parts and (not _is_pair(result) or all(_is_client(part) for part in result))


def _is_client(part: Any) -> bool:
    """Return whether this is ``(x, y)`` with many values each, rather than the inputs or the labels of two samples."""
    return _is_pair(part) and all(isinstance(p, Sized) and not isinstance(p, str) for p in part)


def _is_pair_of_arrays(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(isinstance(p, Tensor | np.ndarray) for p in part)


def _what(thing: object) -> str:
    if isinstance(thing, list | tuple):
        inside = sorted({type(one).__name__ for one in thing})
        return f"a {type(thing).__name__} of {len(thing)} ({', '.join(inside) or 'empty'})"
    if isinstance(thing, Tensor | np.ndarray):
        return f"an array of shape {list(thing.shape)}"
    return f"an object of type {type(thing).__name__}"
