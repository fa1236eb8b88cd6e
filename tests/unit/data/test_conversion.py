"""What texts of tables are read as: numbers only where different texts stay different, and every loss is said."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from commandline import Command
from fedkin.core.errors import ConfigError, DataError
from fedkin.data import IID, Dataset, Natural, federate, load
from fedkin.data.columns import MISSING
from fedkin.data.sources import brings_clients
from fedkin.inspection import inspect
from refusals import refuses


def table(path: Path, columns: dict[str, Sequence[object]]) -> Path:
    path.write_text("\n".join(",".join(map(str, row)) for row in [[*columns], *zip(*columns.values(), strict=True)]))
    return path


def filled(values: Sequence[object], n: int = 60) -> list[object]:
    """The values again and again."""
    return [values[i % len(values)] for i in range(n)]


def kind(found: Dataset, column: str) -> str:
    return next(c.kind for c in found.preparation.columns if c.name == column)


# ---- different texts stay different ---------------------------------------------------------------------------------
CODES = [
    ("01", "1", "10"), ("007", "7"), ("01067", "80331"), ("00.5", "0.5"), ("1.1", "1.10"),
    ("250.0", "250.00", "250.1", "250.10"), ("1e3", "1000"), ("+5", "5"), ("5.50", "5.5", "7"),
    ("999000011000001104", "999000011000001105"), ("1E2", "100"), (".5", "0.5"),
]  # fmt: skip


@pytest.mark.parametrize("codes", CODES)
def test_codes_stay_apart(codes: tuple[str, ...], tmp_path: Path) -> None:
    """As an input each code is an input, as a target each is a class with the name in the file."""
    labels = filled([0, 1, 1])
    path = table(tmp_path / "t.csv", {"code": filled(codes), "x": range(60), "y": labels})
    found = load(path, target="y", drop=["x"])
    assert (found.shape, kind(found, "code")) == ((len(codes),), "text")
    (note,) = federate(found, IID(), clients=3).notes
    assert "'code'" in note
    assert any(text in note for text in codes)
    seen = inspect(path, target="y", clients=3)
    assert note.startswith(next(f.what for f in seen.findings if f.code == "as-read"))
    assert next(c.distinct for c in seen.columns if c.name == "code") == len(codes)
    classes = load(path, target="code")
    assert classes.labels == tuple(sorted(codes))
    assert np.bincount(classes.y.numpy()).tolist() == [filled(codes).count(code) for code in sorted(codes)]


NUMBERS = [
    ("0.50", "0.25", "1.00"), ("1e-05", "0.3", "1e+05"), ("+0.5", "-0.3", "+1.2"), ("-0.00", "0.00", "1.50"),
    ("-3", "0", "12"), ("1.5E-3", "2.5E-3"), ("1", "", "NA", "2"),
]  # fmt: skip


@pytest.mark.parametrize("texts", NUMBERS)
def test_ordinary_numbers_are_numbers(texts: tuple[str, ...], tmp_path: Path) -> None:
    """Decimals with a fixed number of places, exponents as programs write them, signs."""
    path = table(tmp_path / "t.csv", {"x": filled(texts), "y": filled([0, 1, 1])})
    found = load(path, target="y")
    wanted = [np.nan if t.lower() in MISSING else float(str(t)) for t in map(str, filled(texts))]
    assert np.array_equal(found.table.raw[:, 0], wanted, equal_nan=True)
    assert len(found.notes) == ("-0.00" in texts)


def test_one_and_one_point_zero_are_one_number_which_is_said(tmp_path: Path) -> None:
    """As pandas writes whole numbers of one file with and another without gaps; as classes as well."""
    path = table(tmp_path / "t.csv", {"x": filled(["1", "1.0", "2", "3.00", ""]), "y": filled(["0", "2.0", "2"])})
    found = load(path, target="y")
    assert (kind(found, "x"), found.labels) == ("number", ("0", "2"))
    assert len(found.notes) == 2
    assert "'x': 1 and 1.0" in found.notes[0]
    assert "3 different texts of the target 'y' are 2 classes" in found.notes[1]
    seen = inspect(path, target="y", clients=3)
    assert sum(f.code == "as-read" for f in seen.findings) == 2


def test_texts_of_parquet_are_texts(tmp_path: Path) -> None:
    """Whatever they look like; numbers of the same file are numbers, and a binary target may be declared as texts."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra 'parquet'")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": filled(["01", "1"]), "b": filled(["3", "4", "5"]), "c": [*range(60)], "y": filled(["0", "1"])}
    columns["d"] = arrow.array(filled(["8", "9"])).dictionary_encode()  # a categorical of pandas
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    found = load(tmp_path / "t.parquet", target="y")
    assert [kind(found, c) for c in "abcd"] == ["text", "text", "number", "text"]
    assert (found.labels, load(tmp_path / "t.parquet", target="y", binary=True).classes) == (("0", "1"), 2)


