"""Files are read on as they grow, and each line once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkin.live.growing import GrowingFile


class Reader:
    """What a reader of a growing file was given since its last look, and how often it was to forget all."""

    def __init__(self, path: Path) -> None:
        self.file, self.forgotten, self._lines = GrowingFile(path), 0, list[Any]()

    def look(self) -> list[Any]:
        """The numbers of the new lines."""
        self._lines = []
        self.file.catch_up(lambda line: self._lines.append(line["round"]), self._forget)
        return self._lines

    def _forget(self) -> None:
        self.forgotten += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "rounds.jsonl"


def lines(*numbers: int) -> bytes:
    return b"".join(json.dumps({"round": n, "accuracy": 0.25}).encode() + b"\n" for n in numbers)


def test_only_new_lines_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file has none; later looks parse what was appended and nothing else."""
    reader = Reader(path)
    assert reader.look() == []
    path.write_bytes(lines(1, 2))
    assert reader.look() == [1, 2]
    parsed, loads = list[Any](), json.loads
    monkeypatch.setattr(json, "loads", lambda text: (parsed.append(text), loads(text))[1])
    assert reader.look() == []
    with path.open("ab") as file:
        file.write(lines(3))
    assert reader.look() == [3]
    assert parsed == [lines(3)]
    assert reader.forgotten == 0


def test_a_line_waits_for_its_end(path: Path) -> None:
    """A half-written line counts when it is complete, and only once."""
    whole = lines(1, 2)
    path.write_bytes(whole[:-9])
    reader = Reader(path)
    assert reader.look() == [1]
    assert reader.look() == []
    path.write_bytes(whole)
    assert reader.look() == [2]
    assert reader.file.damaged == reader.forgotten == 0


@pytest.mark.parametrize("after", [(1, 2), (1, 2, 7, 8), (), None], ids=["shorter", "longer", "empty", "gone"])
def test_a_file_that_was_cut_back_is_read_again(path: Path, after: tuple[int, ...] | None) -> None:
    """Also where it has grown beyond the former end in the meantime: what was read no longer stands in it."""
    path.write_bytes(lines(1, 2, 3))
    reader = Reader(path)
    reader.look()
    if after is None:
        path.unlink()
    else:
        path.write_bytes(lines(*after))
    assert reader.look() == list(after or ())
    assert reader.forgotten == 1
    assert reader.look() == []
    assert reader.forgotten == 1


def test_damaged_lines_are_skipped_and_counted(path: Path) -> None:
    """No JSON, no object, no round: the lines around them are read."""
    path.write_bytes(lines(1) + b"{oops\n[1]\n{}\n\xff\n" + lines(2))
    reader = Reader(path)
    assert reader.look() == [1, 2]
    assert reader.file.damaged == 4
