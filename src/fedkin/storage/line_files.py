"""The JSON-lines files of a run: lines are appended before a checkpoint, and cut back to it when the run continues."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedkin.core.errors import RunFolderError
from fedkin.storage.files import HALF_WRITTEN, naming, sync_to_disk
from fedkin.storage.json_lines import Lines, Record, require_end, require_rounds

NAMES = ("rounds", "clients", "relations", "timing")
"""The files are ``NAME.jsonl``."""
_BYTES = "bytes."  # prefix of a file's name, in the texts of a checkpoint


class LineFiles:
    """The files of lines in a run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, int] = {}  # sizes in the checkpoint, by name

    def path(self, name: str) -> Path:
        """Return the path of the file of these lines."""
        return self._folder / f"{name}.jsonl"

    def append(self, lines: Mapping[str, list[Record]]) -> None:
        """Add lines to ``NAME.jsonl`` for each name."""
        for name, new in lines.items():
            with naming(self.path(name)), self.path(name).open("ab") as file:
                file.write(b"".join(json.dumps(line).encode() + b"\n" for line in new))

    def sync(self) -> None:
        """Return when all lines would survive a power failure."""
        for path in (self.path(name) for name in NAMES):
            if path.exists():
                sync_to_disk(path)
        sync_to_disk(self._folder)

    def read(self, name: str, until: int | None = None) -> list[Record]:
        """Return the lines of ``NAME.jsonl`` up to a round, without an incomplete last line.

        Raises:
            RunFolderError: a line is damaged, repeated or out of order, which a kill cannot cause.
        """
        return [line for line in Lines(self.path(name)) if until is None or line["round"] <= until]

    def cut(self, until: int) -> None:
        """Remove the lines of rounds after ``until``, and an incomplete last line.

        Raises:
            RunFolderError: lines of rounds up to ``until`` are missing or damaged.
        """
        ends = {name: require_rounds(self.path(name), until, beyond=True) for name in ("rounds", "timing")}
        for name, end in {**dict.fromkeys(NAMES, 0), **ends, **self._written}.items():
            path = self.path(name)
            if path.exists() and path.stat().st_size != end:
                os.truncate(path, end)
        for half in self._folder.glob(HALF_WRITTEN):
            half.unlink(missing_ok=True)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the files that are equal in equal runs, by the files' names."""
        paths = [self.path(name) for name in NAMES if name != "timing"]
        return {path.name: path.stat().st_size if path.exists() else 0 for path in paths}

    def require(self, texts: Mapping[str, str]) -> None:
        """Compare the files with the texts of a checkpoint.

        Raises:
            RunFolderError: lines of its rounds are missing or damaged.
        """
        for name in (name for name in NAMES if name != "timing"):
            size = texts.get(f"{_BYTES}{name}.jsonl", "")
            if not size.isdecimal():
                raise RunFolderError(
                    f"{self.path(name)}: the checkpoint gives its size as {size!r}; restore the folder from a copy"
                )
            require_end(self.path(name), int(size))
            self._written[name] = int(size)


def size_texts(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return sizes by the files' names as texts of a checkpoint."""
    return {_BYTES + name: str(size) for name, size in sizes.items()}
