"""The progress bar: in a terminal, in a notebook, and nowhere else."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import fedkin
from fedkin.experiment.progress import bar
from madeup import round_line

LINES = [
    round_line(1, accuracy=0.25),
    round_line(2, evaluated=False, refused={3: "not-finite"}),
]


class Terminal(io.StringIO):
    """A text that is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(console: Console, *, quiet: bool = False) -> None:
    with bar(2, "FedAvg", quiet=quiet, console=console) as shown:
        for line in LINES:
            shown.at(line)


def test_a_terminal_shows_the_round_and_the_last_accuracy() -> None:
    """Rounds without an evaluation keep it; nothing with ``quiet``."""
    text = Terminal()
    drawn(Console(file=text, force_terminal=True, color_system=None, width=100))
    assert all(part in text.getvalue() for part in ("FedAvg", "2/2", "accuracy 25.0 %", "1 upload refused"))
    drawn(Console(file=(quiet := Terminal()), force_terminal=True), quiet=True)
    assert quiet.getvalue() == ""


def test_a_file_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where colours are forced; so do programs whose output is no terminal."""
    drawn(Console(file=(text := io.StringIO()), force_terminal=True))
    assert text.getvalue() == ""
    federation = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(0.5), clients=3)
    fedkin.run("fedavg", federation, "linear", rounds=1)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_one_picture_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last one has all rounds. IPython, which every notebook has, is a stand-in here."""
    pictures: list[Any] = []

    def display(first: Any, display_id: bool) -> Any:
        assert display_id
        return SimpleNamespace(update=pictures.append)

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    drawn(Console(file=io.StringIO(), force_jupyter=True))
    last = pictures[-1]._repr_mimebundle_([], [])
    assert "2/2" in last["text/plain"]
    assert "accuracy 25.0 %" in last["text/html"]
