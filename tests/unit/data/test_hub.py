"""Data sets of Hugging Face, from local folders that the tests make."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import IID, Preparation, federate, federation_of, load
from fedkin.data.sources import hub
from fedkin.experiment.settings import DataSettings
from fedkin.inspection import inspect
from refusals import refuses

datasets: Any = pytest.importorskip("datasets", reason="needs the library datasets, the extra 'hf'")


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Images with class names and a writer, in splits train and test, saved to disk."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")

    def part(n: int) -> Any:
        rows = {
            "picture": [image.new("L", (3, 2), i) for i in range(n)],
            "label": [i % 2 for i in range(n)],
            "writer_id": [f"w{i // 20}" for i in range(n)],
            "note": ["text"] * n,
        }
        kinds = {"picture": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
        kinds |= {"writer_id": datasets.Value("string"), "note": datasets.Value("string")}
        return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))

    datasets.DatasetDict({"train": part(60), "test": part(6)}).save_to_disk(str(tmp_path / "d"))
    return f"hf:{tmp_path}/d"


def saved(folder: Path, train: Any, test: Any) -> Path:
    """Save two splits to disk; return the folder."""
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(folder))
    return folder


def test_images(pictures: str, caplog: pytest.LogCaptureFixture) -> None:
    """Columns are found by type and usual names, and told; the writers are the clients."""
    caplog.set_level("INFO", logger="fedkin.data")
    d = load(pictures)
    assert "label 'label', client 'writer_id', input 'picture'" in caplog.text
    assert (len(d), d.shape, d.labels, d.client_names) == (60, (1, 2, 3), ("cat", "dog"), ("w0", "w1", "w2"))
    assert d.x[:, 0, 0, 0].tolist() == list(range(60))
    assert len(d.official_test) == 6
    f = federation_of(DataSettings(data=pictures), 0)
    assert (len(f), f.client_names) == (3, ("w0", "w1", "w2"))
    assert load(pictures, image_size=4).shape == (1, 4, 4)


def test_a_table(tmp_path: Path) -> None:
    """Columns of numbers and texts are read as from a csv file."""
    rows = {"age": [30, 40, None, 60], "sex": ["f", "m", "f", "m"], "num": [0, 1, 1, 0], "hospital": list("aabb")}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "d"))
    lines = ["age,sex,num,hospital", "30,f,0,a", "40,m,1,a", ",f,1,b", "60,m,0,b"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    a = load(f"hf:{tmp_path}/d", target="num")
    b = load(tmp_path / "t.csv", target="num", client="hospital")
    assert torch.equal(a.x, b.x)
    assert (a.labels, a.client_names) == (b.labels, b.client_names) == (("0", "1"), ("a", "b"))
    with pytest.raises(DataError):
        load(f"hf:{tmp_path}/d")


def test_a_table_keeps_its_test_part(tmp_path: Path) -> None:
    """The split test is the official test part, as of images; what is scaled by is found on training rows alone."""

    def part(n: int, shift: float) -> Any:
        ages, labels = [shift + i for i in range(n)], [i // 2 % 2 for i in range(n)]
        return datasets.Dataset.from_dict({"age": ages, "site": ["a", "b"] * (n // 2), "label": labels})

    datasets.DatasetDict({"test": part(20, 1000.0), "train": part(80, 0.0)}).save_to_disk(str(tmp_path / "d"))
    d = load(f"hf:{tmp_path}/d")
    assert (len(d), len(d.official_test), d.client_names) == (80, 20, ("a", "b"))
    f = federation_of(DataSettings(data=f"hf:{tmp_path}/d", split="official"), 0)
    assert [len(c.test) for c in f.clients] == [10, 10]
    assert f.preparation is not None
    trained = torch.cat([c.train.x for c in f.clients])
    assert abs(float(trained.mean())) < 1e-5
    assert all(float(c.test.x.min()) > 10 for c in f.clients)  # of other ages than any that was trained on
    assert [c.test.y.tolist() for c in f.clients] == [[0, 1] * 5, [0, 1] * 5]
    assert (
        sum(len(c.test) for c in federation_of(DataSettings(data=f"hf:{tmp_path}/d"), 0).clients) == 20
    )  # a fifth of 100


def test_a_split_without_a_column(tmp_path: Path) -> None:
    """It is named with the column; a column that is dropped need not be there."""
    rows = {"age": [30, 40, 50, 60], "sex": ["f", "m", "f", "m"], "label": [0, 1, 1, 0]}
    train = datasets.Dataset.from_dict(rows)
    for lacking in ("sex", "label"):
        saved(tmp_path / lacking, train, train.remove_columns(lacking))
    with refuses(DataError, "'test'", "'sex'", "--drop sex"):
        load(f"hf:{tmp_path}/sex")
    assert load(f"hf:{tmp_path}/sex", drop=["sex"]).shape == (1,)
    with refuses(DataError, "'test'", "'label'"):
        load(f"hf:{tmp_path}/label")


@pytest.mark.parametrize("names", [["dog", "cat"], ["cat"], ["cat", "dog", "ox"]])
def test_splits_with_other_names_of_classes(names: list[str], tmp_path: Path) -> None:
    """Number 0 is another class there: tests would be wrong without a word."""

    def part(names: list[str]) -> Any:
        kinds = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)}
        return datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 0]}, features=datasets.Features(kinds))

    with refuses(DataError, "'test'"):
        load(f"hf:{saved(tmp_path / 'd', part(['cat', 'dog']), part(names))}")


def test_a_missing_class_of_a_table(tmp_path: Path) -> None:
    """The number -1, as in test splits without labels, and None are a missing target, not classes of their own."""
    kinds = datasets.Features({"age": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "yes"])})
    train = datasets.Dataset.from_dict({"age": [30, 40], "label": [0, 1]}, features=kinds)
    assert load(f"hf:{saved(tmp_path / 'a', train, train)}").labels == ("no", "yes")
    for name, missing in (("b", -1), ("c", None)):
        test = datasets.Dataset.from_dict({"age": [50, 60], "label": [0, missing]}, features=kinds)
        with pytest.raises(DataError):
            load(f"hf:{saved(tmp_path / name, train, test)}")


def test_classes_in_other_columns_are_texts(tmp_path: Path) -> None:
    """A column of wards with names is one of texts, and -1 is a missing value."""
    kinds = {
        name: datasets.ClassLabel(names=n) for name, n in (("ward", ["icu", "er", "onc"]), ("label", ["no", "yes"]))
    }
    kinds = datasets.Features({"age": datasets.Value("int64"), **kinds})
    told = {"age": [30, 40, 50, 60], "ward": [2, 0, -1, 2], "label": [0, 1, 0, 1]}
    datasets.Dataset.from_dict(told, features=kinds).save_to_disk(str(tmp_path / "a"))
    d = load(f"hf:{tmp_path / 'a'}", target="label")
    age, ward = d.preparation.columns
    assert (age.categories, ward.categories) == ((), ("", "icu", "onc"))
    assert d.x[:, 1:].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_what_was_guessed_goes_with_the_data(pictures: str) -> None:
    """In the preparation, which lies in the run folder and in exports, and in words for `inspect`."""
    f = federation_of(DataSettings(data=pictures), 0)
    assert dict(f.preparation.taken) == {"label": "label", "client": "writer_id", "input": "picture"}
    assert Preparation.from_json(json.loads(json.dumps(f.preparation.to_json()))) == f.preparation
    found = hub.open_hub(pictures, DataSettings(target="label"))
    assert found.description() == (
        "split train: 60 rows",
        "split test: 6 rows",
        "label: label",
        "client: writer_id (guessed; --client-column overrides it)",
        "input: picture",
    )


def rows(n: int) -> Any:
    """A part of n rows: a column of numbers, a class and a hospital."""
    return datasets.Dataset.from_dict({"a": [i % 7 for i in range(n)], "y": [i % 2 for i in range(n)]})


def test_splits_that_are_not_used(tmp_path: Path) -> None:
    """They are named in the notes of the federation and by the inspection."""
    datasets.DatasetDict({"train": rows(60), "test": rows(20), "external": rows(9)}).save_to_disk(str(tmp_path / "d"))
    said = "split 'external' is not used: only train, validation and test are read"
    data = load(f"hf:{tmp_path}/d")
    assert (data.notes, federate(data, IID(), clients=3).notes) == ((said,), (said,))
    found = inspect(f"hf:{tmp_path}/d", IID(), clients=3)
    assert [f.what for f in found.findings if f.code == "as-read"] == [said]
    assert said in found.seen
    assert load(f"hf:{saved(tmp_path / 'e', rows(60), rows(20))}").notes == ()


def test_folders_that_are_not_there_or_without_the_prefix(tmp_path: Path) -> None:
    """A folder is not looked for at the hub; one that was saved to disk is read with hf: in front."""
    place = saved(tmp_path / "d", rows(60), rows(20))
    with refuses(DataError, f"--data hf:{place}"):
        load(place)
    with pytest.raises(DataError):
        load(f"hf:{tmp_path}/e")
    with pytest.raises(DataError):
        load("hf:nofolder/")


def test_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's client says comes in one line; without the library the message says how to install it."""

    def fail(*_: object) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError):
        load("hf:me/data")
    assert hub.from_hub("me/data", "x", "y", None)[0] is None
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError):
        load("hf:me/data")


def test_lists_of_numbers(tmp_path: Path) -> None:
    """A column of lists is the input; without splits all samples are shared out."""
    x = torch.arange(40.0).view(20, 2)
    datasets.Dataset.from_dict({"x": x.tolist(), "y": [i % 3 for i in range(20)]}).save_to_disk(str(tmp_path / "d"))
    d = load(f"hf:{tmp_path}/d")
    assert torch.equal(d.x, x)
    assert (d.classes, d.client, d.official_test) == (3, None, None)
