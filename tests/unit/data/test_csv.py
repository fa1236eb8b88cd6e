"""Reading csv files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import federation_of, load, resolved
from fedkin.data.sources.tables import read_csv
from fedkin.experiment.settings import DataSettings, toml_of
from grouped import described
from refusals import refuses

TABLE = "age,ward,colour,sick\n40,b,red,0\n50,a,blue,2\n,b,red,1\n60,a,,0\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(TABLE)
    return path


def test_columns(table: Path) -> None:
    """Numbers are standardised, missing ones become the mean with a flag, texts one column each."""
    d = load(table, target="sick", client="ward")
    assert d.shape == (2 + 3,)
    age = np.array([40, 50, 50, 60.0])
    assert np.allclose(d.x[:, 0].numpy(), (age - 50) / np.std([40, 50, 60]))
    assert d.x[:, 1].tolist() == [0, 0, 1, 0]
    assert d.x[:, 2:].tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert (d.classes, d.labels, d.y.tolist()) == (3, ("0", "1", "2"), [0, 2, 1, 0])
    assert d.client.tolist() == [1, 0, 1, 0]
    assert (d.client_names, d.name) == (("a", "b"), "patients")


def test_binary_and_drop(table: Path) -> None:
    """binary makes two classes, drop leaves columns out, a client column is never an input."""
    d = load(table, target="sick", client="ward", binary=True, drop=["colour"])
    assert (d.y.tolist(), d.labels, d.shape) == ([0, 1, 1, 0], ("sick <= 0", "sick > 0"), (2,))
    assert load(table, target="sick", drop=["colour"]).client is None


def test_text_target(table: Path) -> None:
    """A target of texts becomes classes in alphabetical order."""
    d = load(table, target="ward")
    assert (d.y.tolist(), d.labels) == ([1, 0, 1, 0], ("a", "b"))
    with refuses(DataError, "'ward'"):
        load(table, target="ward", binary=True)


def test_large_codes_are_not_rounded(tmp_path: Path) -> None:
    """Codes of 18 digits, as of SNOMED CT, that differ in the last one: three classes, with the names in the file."""
    codes = ("999000011000001104", "999000011000001105", "1240581000000104")
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{code}\n" for i, code in enumerate(codes * 2)))
    d = load(path, target="y")
    assert d.labels == ("1240581000000104", "999000011000001104", "999000011000001105")
    assert d.y.tolist() == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("field", ["-nan", "inf", "-inf"])
def test_a_binary_target_without_a_number(tmp_path: Path, field: str) -> None:
    """Neither above 0 nor below: an error that names the line, where it counted as a class."""
    path = tmp_path / "t.csv"
    path.write_text(f"x,y\n1,0\n2,{field}\n3,2\n")
    with refuses(DataError, "t.csv", "line 3"):
        load(path, target="y", binary=True)


def test_one_file_per_client(tmp_path: Path) -> None:
    """Several files, or a folder of them, are one client each; the order of columns may differ."""
    (tmp_path / "north.csv").write_text("x;y\n1;0\n2;1\n")
    (tmp_path / "south.csv").write_text("y\tx\n1\t6\n")
    for spec in (tmp_path, [tmp_path / "north.csv", tmp_path / "south.csv"]):
        d = load(spec, target="y")
        assert (d.client.tolist(), d.client_names) == ([0, 0, 1], ("north", "south"))
        assert np.allclose(d.x[:, 0].numpy(), (np.array([1, 2, 6]) - 3) / np.std([1, 2, 6]))
        assert d.y.tolist() == [0, 1, 1]


def test_a_column_that_a_file_lacks_is_empty_there(tmp_path: Path) -> None:
    """It can be kept, where it counts as missing, and dropped; a note says which files lack which columns."""
    (tmp_path / "a.csv").write_text("x,y\n1,0\n3,1\n")
    (tmp_path / "b.csv").write_text("t,y,z\nu,0,5\n,1,6\n")
    found = load(tmp_path, target="y", drop=["z"])
    assert [c.name for c in found.preparation.columns] == ["x", "t"]
    assert found.x.tolist() == [[-1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]]
    (note,) = found.notes
    assert all(f"{column} ({file}.csv)" in note for column, file in (("x", "b"), ("t", "a"), ("z", "a")))
    assert load(tmp_path, target="y", drop=["x", "t"]).shape == (2,)
    with refuses(DataError, "b.csv", "'x'", "a.csv"):
        load(tmp_path, target="x")


def test_target_is_needed(table: Path) -> None:
    """Without a target the columns are listed; a wrong one is answered with the nearest."""
    for given in ({}, {"target": "ward", "client": "ward"}):
        with refuses(ConfigError, "client"):
            load(table, **given)  # type: ignore[arg-type]
    with refuses(DataError, "'sik'", "'sick'"):
        load(table, target="sik")
    with refuses(DataError, "'hospital'"):
        load(table, target="sick", client="hospital")
    with refuses(DataError, "'id'"):
        load(table, target="sick", drop=["id"])
    with pytest.raises(DataError):
        load(table, target="sick", client="ward", drop=["age", "colour"])


BAD: list[tuple[str, tuple[str, ...]]] = [
    ("", ("nothing", "0 rows")),
    ("x,y\n", ("x, y", "0 rows")),
    ("x,x,y\n1,2,0\n", ("x, x, y", "1 row")),
    ("x,,y\n1,2,0\n", ("each its own",)),
    ("x,y\n1,0\n1\n", ("line 3", "1 fields", "2")),
    ("x,y\n1,0\n1,\n", ("line 3", "''", "target 'y'")),
    ("x,y\n1,0\n1,None\n", ("line 3", "'None'")),
    ("x,y\n1,0\n1,0.5\n", ("line 3", "'0.5'")),
    ("x,y\n1,inf\n", ("line 2",)),
    ("x,y\n1,-nan\n", ("line 2",)),
    ("x,y\n1,1e999\n", ("line 2",)),
    ("x,y\n1,0\ninf,1\n", ("line 3", "'x'", "inf")),
    ("x,y\n1,0\n-nan,1\n", ("line 3", "'x'", "-nan")),
    ("x,y\n?,0\nNA,1\n", ("'x'", "empty in every row")),
    ('x,y\n1,a\n2,"b\n3,c\n4,d\n', ("line 3", "quote")),
    ('x,y\n1,a\n2,"b\n3,c\n4,"d"\n', ("line 3", "quote")),
    ('x,y\n1,a\n2,b\n3,"c', ("line 4", "quote")),
    ('x,y\n1,a\n2,"b\n' + "3,c\n" * 40_000, ("line 3", "quote")),
    ('x,y\n1,a\n2,"b"c\n', ("line 3", "quote")),
    ("x,y\n" + "".join(f"t{i},0\n" for i in range(51)), ("'x'", "51", "'t0' (t.csv, line 2)", "--drop x")),
    ("x,y\n" + "".join(f"2020-01-{i},0\n" for i in range(51)), ("dates",)),
    ("x,y\n" + "".join(f'"{i},5",0\n' for i in range(51)), ("1.5 for 1,5",)),
    ("x,y\n" + "".join(f'"{i},500",0\n' for i in range(51)), ("1500 for 1,500",)),
    ("x,y\n" + "".join(f"1,{i}\n" for i in range(1001)), ("'y'", "1001", "1000")),
]


@pytest.mark.parametrize(("text", "facts"), BAD, ids=range(len(BAD)))
def test_bad_tables(text: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    """Every fault of a table is named with its place; the rows behind an open quote are not taken for text."""
    (tmp_path / "t.csv").write_text(text)
    with refuses(DataError, *facts):
        load(tmp_path / "t.csv", target="y")


def text(tmp_path: Path, content: bytes) -> Path:
    """A csv file with this content."""
    (tmp_path / "t.csv").write_bytes(content)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-16-be"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    """The message names the line and the flag; with its encoding the file is read as the same text in UTF-8."""
    rows = "x,town,y\n1,Ulm,0\n2,Köln,1\n"
    with refuses(DataError, "t.csv", "--encoding cp1252"):
        load(text(tmp_path, rows.encode(encoding)), target="y")
    found = load(tmp_path / "t.csv", target="y", encoding=encoding)
    wanted = load(text(tmp_path, rows.encode()), target="y")
    assert torch.equal(found.x, wanted.x)
    assert found.preparation == wanted.preparation


@pytest.mark.parametrize("encoding", ["ascii", "excel"])
def test_an_encoding_that_does_not_fit(encoding: str, tmp_path: Path) -> None:
    file = text(tmp_path, "x,y\n1,ä\n".encode("cp1252"))
    with refuses(DataError, encoding):
        load(file, target="y", encoding=encoding)


def test_quotes_that_are_closed(tmp_path: Path) -> None:
    """Fields of several lines, doubled quotes and quotes inside a field."""
    rows = 'x,t,y\n1,"two\nlines",0\n2,"a ""b""",1\n3,5" pipe,0\n'
    found = load(text(tmp_path, rows.encode()), target="y")
    assert found.preparation.columns[1].categories == ('5" pipe', 'a "b"', "two\nlines")


