"""`fedkin export` and `fedkin predict`, as people type them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from commandline import Command, Kept, table
from fedkin.data import Federation, federation_of
from fedkin.experiment.settings import settings_from
from fedkin.exporting import load_export
from fedkin.storage.toml import read_toml


@pytest.fixture
def run(fedkin: Command, small: str, kept: Kept) -> Path:
    """A finished run's folder."""
    return kept("fedper", "run", lambda: fedkin(f"run fedper {small} --out run --quiet"))


def data_of(run: Path) -> Federation:
    return federation_of(settings_from(read_toml(run / "config.toml")).data, 0)


def test_flags_may_come_first(run: Path, fedkin: Command) -> None:
    """As people write them."""
    assert fedkin("export --client 0 run --out home").code == 0
    assert (Path("home") / "card.json").is_file()


def test_export_then_predict(run: Path, fedkin: Command) -> None:
    """The label and the probabilities of each row, on the screen, as csv and as JSON, are the model's. The inputs of a
    file laid out as MedMNIST's are chosen by name; without one, or with a wrong one, the error says which to give."""
    done = fedkin("export run --client 3")
    assert done.code == 0, done.err
    place = run / "exports" / "client-3"
    assert f"fedkin predict {place}" in done.out
    x = data_of(run).clients[3].test.x
    np.savez("test.npz", x=x.numpy())
    done = fedkin(f"predict {place} test.npz --out out.csv")
    assert done.code == 0, done.err
    assert "all 5 rows are in out.csv" in done.out
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    wanted = load_export(place).probabilities(x)
    assert [r["label"] for r in rows] == [str(i) for i in wanted.argmax(1).tolist()]
    assert list(rows[0])[:3] == ["row", "label", "probability 0"]
    got = [[float(r[f"probability {i}"]) for i in range(10)] for r in rows]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    plain = fedkin(f"predict {place} test.npz --json").out
    lines = [json.loads(text) for text in plain.splitlines()]
    assert [line["label"] for line in lines] == [r["label"] for r in rows]
    assert lines[0]["row"] == "1"
    np.savez("med.npz", train_images=x[:2], train_labels=[0, 1], test_images=x, test_labels=[0] * 5)
    assert fedkin(f"predict {place} med.npz --array test_images --json").out == plain
    refused = fedkin(f"predict {place} med.npz").err
    assert "med.npz holds train_images, train_labels, test_images, test_labels; name the array" in refused
    assert "such as --array test_images" in refused
    assert "test.npz holds no y, but x; name" in fedkin(f"predict {place} test.npz --array y").err


def test_all_clients(run: Path, fedkin: Command) -> None:
    """A folder for each client, with its card."""
    done = fedkin("export run --all --out home")
    assert done.code == 0, done.err
    assert [json.loads(p.read_text())["client"] for p in sorted(Path("home").glob("*/card.json"))] == [0, 1, 2, 3]
    assert sorted(p.name for p in Path("home").iterdir()) == [f"client-{i}" for i in range(4)]


REFUSED = """
export                        | needs a run folder and a client
export run                    | one of --client 7, --all, --global
export run --client 0 --all   | one of --client 7, --all, --global
export run --client 9         | no client '9'; the run has clients 0 to 3
export nothing --client 0     | there is no folder nothing
export nothing                | there is no folder nothing
export run --global           | no global model
predict                       | needs an exported folder and a file
predict run                   | FILE
predict run x.npz             | not an exported model | fedkin export run --client 0
predict home nothing.npz      | no file nothing.npz
predict home rows.csv         | cannot be read by this model; the model takes an .npz or .npy file with inputs [n, 1, 8
predict home wide.npy         | expected numbers [n, 1, 8, 8], got float64 [2, 9]
predict home nan.npy          | not finite
predict home two.npz          | name the array with the inputs, such as --array
predict home object.npy       | cannot be read as an array of numbers
predict home config.toml      | cannot be read by this model; the model takes
predict home good.npy --out there.csv | there.csv exists already
"""


@pytest.mark.parametrize("row", table(REFUSED), ids=lambda row: row[0])
def test_bad_input_is_told(row: list[str], run: Path, fedkin: Command) -> None:
    """Exit code 2 and one line that says what is wrong and what to do."""
    assert fedkin("export run --client 0 --out home").code == 0
    Path("rows.csv").write_text("a,b\n1,2\n")
    Path("config.toml").write_text("")
    Path("there.csv").write_text("")
    np.save("good.npy", np.zeros((2, 1, 8, 8), np.float32))
    np.save("wide.npy", np.zeros((2, 9)))
    np.save("nan.npy", np.full((1, 1, 8, 8), np.nan))
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    done = fedkin(row[0])
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert not [words for words in row[1:] if words not in done.err.replace("\n", " ")], done.err


def test_a_comparison_is_no_run(fedkin: Command, small: str) -> None:
    """One of its runs is named."""
    assert fedkin(f"compare da-pfl {small} --out c --quiet").code == 0
    done = fedkin("export c --client 0")
    assert (done.code, done.out) == (2, "")
    assert "c holds 4 runs; name one of them, such as c/da-pfl-seed0" in done.err.replace("\n", " ")


def test_the_card_has_the_figures_of_a_constant_answer(fedkin: Command) -> None:
    """Where always predicting one class is right for nearly all test samples, balanced accuracy comes first."""
    rows = [f"{i * 37 % 101},{i % 5},a,{'yes' if i % 25 > 1 else 'no'}" for i in range(200)]
    rows += [f"{i * 31 % 103},{i % 7},b,{'yes' if i % 2 else 'no'}" for i in range(200)]
    Path("wards.csv").write_text("\n".join(["x,z,ward,ill", *rows, ""]))
    data = "--data wards.csv --target ill --client-column ward"
    assert fedkin(f"run fedavg {data} --rounds 1 --steps 1 --model linear --engine loop --quiet --out run").code == 0
    assert fedkin("export run --all").code == 0
    for name, starts in (("a", "Balanced accuracy, the mean over its classes, is "), ("b", "Right on ")):
        place = Path(f"run/exports/client-{name}")
        card, text = json.loads((place / "card.json").read_text()), (place / "README.md").read_text()
        counts, test = card["test"]["per_class"], card["test"]
        recalls = [right / of for right, of in zip(counts["correct"], counts["samples"], strict=True)]
        assert test["balanced"] == pytest.approx(sum(recalls) / 2)
        most = max(range(2), key=lambda k: card["trained_on"]["per_class"][k])
        assert test["majority"] == counts["samples"][most]
        said = text.partition(", seed 0. ")[2].partition("\n")[0]
        assert said.startswith(starts)
        assert f"ight on {test['correct']} of {test['n']} test samples of this client" in said
        constant = f"always predicting {('no', 'yes')[most]} is right on {test['majority']}"
        assert f"{constant} ({100 * test['majority'] / test['n']:.1f} %)" in said
        assert f"{100 * test['balanced']:.1f} %" in said
