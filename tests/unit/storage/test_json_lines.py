"""Lines that are missing, there twice, out of order or not JSON are noticed by reports, by exports and on resuming."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import Command
from fedkin.cli.exit_codes import BAD_INPUT
from fedkin.core import RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.storage.json_lines import KEYS, Lines
from fedkin.storage.tensors import pack, unpack
from folders import assert_same_run, content
from folders import small as settings_of

Harm = Callable[[list[bytes]], list[bytes]]
HARMS: dict[str, Harm] = {
    "a line less": lambda lines: [*lines[:1], *lines[2:]],
    "the last line less": lambda lines: lines[:-1],
    "a line twice": lambda lines: [*lines[:2], *lines[1:]],
    "a line more": lambda lines: [*lines, _next_round(lines[-1])],
    "two lines the other way round": lambda lines: [lines[1], lines[0], *lines[2:]],
}


def _next_round(line: bytes) -> bytes:
    return json.dumps({**json.loads(line), "round": 5}).encode() + b"\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with lines in all files."""
    folder = tmp_path_factory.mktemp("made") / "a"
    run_settings(settings_of("da-pfl"), out=folder)
    return folder


def harmed(made: Path, there: Path, file: str, harm: Harm) -> dict[str, bytes]:
    """A copy of the folder with other lines in a file; what is in it."""
    shutil.copytree(made, there)
    lines = (there / file).read_bytes().splitlines(keepends=True)
    assert len(lines) > 3
    assert harm(lines) != lines
    (there / file).write_bytes(b"".join(harm(lines)))
    return content(there)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("file", KEYS)
def test_missing_and_moved_lines_are_refused(file: str, harm: str, made: Path, tmp_path: Path, fedkin: Command) -> None:
    """Report, export and resume end with code 2 and name the file; nothing in the folder changes.

    Lines of seconds decide no export. They and what has come after the summary may be cut off by resuming.
    """
    before = harmed(made, tmp_path / "b", file, HARMS[harm])
    commands = ["report b --quiet", "resume b --quiet", "export b --client 0 --out model"]
    if harm == "a line more" and file != "timing.jsonl":
        commands = commands[:1]
    if file == "timing.jsonl":
        commands = ["report b --quiet"] if harm in ("the last line less", "a line more") else commands[:2]
    for command in commands:
        done = fedkin(command)
        assert (done.code, done.out) == (BAD_INPUT, ""), command
        assert done.err.startswith(f"fedkin: b/{file}"), command
        assert content(tmp_path / "b") == before


@pytest.mark.parametrize("file", [name for name in KEYS if name != "timing.jsonl"])
def test_lines_beyond_the_checkpoint_are_cut_off(file: str, made: Path, tmp_path: Path) -> None:
    """Lines that no checkpoint covers are those of a round that a kill interrupted: resuming removes them."""
    harmed(made, tmp_path / "b", file, HARMS["a line more"])
    resume(tmp_path / "b")
    assert_same_run(tmp_path / "b", made)


@pytest.mark.parametrize("more", [b"\n", b"no line at all\n", b'{"round": '])
def test_what_is_no_line_beyond_the_checkpoint_is_cut_off(more: bytes, made: Path, tmp_path: Path) -> None:
    """An empty line, as an editor leaves it, or half of one."""
    shutil.copytree(made, tmp_path / "b")
    for file in ("rounds.jsonl", "clients.jsonl"):
        with (tmp_path / "b" / file).open("ab") as f:
            f.write(more)
    resume(tmp_path / "b")
    assert_same_run(tmp_path / "b", made)


@pytest.mark.parametrize("harm", ["a line twice", "two lines the other way round"])
@pytest.mark.parametrize("file", KEYS)
def test_order_and_doubles_are_named_by_their_line(
    file: str, harm: str, made: Path, tmp_path: Path, fedkin: Command
) -> None:
    """Doubled lines and lines out of order are refused with the line's number."""
    shutil.copytree(made, tmp_path / "b")
    lines = (tmp_path / "b" / file).read_bytes().splitlines(keepends=True)
    (tmp_path / "b" / file).write_bytes(b"".join(HARMS[harm](lines)))
    for command in ("report b --quiet", "resume b --quiet"):
        done = fedkin(command)
        assert (done.code, done.out) == (BAD_INPUT, ""), command
        assert f"fedkin: b/{file}: line " in done.err


@pytest.mark.parametrize("size", [None, "", "-1", "many", "1", "10" * 30])
def test_a_checkpoint_without_the_sizes_of_lines_is_refused(
    size: str | None, made: Path, tmp_path: Path, fedkin: Command
) -> None:
    """A run does not go on from lines of which the checkpoint does not say where they end."""
    shutil.copytree(made, tmp_path / "b")
    path = tmp_path / "b" / "checkpoint.safetensors"
    texts, tensors = unpack(path, "")
    del texts["bytes.clients.jsonl"]
    path.write_bytes(pack(tensors, texts | ({} if size is None else {"bytes.clients.jsonl": size})))
    before = content(tmp_path / "b")
    done = fedkin("resume b --quiet")
    assert (done.code, done.out) == (BAD_INPUT, "")
    assert done.err.startswith("fedkin: b/clients.jsonl")
    assert content(tmp_path / "b") == before


@pytest.mark.parametrize(
    "text",
    ["{oops}", "[1]", "3", "null", '{"round": "1"}', '{"round": true}', "{}", "\ufeff{}", '{"round": 1}{', "[" * 9999],
)
def test_what_is_no_line_is_named_by_its_number(text: str, tmp_path: Path) -> None:
    """Whatever stands in the place of a line, the error is one of the folder with file and line."""
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n' + text + '\n{"round": 2}\n', encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: line 2 is damaged"):
        list(Lines(path))


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b'{"round": 2, "a": "\xe9"}', b"\x00" * 64])
def test_bytes_that_are_no_text_are_named_by_their_line(raw: bytes, tmp_path: Path) -> None:
    """A line that is not UTF-8 is damaged; at the very end without its end it is one that a kill cut short."""
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"round": 1}\n' + raw + b"\n")
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: line 2 is damaged"):
        list(Lines(path))
    path.write_bytes(b'{"round": 1}\n' + raw)
    assert list(Lines(path)) == [{"round": 1}]
