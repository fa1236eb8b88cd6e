"""Checks before a folder is written, and the error of a full disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.core.errors import DiskFullError, RunFolderError, nearest, typed
from fedkin.storage import lock
from fedkin.storage.files import HALF_WRITTEN, require_plain


def require_folder(folder: Path) -> None:
    """Raise `RunFolderError` if a folder does not exist, or leads out of itself (`require_plain`).

    The message on a missing one names the most similar one.
    """
    if not folder.is_dir():
        parent = folder.parent
        there = sorted(p.name for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        raise RunFolderError(f"there is no folder {folder}{nearest(folder.name, there[:20]) if there else ''}")
    require_plain(folder)


_OTHER_KIND = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
               FileExistsError, IsADirectoryError, NotADirectoryError)  # fmt: skip


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn an error that values or files of the wrong kind cause in a folder into one that names the folder.

    Raises:
        RunFolderError: in place of the error, which is its cause.
    """
    try:
        yield
    except _OTHER_KIND as e:
        raise RunFolderError(
            f"{folder} is damaged: it holds what no run writes ({type(e).__name__}: {str(e)[:200]}); restore it "
            "from a copy; if nothing has changed the folder, please report this line"
        ) from e


@contextmanager
def room(folder: Path, again: str = "fedkin resume") -> Iterator[None]:
    """Turn the errors of a full disk and of a folder that was moved into one with the way to continue.

    Raises:
        DiskFullError: in place of the system's error, and of errors that it caused.
        RunFolderError: likewise, where the folder is not there any more.
    """
    try:
        yield
    except (OSError, RunFolderError) as e:
        cause = e if isinstance(e, OSError) else e.__cause__
        if isinstance(cause, FileNotFoundError) and not folder.exists():
            raise RunFolderError(
                f"{folder} was moved or removed while it was written; where it is now, continue with: {again} FOLDER"
            ) from cause
        if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path = cause.filename or folder
        free = shutil.disk_usage(folder).free / 1e6
        begun = any((folder / name).exists() for name in ("config.toml", "compare.toml", "sweep.toml"))
        what = f"then continue with: {again} {typed(folder)}" if begun else "or choose another folder with --out"
        raise DiskFullError(
            f"the disk is full: {path} cannot be written, {free:,.1f} MB are free there; make room, {what}"
        ) from cause


def taken(path: Path, but: Collection[str] = ()) -> bool:
    """Return whether something exists at this place; an empty folder, or one with only a half-written file or a lock
    after a kill, does not count, nor do files of the names ``but``."""
    if not path.is_dir():
        return path.exists()
    return any(not p.match(HALF_WRITTEN) and p.name not in (lock.NAME, *but) for p in path.iterdir())
