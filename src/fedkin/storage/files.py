"""Write files whole or not at all, and make files and folders that only their owner can read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkin.core.errors import RunFolderError, typed

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of files and folders with data of single clients: states, models, keys, accounts."""
FOREIGN = ("wandb",)
"""Names of folders that trackers write into that of a run, with links of their own."""
HALF_WRITTEN = ".*.new"
"""Pattern of the names that files have until they are whole."""
# on Windows modes say nothing about other users: files have the rights of their folder, in a profile those of its user
_OTHERS = 0 if sys.platform == "win32" else stat.S_IRWXG | stat.S_IRWXO


def write_atomic(path: Path, content: bytes, *, sync: bool = False, private: bool = False) -> None:
    """Write a file whole or not at all: next to its place first, then renamed over the old one.

    Args:
        path: the file; missing parents are made.
        content: its bytes.
        sync: return only when the file would survive a power failure.
        private: only its owner may read it.

    Raises:
        OSError: it could not be written; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = half_written(path)
    try:
        new.unlink(missing_ok=True)  # no link of this name is followed
        with naming(path), new.open("wb") as file:
            if private and _OTHERS:
                os.fchmod(file.fileno(), PRIVATE_FILE)
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
        if sync:
            sync_to_disk(path.parent)
    finally:
        new.unlink(missing_ok=True)


def require_plain(folder: Path) -> None:
    """Refuse a folder with anything in it but files and folders, before it is read or written.

    A link leads to files of others, which must not be written by way of a folder that was handed on, and a pipe or a
    device never ends. The folder itself may be a link. A hard link cannot be told from a file: files that are replaced
    as a whole leave its target alone, and lines, states and banks, which are written in place, do not.

    Raises:
        RunFolderError: something else is in it.
    """
    folders = [str(folder)]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:  # a run may be at work here
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders += [entry.path] * (entry.name not in FOREIGN)
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a link" if entry.is_symlink() else "neither a file nor a folder"
                    raise RunFolderError(
                        f"{entry.path} is {kind}, and the folder of a run holds files and folders only; replace it by "
                        "a copy, or remove it"
                    )


def cache_folder() -> Path:
    """Return the user's folder for what can be made again; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedkin"


def half_written(path: Path) -> Path:
    """Return the name that this process gives a file until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to the system's errors that have none, such as those of writing."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


def make_private(folder: Path, *, tighten: bool = True, sync: bool = False) -> bool:
    """Make a folder and its missing parents with mode 0700.

    Args:
        folder: folder, which may exist.
        tighten: also revoke the rights of other users on an existing folder.
        sync: return only when the new folders would survive a power failure.

    Returns:
        Whether the folder existed and was open to other users.

    Raises:
        OSError: the folder cannot be made, or belongs to another user and is open to others.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing or [folder]):
        place.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        if sync and missing:
            sync_to_disk(place.parent)
    if not tighten or not stat.S_IMODE(folder.stat().st_mode) & _OTHERS:
        return False
    folder.chmod(PRIVATE_FOLDER)
    return not missing


@contextmanager
def for_this_user() -> Iterator[None]:
    """Make new files 0600 and new folders 0700, in this process and those that it starts, until the block ends."""
    former = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(former)


def open_to_others(file: Path) -> str | None:
    """Return the remedy for a private file that other users can read; None if they cannot."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & _OTHERS:
        return None
    return f"{file} can be read by other users of this machine (mode {mode:04o}); run: chmod 600 {typed(file)}"


def sync_to_disk(path: Path) -> None:
    """Return when a file or a folder would survive a power failure."""
    if sys.platform == "win32" and path.is_dir():  # which has no such thing for folders
        return
    opened = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
