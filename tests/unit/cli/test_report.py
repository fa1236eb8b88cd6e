"""``fedkin report``: pages written again, figures and tables as files."""

from __future__ import annotations

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from commandline import Command
from fedkin.core.settings import Settings
from fedkin.experiment.compare import Comparison, compare
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings
from fedkin.record.result import Result
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from folders import without_end


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison, run once."""
    folder = tmp_path_factory.mktemp("report") / "c"
    data, run = DataSettings(data="digits", clients=4), RunSettings(rounds=6)
    runs = compare(
        Comparison(
            ("ifca",),
            base=Settings().but(data=data, model=ModelSettings(model="linear"), run=run, compute=Compute("loop")),
        ),
        out=folder,
    )
    write_page(folder, content_of(runs))
    return folder


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Path:
    """A copy of it to write into."""
    return Path(shutil.copytree(compared, tmp_path / "c"))


def test_the_page_of_a_comparison_is_written_again(fedkin: Command, copy: Path, tmp_path: Path) -> None:
    """The same verdict as the first time; every figure is an SVG, every table a CSV with a row for each client."""
    before = (copy / "report.html").read_text(encoding="utf-8")
    (copy / "report.html").unlink()
    done = fedkin(f"report {copy} --figures {tmp_path / 'f'}")
    assert (done.code, done.err) == (0, "")
    after = (copy / "report.html").read_text(encoding="utf-8")
    assert after.split("</h1>")[0].split("<h1>")[1] == before.split("</h1>")[0].split("<h1>")[1]
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert {
        "accuracy-over-rounds.svg",
        "gains.svg",
        "clusters-ifca.svg",
        "comparison.csv",
        "clients-local.csv",
    } <= names
    facts = {"Traffic until it beats training alone", "is highest with", "Final accuracy: up to"}
    for path in (tmp_path / "f").glob("*.svg"):
        assert ET.fromstring(path.read_text(encoding="utf-8")).tag.endswith("svg")
        assert not [fact for fact in facts if fact in path.read_text(encoding="utf-8")]  # headlines are for the page
        for columns, inches in (("one-column", 3.3), ("two-columns", 6.9)):
            page = path.with_name(f"{path.stem}-{columns}.pdf").read_bytes()
            assert page.startswith(b"%PDF")
            (box,) = re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) [\d.]+\]", page)
            assert float(box) == pytest.approx(72 * inches, abs=0.5)
    with (tmp_path / "f" / "clients-ifca.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["0", "1", "2", "3"]
    assert all(int(row["training samples"]) > 0 for row in rows)


def test_figures_of_the_best_round(fedkin: Command, copy: Path) -> None:
    """Tables and page say so, and hold the accuracies of the round that the summaries call the best."""
    assert fedkin(f"report {copy} --round best").code == 0
    assert "mean over clients in each run's best round on validation data" in (copy / "table.md").read_text()
    assert "All figures are of the round that is best on validation data." in (copy / "report.html").read_text()
    with (copy / "table.csv").open(newline="") as file:
        found = {row["method"]: float(row["accuracy_mean"]) for row in csv.DictReader(file)}
    summaries = [json.loads(path.read_text()) for path in copy.glob("*/summary.json")]
    assert found == {s["title"]: s["best"]["accuracy"] for s in summaries}
    assert any(s["best"]["accuracy"] != s["final"]["accuracy"] for s in summaries)
    run, base = (replace(Result.finished_in(copy / name), at_best=True) for name in ("ifca-seed0", "local-seed0"))
    report = content_of([run], base=base)
    gain = report.findings["Local"]["IFCA"].difference.mean  # over the best round of its Local
    assert gain == pytest.approx(found["IFCA"] - found["Local"])


@pytest.mark.thorough
def test_a_run_shows_its_best_round(fedkin: Command, small: str) -> None:
    """In the first column of its table."""
    done = fedkin(f"run fedavg {small} --validation 0.3 --round best --out b")
    best = json.loads(Path("b/summary.json").read_text())["best"]["round"]
    assert done.code == 0
    assert re.findall(r"round \d", done.out)[0] == f"round {best}"


def test_a_run_of_a_comparison_finds_its_local(fedkin: Command, copy: Path) -> None:
    """The page of one of its runs is against the Local beside it."""
    done = fedkin(f"report {copy / 'ifca-seed0'}")
    assert (done.code, done.err) == (0, "")
    assert "One run, compared with training alone" in (copy / "ifca-seed0" / "report.html").read_text(encoding="utf-8")


def test_what_is_no_run_is_refused(fedkin: Command, copy: Path, tmp_path: Path) -> None:
    """An empty folder, one that holds runs, a comparison without a finished run: each says what to do."""
    (tmp_path / "c" / "empty").mkdir()
    assert "is not a run folder" in fedkin(f"report {tmp_path / 'c' / 'empty'}").err
    said = f"{tmp_path} holds 1 run and is none itself; name one of them, such as {copy}, or list them: fedkin runs "
    assert said + str(tmp_path) in fedkin(f"report {tmp_path}").err
    assert f"there is no folder {tmp_path / 'd'}; there are c" in fedkin(f"report {tmp_path / 'd'}").err
    for path in copy.glob("*/summary.json"):
        without_end(path.parent)
    done = fedkin(f"report {copy}")
    assert done.code == 2
    assert f"fedkin resume {copy}" in done.err


def test_the_page_of_a_run_of_a_comparison_has_its_local(
    fedkin: Command, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder is named by a dot, and when the run is resumed."""
    page = copy / "ifca-seed0" / "report.html"
    assert fedkin(f"resume {copy / 'ifca-seed0'} --quiet").code == 0
    assert "There is no run to compare with" not in page.read_text(encoding="utf-8")
    page.unlink()
    monkeypatch.chdir(copy / "ifca-seed0")
    assert fedkin("report .").code == 0
    assert "There is no run to compare with" not in page.read_text(encoding="utf-8")


def test_commands_are_quoted(fedkin: Command, small: str) -> None:
    """They can be pasted into a shell where a folder has a space in its name."""
    folder = Path("my runs/a")
    assert fedkin(f"run fedavg {small} --quiet --out", folder).code == 0
    assert json.loads((folder / "summary.json").read_text())["command"] == "fedkin run 'my runs/a/config.toml'"
    assert fedkin(f"run fedavg {small} --out", folder).err.endswith("go on with it: fedkin resume 'my runs/a'\n")
    assert fedkin(f"compare fedavg {small} --quiet --out", "my runs/c").code == 0
    assert "made by: fedkin compare 'my runs/c/compare.toml'" in Path("my runs/c/table.tex").read_text()


def test_a_sweep_has_no_report(fedkin: Command, small: str) -> None:
    """Resuming it would not make one."""
    assert fedkin(f"sweep fedavg {small} --validation 0.3 --grid training.lr=0.01,0.5 --quiet --out s").code == 0
    done = fedkin("report s")
    assert (done.code, "resume" in done.err) == (2, False)
    assert "s is a sweep, whose settings and figures are in sweep.csv" in done.err


def test_figures_need_a_folder(fedkin: Command, copy: Path) -> None:
    """A file in its place is refused before anything is written."""
    Path("f").write_text("")
    (copy / "report.html").unlink()
    done = fedkin(f"report {copy} --figures f")
    assert (done.code, done.out) == (2, "")
    assert "f exists already and is a file; --figures names a folder" in done.err
    assert not (copy / "report.html").exists()
