"""Readers: from files to a `Dataset`, by one function, `load`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.core.errors import ConfigError, DataError, meant, typed
from fedkin.data.checks import Scaling
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.sources.csvfile import PARQUET, of_frame
from fedkin.data.sources.digits import read_digits
from fedkin.data.sources.files import listed, stem
from fedkin.data.sources.functions import read_function
from fedkin.data.sources.hub import PREFIX, is_saved, read_hub
from fedkin.data.sources.idx import is_idx_folder, read_idx, read_idx_folder
from fedkin.data.sources.images import has_client_folders, is_image_folder, read_image_folder
from fedkin.data.sources.npz import read_npz
from fedkin.data.sources.papers import BY_CLIENT, KNOWN, is_known, read_known
from fedkin.data.sources.reading import Reading
from fedkin.data.sources.tables import from_table, read_tables
from fedkin.data.synthetic import planted_dataset
from fedkin.user_code.loading import is_import_path

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "KNOWN",
    "SOURCES",
    "Reading",
    "absolute",
    "brings_clients",
    "csv_files",
    "load",
    "read",
    "read_digits",
    "read_idx",
    "read_idx_folder",
    "read_image_folder",
    "read_npz",
    "read_tables",
]

SOURCES: dict[str, Callable[[], Dataset]] = {"digits": read_digits, "synthetic": planted_dataset}
"""Data that need no file, by name."""

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
    how = Reading(target, client, binary, tuple(drop), image_size, scaling, site, encoding)
    found = from_table(of_frame(spec), how) if hasattr(spec, "itertuples") else read(spec, how)
    if isinstance(found, Federation):
        raise ConfigError(f"{spec} gives a federation, which is shared out already; fedkin.run takes it as it is")
    return found


def read(spec: str | Path | Sequence[str | Path], how: Reading) -> Dataset | Federation:
    """Do the same as `load`; a function's federation is returned as it is."""
    if isinstance(spec, str) and is_function(spec):
        if how.anything:
            raise ConfigError(f"{spec} is a function, which gives the data as it likes; it takes no settings of data")
        return read_function(spec)
    if isinstance(spec, str) and spec.startswith(PREFIX):
        return read_hub(spec, how)
    if isinstance(spec, str) and spec in SOURCES:  # whatever lies here: a folder of this name is meant by ./NAME
        if how.anything:
            raise ConfigError(f"{spec} is a built-in data set; it takes no settings of tables or images")
        return SOURCES[spec]()
    if isinstance(spec, str) and is_known(spec) and not Path(spec).exists():
        if how.anything:
            raise ConfigError(f"{spec} is a data set that is known by name; it takes no settings of tables or images")
        return read_known(spec)
    paths = [Path(spec)] if isinstance(spec, (str, Path)) else [Path(p) for p in spec]
    if not paths:
        raise ConfigError("no data named: give a name or a path")
    first, name = paths[0], str(spec) if isinstance(spec, str) else str(paths[0])
    tables = csv_files(paths)
    if tables:
        title = stem(first.resolve()) if len(paths) == 1 else first.resolve().parent.name
        return read_tables(tables, how, name=title)
    if len(paths) > 1:
        raise ConfigError(
            f"only csv and parquet files can be given several at a time, got {listed([str(p) for p in paths])}"
        )
    if not first.exists():
        raise DataError(_nothing(first, name))
    if sheets := _spreadsheets(first):
        raise DataError(f"{sheets[0]} is a spreadsheet, which is not read; save it as .csv or .parquet")
    if how.of_tables:
        raise ConfigError(
            f"target, binary, drop, scaling and encoding are for tables (csv, parquet), and {name} is not one"
        )
    archive = _archive(first)
    if archive is not None:
        return read_npz(archive, client=how.client, site=how.site)
    if how.client is not None:
        raise ConfigError(f"client names a table's column or an npz array; {name} is neither")
    if first.is_dir() and not is_idx_folder(first) and is_image_folder(first):
        return read_image_folder(first, side=how.image_size)
    if how.image_size is not None:
        raise ConfigError(f"image_size is for folders of images; {name} is not one")
    return _folder(first, name, how.site)


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
            raise DataError(_nothing(path, str(path)))
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
    try:
        with zipfile.ZipFile(archive) as file:
            inside = [archive / name for name in file.namelist() if not name.endswith("/")]
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"{archive}: cannot be read as a zip file ({error}); fetch it again") from error
    # a name that leads out of the archive is not read
    inside = [
        p for p in inside if p.is_relative_to(archive) and not {"..", "__MACOSX"} & {*p.relative_to(archive).parts}
    ]
    if len(inside) == 1 and not inside[0].suffix:
        return inside
    return [p for p in _tables(inside) if p.suffix.lower() in (".csv", ".tsv", ".txt")]


def _archive(path: Path) -> Path | None:
    """Return the npz file meant, if one is meant."""
    if path.is_dir() and not is_idx_folder(path):
        inside = sorted(path.glob("*.npz"))
        if len(inside) > 1:
            raise DataError(
                f"{path}: {len(inside)} npz files ({listed([p.name for p in inside])}); name the one to read"
            )
        return inside[0] if inside else None
    return path if path.suffix == ".npz" and path.is_file() else None


def _folder(path: Path, name: str, site: bool) -> Dataset:
    if path.is_dir():
        if is_idx_folder(path):
            return read_idx_folder(path, site=site)
        if is_saved(path):
            raise DataError(f"{path}: a folder in the format of Hugging Face; name it --data {typed(PREFIX + name)}")
        raise DataError(
            f"{path}: a folder, but without idx, csv, parquet or npz files or folders of images; "
            f"it holds {_inside(path)}"
        )
    if path.is_file():
        advice = "unpack it to a plain .npz first" if path.suffix in {".xz", ".zip", ".tar", ".gz"} else "convert it"
        raise DataError(f"{path}: expected a .csv, .parquet or .npz file, got '{path.suffix or path.name}'; {advice}")
    raise DataError(_nothing(path, name))


def _nothing(path: Path, name: str) -> str:
    known = [*SOURCES, *KNOWN]
    around = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = meant(path.name, around if "/" in name else [*known, *around])
    return f"no data called '{name}': neither a built-in name ({listed(known)}) nor a file or folder{near}"


def _spreadsheets(path: Path) -> list[Path]:
    """Return spreadsheets of office programs, which are probably meant as tables."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [p for p in files if p.suffix.lower() in _SHEETS and not p.name.startswith((".", "~"))]


def _inside(path: Path) -> str:
    return listed(sorted(p.name for p in path.iterdir()), limit=5) or "nothing"
