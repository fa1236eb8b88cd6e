"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedkin.methods import METHODS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["own data", "own method"])
def test_examples_run(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example runs and prints accuracies."""
    exec(compile(text, "README.md", "exec"), {"__name__": "readme"})

    printed = [float(v) for v in capsys.readouterr().out.split()]
    assert printed
    assert all(0 < v <= 1 for v in printed)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_listed(name: str) -> None:
    """The README's table names every method of the catalogue."""
    assert f"`{name}`" in README
