"""Bad input of every kind: exit code 2, one clear message with the value in it, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commandline import Command
from fedkin.record.files import read_commit
from folders import content


def archive(**arrays: Any) -> Callable[[], None]:
    """Writes own.npz: 60 samples of 5 numbers in 3 classes of 4 clients, with some arrays replaced."""

    def write() -> None:
        rng = np.random.default_rng(0)
        plain = {
            "x": rng.standard_normal((60, 5)).astype(np.float32),
            "y": np.arange(60) % 3,
            "client": np.arange(60) % 4,
        }
        np.savez("own.npz", **{**plain, **arrays})

    return write


def with_nan() -> None:
    """own.npz with a NaN in sample 17."""
    x = np.zeros((60, 5), np.float32)
    x[17, 2] = np.nan
    archive(x=x)()


def text(name: str, content: str) -> Callable[[], None]:
    """Writes a text file."""
    return lambda: (Path(name).write_text(content), None)[1]


def nothing() -> None:
    """No file is needed."""


OWN = "--data own.npz --partition iid --clients 4"

CASES: dict[str, tuple[Callable[[], None], str, list[str]]] = {
    # the command
    "unknown command": (nothing, "rum fedavg", ["'rum'", "did you mean 'run'"]),
    "no method": (nothing, "run", ["a method or a config file", "fedkin list methods"]),
    "flag before the method": (nothing, "run --rounds 3", ["a method or a config file"]),
    "unknown method": (nothing, "run da-plf", ["'da-plf'", "did you mean 'da-pfl'"]),
    "unlike any method": (nothing, "run xyz", ["'xyz'", "fesem-cam"]),
    "unknown list": (nothing, "list method", ["'method'", "methods, papers, partitions, models, data"]),
    "resume nothing": (nothing, "resume", ["needs a folder"]),
    "resume with too many digits": (nothing, "resume a --decimals 7", ["0 to 6", "got 7"]),
    "report with too many digits": (nothing, "report a --decimals 7", ["0 to 6", "got 7"]),
    "resume no folder": (nothing, "resume nowhere", ["there is no folder nowhere"]),
    "unknown setting to compare": (nothing, "compare fedavg --set fedavg.lam=1", ["unknown setting lam"]),
    # files
    "missing config": (nothing, "run my.toml", ["no config file my.toml"]),
    "config that is no TOML": (text("my.toml", "[run"), "run my.toml", ["my.toml is not a TOML file"]),
    "unknown key": (
        text("my.toml", '[method]\nname = "fedavg"\n[run]\nround = 3\n'),
        "run my.toml",
        ["my.toml: unknown setting [run] round", "'rounds'"],
    ),
    "wrong kind of value": (
        text("my.toml", '[method]\nname = "fedavg"\n[run]\nrounds = "many"\n'),
        "run my.toml",
        ["rounds = 'many'"],
    ),
    "wrong plan": (text("my.toml", "seeds = [1]"), "compare my.toml", ["my.toml: a comparison needs a list of names"]),
    # data
    "missing data": (nothing, "run fedavg --data nothing.npz", ["nothing.npz"]),
    "mistyped data": (nothing, "run fedavg --data digitz", ["'digitz'", "digits"]),
    "npz of other names": (lambda: np.savez("own.npz", a=np.zeros(3)), f"run fedavg {OWN}", ["own.npz", "holds a"]),
    "inputs without features": (archive(x=np.zeros(60, np.float32)), f"run fedavg {OWN}", ["own: ", "[60]"]),
    "sizes that differ": (
        archive(y=np.zeros(59, np.int64)),
        f"run fedavg {OWN}",
        ["own: ", "[60, 5]", "labels int64 [59]"],
    ),
    "negative labels": (archive(y=np.arange(60) % 3 - 1), f"run fedavg {OWN}", ["-1"]),
    "labels between numbers": (archive(y=np.arange(60) / 7), f"run fedavg {OWN}", ["own: ", "0.14"]),
    "pickled data": (archive(y=np.array([None] * 60)), f"run fedavg {OWN}", ["own.npz", "pickle"]),
    "NaN": (with_nan, f"run fedavg {OWN}", ["own", "17", "NaN"]),
    "text as npz": (text("own.npz", "1,2,3"), f"run fedavg {OWN}", ["own.npz"]),
    "csv without its column": (
        text("own.csv", "a,b\n1,0\n2,1\n"),
        "run fedavg --data own.csv --target c --partition iid --clients 2",
        ["own", "'c'", "a, b"],
    ),
    # partitions
    "unknown partition": (nothing, "run fedavg --partition dirichlett", ["'dirichlett'", "'dirichlet'"]),
    "alpha 0": (nothing, "run fedavg --partition dirichlet@alpha=0", ["alpha", "0"]),
    "alpha below 0": (nothing, "run fedavg --partition dirichlet@alpha=-0.5", ["alpha", "-0.5"]),
    "alpha NaN": (nothing, "run fedavg --partition dirichlet@alpha=nan", ["alpha", "nan"]),
    "setting of another partition": (
        nothing,
        "run fedavg --partition classes@alpha=0.5",
        ["partition 'classes' has no setting alpha", "classes_per_client"],
    ),
    "more classes than there are": (
        nothing,
        "run fedavg --partition classes@classes_per_client=11",
        ["11", "10 classes"],
    ),
    "no clients": (nothing, "run fedavg --clients 0", ["clients", "0"]),
    "an empty client": (archive(), "run fedavg --data own.npz --partition iid --clients 61", ["61", "60"]),
    "too few for each": (nothing, "run fedavg --clients 3000", ["3000"]),
    "nothing left to train on": (
        archive(),
        f"run fedavg {OWN} --test 0.6 --validation 0.6",
        ["test + validation", "1.2"],
    ),
    "more groups than clients": (
        nothing,
        "run fedavg --partition cluster-dirichlet@groups=9 --clients 4",
        ["9 groups", "got 4"],
    ),
    # model
    "unknown model": (nothing, "run fedavg --model mlpp", ["'mlpp'", "'mlp'"]),
    "model for images": (archive(), f"run fedavg {OWN} --model small-cnn", ["small-cnn", "[5]"]),
    "model that cannot be imported": (nothing, "run fedavg --model no.such:thing", ["no.such"]),
    "unknown head": (nothing, "run fedavg --head tail", ["'tail'"]),
    # method, training, run
    "field out of range": (nothing, "run da-pfl@lam=-1", ["lam of DAPFL must be at least 0, got -1"]),
    "lr 0": (nothing, "run fedavg --lr 0", ["lr = 0"]),
    "lr NaN": (nothing, "run fedavg --lr nan", ["lr", "nan"]),
    "momentum 1": (nothing, "run fedavg --momentum 1", ["momentum", "1"]),
    "batch 0": (nothing, "run fedavg --batch-size 0", ["batch_size = 0"]),
    "rounds 0": (nothing, "run fedavg --rounds 0", ["rounds = 0"]),
    "participation 2": (nothing, "run fedavg --participation 2", ["participation = 2"]),
    "participation NaN": (nothing, "run fedavg --participation nan", ["participation", "nan"]),
    "dropout 1.5": (nothing, "run fedavg --dropout 1.5", ["dropout = 1.5"]),
    "join late nonsense": (nothing, "run fedavg --late-joiners soon", ["3@50", "'soon'"]),
    "join late in round 1": (nothing, "run fedavg --late-joiners 3@1", ["'3@1'"]),
    "join late all": (nothing, "run fedavg --clients 5 --late-joiners 5@2", ["5 of 5"]),
    "workers -1": (nothing, "run fedavg --engine workers@n=-1", ["workers", "-1"]),
    "eval every 0": (nothing, "run fedavg --eval-every 0", ["eval_every = 0"]),
    "unknown preset": (nothing, "run da-pfl --preset best", ["'best'", "paper, code"]),
    # where to
    "out inside a file": (text("a", ""), "run fedavg --clients 4 --out a/b", ["a/b", "--out"]),
    "out is a file": (text("a", ""), "run fedavg --clients 4 --out a", ["a exists already"]),
    "compare: rounds 0": (nothing, "compare fedper --rounds 0 --out c", ["rounds = 0"]),
    "compare: unknown model": (nothing, "compare fedper --model mlpp --out c", ["'mlpp'"]),
    "compare: alpha 0": (nothing, "compare fedper --partition dirichlet@alpha=0 --out c", ["alpha", "0"]),
    "compare: tune -1": (nothing, "compare fedper --tune -1 --out c", ["tune: expected", "-1"]),
    "compare: no validation": (
        nothing,
        "compare fedper --tune 2 --validation 0 --out c",
        ["--validation must be above"],
    ),
    "compare: out inside a file": (text("a", ""), "compare fedper --clients 4 --out a/b", ["a/b", "--out"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, fedkin: Command, tmp_path: Path) -> None:
    """Exit code 2, one line on standard error that names the value, nothing on standard output, no folder."""
    write, command, said = CASES[case]
    write()
    before = content(tmp_path)
    done = fedkin(command)

    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("fedkin: ")
    assert done.err.count("\n") == 1
    for part in said:
        assert part in done.err
    assert content(tmp_path) == before
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run fedavg --engine gpu", ["gpu", "workers", "loop", "stacked"]),
        ("run fedavg --roundss 3", ["--roundss", "--rounds "]),
        ("run fedavg --lam 3", ["--lam"]),
        ("run fedavg --rounds many", ["many", "--rounds"]),
        ("run fedavg --rounds", ["--rounds"]),
        ("run fedavg digits", ["digits"]),
        ("run da-pfl@variant=v3", ["v3", "dynamic"]),
        ("compare fedavg --preset code", ["--preset"]),
        ("compare fedavg --seeds one", ["one"]),
        ("compare fedavg --seeds 0,1", ["0,1", "--seeds"]),
        ("run fedavg --lr 0,1", ["0,1", "--lr"]),
        ("run fedavg --split offical", ["offical", "pooled", "official"]),
        ("run fedavg more", ["more"]),
        ("predict home", ["FILE"]),
        ("runs --js", ["--js", "--json"]),
        ("link a b", ["b"]),
    ],
)
def test_flags_that_do_not_exist_or_fit(command: str, said: list[str], fedkin: Command, tmp_path: Path) -> None:
    """The reader of flags answers by itself: exit code 2, the flag and what it takes, no folder."""
    done = fedkin(command)

    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    for part in said:
        assert part in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run fedper", "compare fedper"])
def test_a_folder_that_exists(command: str, fedkin: Command, small: str) -> None:
    """A second command into the same folder is refused, says how to go on, and changes nothing."""
    assert fedkin(f"{command} {small} --out a --quiet").code == 0
    before = content(Path("a"))
    done = fedkin(f"{command} {small} --out a")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fedkin: a exists already; ")
    assert "fedkin resume a" in done.err
    assert content(Path("a")) == before


@pytest.mark.parametrize("harm", ["cut", "bit", "other file", "empty", "config", "lines"])
def test_resuming_what_is_damaged_or_of_another_run(harm: str, fedkin: Command, small: str) -> None:
    """A checkpoint that is damaged, or that no longer belongs to the config beside it, and lost lines: exit code 2,
    one line that names the file, and the folder as it was."""
    fedkin(f"run fedper {small} --out a --quiet")
    config, server = Path("a/config.toml"), Path("a/objects", read_commit(Path("a")).last.server)
    whole = server.read_bytes()
    if harm == "config":
        config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    elif harm == "lines":
        Path("a/rounds.jsonl").write_text("")
    else:
        wrong = {"cut": whole[:-7], "bit": whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:], "other file": b"PK\3\4"}
        server.write_bytes(wrong.get(harm, b""))
    before = content(Path("a"))
    done = fedkin("resume a")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"fedkin: a{ {'lines': '/rounds.jsonl', 'config': ': '}.get(harm, '/objects') }")
    assert {"config": "another config", "lines": "is not as it was written"}.get(harm, "is damaged") in done.err
    assert done.err.count("\n") == 1
    assert content(Path("a")) == before


def test_resuming_on_other_data(fedkin: Command, small: str) -> None:
    """When the data file has changed since, exit code 2 and the word data."""
    archive()()
    fedkin(f"run fedper {small} --data own.npz --partition iid --out a --quiet")
    archive(x=np.zeros((60, 5), np.float32))()
    done = fedkin("resume a")

    assert (done.code, done.out) == (2, "")
    assert "a: the data have changed since this run began, or are others: sizes and names are the same" in done.err


def test_a_csv_that_names_no_clients(fedkin: Command) -> None:
    """It is answered by how to name clients, not by settings of a partition that nobody asked for; inspect as well."""
    Path("ward.csv").write_text("age,ill\n" + "".join(f"{20 + i},{i % 2}\n" for i in range(60)))
    done = fedkin("run fedavg --data ward.csv --target ill")
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "ward does not name its clients, and its 60 samples cannot be dealt to 20 synthetic clients" in said
    assert "--client-column COLUMN, or a folder with one file for each client" in said
    assert "--partition iid --clients 3" in said
    assert not [word for word in ("irichlet", "alpha", "min_samples") if word in said.partition("cannot be dealt")[2]]
    assert "--client-column COLUMN" in " ".join(fedkin("inspect ward.csv --target ill").out.split())
    run = "run fedavg --data ward.csv --target ill --rounds 1 --engine loop --quiet --model linear"
    assert fedkin(f"{run} --partition iid --clients 3").code == 0
    asked = fedkin(
        "run fedavg --data ward.csv --target ill --partition dirichlet@alpha=0.5"
    )  # then it is about what was asked for
    assert "20 clients with at least 10 samples each need 200 samples" in asked.err


def test_an_encoding_is_a_setting_of_the_run(fedkin: Command) -> None:
    """Run, resume, export, predict and join read a csv file of another encoding; the config keeps it."""
    rows = "".join(f"{i % 7},{'Köln' if i % 3 else 'Ulm'},{i % 2}\n" for i in range(120))
    Path("t.csv").write_text("x,town,y\n" + rows, encoding="cp1252")
    run = (
        "run fedavg --data t.csv --target y --partition iid --clients 3 --rounds 2 --engine loop --quiet --model linear"
    )
    refused = fedkin(f"{run} --out a")
    assert refused.code == 2
    assert "t.csv, line 3: the byte 0xf6" in refused.err
    assert "--encoding cp1252" in refused.err
    assert fedkin(f"{run} --out a --encoding cp1252").code == 0
    assert 'encoding = "cp1252"' in Path("a/config.toml").read_text()
    assert fedkin("resume a").code == 0
    assert fedkin("inspect a/config.toml").code == 0
    assert fedkin("export a --client 0 --out home").code == 0
    assert "--encoding cp1252" in fedkin("predict home t.csv").err
    done = fedkin("predict home t.csv --encoding cp1252")
    assert (done.code, done.err) == (0, "")
    assert fedkin("join a --data t.csv --after 0 1").code == 0
    Path("u.csv").write_text("x,town,y\n" + rows)
    assert fedkin("join a --data u.csv --encoding utf-8 --after 0 1").code == 0
