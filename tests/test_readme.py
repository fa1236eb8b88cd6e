"""The README's examples run as they stand."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.cli import main
from fedkin.methods import METHODS
from scripts import run_script

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def accuracies(printed: str) -> list[float]:
    found = [float(v) for v in printed.split()]
    assert found
    assert all(0 < v <= 1 for v in found)
    return found


def test_the_first_example_runs_as_a_program(tmp_path: Path) -> None:
    """Saved as a script and run as it is, it prints accuracies."""
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[0], encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert accuracies(done.stdout)


@pytest.mark.parametrize("text", EXAMPLES[1:], ids=["own method"])
def test_examples_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others in this process, which has torch already, print accuracies as well."""
    assert accuracies(run_script(text, tmp_path, monkeypatch))


def test_from_files_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of that section, one after another, on small files; the last gives every row a class."""
    section = README.split("## From your files to a model")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert [args[0] for args in commands] == ["inspect", "compare", "export", "predict"]
    monkeypatch.chdir(tmp_path)
    Path("hospitals").mkdir()
    rows = [f"{30 + i % 50},{i % 9 * 30},{('normal', '')[i % 2]},{i % 3}" for i in range(60)]
    for n, name in enumerate(("cleveland", "hungarian", "va")):
        Path(f"hospitals/{name}.csv").write_text("\n".join(["age,chol,thal,num", *rows[n:]]) + "\n")
    Path("patients.csv").write_text("age,chol,thal\n54,210,normal\n61,,\n")
    for args in commands:
        more = {"compare": ["--rounds", "2", "--engine", "loop"], "predict": ["--out", "found.csv"]}.get(args[0], [])
        assert main([*args, *more]) == 0
    with Path("found.csv").open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert len(labels) == 2
    assert set(labels) <= {"num <= 0", "num > 0"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_listed(name: str) -> None:
    """The README's table names every method of the catalogue."""
    assert f"`{name}`" in README
