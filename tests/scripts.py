"""Python scripts and ``fedkin`` commands of the documentation, run in this process.

A process of its own for each would load torch again, which takes longer than most of the scripts.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedkin.cli import main


@contextlib.contextmanager
def working_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Change to a folder and import from it, as ``python script.py`` does there; forget its modules afterwards."""
    before = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def run_script(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a script from a file of the folder and return what it prints."""
    script, printed = folder / "script.py", io.StringIO()
    script.write_text(text, encoding="utf-8")
    with working_in(folder, monkeypatch), contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees warnings; they are no errors as in the tests
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def run_command(args: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run ``fedkin ARGS`` in the folder and return the exit code."""
    with working_in(folder, monkeypatch):
        return main(list(args))
