"""Methods and networks of people's own, from the file to the report."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from commandline import Command, table
from fedkin.core import ConfigError
from fedkin.experiment.compare import Comparison
from fedkin.experiment.settings import settings_from, sources_of, table_of
from fedkin.methods import get_title
from fedkin.storage.toml import read_toml
from fedkin_hosts.allowed_code import Allowed, settings_of
from fedkin_hosts.submitted import Submitted
from grouped import described
from owncode import CAUTIOUS

METHOD = CAUTIOUS.replace("import fedkin\n", "import fedkin\nfrom helper import half\n").replace("= 0.5", "= half()")
NETWORK = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, classes))
"""


@pytest.fixture
def mine(fedkin: Command, tmp_path: Path) -> str:
    """A method with a helper beside it, in a folder of its own; its name."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(METHOD)
    (tmp_path / "own" / "helper.py").write_text("def half():\n    return 0.5\n")
    return "./own/mine.py:Cautious"


def lines(folder: Path) -> str:
    return (folder / "rounds.jsonl").read_text()


# ---- runs ---------------------------------------------------------------------------------------------------------
def test_run_and_again_from_its_folder(fedkin: Command, mine: str, small: str, tmp_path: Path) -> None:
    """The folder holds the code, and makes the run again wherever it lies, without the original."""
    done = fedkin(f"run {mine}@step=0.25 {small} --out first")
    assert done.code == 0, done.err
    table = read_toml("first/config.toml")["method"]
    assert table["step"] == 0.25
    assert 'name = "./mine.py:Cautious@step=0.25"' in Path("first/config.toml").read_text()
    assert Path("first/mine.py").read_text() == METHOD
    assert Path("first/helper.py").is_file()
    assert not list(tmp_path.rglob("__pycache__"))
    summary = json.loads(Path("first/summary.json").read_text())
    assert (summary["title"], summary["method"]) == ("Cautious (step=0.25)", "./mine.py:Cautious@step=0.25")
    assert "Cautious" in Path("first/report.html").read_text()
    shutil.rmtree("own")
    Path("elsewhere").mkdir()
    shutil.move("first", "elsewhere/moved")
    assert fedkin("run elsewhere/moved/config.toml --out second").code == 0
    assert lines(Path("second")) == lines(Path("elsewhere/moved"))
    assert fedkin("resume elsewhere/moved").code == 0


def test_one_class_with_several_settings(fedkin: Command, mine: str, small: str) -> None:
    """Each has its runs and its row; the folder makes them again without the original."""
    done = fedkin(f"compare {mine} {mine}@step=0.25 {mine}@step=0.25-safe {small} --quiet --out c")
    assert done.code == 0, done.err
    names = [line.split(",")[0] for line in Path("c/table.csv").read_text().splitlines()]
    assert names[-3:] == ["Cautious", "Cautious (step=0.25)", "Cautious (step=0.25)-safe"]
    shutil.rmtree("own")
    assert fedkin("run c/Cautious@step=0.25-seed0/config.toml --quiet --out alone").code == 0
    assert lines(Path("alone")) == lines(Path("c/Cautious@step=0.25-seed0")) != lines(Path("c/Cautious-seed0"))
    shutil.rmtree("c/Cautious@step=0.25-seed0")
    assert fedkin("resume c --quiet").code == 0
    assert lines(Path("alone")) == lines(Path("c/Cautious@step=0.25-seed0"))


def test_the_advice_of_a_run_can_be_typed(fedkin: Command, mine: str, small: str) -> None:
    """The command that it prints names the file by a path from the working folder, also after resuming the copy."""
    said = "Is it worth it? fedkin compare ./own/mine.py:Cautious with the same flags"
    assert said in fedkin(f"run {mine} {small} --out r").out
    assert said.replace("./own/", "./r/") in fedkin("resume r").out


def test_the_step_counts(fedkin: Command, mine: str, small: str) -> None:
    """With a whole step it is FedAvg, to the rounding of a sum."""
    assert fedkin(f"run {mine}@step=1 {small} --out a").code == 0
    assert fedkin(f"run fedavg {small} --out b").code == 0
    a, b = (json.loads(Path(p, "summary.json").read_text())["final"]["accuracy"] for p in "ab")
    assert a == pytest.approx(b, abs=1e-6)


def test_changed_code_is_noticed(fedkin: Command, mine: str, small: str) -> None:
    """A run goes on by the code that it was begun with: the original may change, the copy may not."""
    assert fedkin(f"run {mine} {small} --out r").code == 0
    Path("own/mine.py").write_text(METHOD.replace("Mine.", "Changed."))
    assert fedkin("resume r").code == 0
    Path("r/helper.py").write_text("def half():\n    return 0.75\n")
    done = fedkin("resume r")
    assert done.code == 2
    assert "[method] has changed since this was written" in done.err
    assert fedkin("run r/config.toml --out s").code == 2


def test_a_config_names_a_file_beside_it(fedkin: Command, mine: str, small: str) -> None:
    """A relative name is looked for beside the config first, then in the working folder."""
    Path("own/c.toml").write_text('[method]\nname = "./mine.py:Cautious"\nstep = 0.1\n')
    assert fedkin(f"run own/c.toml {small} --out a").code == 0
    Path("c.toml").write_text('[method]\nname = "own/mine.py:Cautious"\n')
    assert fedkin(f"run c.toml {small} --out b").code == 0
    assert read_toml("a/config.toml")["method"]["step"] == 0.1


def test_by_import_path(fedkin: Command, mine: str, small: str) -> None:
    """A module of the working folder, or an installed one, needs no copy; its text is remembered."""
    Path("module_with_a_method.py").write_text(METHOD.replace("from helper import half", "def half(): return 0.5"))
    assert fedkin(f"run module_with_a_method:Cautious {small} --out r").code == 0
    assert not list(Path("r").glob("*.py"))
    assert fedkin("resume r").code == 0
    Path("module_with_a_method.py").write_text("# other\n" + METHOD)
    assert "has changed since" in fedkin("resume r").err


def test_the_default_folder_has_a_short_name(fedkin: Command, mine: str, small: str) -> None:
    """runs/CLASS-TIME."""
    assert fedkin(f"run {mine} {small}").code == 0
    assert [p.name.partition("-")[0] for p in Path("runs").iterdir()] == ["Cautious"]


def test_compare(fedkin: Command, mine: str, small: str) -> None:
    """Next to the reference rows; --set by the whole name or by the class; the plan makes the comparison again."""
    done = fedkin(f"compare {mine} {small} --out c --set {mine}.step=0.3")
    assert done.code == 0, done.err
    assert "Cautious" in done.out
    assert sorted(p.name for p in Path("c").iterdir() if p.is_dir()) == [
        "Cautious-seed0",
        "fedavg-seed0",
        "local-full-seed0",
        "local-seed0",
    ]
    assert read_toml("c/Cautious-seed0/config.toml")["method"]["step"] == 0.3
    assert fedkin(f"compare {mine} {small} --out d --set Cautious.step=0.3").code == 0
    shutil.rmtree("own")
    assert fedkin("compare c/compare.toml --out e").code == 0
    for other in "de":
        assert lines(Path(other, "Cautious-seed0")) == lines(Path("c/Cautious-seed0"))
    assert fedkin("resume c").code == 0
    Path("c/mine.py").write_text(METHOD + "\n")
    assert "[method.Cautious]" in fedkin("resume c").err


def test_compare_against_ones_own(fedkin: Command, mine: str, small: str) -> None:
    """By its whole name or its class; its folder, table and pages say so, and so they do when they are made again,
    by the copy of its code, with every figure of `fedkin report`."""
    for name in (mine, "Cautious"):
        done = fedkin(f"compare {mine} {small} --out c --baseline {name} --track tensorboard")
        assert done.code == 0, done.err
        assert re.findall(r"^(Local|FedAvg|Cautious): .* Cautious", done.out, re.MULTILINE) == ["Local", "FedAvg"]
        assert list(Path("c/Cautious-seed0/tensorboard").glob("events.*"))
        shutil.move("c", "d")
        shutil.rmtree("e", ignore_errors=True)
        shutil.move("d", "e")
    shutil.rmtree("own")
    before = Path("e/table.md").read_text()
    Path("e/table.md").unlink()
    done = fedkin("report e --figures f --decimals 3")
    assert done.code == 0, done.err
    assert "difference to Cautious" in Path("e/table.md").read_text()
    assert re.search(r"\| \d+\.\d{3} \|", Path("e/table.md").read_text())
    assert not re.search(r"\| \d+\.\d{3} \|", before)
    with Path("f/comparison.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows["Cautious"]["gain"] in ("", "–")
    assert rows["Local"]["gain"] not in ("", "–")
    assert fedkin("resume e").code == 0


def test_runs_that_would_share_a_folder(fedkin: Command, mine: str, small: str) -> None:
    """A class that is called as a method of the catalogue."""
    Path("own/other.py").write_text(METHOD.replace("class Cautious", "class FEDPROX"))
    done = fedkin(f"compare ./own/other.py:FEDPROX fedprox {small} --out c")
    assert done.code == 2
    assert "would have one title or one folder; rename one class" in done.err
    assert not Path("c").exists()


def test_one_title_is_one_method(fedkin: Command, mine: str) -> None:
    """Two rows of one name could not be told apart."""
    Path("own/twin.py").write_text(METHOD)
    with pytest.raises(ConfigError, match="would have one title or one folder; rename one class"):
        Comparison((mine, "./own/twin.py:Cautious"))


# ---- networks -----------------------------------------------------------------------------------------------------
def test_own_network_from_a_file(fedkin: Command, small: str) -> None:
    """It goes into the run folder as a method does."""
    Path("net.py").write_text(NETWORK.replace("nn.LazyLinear(8)", "nn.Linear(64, 8)"))
    assert fedkin(f"run fedavg {small} --model ./net.py:build --out r").code == 0
    Path("net.py").unlink()
    assert fedkin("run r/config.toml --out s").code == 0
    assert lines(Path("r")) == lines(Path("s"))
    Path("r/net.py").write_text(NETWORK.replace("nn.LazyLinear(8)", "nn.Linear(64, 9)"))
    done = fedkin("resume r")
    assert (done.code, "[model] has" in done.err, "has changed since" in done.err) == (2, True, True)


# ---- errors -------------------------------------------------------------------------------------------------------
FAULTS = """
./own/mine.py:Cautios | | | did you mean 'Cautious'?; methods in it: Cautious
./own/min.py:Cautious | | | own/min.py; did you mean 'mine.py'?
./own/mine.py         | | | ./own/mine.py is a file; add the name of the class: ./own/mine.py:MyMethod
./own/mine:Mine       | | | ./own/mine:Mine is not a method: a file's name ends with .py, ./own/mine.py:Mine
./own/mine.py:half    | | | expected a class that inherits from fedkin.Method, got an object of type
./own/mine.py:Cautious | (fedkin.Method) | | got the class Cautious; methods in it: none
./own/mine.py:Cautious | @dataclass(frozen=True) | | write @dataclass(frozen=True) above class Cautio
./own/mine.py:Cautious | (frozen=True) | | is not a frozen dataclass
./own/mine.py:Cautious | def aggregate | def agregate | lacks aggregate; every method has:
./own/mine.py:Cautious | = half() | | field step needs a default, such as step: float = 0.5
./own/mine.py:Cautious | step: float | name: float | a field cannot be called 'name'
./own/mine.py:Cautious | import fedkin | import fedkn | failed in line 5: ModuleNotFoundError
./own/mine.py:Cautious | def init( | def init(( | SyntaxError
./own/mine.py:Cautious | step: float | x: float = 1 / 0; step: float | failed in line 13: ZeroDivision
"""


@pytest.mark.parametrize(("name", "good", "bad", "message"), table(FAULTS))
def test_faults(name: str, good: str, bad: str, message: str, fedkin: Command, mine: str) -> None:
    """Each fault of an own method is named, with what to do."""
    Path("own/mine.py").write_text(METHOD.replace(good, bad, 1) if good else METHOD)
    done = fedkin(f"run {name}")
    assert done.code == 2
    assert message in done.err
    assert not Path("runs").exists()


def test_titles_and_names(fedkin: Command, mine: str) -> None:
    """The class is the title; settings hold the place of the file, a table the name of its copy."""
    assert get_title(mine) == "Cautious"
    settings = described(mine)
    assert settings.method["name"] == f"{Path('own/mine.py').resolve()}:Cautious"
    assert table_of(settings)["method"]["name"] == "./mine.py:Cautious"
    assert set(sources_of(settings)) == {"mine.py", "helper.py"}


# ---- real hosts ---------------------------------------------------------------------------------------------------
def test_no_file_goes_to_hosts(fedkin: Command, mine: str, tmp_path: Path) -> None:
    """A file is refused where it is submitted, and by a node that is told to run one."""
    settings = described(mine)
    with pytest.raises(ConfigError, match="no code is sent to nodes: make it a package"):
        Submitted.of(settings, tmp_path / "run")
    told = {"method": {"name": str(tmp_path / "own" / "mine.py:Cautious")}}
    assert settings_from(told).method["step"] == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no code is sent to nodes"):
        settings_of(told)
    with pytest.raises(ConfigError, match="no code is sent to nodes"):
        settings_of({"method": {"name": "fedavg"}, "model": {"model": "./net.py:build"}})


def test_a_node_with_another_text_says_so(
    fedkin: Command, mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server's settings say of the code is compared before anything is run, with words for a node's owner."""
    (tmp_path / "own" / "own_of_a_team.py").write_text(
        METHOD.replace("from helper import half", "def half(): return 1")
    )
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    name = "own_of_a_team:Cautious"
    told = table_of(described(name))
    assert settings_of(told, Allowed(("own_of_a_team",))).method["name"] == name
    told["code"]["method"] = "0" * 32
    with pytest.raises(ConfigError, match="differs between this node and the server; install the same version"):
        settings_of(told, Allowed(("own_of_a_team",)))
