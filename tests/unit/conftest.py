"""The command line, called in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandline import Command, Done
from fedkin.cli import main, screen


@pytest.fixture
def fedkin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs ``fedkin ARGS`` in an empty folder; words of one text are arguments of their own."""
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


@pytest.fixture
def small() -> str:
    """Flags of a run that takes a fraction of a second."""
    return "--clients 4 --samples-per-client 24 --model linear --steps 2 --batch-size 5 --rounds 2 --engine loop"
