"""Arrays, lists and pandas in the place of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import Dataset, Federation
from fedkin.core import DataError
from fedkin.exporting.joining import join
from refusals import refuses

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
WARD = np.repeat(["north", "east", "south"], 20)
NAMES = np.array(["well", "ill"])[Y]


def same(a: Dataset, b: Dataset) -> bool:
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.classes == b.classes


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, Y), (X.tolist(), Y.tolist()), (X.astype(np.float32), Y.astype(np.int8)), (X, Y.astype(bool)),
        (X, Y.astype(float)), (X, Y[:, None]), (torch.tensor(X).float(), Y), (X, torch.tensor(Y)),
    ],
    ids=["arrays", "lists", "narrow", "truth", "floats", "a column", "x a tensor", "y a tensor"],
)  # fmt: skip
def test_a_data_set_of_arrays_is_that_of_tensors(x: Any, y: Any) -> None:
    """float32 inputs, int64 labels, and the number of classes that the labels show."""
    expected = Dataset(torch.tensor(X).float(), torch.tensor(Y), 2)
    found = Dataset(x, y)
    assert same(found, expected)
    assert (found.x.dtype, found.y.dtype) == (torch.float32, torch.int64)


def test_a_data_set_of_pandas() -> None:
    """Columns and tables, texts as categories or not; what pandas gives cannot be written to, a tensor can."""
    import pandas

    frame = pandas.DataFrame(X.astype(np.float32), columns=list("abcd")).assign(ill=NAMES, ward=WARD)
    for ward in (frame["ward"], frame["ward"].astype("category"), frame["ward"].astype(object)):
        found = Dataset(frame[list("abcd")], frame["ill"], client=ward, unit=frame["ward"])
        assert (found.labels, found.client_names) == (("ill", "well"), ("east", "north", "south"))
        assert torch.equal(found.x, torch.tensor(X).float())
    found.x[0] = 7
    assert frame["a"][0] == np.float32(X[0, 0])


def test_texts_are_classes_and_clients() -> None:
    """Sorted, or in the order that is given; federate keeps the clients."""
    data = Dataset(X, NAMES, client=WARD.tolist())
    assert (data.labels, data.classes, data.client_names) == (("ill", "well"), 2, ("east", "north", "south"))
    assert [data.labels[i] for i in data.y] == NAMES.tolist()
    assert fedkin.federate(data).client_names == data.client_names
    given = Dataset(X, NAMES, labels=("well", "ill", "dead"))
    assert (given.labels, given.classes, given.y.tolist()) == (("well", "ill", "dead"), 3, Y.tolist())
    assert Dataset(X, Y, labels=("a", "b", "c")).classes == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"y": Y[:-1]}, {"client": WARD[:-2]}, {"client": [0]}, {"unit": np.arange(61)}, {"client": np.full(60, 1.5)},
        {"y": X[:, 0]}, {"y": [None] * 60}, {"x": X.astype(str)}, {"x": X[:, 0]}, {"x": np.where(X > 2, np.nan, X)},
        {"x": [[1, 2], [3]]}, {"x": [], "y": []}, {"y": NAMES, "labels": ("ill", "sick")}, {"groups": ["a", "b"]},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        Dataset(**{"x": X, "y": Y, "name": "wards", **changes})
    assert "\n" not in str(caught.value)


def test_a_table_of_pandas_is_read_like_a_file(tmp_path: Path) -> None:
    """The same inputs as from a csv file: missing values, columns of texts, truth values."""
    import pandas

    frame = pandas.DataFrame({
        "age": np.where(Y, np.nan, np.round(X[:, 1], 2)), "sex": np.where(X[:, 2] > 0, "f", "m"), "new": X[:, 3] > 0,
        "ward": WARD, "ill": NAMES,
    })  # fmt: skip
    frame.assign(new=frame["new"].astype(int)).to_csv(tmp_path / "a.csv", index=False)
    found = fedkin.load(frame, target="ill", client="ward")
    filed = fedkin.load(tmp_path / "a.csv", target="ill", client="ward")
    assert same(found, filed)
    assert (found.labels, found.client_names) == (filed.labels, filed.client_names)
    codes = frame.assign(age=pandas.Series(["01", "02", "10"] * 20, dtype="str"))
    assert fedkin.load(codes, target="ill", drop=["ward"]).shape == (3 + 2 + 1,)
    with refuses(DataError, "'il'", "'ill'"):
        fedkin.load(frame, target="il")
    with pytest.raises(DataError):
        Dataset(frame, NAMES)


def test_a_federation_of_pandas_and_texts() -> None:
    """Each client's classes have one numbering, also where it has a single class."""
    import pandas

    frame = pandas.DataFrame(X, columns=list("abcd"))
    one = pandas.Series(["well"] * 60)
    federation = Federation.from_arrays([(frame, pandas.Series(NAMES)), (frame, one)])
    plain = Federation.from_arrays([(X, 1 - np.array(NAMES == "ill")), (X, np.ones(60, int))])
    assert federation.labels == ("ill", "well")
    assert federation.fingerprint() == plain.fingerprint()
    named = Federation.from_arrays([(X, NAMES)], labels=("well", "ill"))
    assert named.counts().tolist() == [np.bincount(named.clients[0].train.y, minlength=2).tolist()]
    assert named.labels == ("well", "ill")
    with pytest.raises(DataError):
        Federation.from_arrays([(X, NAMES), (X, NAMES[:2])])
    with refuses(DataError, "client 0"):
        Federation.from_arrays([(X, NAMES), (X, Y)])


def test_predictions_take_tables(tmp_path: Path) -> None:
    """Of a model of arrays its inputs, of one of tables raw rows; a joining client's classes are those of the run."""
    import pandas

    how: dict[str, Any] = {"model": "linear", "training": fedkin.Training(lr=0.5), "rounds": 1}
    frame = pandas.DataFrame(X, columns=list("abcd"))
    run = fedkin.run("fedavg", Federation.from_arrays([(X, NAMES), (X[::-1], NAMES[::-1])]), **how)
    model = fedkin.load_export(fedkin.export(run, client=0, out=tmp_path / "arrays"))
    expected = model.predict(torch.tensor(X)).tolist()
    assert all(model.predict(x).tolist() == expected for x in (X, X.tolist(), frame, frame.to_numpy()))
    with pytest.raises(DataError):
        model.predict(frame.assign(a="x"))
    assert join(run, (frame, np.full(60, "well")), after=(0,)).test == 12
    with refuses(DataError, "'sick'"):
        join(run, (frame, np.full(60, "sick")), after=(0,))
    table = frame.assign(sex=np.where(X[:, 2] > 0, "f", "m"), ill=NAMES)
    wards = fedkin.federate(fedkin.load(table, target="ill"), clients=2)
    of_rows = fedkin.load_export(fedkin.export(fedkin.run("fedavg", wards, **how), client=0, out=tmp_path / "rows"))
    rows = table.drop(columns="ill")
    assert of_rows.predict(rows).tolist() == of_rows.predict(rows.to_dict("records")).tolist()
