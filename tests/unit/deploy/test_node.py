"""A node's folder is for one node, and its files are private."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedkin[flower]'")

from fedkin.core import ConfigError
from fedkin.storage.files import open_to_others
from fedkin_hosts import fleet
from fedkin_hosts import node as nodes
from fedkin_hosts.node import Node, run_node
from refusals import refuses


class Ended(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_folder_is_for_one_node(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node, of the same client or of another, is refused at once with the first one's process and the remedy;
    its end frees the folder."""
    monkeypatch.setattr(nodes.Watch, "start", lambda self: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    folder = tmp_path / "node"

    def serve(self: Any) -> None:
        with refuses(ConfigError, folder, os.getpid(), "--folder"):
            run_node(Node(data="digits", client_id=other, folder=folder, share=1, insecure_test=True), print)
        raise Ended

    monkeypatch.setattr(fleet.FleetNode, "serve", serve)
    for _ in range(2):
        with pytest.raises(Ended):
            run_node(Node(data="digits", client_id="a", folder=folder, share=0, insecure_test=True), print)


def test_a_key_that_others_can_read_is_told_of(tmp_path: Path) -> None:
    """The advice has the file, its mode and the command as it is typed; a private key needs none."""
    key = tmp_path / "my key"
    key.write_text("x")
    key.chmod(0o644)
    assert open_to_others(key) == (
        f"{key} can be read by other users of this machine (mode 0644); run: chmod 600 '{key}'"
    )
    key.chmod(0o600)
    assert open_to_others(key) is None
