"""A folder of a link or node has one process."""

from __future__ import annotations

import os
from pathlib import Path

from fedkin.core.errors import ConfigError
from fedkin_hosts.machine import locked
from refusals import refuses


def test_a_folder_is_for_one(tmp_path: Path) -> None:
    """The text names what runs there, its process and the remedy; afterwards the folder is free."""
    with (
        locked(tmp_path, "a node", "choose another"),
        refuses(ConfigError, "a node", tmp_path, os.getpid(), "choose another"),
        locked(tmp_path, "a node", "choose another"),
    ):
        pass
    with locked(tmp_path, "a node", "choose another"):
        pass
