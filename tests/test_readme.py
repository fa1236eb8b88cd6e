"""The README's examples run as they stand."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedkin.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_runs_as_a_program(tmp_path: Path) -> None:
    """Saved as a script and run as it is, it prints a table and writes its files; it has at most twelve lines."""
    script = tmp_path / "example.py"
    script.write_text(EXAMPLE, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [title for title in ("Local", "FedAvg", "FedRep", "Ditto", "FedAvg + FT") if title not in done.stdout] == []
    with (tmp_path / "accuracies.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 6 * 3
    assert (tmp_path / "accuracies.svg").stat().st_size > 1000
    assert "FedRep" in (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 12


def test_from_files_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of that section, one after another, in the repository; the last gives every row a class."""
    section = README.split("## From your files to a model")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in lines if not line.startswith("#")]
    assert [args[0] for args in commands] == ["inspect", "compare", "export", "predict"]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs" / "examples", "docs/examples")
    for args in commands:
        more = {"compare": ["--rounds", "2", "--engine", "loop"], "predict": ["--out", "found.csv"]}.get(args[0], [])
        assert main([*args, *more]) == 0
    with Path("found.csv").open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert len(labels) == 2
    assert set(labels) <= {"no", "yes"}


def test_its_links_lead_somewhere() -> None:
    """Files and pictures that the README links to exist."""
    links = re.findall(r'(?:\]\(|src=")([^)#"]+)', README)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_figures_are_those_of_the_results() -> None:
    """Accuracies that the README quotes stand in the tables of the results."""
    section = README.split("## Results")[1].split("\n## ")[0]
    with (ROOT / "reproduce" / "catalogue" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["federation"], row["method"]): row["accuracy %"].partition(" ")[0] for row in csv.DictReader(file)}
    for federation, method, quoted in (
        ("digits", "Local", "Local {} %"),
        ("digits", "FedAvg", "FedAvg {} %"),
        ("digits", "FedAvg + FT", "fine-tuned {} %"),
        ("fashion", "Local", "Local has {} %"),
        ("fashion", "FedAvg", "FedAvg {} %"),
    ):
        assert quoted.format(rows[federation, method]) in section
    assert max(float(v) for (f, _), v in rows.items() if f == "fashion" and v[0].isdigit()) == float(
        rows["fashion", "Local"]
    )
    heart = (ROOT / "docs" / "results" / "flamby-heart.md").read_text(encoding="utf-8")
    ours, theirs = (re.search(rf"\| FedAvg, {who} \|.*\| (\.\d+) ±", heart) for who in ("fedkin", "FLamby"))
    assert ours is not None
    assert theirs is not None
    assert f"({ours[1]} and {theirs[1]})" in section
    papers = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
    counts = [
        [int(n) for n in row]
        for row in re.findall(
            r"\| \[[^]]+\]\((?:dapfl|cfic|cam|pfedcs)\.md\) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|", papers
        )
    ]
    assert len(counts) == 4
    holds, fails, undecided = (sum(column) for column in zip(*counts, strict=True))
    assert f"Of [{holds + fails + undecided} measured claims of four papers]" in section
    assert f"{holds} hold, {fails} do not, and {undecided} are undecided." in section
