"""Folders for this user only, with errors that state the remedy."""

from __future__ import annotations

from pathlib import Path

from fedkin.core.errors import ConfigError, typed
from fedkin.storage.files import make_private


def private_folder(folder: Path, *, tighten: bool = True) -> bool:
    """Make a folder and its missing parents with mode 0700.

    Args:
        folder: folder, which may exist.
        tighten: also revoke the rights of other users on an existing folder.

    Returns:
        Whether the folder existed and was open to other users.

    Raises:
        ConfigError: the folder cannot be made, or belongs to another user and is open to others.
    """
    try:
        return make_private(folder, tighten=tighten)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be a folder for this user only ({error}); choose another folder, or have its owner do: "
            f"chmod 700 {typed(folder)}"
        ) from error
