"""`LineFiles`: lines are appended, marked, and cut back to their marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.core import RunFolderError
from fedkin.record.files import LineFiles, Lines
from fedkin.record.lines import Commit, RoundLine, Snapshot, TimingLine
from madeup import client_line


def appended(files: LineFiles, round: int) -> None:
    """Add the lines of a round of two clients."""
    clients = [client_line(round, i, 0.5) for i in (0, 1)]
    files.append({"rounds": [RoundLine(round)], "clients": clients, "timing": [TimingLine(round, 1.0)]})


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    """What covers two rounds, whose lines are there."""
    files = LineFiles(tmp_path)
    for t in (1, 2):
        appended(files, t)
    return Commit(Snapshot(2, "0" * 40), files=files.marks())


def test_what_no_commit_covers_is_removed(commit: Commit, tmp_path: Path) -> None:
    """Lines of a later round, half a line, files that are not whole; then lines are added as if nothing had been."""
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files = LineFiles(tmp_path)
    files.cut(commit)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    appended(files, 3)
    with (tmp_path / "clients.jsonl").open("a") as file:
        file.write('{"round": 4, "cli')
    (tmp_path / ".commit.json.77.new").write_bytes(b"half")
    again = LineFiles(tmp_path)
    again.cut(commit)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert again.marks() == commit.files
    appended(again, 3)
    assert [
        line.round for line in Lines(tmp_path, RoundLine, Commit(Snapshot(3, "0" * 40), files=again.marks()), 2)
    ] == [1, 2, 3]


@pytest.mark.parametrize("raw", [b"", b'{"round":1}\n', b'{"round":1}\n{"round":3}\n'])
def test_rounds_that_are_lost_or_changed_are_named(raw: bytes, commit: Commit, tmp_path: Path) -> None:
    """Nothing is removed."""
    (tmp_path / "rounds.jsonl").write_bytes(raw)
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl"):
        LineFiles(tmp_path).cut(commit)
    assert (tmp_path / "rounds.jsonl").read_bytes() == raw