# ---- a text among numbers -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["unk", "not done", "n.d.", "-", "#N/A", ">89", "."])
@pytest.mark.parametrize("places", [0, 3])
def test_a_text_among_numbers_counts_as_missing(text: str, places: int, tmp_path: Path) -> None:
    """The same inputs as with an empty field, few or many different numbers; a note names text, column, file, line."""
    numbers = [f"{40 + i % 30 + (i / 1000 if places else 0):.{places}f}" for i in range(200)]
    labels = filled([0, 1, 1], 200)
    given = table(tmp_path / "given.csv", {"age": [*numbers[:50], text, *numbers[51:]], "y": labels})
    empty = table(tmp_path / "empty.csv", {"age": [*numbers[:50], "", *numbers[51:]], "y": labels})
    found = load(given, target="y")
    assert torch.equal(found.x, load(empty, target="y").x)
    assert found.shape == (2,)
    (note,) = found.notes
    assert all(part in note for part in (repr(text), "'age'", "given.csv, line 52", "leave the field empty"))
    (finding,) = (f for f in inspect(given, target="y", clients=3).findings if f.code == "as-read")
    assert note == f"{finding.what}; {finding.todo}"


def test_every_text_among_numbers_is_missing_if_they_are_a_tenth(tmp_path: Path) -> None:
    """Of 100 values 10 may be texts; with 11 it is a column of texts."""
    for count, wanted, notes in ((10, "number", 1), (11, "text", 1), (49, "text", 1), (51, "text", 0)):
        values = ["low"] * count + [i % 20 + 1 for i in range(100 - count)] + [""] * 50
        path = table(tmp_path / "t.csv", {"x": values, "y": filled([0, 1], 150)})
        found = load(path, target="y")
        assert (kind(found, "x"), len(found.notes)) == (wanted, notes)
        assert all("'low' (t.csv, line 2)" in note for note in found.notes)


def test_a_number_with_a_comma_is_no_missing_value(tmp_path: Path) -> None:
    """The highest values are written with one: they are refused as before, not left out."""
    path = table(tmp_path / "t.csv", {"x": [*range(100, 198), '"1,500"', '"2,000"'], "y": filled([0, 1], 100)})
    with refuses(DataError, "1500", "1,500"):
        load(path, target="y")


@pytest.mark.parametrize("command", ["run fedavg", "compare fedavg local"])
def test_it_is_said_before_a_run(command: str, fedkin: Command) -> None:
    columns = {"ward": filled("ab", 80), "age": [*range(40, 119), "unk"], "code": filled(["1.1", "1.10"], 80)}
    table(Path("t.csv"), {**columns, "y": filled([0, 1, 1], 80)})
    done = fedkin(f"{command} --data t.csv --target y --client-column ward --model linear --rounds 1 --out out")
    assert done.code == 0
    said = " ".join((done.out + done.err).split())
    assert "'unk' (t.csv, line 81)" in said
    assert "1.1 and 1.10" in said
    kept = [file.read_text() for file in Path("out").rglob("summary.json")]
    assert kept
    assert all("'unk' (t.csv, line 81)" in text for text in kept)


# ---- targets of many numbers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([i * i % 35 for i in range(500)] + list(range(35)), True),
        ([int(40 * (i / 400) ** 4) for i in range(400)] + [41, 44, 47, 60], True),
        ([i % 26 for i in range(26 * 40)], False),  # letters
        ([i % 10 for i in range(60)], False),  # digits
        ([1000 * (i % 30) for i in range(90)], False),  # codes
    ],
)
def test_a_target_that_looks_like_a_measurement(values: list[int], said: bool, tmp_path: Path) -> None:
    """A note of the run and of the inspection, with what to do; it is not refused."""
    path = table(tmp_path / "t.csv", {"x": range(len(values)), "y": values})
    found = load(path, target="y")
    assert any("measurement" in note and "--binary" in note for note in found.notes) == said
    seen = inspect(path, target="y", clients=3)
    assert any("measurement" in f.what for f in seen.findings if f.code == "as-read") == said


