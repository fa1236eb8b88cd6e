"""Lines that are missing, there twice, out of order or changed are noticed by reports and on resuming."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli import BAD_INPUT
from fedkin.experiment.run import resume, run_settings
from folders import LINES, assert_same_run, content
from folders import small as settings_of

Harm = Callable[[list[bytes]], list[bytes]]
HARMS: dict[str, Harm] = {
    "a line less": lambda lines: [*lines[:1], *lines[2:]],
    "the last line less": lambda lines: lines[:-1],
    "a line twice": lambda lines: [*lines[:2], *lines[1:]],
    "two lines the other way round": lambda lines: [lines[1], lines[0], *lines[2:]],
    "another number": lambda lines: [lines[0].replace(b":1,", b":2,", 1), *lines[1:]],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with lines in all files."""
    folder = tmp_path_factory.mktemp("made") / "a"
    run_settings(settings_of("da-pfl"), out=folder)
    return folder


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", LINES)
def test_changed_lines_are_refused(name: str, harm: str, made: Path, tmp_path: Path, fedkin: Command) -> None:
    """Report and resume end with code 2 and name the file; nothing in the folder changes."""
    shutil.copytree(made, tmp_path / "b")
    path = tmp_path / "b" / f"{name}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert HARMS[harm](lines) != lines
    path.write_bytes(b"".join(HARMS[harm](lines)))
    before = content(tmp_path / "b")
    for command in ("report b", "resume b --quiet"):
        done = fedkin(command)
        assert (done.code, done.out) == (BAD_INPUT, ""), command
        assert f"b/{name}.jsonl" in done.err
        assert content(tmp_path / "b") == before


@pytest.mark.parametrize("more", [b"\n", b"no line at all\n", b'{"round": ', None])
@pytest.mark.parametrize("name", [*LINES, "timing"])
def test_what_stands_behind_the_commit_is_cut_off(name: str, more: bytes | None, made: Path, tmp_path: Path) -> None:
    """Whole lines of a round that a kill interrupted, half lines, an empty line as an editor leaves it."""
    shutil.copytree(made, tmp_path / "b")
    path = tmp_path / "b" / f"{name}.jsonl"
    with path.open("ab") as file:
        file.write(path.read_bytes() if more is None else more)
    resume(tmp_path / "b")
    assert_same_run(tmp_path / "b", made)
