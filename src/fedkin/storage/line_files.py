"""The JSON-lines files of a run: lines are appended before a checkpoint, and cut back to it when the run continues."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedkin.storage.files import HALF_WRITTEN, naming, sync_to_disk
from fedkin.storage.json_lines import Digest, Lines, Record, lines_of, require_intact, require_rounds

NAMES = ("rounds", "clients", "relations", "timing")
"""The files are ``NAME.jsonl``."""
_DIGEST = "digest."  # prefix of a file's name, in the texts of a checkpoint


class LineFiles:
    """The files of lines in a run folder, with their digests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, Digest] = {}
        self._written: dict[str, str] = {}  # digests in the checkpoint, by name

    def path(self, name: str) -> Path:
        """Return the path of the file of these lines."""
        return self._folder / f"{name}.jsonl"

    def append(self, lines: Mapping[str, list[Record]]) -> None:
        """Add lines to ``NAME.jsonl`` for each name."""
        for name, new in lines.items():
            path, digest, content = self.path(name), self._digest(name), list[bytes]()
            for line in new:
                text = json.dumps(line).encode()
                content.append((digest.signed(text) if name == "timing" else text) + b"\n")
                digest.add(content[-1])
            with naming(path), path.open("ab") as file:
                file.write(b"".join(content))

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
        ends = {name: self._end(name, until) for name in NAMES}
        for name in self._written:  # all content beyond what the checkpoint covers, also if it is not a line
            if self.path(name).stat().st_size > ends[name]:
                os.truncate(self.path(name), ends[name])
        require_rounds(self.path("rounds"), until, beyond=True)
        require_rounds(self.path("timing"), until, beyond=True)
        for name, end in ends.items():
            path = self.path(name)
            if path.exists() and path.stat().st_size != end:
                os.truncate(path, end)
            self._digests.pop(name, None)
        for half in self._folder.glob(HALF_WRITTEN):
            half.unlink(missing_ok=True)

    def digests(self) -> dict[str, str]:
        """Return the digests of the files that are equal in equal runs, by the files' names."""
        return {f"{name}.jsonl": str(self._digest(name)) for name in NAMES if name != "timing"}

    def texts(self) -> dict[str, str]:
        """Return the texts of a checkpoint about the lines so far."""
        return digest_texts(self.digests())

    def require(self, texts: Mapping[str, str]) -> None:
        """Compare the files with the texts of a checkpoint.

        Raises:
            RunFolderError: lines of its rounds have changed since they were written.
        """
        self._written = {name: texts.get(f"{_DIGEST}{name}.jsonl", "") for name in NAMES if name != "timing"}
        for name, digest in self._written.items():
            require_intact(self.path(name), digest)

    def _end(self, name: str, until: int) -> int:
        """Return the end of the lines up to a round, in bytes: from the checkpoint, or from the lines themselves."""
        if name in self._written:
            return int(self._written[name].partition(" ")[0])
        return max((end for line, end in lines_of(self.path(name)) if line["round"] <= until), default=0)

    def _digest(self, name: str) -> Digest:
        """Return the digest of ``NAME.jsonl`` as it is; from then on `append` keeps it up to date."""
        if name not in self._digests:
            self._digests[name] = Digest.of(self.path(name))
        return self._digests[name]


def digest_texts(digests: Mapping[str, str]) -> dict[str, str]:
    """Return digests by the files' names as texts of a checkpoint."""
    return {_DIGEST + name: digest for name, digest in digests.items()}
