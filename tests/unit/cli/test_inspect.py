"""``fedkin inspect``: what it prints, writes and answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from commandline import Command

HEALTHY = "inspect digits --partition iid --clients 5"
ROWS = "\n".join(f"{i * 37 % 101},{i % 5},{i % 7 * 13 % 7},{i % 2}" for i in range(100))


def damaged(name: str = "a.csv") -> None:
    """A table with a column that gives the class away."""
    rows = [f"{row},{'un'[i % 2]}" for i, row in enumerate(ROWS.splitlines())]
    Path(name).write_text("\n".join(["a,b,c,y,outcome", *rows, ""]))


def test_healthy_data(fedkin: Command, tmp_path: Path) -> None:
    """Exit code 0, what was understood, and no file is written."""
    done = fedkin(HEALTHY)
    assert (done.code, done.err) == (0, "")
    for part in ("built-in data", "1,797", "1 x 8 x 8", "client 4", "nothing looks wrong"):
        assert part in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flags", "code"), [("", 0), (" --strict", 2), (" --target x", 2)])
def test_what_looks_wrong_decides_the_exit_code(flags: str, code: int, fedkin: Command) -> None:
    """0 with warnings, 2 with an error, or with --strict for warnings too."""
    damaged()
    done = fedkin("inspect a.csv --target y --partition iid --clients 2" + flags)
    assert (done.code, done.err) == (code, "")
    assert ("warning: outcome alone determines the class" in done.out) != ("--target x" in flags)
    assert ("error: a: no column 'x'" in done.out) == ("--target x" in flags)


def test_a_page_with_pictures(fedkin: Command) -> None:
    done = fedkin(HEALTHY + " --out seen")
    assert done.code == 0
    assert done.out.rstrip().endswith("seen/inspect.html")
    text = Path("seen/inspect.html").read_text(encoding="utf-8")
    assert "fedkin " + HEALTHY in text
    assert fedkin(HEALTHY + " --out seen").code == 0  # a second look replaces the first


def test_json_is_all_there_is(fedkin: Command) -> None:
    damaged()
    done = fedkin("inspect --data a.csv --target y --partition iid --clients 2 --json --strict")
    found = json.loads(done.out)
    assert (done.code, found["usable"]) == (2, False)
    assert "target-leak" in [f["code"] for f in found["findings"]]
    assert [c["name"] for c in found["columns"]] == ["a", "b", "c", "outcome"]
    assert len(found["clients"]) == 2


def test_the_data_of_a_run(fedkin: Command, small: str) -> None:
    """The config of a run folder names data, partition and seed: the clients are those of the run."""
    assert fedkin(f"run local {small} --seed 3 --out a --quiet").code == 0
    of_file = json.loads(fedkin("inspect a/config.toml --json").out)
    of_flags = json.loads(fedkin("inspect digits --clients 4 --samples-per-client 24 --seed 3 --json").out)
    other = json.loads(fedkin("inspect digits --clients 4 --samples-per-client 24 --seed 4 --json").out)
    assert of_file["clients"] == of_flags["clients"] != other["clients"]


@pytest.mark.parametrize("rest", ["[run]\nseed = 3", "seeds = [3, 4]", "methods = 1\nseeds = [3]\n[sweep]\nx = []"])
def test_only_data_and_seed_of_a_file_are_read(rest: str, fedkin: Command) -> None:
    """A file for `fedkin compare` or `sweep` will do, and one whose other tables are not in order yet."""
    Path("a.toml").write_text(f"x = 1\n{rest}\n[data]\ndata = 'digits'\nclients = 4\n[training]\nlr = 'high'\n")
    found = json.loads(fedkin("inspect a.toml --json").out)
    assert found["clients"] == json.loads(fedkin("inspect digits --clients 4 --seed 3 --json").out)["clients"]


def test_flags_mend_the_data_of_a_file(fedkin: Command) -> None:
    Path("a.toml").write_text("[data]\ndata = 'digits'\npartition = 'iid@alpha=1.0'\n")
    assert "has no setting alpha" in fedkin("inspect a.toml").err
    assert fedkin("inspect a.toml --partition dirichlet --clients 4").code == 0


def one_sided(name: str = "wards.csv") -> None:
    """A table of two wards; 23 of 25 patients of one are ill, half of the other."""
    rows = [f"{i * 37 % 101},{i % 5},a,{int(i % 25 > 1)}" for i in range(100)]
    rows += [f"{i * 31 % 103},{i % 7},b,{i % 2}" for i in range(100)]
    Path(name).write_text("\n".join(["x,z,ward,ill", *rows, ""]))


WARDS = "--data wards.csv --target ill --client-column ward"
SHORT = "--rounds 1 --model linear --steps 1 --engine loop"


@pytest.mark.parametrize("command", ["run fedavg", "run fedavg --seed 3", "compare fedavg --seeds 3 4"])
def test_a_run_says_in_one_line_what_was_found(command: str, fedkin: Command) -> None:
    """Once, on standard error, with the command that shows all of it; that command works and finds the same."""
    one_sided()
    done = fedkin(f"{command} {WARDS} {SHORT} --out out")
    (line,) = [one for one in done.err.splitlines() if one.startswith("inspect: ")]
    flags = "wards.csv --target ill --client-column ward" + (" --seed 3" if "3" in command else "")
    assert line == f"inspect: 1 warning in what was read (one-sided-client); all of them: fedkin inspect {flags}"
    again = fedkin(line.partition("all of them: fedkin ")[2])
    assert "warning: 1 client with 80 % of the test samples or more, but not all, of one class: a (1: 9" in again.out
    assert "balanced %" in done.out or "balanced accuracy" in done.out


def test_the_command_that_shows_all_works_if_the_run_is_refused(fedkin: Command) -> None:
    """It needs no folder of the run, and names every setting of the data, quoted where a shell asks for it."""
    one_sided("my wards.csv")
    flags = ("--data", "my wards.csv", "--client-column", "ward", "--target", "ill", "--validation", "0.2")
    done = fedkin("run fedavg --drop z --model small-cnn --out out", *flags)
    assert (done.code, Path("out").exists()) == (2, False)
    (line,) = [one for one in done.err.splitlines() if one.startswith("inspect: ")]
    command = "fedkin inspect 'my wards.csv' --validation 0.2 --target ill --client-column ward --drop z"
    assert line.endswith(f"all of them: {command}")
    again = fedkin(" ".join(shlex.split(command)[1:2]), *shlex.split(command)[2:])
    assert "warning: 1 client with 80 % of the test samples" in again.out


def test_a_run_says_that_an_official_test_part_is_merged(fedkin: Command) -> None:
    """With the number of its samples, unless it is kept apart."""
    rng = np.random.default_rng(0)
    parts = {"train": 90, "test": 30}
    arrays = {f"x_{part}": rng.normal(size=(n, 3)).astype(np.float32) for part, n in parts.items()}
    np.savez("a.npz", **arrays, **{f"y_{part}": np.arange(n) % 2 for part, n in parts.items()})
    command = f"run fedavg --data a.npz --clients 3 --partition dirichlet@alpha=10 {SHORT}"
    said = "the official test part (30 samples) is merged with the rest"
    assert said in fedkin(f"{command} --out a").err
    assert said not in fedkin(f"{command} --out b --split official").err


@pytest.mark.parametrize("flag", ["--quiet", "--json"])
def test_nothing_is_said_of_findings_where_nothing_else_is(flag: str, fedkin: Command) -> None:
    """And nothing of data without warnings, nor of built-in data."""
    one_sided()
    assert fedkin(f"run fedavg {WARDS} {SHORT} --out out {flag}").err == ""
    assert (
        "inspect:"
        not in fedkin(f"run fedavg --data digits --partition dirichlet@alpha=0.05,min_samples=2 {SHORT} --out b").err
    )


@pytest.mark.parametrize("command", ["run fedavg", "compare fedavg", "sweep fedavg --grid training.lr=0.1"])
def test_one_class_is_refused_as_by_inspect(command: str, fedkin: Command) -> None:
    """Exit code 2 with the words of the finding, and no folder is left."""
    Path("a.csv").write_text("\n".join(["x,ill", *(f"{i},1" for i in range(60)), ""]))
    data = "--data a.csv --target ill --binary --clients 3 --partition iid"
    done = fedkin(f"{command} {data} {SHORT} --out out")
    (said,) = [f for f in json.loads(fedkin(f"inspect {data} --json").out)["findings"] if f["code"] == "one-class"]
    assert (done.code, done.out) == (2, "")
    assert f"{said['what']}: {said['why']}; {said['todo']}" in done.err
    assert said["what"] == "all 60 samples are of the class ill > 0"
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inspect --data nowhere.csv", "no data called 'nowhere.csv'"),
        ("inspect --data a.doc", "expected a"),
        ("inspect --data a.doc --target y", "expected a .csv, .parquet or .npz file"),
        ("inspect --data nowhere --target y", "no data called 'nowhere'"),
        ("inspect digits --clients 2000", "2000 clients cannot share the 1797 samples"),
        ("inspect digits --binary", "digits is built-in data, which takes no binary"),
    ],
)
def test_what_cannot_be_read_is_a_finding(command: str, said: str, fedkin: Command) -> None:
    Path("a.doc").write_text("hello")
    done = fedkin(command)
    assert (done.code, done.err) == (2, "")
    assert said in done.out
