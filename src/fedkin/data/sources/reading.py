"""Settings for reading data, shared by the readers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedkin.core.errors import typed
from fedkin.data.checks import Scaling


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
