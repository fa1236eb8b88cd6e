"""Reading and checking of files, shared by several readers."""

from __future__ import annotations

import gzip
import lzma
import zipfile
import zlib
from pathlib import Path

from fedkin.core.errors import DataError
from fedkin.data.checks import listed as listed


def read_bytes(path: Path) -> bytes:
    """Read a file's content, decompressed when its name ends in ``.gz`` or it lies in a zip file.

    Args:
        path: the file; ``archive.zip/wards/north.csv`` is a file in an archive.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        archive = next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)
        if archive is not None:
            with zipfile.ZipFile(archive) as members:
                return members.read(path.relative_to(archive).as_posix())
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    except (OSError, EOFError, LookupError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read, it may be cut short or damaged ({error}); fetch it again") from error


def stem(path: Path) -> str:
    """Return a file's name without its ending, also where that is double, as ``.csv.gz``."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
