"""The command line, called in this process."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commandline import Command, Done, Kept
from fedkin.cli import main, screen
from fedkin.report import charts

PNG = charts.png


@pytest.fixture
def drawn(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test the command line draws overview.png."""
    monkeypatch.setattr(charts, "png", PNG)


@pytest.fixture
def fedkin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], undrawn: None
) -> Iterator[Command]:
    """Runs ``fedkin ARGS`` in an empty folder; words of one text are arguments of their own. No picture is drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for console in (screen.out, screen.err):  # they may have been made under another width, which they keep
        monkeypatch.setattr(console, "width", 200)
    handler = signal.getsignal(signal.SIGTERM)

    def run(text: str, *more: str | Path) -> Done:
        capsys.readouterr()
        try:
            code = main([*text.split(), *map(str, more)])
        except SystemExit as end:  # the flags' reader ends the process by itself
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Makes a folder once for all tests of a file that ask for one of this kind; each test has a copy of it."""
    store = tmp_path_factory.mktemp("kept")

    def copied(kind: str, folder: str, make: Callable[[], object]) -> Path:
        if not (store / kind).exists():
            make()
            shutil.copytree(folder, store / kind)
        else:
            shutil.copytree(store / kind, folder)
        return Path(folder)

    return copied


@pytest.fixture
def small() -> str:
    """Flags of a run that takes a fraction of a second."""
    return "--clients 4 --samples-per-client 24 --model linear --steps 2 --batch-size 5 --rounds 2 --engine loop"
