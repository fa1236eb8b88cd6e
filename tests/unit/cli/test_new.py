"""`fedkin new method`: files that work as they are, and nothing is ever overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commandline import Command
from fedkin.methods import FedProx

SECTIONS = ["Idea", "Equations and code", "What leaves a client", "Settings", "Deviations", "Known problems",
            "When to use", "Try it"]  # fmt: skip
ROOT = Path(__file__).parents[3]


def test_the_files_work_as_they_are(fedkin: Command, small: str) -> None:
    """The method keeps the contract and trains, its test passes, its page has the sections of all pages."""
    done = fedkin("new method xy-fedavg")
    assert done.code == 0
    assert done.out.splitlines()[:3] == ["xy_fedavg.py", "test_xy_fedavg.py", "xy-fedavg.md"]
    assert "fedkin check xy_fedavg.py:XYFedAvg" in done.out
    assert fedkin("check ./xy_fedavg.py:XYFedAvg --quiet --rules declared runs").code == 0
    assert fedkin(f"run ./xy_fedavg.py:XYFedAvg {small} --mu 0.1 --quiet --out run").code == 0
    path = os.pathsep.join([str(Path.cwd()), str(ROOT / "src")])
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_xy_fedavg.py", "-k", "hand"]
    told = subprocess.run(tests, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert "1 passed" in told.stdout, told.stdout
    page = Path("xy-fedavg.md").read_text()
    assert page.startswith("# XY-FedAvg\n")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    method = Path("xy_fedavg.py").read_text()
    quoted = [row.split("|")[3].strip().strip("`") for row in page.splitlines() if row.startswith("| ") and "`w" in row]
    assert quoted
    assert all(line in method for line in quoted)


def test_in_a_checkout_they_lie_where_all_methods_do(fedkin: Command) -> None:
    """And the line of the registry is shown."""
    Path("src/fedkin/methods").mkdir(parents=True)
    done = fedkin("new method qpfl --title QPFL")
    assert Path("src/fedkin/methods/qpfl.py").is_file()
    assert "from fedkin.methods.qpfl import QPFL" in Path("tests/golden/test_qpfl.py").read_text()
    assert "fedkin run qpfl " in Path("docs/methods/qpfl.md").read_text()
    assert '"qpfl": QPFL,' in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("new method LG", "NAME must be lower-case words"),
        ("new method fedavg", "the method fedavg exists already"),
        ("new method class", "the file would be called class, a word of Python itself; choose another NAME"),
        ("new method none", "the class would be called None, a word of Python itself; choose another NAME or --title"),
        ("new method x --title True", "the class would be called True, a word of Python itself"),
        ("new method round", "the class would be called Round, as a class of fedkin.core that methods use; choose"),
        ("new method random", "the file random.py would hide the module random from programs that run next to it"),
        ("new method torch", "the file torch.py would hide the module torch from programs that run next to it"),
        ('new method x --title a"b', "--title is written into a program: no quotation mark, no backslash; got 'a\"b'"),
        ("new method x --title a\\b", "--title is written into a program"),
        ("new method x --folder mine.py", "--folder names a folder, and mine.py is a file; name another"),
        ("new method mine", "mine.py exists already, and nothing is overwritten"),
    ],
)
def test_names_that_are_refused(words: str, said: str, fedkin: Command) -> None:
    """Before anything is written."""
    Path("mine.py").write_text("precious")
    done = fedkin(words)
    assert (done.code, said in done.err) == (2, True)
    assert os.listdir() == ["mine.py"]
    assert Path("mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["FedProx", "fedprox", "Fed_Prox", "FEDPROX"])
def test_methods_go_by_their_papers_names(name: str, fedkin: Command, small: str) -> None:
    """On the command line and in configs, which keep the catalogue's name."""
    assert fedkin(f"run {name} {small} --mu 0.3 --quiet --out run").code == 0
    assert 'name = "fedprox"' in Path("run/config.toml").read_text()
    Path("other.toml").write_text(f'[method]\nname = "{name}"\nmu = 0.3\n')
    from fedkin.cli.flags import run_flags

    settings, _ = run_flags(["other.toml"])
    assert (settings.name, settings.method) == ("fedprox", FedProx(mu=0.3))
