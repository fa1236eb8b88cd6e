"""Commands where Python lacks what it lacks on Windows: they work there, with the results of any system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commandline import Command
from fedkin.core import errors
from fedkin.storage import files
from fedkin.storage.lock import held

PROGRAM = Path(__file__).parents[1] / "likewindows.py"
SOURCE = Path(errors.__file__).parents[2]
SMALL = "--clients 4 --rounds 2 --model linear"


def like_windows(folder: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands one after another in a folder."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *commands],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_commands_there_have_the_results_of_commands_here(tmp_path: Path, fedkin: Command) -> None:
    """Trained, given one more round, compared, exported, listed: lines of rounds and clients are those of workers here.
    A run with models in files of another system goes on there, and here again. A folder that is being written is
    refused, with the process that has it."""
    assert fedkin(f"run da-pfl {SMALL} --state file --out a --quiet").code == 0
    with held(tmp_path / "b" / ".lock"):
        there = like_windows(
            tmp_path,
            f"run fedavg {SMALL} --out there --quiet",
            "resume there --rounds 3 --quiet",
            "report there",
            "export there --client 1 --out model",
            f"compare da-pfl {SMALL} --state file --out more --quiet",
            "runs more",
            "list methods",
            "export a --client 0 --out other",
            "resume a --rounds 3 --quiet",
            f"run fedavg {SMALL} --out b",
        )
    assert there.returncode == 2, there.stderr
    assert f"b is being written by process {os.getpid()} on " in there.stderr
    assert not (tmp_path / "b" / "config.toml").exists()
    assert all((tmp_path / place / "model.onnx").is_file() for place in ("model", "other"))
    assert fedkin("resume a --rounds 4 --quiet").code == 0
    assert len((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()) == 4
    assert fedkin(f"run fedavg {SMALL.replace('rounds 2', 'rounds 3')} --engine workers --out here --quiet").code == 0
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "there" / name).read_bytes() == (Path("here") / name).read_bytes()


@pytest.mark.parametrize("command", ["link", "node --data a.csv", "submit a.toml", "status", "keys authority a"])
def test_commands_for_hosts_say_where_they_work(command: str, fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need sockets and locks that Windows has not."""
    monkeypatch.setattr(sys, "platform", "win32")
    done = fedkin(command)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"fedkin: fedkin {command.split()[0]} needs Linux or macOS; on Windows use it in WSL (Windows Subsystem for "
        "Linux)\n"
    )


@pytest.mark.parametrize(
    ("word", "there"),
    [
        (r"runs\first", r"runs\first"),
        (r"C:\Users\Anna Berg\runs", r'"C:\Users\Anna Berg\runs"'),
        ("fedprox@mu=0.1", "fedprox@mu=0.1"),
        ("a&b", '"a&b"'),
        ("", '""'),
    ],
)
def test_commands_are_quoted_as_its_shells_read_them(word: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In double quotes; single ones are part of a word in its command prompt."""
    monkeypatch.setattr(errors.sys, "platform", "win32")
    assert errors.typed(word) == there
    assert errors.command_line(["fedkin", "runs", word]) == f"fedkin runs {there}"


def test_modes_of_files_mean_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private file is not called open to others, and folders, which cannot be opened, are not synced."""
    opened = os.open

    def files_only(path: Path, *more: int) -> int:
        assert not path.is_dir()
        return opened(path, *more)

    tmp_path.chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setattr(files, "_OTHERS", 0)
        patch.setattr(os, "open", files_only)
        patch.delattr(os, "fchmod")
        assert files.make_private(tmp_path) is False
        files.write_atomic(tmp_path / "a", b"1", private=True, sync=True)
        files.sync_to_disk(tmp_path / "a")
        (tmp_path / "a").chmod(0o666)
        assert files.open_to_others(tmp_path / "a") is None
    assert files.make_private(tmp_path) is True  # here they do
    assert files.open_to_others(tmp_path / "a") is not None
