"""Checks before a folder is written, and what to say when its disk is full."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.core.errors import DiskFullError, RunFolderError, nearest
from fedkin.storage import lock
from fedkin.storage.files import HALF_WRITTEN


def require_folder(folder: Path) -> None:
    """Raises `RunFolderError` if there is no such folder; the message names the one that was probably meant."""
    if not folder.is_dir():
        beside = folder.parent
        there = sorted(p.name for p in beside.iterdir() if p.is_dir()) if beside.is_dir() else []
        raise RunFolderError(f"there is no folder {folder}{nearest(folder.name, there[:20]) if there else ''}")


@contextmanager
def room(folder: Path, again: str = "fedkin resume") -> Iterator[None]:
    """Makes the error of a full disk say which folder could not be written, and how the run goes on.

    Raises:
        DiskFullError: instead of the system's error, and of one that names it as its cause.
    """
    try:
        yield
    except (OSError, RunFolderError) as e:
        cause = e if isinstance(e, OSError) else e.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path = cause.filename or folder
        free = shutil.disk_usage(folder).free / 1e6
        begun = any((folder / name).exists() for name in ("config.toml", "compare.toml", "sweep.toml"))
        what = f"then go on with: {again} {folder}" if begun else "or name another folder with --out"
        raise DiskFullError(
            f"the disk is full: {path} cannot be written, {free:,.1f} MB are free there; make room, {what}"
        ) from cause


def taken(path: Path) -> bool:
    """Whether there is something at this place; an empty folder, or one in which a kill left a half-written file or a
    lock, is nothing."""
    if not path.is_dir():
        return path.exists()
    return any(not p.match(HALF_WRITTEN) and p.name != lock.NAME for p in path.iterdir())