# ---- each client's own scaling --------------------------------------------------------------------------------------
def test_each_clients_own_scaling(tmp_path: Path) -> None:
    """By its own values: mean and deviation of each client's own column; zeros where it has no or one value."""
    (tmp_path / "a.csv").write_text("x,z,y\n1,5,0\n2,,1\n6,8,0\n")
    (tmp_path / "b.csv").write_text("x,z,y\n100,,1\n104,?,0\n")
    d = load(tmp_path, target="y", scaling="client")
    x = (np.array([1, 2, 6]) - 3) / np.std([1, 2, 6])
    assert np.allclose(d.x[:, 0].numpy(), [*x, -1, 1])
    assert np.allclose(d.x[:, 1].numpy(), [-1, 0, 1, 0, 0])
    assert d.x[:, 2].tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-16-le", None])
def test_a_mark_at_the_start_of_a_file_is_no_part_of_a_name(encoding: str | None, tmp_path: Path) -> None:
    """The byte order mark, with which Excel begins UTF-8 files."""
    (tmp_path / "t.csv").write_bytes("\ufeffage,y\n1,0\n2,1\n".encode(encoding or "utf-8"))
    assert read_csv([tmp_path / "t.csv"], "t", encoding).columns == ("age", "y")


@pytest.mark.parametrize(
    "text", ['"Alter, Jahre";"Druck, mmHg, systolisch";krank\n1;2;0\n3;4;1\n', "\n\na;b,c;krank\n1;2;0\n3;4;1\n"]
)
def test_the_separator_is_that_of_the_header_outside_quotes(text: str, tmp_path: Path) -> None:
    """Commas within quoted names separate nothing; lines before the header may be empty."""
    (tmp_path / "t.csv").write_text(text)
    assert load(tmp_path / "t.csv", target="krank").shape == (2,)


