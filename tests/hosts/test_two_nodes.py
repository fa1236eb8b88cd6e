"""Two nodes in one folder, as processes: the second is refused, the first goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin_hosts.machine import free_port
from linkprograms import until
from programs import Program

pytestmark = pytest.mark.hosts


def words(client: str, port: int) -> list[str]:
    """A node in its default folder; no link is needed, as it tries again for minutes."""
    command = [sys.executable, "-m", "fedkin", "node", "--data", "digits", "--share", "0", "--client-id", client]
    return [*command, "--insecure-test", "--link", f"127.0.0.1:{port}"]


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_second_node_in_a_folder_is_refused(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 with folder, process and remedy; a node that was killed leaves the folder free."""
    monkeypatch.chdir(tmp_path)
    folder, port = tmp_path / "fedkin-node", free_port()
    first = Program("the first node", words("a", port), os.environ, tmp_path / "first.log")
    try:
        assert until(lambda: "is at work for" in first.log.read_text())
        done = subprocess.run(words(other, port), capture_output=True, text=True, timeout=300)
        assert done.returncode == 2
        said = " ".join((done.stdout + done.stderr).split())
        assert f"a node runs in {folder} already (process {first.pid} on " in said
        assert "choose another folder with --folder" in said
        assert first.alive
        os.kill(first.pid, signal.SIGKILL)
        assert until(lambda: not first.alive)
        second = Program("the second node", words(other, port), os.environ, tmp_path / "second.log")
        try:
            assert until(lambda: "is at work for" in second.log.read_text())
        finally:
            second.stop()
    finally:
        first.stop()
