"""A folder of a link or node has one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedkin.core.errors import ConfigError
from fedkin_hosts.machine import locked


def test_a_folder_is_for_one(tmp_path: Path) -> None:
    """The text names what runs there, its process and the remedy; afterwards the folder is free."""
    already = rf"a node runs in {tmp_path} already \(process {os.getpid()} on .*, or choose another"
    with (
        locked(tmp_path, "a node", "choose another"),
        pytest.raises(ConfigError, match=already),
        locked(tmp_path, "a node", "choose another"),
    ):
        pass
    with locked(tmp_path, "a node", "choose another"):
        pass