def test_two_files_of_one_name_are_no_two_clients(table: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, the extra 'parquet'")
    csv = pytest.importorskip("pyarrow.csv")
    parquet.write_table(csv.read_csv(table), tmp_path / "patients.parquet")
    with refuses(DataError, "'patients' twice"):
        load(tmp_path, target="sick")


# ---- parquet ------------------------------------------------------------------------------------------------------
def test_parquet_is_read_as_csv(table: Path, tmp_path: Path) -> None:
    """The same columns, values, classes and clients as from the csv file; also one file per client."""
    csv = pytest.importorskip("pyarrow.csv", reason="needs pyarrow, the extra 'parquet'")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = csv.read_csv(table)
    (tmp_path / "p").mkdir()
    parquet.write_table(rows, tmp_path / "p" / "patients.parquet")
    a, b = (load(p, target="sick", client="ward") for p in (table, tmp_path / "p" / "patients.parquet"))
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert (a.labels, a.client_names, a.preparation) == (b.labels, b.client_names, b.preparation)
    parquet.write_table(rows, tmp_path / "p" / "others.parquet")
    assert load(tmp_path / "p", target="sick").client_names == ("others", "patients")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError):
        load(tmp_path / "bad.parquet", target="sick")


def test_an_index_without_a_name_is_no_column(tmp_path: Path) -> None:
    """pandas stores it under a name of its own; an index with a name stays a column."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra 'parquet'")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = arrow.table({"__index_level_0__": [4, 9], "patient": ["p", "q"], "x": [1, 2], "y": [0, 1]})
    parquet.write_table(rows, tmp_path / "t.parquet")
    assert read_csv([tmp_path / "t.parquet"], "t").columns == ("patient", "x", "y")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the message says how to install it."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError):
        load(tmp_path / "a.parquet", target="y")


# ---- who the clients are ------------------------------------------------------------------------------------------
def test_who_names_the_clients_means_them(tmp_path: Path) -> None:
    """A client column, or one file per client, is natural without a further flag, unless another is asked for."""
    lines = [f"{i},{i % 3},{i % 2}" for i in range(90)]
    (tmp_path / "t.csv").write_text("x,ward,y\n" + "\n".join(lines) + "\n")
    one = DataSettings(data=str(tmp_path / "t.csv"), target="y")
    assert [resolved(how).partition for how in (one, one.but(client_column="ward"))] == ["dirichlet", "natural"]
    f = federation_of(one.but(client_column="ward"), 0)
    assert (len(f), f.client_names) == (3, ("0", "1", "2"))
    assert resolved(one.but(client_column="ward", partition="iid")).partition == "iid"
    (tmp_path / "many").mkdir()
    for name in ("a", "b"):
        (tmp_path / "many" / f"{name}.csv").write_text("x,y\n" + "1,0\n2,1\n" * 10)
    many = DataSettings(data=str(tmp_path / "many"), target="y")
    assert resolved(many).partition == "natural"
    assert federation_of(many, 0).client_names == ("a", "b")
    assert 'partition = "natural"' in toml_of(described("fedavg", data=many))
    assert resolved(DataSettings()).partition == "dirichlet"


def test_dropped_columns_may_hold_commas(tmp_path: Path) -> None:
    """In double quotes; the advice of a message can be pasted into a shell, and leads to the column."""
    texts = "".join(f't{i},"{i}",1,{i % 2}\n' for i in range(51))
    (tmp_path / "t.csv").write_text('"kind, ""own""",age,"weight, kg",ill\n' + texts)
    with pytest.raises(DataError) as caught:
        load(tmp_path / "t.csv", target="ill")
    flag, advised, *rest = shlex.split(str(caught.value).partition(" column out: ")[2])
    assert (flag, rest) == ("--drop", [])
    for given, left in ((advised, ["age", "weight, kg"]), (f'{advised}, "weight, kg",', ["age"])):
        data = DataSettings(data=str(tmp_path / "t.csv"), target="ill", drop=given, clients=1, partition="iid")
        f = federation_of(data, 0)
        assert [column.name for column in f.preparation.columns] == left


