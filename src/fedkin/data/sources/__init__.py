"""Readers: from files to a `Dataset`, by one function, `load`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedkin.core.errors import ConfigError, DataError
from fedkin.data.checks import Scaling
from fedkin.data.dataset import Dataset
from fedkin.data.sources.digits import read_digits
from fedkin.data.sources.files import listed, nearest
from fedkin.data.sources.idx import is_idx_folder, read_idx, read_idx_folder
from fedkin.data.sources.images import is_image_folder, read_image_folder
from fedkin.data.sources.npz import read_npz
from fedkin.data.sources.tables import read_tables
from fedkin.data.synthetic import planted_dataset

__all__ = [
    "SOURCES",
    "csv_files",
    "load",
    "read_digits",
    "read_idx",
    "read_idx_folder",
    "read_image_folder",
    "read_npz",
    "read_tables",
]

SOURCES: dict[str, Callable[[], Dataset]] = {"digits": read_digits, "synthetic": planted_dataset}
"""Data that need no file, by name."""


def load(
    spec: str | Path | Sequence[str | Path],
    *,
    target: str | None = None,
    client: str | None = None,
    binary: bool = False,
    drop: Sequence[str] = (),
    scaling: Scaling = "pooled",
    site: bool = False,
) -> Dataset:
    """Reads data by name or path.

    Args:
        spec: a name from `SOURCES`; a folder of idx files, of csv files (one per client), of images, or with a single
            npz file; an ``.npz`` file; a ``.csv`` file, or several of them (one per client).
        target: csv: the column with the class.
        client: csv: the column with the client; npz: the array with it.
        binary: csv: two classes, target > 0 and the rest.
        drop: csv: columns to leave out.
        scaling: csv: standardise columns of numbers by the values of all clients (``pooled``) or each ``client``'s own.
        site: npz, idx: the data are one site's, which may have few samples and not the largest labels.

    Raises:
        DataError: nothing there, or it cannot be used as data.
        ConfigError: an option is missing or does not belong to this kind of data.
    """
    paths = [Path(spec)] if isinstance(spec, (str, Path)) else [Path(p) for p in spec]
    if not paths:
        raise ConfigError("no data named: give a name or a path")
    first, name = paths[0], str(spec) if isinstance(spec, str) else str(paths[0])
    tables = csv_files(paths)
    if tables:
        title = first.resolve().stem if len(paths) == 1 else first.resolve().parent.name
        return read_tables(tables, name=title, target=target, client=client, binary=binary, drop=drop, scaling=scaling)
    if target is not None or binary or drop or scaling != "pooled":
        raise ConfigError(f"target, binary, drop and scaling are for csv tables; {name} is none")
    if len(paths) > 1:
        raise ConfigError(f"only csv files can be given several at a time, got {listed([str(p) for p in paths])}")
    archive = _archive(first)
    if archive is not None:
        return read_npz(archive, client=client, site=site)
    if client is not None:
        raise ConfigError(f"client names a csv column or an npz array; {name} is neither")
    if name in SOURCES:
        return SOURCES[name]()
    return _folder(first, name, site)


def csv_files(paths: Sequence[Path]) -> list[Path]:
    """The csv files meant, if csv files are meant."""
    if len(paths) == 1 and paths[0].is_dir() and not is_idx_folder(paths[0]):
        return sorted(paths[0].glob("*.csv"))
    if not all(path.suffix.lower() == ".csv" for path in paths):
        return []
    for path in paths:
        if not path.is_file():
            raise DataError(_nothing(path, str(path)))
    return list(paths)


def _archive(path: Path) -> Path | None:
    """The npz file meant, if one is meant."""
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
        if is_image_folder(path):
            return read_image_folder(path)
        raise DataError(
            f"{path}: a folder, but without idx, csv or npz files or folders of images; it holds {_inside(path)}"
        )
    if path.is_file():
        advice = "unpack it to a plain .npz first" if path.suffix in {".xz", ".zip", ".tar", ".gz"} else "convert it"
        raise DataError(f"{path}: expected a .csv or .npz file, got '{path.suffix or path.name}'; {advice}")
    raise DataError(_nothing(path, name))


def _nothing(path: Path, name: str) -> str:
    around = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return (
        f"no data called '{name}': neither a built-in name ({listed(sorted(SOURCES))}) nor a file or folder"
        f"{nearest(name, [*SOURCES, *around])}"
    )


def _inside(path: Path) -> str:
    return listed(sorted(p.name for p in path.iterdir()), limit=5) or "nothing"
