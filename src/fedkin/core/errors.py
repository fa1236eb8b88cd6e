"""The errors that a user can meet.

    FedkinError
    +-- ConfigError        a setting is out of range, unknown or contradicts another
    +-- DataError          a file or an array cannot be used as data
    |   +-- PartitionError     the requested split over clients is impossible
    +-- ModelError         a network cannot be used: no head, wrong shapes
    +-- MethodError        a method broke its contract
    |   +-- ClientError        client code failed: carries round, client and step
    +-- RunFolderError     a run folder exists, is missing, damaged or of another run
    |   +-- FolderBusyError    another process is writing into it
    |   +-- DiskFullError      its disk is full
    +-- EngineError        an engine cannot do what was asked, a worker died

A message states what was expected, what was found, with the values, and what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_QUOTED_ON_WINDOWS = re.compile(r"[^\w:\\/.,=+@-]")  # in its two shells; a file's name has no quotes there


class FedkinError(Exception):
    """Base class of all errors that fedkin raises on purpose; the command line turns it into exit code 2."""


class ConfigError(FedkinError):
    """Raised if a setting is out of range, unknown, or contradicts another."""


class DataError(FedkinError):
    """Raised if a file or an array cannot be used as data."""


class PartitionError(DataError):
    """Raised if the requested split over clients is impossible."""


class ModelError(FedkinError):
    """Raised if a network cannot be used as asked."""


class MethodError(FedkinError):
    """Raised if a method breaks its contract."""


class ClientError(MethodError):
    """Raised if client code fails.

    Attributes:
        round: the round it failed in.
        client: the client's id.
        step: what it was doing: ``describe``, ``update`` or ``evaluate`` (`personalize`, `views` and `predict`).
    """

    def __init__(self, step: str, client: int, round: int, cause: str) -> None:
        super().__init__(f"{step} of client {client} failed in round {round}: {cause}")
        self.step, self.client, self.round = step, client, round


class RunFolderError(FedkinError):
    """Raised if a run folder exists already, is missing, damaged, or belongs to another run."""


class FolderBusyError(RunFolderError):
    """Raised if another process is writing to a run folder."""


class DiskFullError(RunFolderError):
    """Raised if the disk of a run folder is full."""


class EngineError(FedkinError):
    """Raised if an engine cannot do what was asked, or one of its workers died."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the name that was probably meant, or all known names."""
    names = list(known)
    return similar(name, names) or f"; there are {', '.join(names)}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2 rows", "1,200 classes"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def typed(path: object) -> str:
    """Return a path, or another word of a command, as it is typed in a shell: quoted if it needs to be."""
    text = str(path)
    if sys.platform == "win32":
        return text if text and not _QUOTED_ON_WINDOWS.search(text) else f'"{text}"'
    return shlex.quote(text)


def command_line(words: Iterable[object]) -> str:
    """Return a command as it is typed in a shell."""
    return " ".join(map(typed, words))


def similar(name: str, known: Iterable[str]) -> str:
    """Return the same, but an empty text if no known name is similar."""
    alike = [n for n in known if abs(len(n) - len(name)) <= 3 or n in name or name in n]  # "hospital" is not "thal"
    close = get_close_matches(name, alike, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


_HERE = Path(__file__).parents[1]
_NOT_USERS = tuple(
    f"{folder}{os.sep}"
    for folder in (_HERE, _HERE.resolve(), *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
)
"""Folders of fedkin, of Python and of installed packages."""


def user_frames(error: BaseException) -> Sequence[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are a user's code, the innermost last.

    Code of fedkin, of Python and of installed packages is not, nor is what has no file.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(("<", *_NOT_USERS)) and f.lineno is not None]


def user_line(error: BaseException) -> str:
    """Return the innermost line of a user's code, such as " (mine.py, line 31)"; "" if the error did not go through
    any."""
    frames = user_frames(error)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
