"""Files and folders that only this user can read, whatever the umask of the program that makes them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.core.errors import ConfigError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def for_this_user() -> Iterator[None]:
    """Makes new files 0600 and new folders 0700, in this process and those that it starts, until the block ends."""
    former = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(former)


def private_folder(folder: Path, *, tighten: bool = True) -> bool:
    """Makes a folder and its missing parents with mode 0700.

    Args:
        folder: may be there already.
        tighten: also take a folder that is there from all other users.

    Returns:
        Whether the folder was there and open to other users before.

    Raises:
        ConfigError: it cannot be made, or belongs to another user and is open to others.
    """
    try:
        with for_this_user():
            folder.mkdir(parents=True, exist_ok=True)
        if not tighten or not folder.stat().st_mode & _OTHERS:
            return False
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be a folder for this user only ({error}); name another folder, or have its owner do: "
            f"chmod 700 {folder}"
        ) from error
    return True


def open_to_others(file: Path) -> str | None:
    """Returns what to do about a private file that other users can read; None if they cannot."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & _OTHERS:
        return None
    return f"{file} can be read by other users of this machine (mode {mode:04o}); do: chmod 600 {file}"
