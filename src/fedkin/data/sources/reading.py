"""Settings for reading data, and the content of files, shared by the readers."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedkin.core.errors import typed
from fedkin.data.checks import Scaling, readable
from fedkin.data.checks import listed as listed


@dataclass(frozen=True)
class Reading:
    """Settings for data before they are read; each kind of data takes some of them, see `load`.

    Attributes:
        target: tables, Hugging Face: the column with the class.
        client: tables, Hugging Face: the column with the client; npz: the array with it.
        binary: tables: two classes, target > 0 and the rest.
        drop: tables: columns to leave out.
        image_size: images: resize all to this height and width in pixels.
        scaling: tables: standardise columns of numbers by the values of all clients (``pooled``) or each ``client``'s.
        encoding: csv files: the encoding of their text; None: UTF-8.
        site: npz, idx: the data are one site's, which may have few samples and not the largest labels.
    """

    target: str | None = None
    client: str | None = None
    binary: bool = False
    drop: tuple[str, ...] = ()
    image_size: int | None = None
    scaling: Scaling = "pooled"
    site: bool = False
    encoding: str | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the settings that are not left as they are, but for ``site``."""
        plain = Reading(site=self.site)
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name))


def column_names(text: str | None) -> tuple[str, ...]:
    """Return the columns that a text names, with commas between them; a name with a comma is in double quotes."""
    rows = csv.reader(io.StringIO(text or ""), skipinitialspace=True)
    return tuple(name.strip() for row in rows for name in row if name.strip())


def drop_flag(names: Sequence[str]) -> str:
    """Return the flag that leaves out columns, as it is typed in a shell."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return f"--drop {typed(line.getvalue())}"


def read_bytes(path: Path) -> bytes:
    """Read a file's content, decompressed when its name ends in ``.gz`` or it lies in a zip file.

    Args:
        path: the file; ``archive.zip/wards/north.csv`` is a file in an archive.
    """
    with readable(path, "a whole file"):
        archive = next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)
        if archive is not None:
            with zipfile.ZipFile(archive) as members:
                return members.read(path.relative_to(archive).as_posix())
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content


def stem(path: Path) -> str:
    """Return a file's name without its ending, also where that is double, as ``.csv.gz``."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
