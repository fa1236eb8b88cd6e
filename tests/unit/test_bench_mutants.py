"""The runner of mutants: what it calls killed, survived, broken; and the lists in the repository apply."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from refusals import refuses

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_mutants", ROOT / "bench" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_mutants", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package of two functions, of which the tests see one."""
    (tmp_path / "src" / "toy").mkdir(parents=True)
    (tmp_path / "src" / "toy" / "__init__.py").write_text(
        "def half(x):\n    return x / 2\n\n\ndef third(x):\n    return x / 3\n"
    )
    (tmp_path / "test_toy.py").write_text("from toy import half\n\ndef test_half():\n    assert half(8) == 4\n")
    (tmp_path / "test_wrong.py").write_text("def test_nothing():\n    assert False\n")
    (tmp_path / "bench" / "mutants").mkdir(parents=True)
    return tmp_path


def listed(project: Path, *entries: tuple[str, str] | tuple[str, str, str]) -> None:
    made = [
        {"file": "src/toy/__init__.py", "old": old, "new": new, "tests": (*tests, "test_toy.py")[0]}
        for old, new, *tests in entries
    ]
    (project / "bench" / "mutants" / "toy.json").write_text(json.dumps(made))


def outcome(project: Path, *args: str) -> tuple[int, list[str]]:
    """The runner as a program of its own, on another project: exit status and lines."""
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import mutants; from pathlib import Path; "
    script += f"sys.exit(mutants.main({list(args)!r}, Path({str(project)!r})))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout.splitlines()


@pytest.mark.thorough
def test_what_becomes_of_mutants(project: Path) -> None:
    """x / 2 -> x / 4 is killed by the test that is named; x / 3 -> x / 9 is not seen; a text that is missing or stands
    twice does not apply; one that breaks the import or whose tests fail anyway is no proof. The source stays."""
    before = (project / "src" / "toy" / "__init__.py").read_text()
    listed(
        project,
        ("x / 2", "x / 4"),
        ("x / 3", "x / 9"),
        ("x / 5", "x / 6"),
        ("return x", "return 0"),
        ("def half(x):", "def half(x)"),
        ("x / 2", "x / 4", "test_wrong.py"),
    )
    status, lines = outcome(project)
    assert status == 1
    assert [line.partition(": ")[0] for line in lines[:4]] == ["killed", "survived", "does not apply", "does not apply"]
    assert "(test_toy.py::test_half)" in lines[0]
    assert "occurs 0 times" in lines[2]
    assert "occurs 2 times" in lines[3]
    assert any(line.startswith("broken: toy") for line in lines)
    assert any(line.startswith("tests fail without it: toy") for line in lines)
    assert lines[-1] == "1 killed, 1 survived, 1 broken, 2 does not apply, 1 tests fail without it"
    assert (project / "src" / "toy" / "__init__.py").read_text() == before


def test_a_part_is_every_nth(mutants: ModuleType) -> None:
    """Seven mutants in three parts: 1, 4, 7; 2, 5; 3, 6. --only takes a list or the end of a path."""
    all_ = [mutants.Mutant("a", f"src/{n}.py", "x", "y", ("t",)) for n in "abcdefg"]
    assert ["".join(m.file[4] for m in mutants.chosen(all_, None, f"{i}/3")) for i in (1, 2, 3)] == ["adg", "be", "cf"]
    assert [m.file for m in mutants.chosen(all_, "c.py", "1/1")] == ["src/c.py"]
    assert len(mutants.chosen(all_, "a", "1/1")) == 7
    assert mutants.chosen(all_, "nothing", "1/1") == []
    with refuses(ValueError, "4/3"):
        mutants.chosen(all_, None, "4/3")


def test_every_mutant_applies(mutants: ModuleType) -> None:
    """Each text of the repository's lists occurs exactly once in its file and its tests are there: a line that changes
    takes its mutants with it."""
    found = mutants.read(ROOT)
    assert len([m for m in found if m.group == "baselines"]) >= 24
    for mutant in found:
        assert mutant.text(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8")