# ---- packed tables --------------------------------------------------------------------------------------------------
ROWS = "x,t,y\n1,a,0\n2,b,1\n4,a,2\n"


def packed(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("name", ["t.csv.gz", "t.zip", "t.tsv", "t.txt", "t.tsv.gz", "t.TXT.GZ", "u.zip", "t.csv.zip"])
def test_packed_tables(name: str, tmp_path: Path) -> None:
    """The same data as of the csv file, with settings of columns, one file or one per client."""
    text = ROWS.replace(",", "\t") if "tsv" in name.lower() else ROWS
    path = tmp_path / name
    if name.endswith(".zip"):
        packed(path, {"wards/t" if name == "u.zip" else "t.csv": text, "wards/": ""})
    else:
        path.write_bytes(gzip.compress(text.encode()) if name.lower().endswith(".gz") else text.encode())
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "t.csv").write_text(ROWS)
    wanted = load(tmp_path / "plain" / "t.csv", target="y", binary=True, drop=["t"])
    found = load(path, target="y", binary=True, drop=["t"])
    assert torch.equal(found.x, wanted.x)
    assert (found.y.tolist(), found.labels) == (wanted.y.tolist(), wanted.labels)
    assert found.client is None
    (tmp_path / "many").mkdir()
    for client in ("north", "south"):
        (tmp_path / "many" / name.replace("t.", f"{client}.").replace("u.", f"{client}.")).write_bytes(
            path.read_bytes()
            if not name.endswith(".zip")
            else packed(tmp_path / "one.zip", {f"{client}.csv": text}).read_bytes()
        )
    assert load(tmp_path / "many", target="y").client_names == ("north", "south")
    assert brings_clients(str(tmp_path / "many"))


def test_a_zip_of_a_table_per_client(tmp_path: Path, fedkin: Command) -> None:
    """Its clients are natural; a read-me and what macOS adds are no clients, nor are texts in a folder of tables."""
    members = {"w/north.csv": ROWS, "w/south.csv": ROWS, "README.txt": "hello", "__MACOSX/w/._north.csv": "\0"}
    path = packed(tmp_path / "wards.zip", members)
    found = load(path, target="y")
    assert (found.client_names, found.name, len(found)) == (("north", "south"), "wards", 6)
    assert brings_clients(str(path))
    assert not brings_clients(str(packed(tmp_path / "one.zip", {"a.csv": ROWS})))
    assert inspect(path, Natural(min_samples=1), target="y").clients[1].name == "south"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "all")
    (tmp_path / "all" / "w" / "notes.txt").write_text("hello")
    assert load(tmp_path / "all" / "w", target="y").client_names == ("north", "south")


def test_a_name_in_a_zip_leads_nowhere_else(tmp_path: Path) -> None:
    """An absolute name, or one with two dots, reads no file outside the archive."""
    (tmp_path / "secret.csv").write_text(ROWS)
    names = [str(tmp_path / "secret.csv"), "../secret.csv", "a/../../secret.csv"]
    with pytest.raises((ConfigError, DataError)):
        load(packed(tmp_path / "t.zip", dict.fromkeys(names, ROWS)), target="y")


def test_damaged_archives(tmp_path: Path) -> None:
    """One sentence that names the file: cut short, no archive, or with a password."""
    for name, content in (("a.csv.gz", gzip.compress(ROWS.encode() * 99)[:40]), ("b.zip", b"PK\3\4 none")):
        (tmp_path / name).write_bytes(content)
        with refuses(DataError, name):
            load(tmp_path / name, target="y")
    raw = io.BytesIO(packed(tmp_path / "c.zip", {"c.csv": ROWS}).read_bytes())
    locked = bytearray(raw.getvalue())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        locked[locked.index(mark) + at] |= 1
    (tmp_path / "c.zip").write_bytes(locked)
    with refuses(DataError, "c.csv"):
        load(tmp_path / "c.zip", target="y")


def test_a_target_that_a_file_lacks(tmp_path: Path) -> None:
    """The inspection names the file, and the column that was probably meant."""
    for name, target in (("north", "died"), ("south", "Died")):
        table(tmp_path / f"{name}.csv", {"x": range(30), target: filled([0, 1, 1], 30)})
    (found,) = (f for f in inspect(tmp_path, target="died").findings if f.code == "refused")
    assert "died (south.csv), Died (north.csv)" in f"{found.what}; {found.todo}"
