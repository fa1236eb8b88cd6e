"""What a command of the command line has given."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUN_LINE = re.compile(r"(\d+ of \d+: )?[^:]+, seed \d+, \d+ rounds?, [^:]+, [\d.]+ s\n")
"""The line of a finished run."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def notes(self) -> str:
        """Standard error without the lines of finished runs, which are written where it is not a terminal."""
        return "".join(line for line in self.err.splitlines(keepends=True) if not RUN_LINE.fullmatch(line))


Command = Callable[..., Done]
Kept = Callable[[str, str, Callable[[], object]], Path]


def table(text: str) -> list[list[str]]:
    """Rows of a table ``command | words | more words``, one a line."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