def test_decimal_commas(tmp_path: Path) -> None:
    """With semicolons 1,5 is one and a half; texts with commas, and commas in other files, stay as they are."""
    (tmp_path / "a.csv").write_text("dose;name;ill\n1,5;a,b;0\n-2;1,2,3;1\n3,25e1;c;0\n")
    rows = read_csv([tmp_path / "a.csv"], "a").frame.to_numpy().tolist()
    assert rows == [["1.5", "a,b", "0"], ["-2", "1,2,3", "1"], ["3.25e1", "c", "0"]]
    (tmp_path / "b.csv").write_text('dose,ill\n"1,5",0\n')
    assert read_csv([tmp_path / "b.csv"], "b").frame.to_numpy().tolist() == [["1,5", "0"]]


def test_numbered_classes_are_in_order(tmp_path: Path) -> None:
    """Whole numbers are ordered as numbers, whatever they start from; 2.0 is 2; clients 2 and 10 too."""
    path = tmp_path / "t.csv"
    path.write_text("x,y,c\n1,10,10\n2,2.0,2\n3,2,10\n")
    d = load(path, target="y", client="c")
    assert (d.labels, d.y.tolist(), d.client_names) == (("2", "10"), [1, 0, 0], ("2", "10"))


def test_codes_with_underscores_are_texts(tmp_path: Path) -> None:
    """Python alone reads 1_1 as 11, which would be the class of another code."""
    (tmp_path / "t.csv").write_text("x,y\n2_10,1_1\n2_11,11\n")
    d = load(tmp_path / "t.csv", target="y")
    assert (d.labels, d.x.tolist()) == (("11", "1_1"), [[1, 0], [0, 1]])
