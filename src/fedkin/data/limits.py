"""Limit on the memory of data from files, checked before it is allocated.

A file of one megabyte can unpack to thousands of megabytes. Readers therefore work out from headers how much memory a
file needs and refuse it beyond the limit. The limit belongs to the machine, not to a run: it is not part of a run's
settings, and child processes inherit it as an environment variable.
"""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedkin.core.errors import ConfigError, DataError

ENV = "FEDKIN_MAX_DATA_GB"
FLAG = "--max-data-gb"
USUAL_GB = 4.0
_PIECE = 1 << 22


class Budget:
    """Memory that is left for the files of one data set.

    Args:
        gb: limit in GB (10^9 bytes). Default: `limit_gb`.
    """

    def __init__(self, gb: float | None = None) -> None:
        self.gb = limit_gb() if gb is None else gb
        self._taken = 0

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return max(0, int(self.gb * 1e9) - self._taken)

    def take(self, path: Path | str, disk: int, memory: int) -> None:
        """Count a file, before it is read.

        Args:
            path: the file or the folder, for the message.
            disk: its bytes on the disk.
            memory: bytes of memory that it is going to take.

        Raises:
            DataError: more than what is left.
        """
        if memory > self.left:
            before = f", after {size_of(self._taken)} of other files" if self._taken else ""
            needed = math.ceil((self._taken + memory) / 1e8) / 10
            raise DataError(
                f"{path}: {size_of(disk)} on disk, {size_of(memory)} in memory{before}; the limit is {self.gb:g} GB. "
                f"{advice(needed)}"
            )
        self._taken += memory

    def unpacked(self, packed: IO[bytes] | gzip.GzipFile, path: Path | str, disk: int, factor: int = 1) -> bytes:
        """Return all that a decompressing file gives, read piece by piece and no further than the limit.

        Args:
            packed: the file.
            path, disk: as for `take`.
            factor: how many bytes of memory each byte takes in the end.

        Raises:
            DataError: it gives more than what is left.
        """
        found = bytearray()
        while piece := packed.read(_PIECE):
            if factor * (len(found) + len(piece)) > self.left:
                raise DataError(
                    f"{path}: {size_of(disk)} on disk, more than {size_of(self.left)} in memory; the limit is "
                    f"{self.gb:g} GB. {advice(2 * self.gb)}"
                )
            found += piece
        self._taken += factor * len(found)
        return bytes(found)


def limit_gb() -> float:
    """Return the limit in GB: of the environment variable, else `USUAL_GB`.

    Raises:
        ConfigError: the variable does not hold a number above 0.
    """
    text = os.environ.get(ENV)
    return USUAL_GB if not text else gigabytes(text, ENV)


def gigabytes(text: str, where: str) -> float:
    """Return a limit from its text; ``where`` names the flag or the variable in the message.

    Raises:
        ConfigError: not a number above 0.
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ConfigError(f"{where} must be a number of GB above 0, such as 16, got {text!r}")
    return found


@contextmanager
def limited(gb: float | None) -> Iterator[None]:
    """Set the limit for this process and its children; None leaves it as it is."""
    before = os.environ.get(ENV)
    if gb is not None:
        os.environ[ENV] = f"{gb:g}"
    try:
        yield
    finally:
        if gb is not None:
            if before is None:
                os.environ.pop(ENV, None)
            else:
                os.environ[ENV] = before


def advice(gb: float) -> str:
    """Return what to do about a file that exceeds the limit."""
    return f"If the file is meant to be that large: {FLAG} {gb:g} (in Python: {ENV}={gb:g})"


def size_of(count: int) -> str:
    """Return a number of bytes for display, in units of 1000."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            whole = count / factor
            return f"{whole:,.1f} {unit}" if whole < 1e6 else f"{whole:.2g} {unit}"
    return f"{count} bytes"
