"""The line of a user's code that an error comes from: for messages that replace a traceback."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

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
