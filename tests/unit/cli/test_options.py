"""Help of commands that have their flags in one class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro
from tyro.conf import Positional

from commandline import Command
from fedkin.cli.options import options, options_help


@dataclass(frozen=True)
class Toy:
    """Do something with
    a folder."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a run."""
    name: str
    """Name of a client."""
    into: Path | None = None
    """Where to."""
    rounds: int = 1
    """Rounds, of which there are enough words here that the text does not fit on the first of its lines."""
    form: Annotated[Literal["svg", "png"], tyro.conf.arg(name="format")] = "svg"
    """Format."""
    hosts: tuple[str, ...] = ()
    """Hosts."""
    gate: bool = True
    """Without the gate."""
    quiet: bool = False
    """Print nothing."""


HELP = """\
usage: fedkin toy RUN --name TEXT [flags]

Do something with a folder.

RUN                 Folder of a run.

--name TEXT         Name of a client.
--into PATH         Where to.
--rounds N          Rounds, of which there are enough words here that the text
                    does not fit on the first of its lines. [1]
--format {svg,png}  Format. [svg]
--hosts TEXT ...    Hosts.
--no-gate           Without the gate.
--quiet             Print nothing."""


def test_a_line_for_each_file_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Files first; what stands for a value is that of its type; switches as they are given; defaults of the others."""
    assert options_help(Toy, "fedkin toy") == HELP
    with pytest.raises(SystemExit) as end:
        options(Toy, ["x", "-h"], "fedkin toy")
    assert end.value.code == 0
    assert capsys.readouterr().out == HELP + "\n"


def test_the_words_are_read_as_the_help_says() -> None:
    words = [
        "runs",
        "--name",
        "c1",
        "--into",
        "x",
        "--format",
        "png",
        "--hosts",
        "a",
        "b",
        "--no-gate",
        "--rounds",
        "3",
    ]
    asked = options(Toy, words, "fedkin toy")
    assert asked == Toy(Path("runs"), "c1", Path("x"), 3, "png", ("a", "b"), gate=False)


COMMANDS = ["resume", "runs", "report", "export", "predict", "join", "link", "node", "submit", "status"]


@pytest.mark.parametrize("command", [*COMMANDS, "keys authority", "keys node", "inspect"])
def test_help_fits_80_columns(command: str, fedkin: Command) -> None:
    """On any terminal, without boxes; with a usage line and what the command does."""
    done = fedkin(f"{command} --help")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].startswith(f"usage: fedkin {command}")
    assert max(map(len, lines)) <= 80
    assert lines[2].endswith((".", " ", *"abcdefghijklmnopqrstuvwxyz,:"))
    assert not {*done.out} & set("│╭╰─")
