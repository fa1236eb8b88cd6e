"""What is done to raw data: from training parts only, the same again for new rows, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.core.errors import ConfigError, DataError
from fedkin.data import IID, Federation, Natural, Preparation, federate, load
from fedkin.data.columns import Input
from fedkin.data.preparation import image_preparation
from refusals import refuses


def write(path: Path, n: int = 60, odd: dict[int, str] | None = None) -> Path:
    """Rows ``age,pulse,colour,ward,sick``; ``odd`` are other lines at their places."""
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(30, 80)},{'' if i % 7 == 0 else rng.normal(70, 9):.5},{'rgb'[i % 3]},w{i % 3},{i % 2}"
        if i % 7
        else f"{rng.integers(30, 80)},,{'rgb'[i % 3]},w{i % 3},{i % 2}"
        for i in range(n)
    ]
    for i, line in (odd or {}).items():
        lines[i] = line
    path.write_text("age,pulse,colour,ward,sick\n" + "\n".join(lines) + "\n")
    return path


def federation(path: Path, scaling: str = "pooled") -> Federation:
    d = load(path, target="sick", client="ward", scaling=scaling)  # type: ignore[arg-type]
    return federate(d, Natural(), seed=0)


def rows_of(path: Path) -> list[dict[str, str]]:
    head, *lines = path.read_text().splitlines()
    return [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]


def test_training_parts_only(tmp_path: Path) -> None:
    """Over the training samples of all clients, mean 0 and deviation 1; over all samples not."""
    f = federation(write(tmp_path / "t.csv"))
    train = torch.cat([shard.train.x for shard in f.clients]).double()
    assert abs(float(train[:, 0].mean())) < 1e-6
    assert abs(float(train[:, 0].std(unbiased=False)) - 1) < 1e-6
    everything = torch.cat([part.x for s in f.clients for part in (s.train, s.validation, s.test)]).double()
    assert abs(float(everything[:, 0].mean())) > 1e-4


def test_test_rows_change_nothing(tmp_path: Path) -> None:
    """Another value and an unknown text in a test row leave every training input as it was; the text becomes zeros."""
    before = federation(write(tmp_path / "a.csv"))
    rows = rows_of(tmp_path / "a.csv")
    one = before.clients[0].test
    inputs = before.preparation.apply(rows)
    at = next(i for i, x in enumerate(inputs) if torch.equal(x, one.x[0]) and rows[i]["ward"] == "w0")
    write(tmp_path / "b.csv", odd={at: f"9999,{rows[at]['pulse']},violet,w0,{rows[at]['sick']}"})
    after = federation(tmp_path / "b.csv")
    assert after.preparation == before.preparation
    for a, b in zip(before.clients, after.clients, strict=True):
        assert torch.equal(a.train.x, b.train.x)
        assert torch.equal(a.validation.x, b.validation.x)
    assert after.clients[0].test.x[0, 0] > 100
    assert after.clients[0].test.x[0, -3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("scaling", ["pooled", "client"])
def test_the_same_again_for_raw_rows(scaling: str, tmp_path: Path) -> None:
    """A row of the file, through JSON and back, becomes the input that a client was given, bit for bit."""
    path = write(tmp_path / "t.csv")
    f, rows = federation(path, scaling), rows_of(path)
    kept = Preparation.from_json(json.loads(json.dumps(f.preparation.to_json())))
    assert kept == f.preparation
    assert kept.per_client == (3 if scaling == "client" else 0)
    for k, shard in enumerate(f.clients):
        own = [row for row in rows if row["ward"] == f"w{k}"]
        made = {tuple(x.tolist()) for x in kept.of(k).apply(own)}
        given = {tuple(x.tolist()) for part in (shard.train, shard.validation, shard.test) for x in part.x}
        assert made == given
    if scaling == "client":
        with pytest.raises(DataError):
            kept.apply(rows)
        with refuses(ConfigError, "client", 3):
            kept.of(3)


def test_spellings_of_truth_that_are_categories_stay_apart(tmp_path: Path) -> None:
    """One client wrote True and False, another 1 and 0."""
    lines = [f"{v},{i % 2}" for i, v in enumerate(["True", "False", "1", "0"] * 5)]
    (tmp_path / "t.csv").write_text("smoker,y\n" + "\n".join(lines) + "\n")
    d = load(tmp_path / "t.csv", target="y")
    rows = [{"smoker": v} for v in ("True", "False", "1", "0")]
    np.testing.assert_array_equal(d.preparation.apply(rows), d.x[:4].numpy())
    assert d.x[:4].unique(dim=0).shape == (4, 4)
    assert d.preparation.apply([{"smoker": "TRUE"}]).sum() == 1


def test_by_hand() -> None:
    """Numbers, empty fields, a column without variation, texts known and not."""
    columns = (
        Input("a", "number", gaps=True, mean=(2.0,), std=(4.0,)),
        Input("b", "number", mean=(5.0,), std=(0.0,)),
        Input("c", "text", categories=("x", "y")),
    )
    made = Preparation("table", (5,), ("no", "yes"), "t", columns=columns)
    got = made.apply(
        [{"a": 4, "b": 7, "c": "y", "other": 1}, {"a": "?", "b": "", "c": "z"}, {"a": -2.0, "b": 5, "c": "x"}]
    )
    assert got.tolist() == [[0.5, 0, 0, 0, 1], [0, 1, 0, 0, 0], [-1, 0, 0, 1, 0]]
    with refuses(DataError, "row 1", "'b'"):
        made.apply([{"a": 1, "c": "x"}])
    with refuses(DataError, "row 2", "'a'", "'old'"):
        made.apply([{"a": 1, "b": 1, "c": "x"}, {"a": "old", "b": 1, "c": "x"}])


def test_images_and_arrays() -> None:
    """Bytes become 0..1, grey or colour as in training; another size is refused; arrays keep their values."""
    grey = image_preparation((1, 2, 3))
    picture = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51
    assert torch.allclose(grey.apply([picture])[0, 0], torch.tensor([[0, 0.2, 0.4], [0.6, 0.8, 1.0]]))
    colour = image_preparation((3, 2, 3))
    assert torch.equal(colour.apply([picture])[0], grey.apply([picture])[0].expand(3, -1, -1))
    with refuses(DataError, "1"):
        grey.apply([picture[:, :2]])
    with refuses(DataError, "1"):
        grey.apply([picture / 255])
    plain = Preparation("array", (4,))
    assert plain.apply(np.ones((2, 4))).tolist() == [[1.0] * 4] * 2
    with refuses(DataError, "4", "float64", "2", "3"):
        plain.apply(np.ones((2, 3)))


COLUMN = {"name": "a", "kind": "number", "gaps": False, "categories": [], "mean": [0.0], "std": [1.0]}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"kind": "sound"}, "$.kind"), ({"shape": [3]}, "shape"), ({"shape": []}, "shape"), ({"labels": [1]}, "labels"),
        ({"factor": "x"}, "$.factor"), ({"taken": [["label"]]}, "$.taken[0]"),
        ({"taken": [["label", 3]]}, "$.taken[0]"), ({"columns": [{"name": "a"}]}, "kind"),
        ({"columns": [COLUMN | {"gaps": 0}]}, "gaps"), ({"columns": [COLUMN | {"mean": [], "std": []}]}, "means"),
        ({"columns": [COLUMN | {"mean": [1e999]}]}, "means"), ({"columns": [COLUMN | {"std": [-1.0]}]}, "means"),
    ],
)  # fmt: skip
def test_bad_json(change: dict[str, object], fact: str) -> None:
    """What was written elsewhere is looked at; the fault is named."""
    good = Preparation("table", (1,), columns=(Input("a", "number", mean=(0.0,), std=(1.0,)),)).to_json()
    assert Preparation.from_json(good).shape == (1,)
    with refuses(DataError, fact):
        Preparation.from_json({**good, **change})


def test_it_goes_with_the_data(tmp_path: Path) -> None:
    f = federation(write(tmp_path / "t.csv"))
    assert f.preparation is not None
    f.save(tmp_path / "kept")
    assert Federation.open(tmp_path / "kept").preparation == f.preparation
    fedkin.run(fedkin.methods.Local(), f, "linear", rounds=1, out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "preparation.json").read_text())
    assert Preparation.from_json(found) == f.preparation
    assert (found["target"], found["labels"]) == ("sick", ["0", "1"])
    digits = federate(load("digits"), IID(), clients=2).preparation
    assert digits.apply(np.full((1, 1, 8, 8), 8)).max() == 0.5


def test_the_mean_of_equal_numbers_is_that_number(tmp_path: Path) -> None:
    """84 times 37.2 has another mean in float64, so that all training rows would lie outside their range."""
    (tmp_path / "t.csv").write_text("temp,x,y\n" + "".join(f"37.2,{i},{i % 2}\n" for i in range(84)))
    d = load(tmp_path / "t.csv", target="y")
    assert d.preparation.columns[0].mean == (37.2,)
