"""Bad input of every kind: exit code 2, one clear message with the value in it, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commandline import Command, table
from fedkin.record.files import read_commit
from folders import content

PLAIN = {
    "x": np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32),
    "y": np.arange(60) % 3,
    "client": np.arange(60) % 4,
}
"""60 samples of 5 numbers in 3 classes of 4 clients."""
ARRAYS = {
    "own": PLAIN,
    "flat": {**PLAIN, "x": np.zeros(60, np.float32)},
    "short": {**PLAIN, "y": np.zeros(59, np.int64)},
    "negative": {**PLAIN, "y": np.arange(60) % 3 - 1},
    "between": {**PLAIN, "y": np.arange(60) / 7},
    "pickled": {**PLAIN, "y": np.array([None] * 60)},
    "nan": {**PLAIN, "x": np.where(np.arange(60)[:, None] == 17, np.nan, PLAIN["x"])},
    "names": {"a": np.zeros(3)},
}
FEDAVG = '[method]\nname = "fedavg"\n'
TEXTS = {
    "text.npz": "1,2,3",
    "ab.csv": "a,b\n1,0\n2,1\n",
    "a": "",
    "syntax.toml": "[run",
    "key.toml": FEDAVG + "[run]\nround = 3\n",
    "kind.toml": FEDAVG + '[run]\nrounds = "many"\n',
    "plan.toml": "seeds = [1]",
    "method.toml": FEDAVG,
    "program.toml": "made_by = 'method Mine'\n[data]",
    "data.toml": "data = 'digits'",
    "client.toml": "[data]\nclient = 4",
    "seeds.toml": "seeds = ['a']\n[data]",
    "iid.toml": "[data]\ndata = 'digits'\npartition = 'iid@alpha=1.0'\n",
}

REFUSED = """
rum fedavg                          | 'rum' | did you mean 'run'
run                                 | a method or a config file | fedkin list methods
run --rounds 3                      | a method or a config file
run da-plf                          | 'da-plf' | did you mean 'da-pfl'
run xyz                             | 'xyz' | fesem-cam
list method                         | 'method' | methods, papers, partitions, models, data
resume                              | needs a folder
report a --decimals 7               | 0 to 6 | got 7
resume nowhere                      | there is no folder nowhere
check                               | fedkin check needs a method: fedkin check ./mymethod.py:MyMethod
check --json                        | fedkin check needs a method
check fedavgg                       | did you mean 'fedavg'
check ./none.py:X                   | there is no file ./none.py
check fedavg --rules rusn           | unknown rule 'rusn'; did you mean 'runs'
run my.toml                         | no config file my.toml
run syntax.toml                     | syntax.toml is not a TOML file
run key.toml                        | key.toml: unknown setting [run] round | 'rounds'
run kind.toml                       | rounds = 'many'
run fedavg --data nothing.npz       | nothing.npz
run fedavg --data digitz            | 'digitz' | digits
run fedavg IID names.npz            | names.npz | holds a
run fedavg IID flat.npz             | flat: | [60]
run fedavg IID short.npz            | short: | [60, 5] | labels int64 [59]
run fedavg IID negative.npz         | -1
run fedavg IID between.npz          | between: | 0.14
run fedavg IID pickled.npz          | pickled.npz | pickle
run fedavg IID nan.npz              | nan | 17 | NaN
run fedavg IID text.npz             | text.npz
run fedavg IID ab.csv --target c    | ab | 'c' | a, b
run fedavg --partition dirichlett   | 'dirichlett' | 'dirichlet'
run fedavg --partition dirichlet@alpha=0    | alpha | 0
run fedavg --partition dirichlet@alpha=-0.5 | alpha | -0.5
run fedavg --partition dirichlet@alpha=nan  | alpha | nan
run fedavg --partition classes@alpha=0.5    | partition 'classes' has no setting alpha | classes_per_client
run fedavg --partition classes@classes_per_client=11 | 11 | 10 classes
run fedavg --partition cluster-dirichlet@groups=9 --clients 4 | 9 groups | got 4
run fedavg --clients 0              | clients | 0
run fedavg --clients 3000           | 3000
run fedavg IID own.npz --clients 61 | 61 | 60
run fedavg IID own.npz --test 0.6 --validation 0.6 | test + validation | 1.2
run fedavg IID own.npz --model small-cnn | small-cnn | [5]
run fedavg --model mlpp             | 'mlpp' | 'mlp'
run fedavg --model no.such:thing    | no.such
run fedavg --head tail              | 'tail'
run da-pfl@lam=-1                   | lam of DAPFL must be at least 0, got -1
run fedavg --lr 0                   | lr = 0
run fedavg --lr nan                 | lr | nan
run fedavg --momentum 1             | momentum | 1
run fedavg --batch-size 0           | batch_size = 0
run fedavg --rounds 0               | rounds = 0
run fedavg --participation 2        | participation = 2
run fedavg --participation nan      | participation | nan
run fedavg --dropout 1.5            | dropout = 1.5
run fedavg --late-joiners soon      | 3@50 | 'soon'
run fedavg --late-joiners 3@1       | '3@1'
run fedavg --late-joiners 5@2 --clients 5 | 5 of 5
run fedavg --engine workers@n=-1    | workers | -1
run fedavg --eval-every 0           | eval_every = 0
run fedavg --preset code            | fedavg has no preset 'code'; it has none
run da-pfl --preset best            | da-pfl has no preset 'best'; it has paper, code
run fedavg --target-accuracy 0      | got 0.0
run fedavg --target-accuracy 90     | got 90.0
run fedavg --target-accuracy -0.5   | got -0.5
run fedavg --validation 0 --round best | --round best goes by validation accuracy, and no client has validation data
run fedavg --clients 4 --out a/b    | a/b | --out
run fedavg --clients 4 --out a      | a exists already
run fedavg --out ok.csv             | --out names a folder, and ok.csv looks like a file; for example: --out ok
compare fedavg --out ok.json        | ok.json looks like a file
sweep fedavg --grid training.lr=0.1 --out ok.HTML | ok.HTML looks like a file
inspect digits --out seen.html      | seen.html looks like a file
compare                             | needs methods or a config file
compare --rounds 3                  | needs methods or a config file
compare missing.toml                | no config file missing.toml
compare plan.toml                   | plan.toml: a comparison needs a list of names
compare da-pflx                     | unknown method 'da-pflx'; did you mean 'da-pfl'
compare da-pfl --seeds 1 1          | that differ, got [1, 1]
compare da-pfl --set lam=3          | --set takes METHOD.FIELD=VALUE | got 'lam=3'
compare da-pfl --set da-pfl.lamm=3  | unknown setting lamm; did you mean 'lam'
compare da-pfl --set da-pfl.lam=much | lam | got 'much'
compare da-pfl --set da-pfl.lam=-1  | lam of DAPFL must be at least 0, got -1
compare da-pfl --set ifca.clusters=3 | ifca is not compared
compare fedavg --set fedavg.lam=1   | unknown setting lam
compare da-pfl --baseline fedprox   | local, local-full, fedavg, da-pfl
compare fedper --rounds 0 --out c   | rounds = 0
compare fedper --model mlpp --out c | 'mlpp'
compare fedper --partition dirichlet@alpha=0 --out c | alpha | 0
compare fedper --tune -1 --out c    | tune: expected | -1
compare fedper --tune 2 --validation 0 --out c | --validation must be above
compare fedper --validation 0 --round best | --round best goes by validation accuracy, and no client has validation
compare fedper --clients 4 --out a/b | a/b | --out
sweep fedprox                       | settings to try
sweep fedprox --grid lr             | PART.SETTING=VALUE
sweep fedprox --grid training.lrr=1 | did you mean 'lr'
sweep fedprox --grid training.lr=1..0 --trials 3 | lower end first
inspect digits --partition dirichle | did you mean 'dirichlet'?
inspect digits --partition iid@alpha=1 | has no setting alpha
inspect run.toml                    | no config file run.toml
inspect iid.toml                    | has no setting alpha
inspect method.toml                 | method.toml has no table [data]; for the default: fedkin inspect digits
inspect program.toml                | made by a program with method Mine; inspect its data in that program
inspect data.toml                   | data.toml: data = 'digits': expected a table
inspect client.toml                 | unknown setting [data] client; did you mean 'clients'?
inspect seeds.toml                  | seeds.toml seed: expected `int`, got 'a'
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the files that commands of the table name."""
    for name, written in TEXTS.items():
        (tmp_path / name).write_text(written)
    for name, arrays in ARRAYS.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize("row", table(REFUSED), ids=lambda row: row[0])
def test_bad_input(row: list[str], fedkin: Command, here: Path) -> None:
    """One line on standard error that names the value, nothing on standard output, no file and no folder."""
    before = content(here)
    done = fedkin(row[0].replace("IID", "--partition iid --clients 4 --data", 1))
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("fedkin: ")
    assert done.err.count("\n") == 1
    assert not [words for words in row[1:] if words not in done.err], done.err
    assert content(here) == before
    assert [p for p in here.iterdir() if p.is_dir()] == []


BY_THE_READER_OF_FLAGS = """
run fedavg --engine gpu       | gpu | workers | loop | stacked
run fedavg --roundss 3        | --roundss | --rounds
run fedavg --lam 3            | --lam
run fedavg --rounds many      | many | --rounds
run fedavg --rounds           | --rounds
run fedavg digits             | digits
run da-pfl@variant=v3         | v3 | dynamic
compare fedavg --preset code  | --preset
compare fedavg --seeds one    | one
compare fedavg --seeds 0,1    | 0,1 | --seeds
run fedavg --lr 0,1           | 0,1 | --lr
run fedavg --split offical    | offical | pooled | official
sweep fedavg --grid training.lr=0.1,0.2 --round best | --round
demo --rounds 3               | Unrecognized options: --rounds
resume a b                    | Unrecognized options: b
resume a --lr 3               | Unrecognized options: --lr
inspect digits --rounds 3     | --rounds
predict home                  | FILE
runs --js                     | --js | --json
link a b                      | b
"""


@pytest.mark.parametrize("row", table(BY_THE_READER_OF_FLAGS), ids=lambda row: row[0])
def test_flags_that_do_not_exist_or_fit(row: list[str], fedkin: Command, tmp_path: Path) -> None:
    """The reader of flags answers by itself: exit code 2, the flag and what it takes, no folder."""
    done = fedkin(row[0])
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not [words for words in row[1:] if words not in done.err], done.err
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
    np.savez("own.npz", **PLAIN)
    fedkin(f"run fedper {small} --data own.npz --partition iid --out a --quiet")
    np.savez("own.npz", **{**PLAIN, "x": np.zeros((60, 5), np.float32)})
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
    asked = fedkin("run fedavg --data ward.csv --target ill --partition dirichlet@alpha=0.5")
    assert "20 clients with at least 10 samples each need 200 samples" in asked.err


def test_an_encoding_is_a_setting_of_the_run(fedkin: Command) -> None:
    """Run, resume, export, predict and join read a csv file of another encoding; the config keeps it."""
    rows = "".join(f"{i % 7},{'Köln' if i % 3 else 'Ulm'},{i % 2}\n" for i in range(120))
    Path("t.csv").write_text("x,town,y\n" + rows, encoding="cp1252")
    run = "run fedavg --data t.csv --target y --partition iid --clients 3 --rounds 2 --engine loop --quiet"
    run += " --model linear"
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
