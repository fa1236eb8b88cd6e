"""The README's examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.methods import METHODS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["own data", "own method"])
def test_examples_run(text: str, tmp_path: Path) -> None:
    """Each example, saved as a script and run as it is, prints accuracies."""
    script = tmp_path / "example.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=120)

    assert done.returncode == 0, done.stderr
    printed = [float(v) for v in done.stdout.split()]
    assert printed
    assert all(0 < v <= 1 for v in printed)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_listed(name: str) -> None:
    """The README's table names every method of the catalogue."""
    assert f"`{name}`" in README
