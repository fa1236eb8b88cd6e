"""What `inspect` says: nothing of healthy data, and the name of each fault of damaged ones."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.core import ClientData
from fedkin.core.errors import DataError
from fedkin.core.samples import Samples
from fedkin.data import IID, Federation, Natural, federate, load
from fedkin.inspection import Inspection, glance, inspect, require_two_classes
from fedkin.inspection.duplicates import hash_rows

Row = dict[str, Any]
module = importlib.import_module("fedkin.inspection.look")  # the package has a function of this name
HOSPITALS = ("north", "south", "west", "east")


def table(n: int = 240) -> list[Row]:
    """Patients of four hospitals: three columns of numbers, one of texts, two classes that no column gives away."""
    rng = np.random.default_rng(0)
    ill = rng.integers(0, 2, n)
    return [
        {
            "age": round(float(rng.normal(55 + 5 * ill[i], 10)), 1),
            "pressure": round(float(rng.normal(130, 15)), 1),
            "weight": round(float(rng.normal(75, 12)), 2),
            "smoker": str(rng.choice(["yes", "no", "former"])),
            "hospital": HOSPITALS[i % 4],
            "ill": int(ill[i]),
        }
        for i in range(n)
    ]


def write(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def look_at(path: Path, **flags: Any) -> Inspection:
    return inspect(path, **{"target": "ill", "client": "hospital", **flags})


def one(found: Inspection, code: str) -> fedkin.inspection.Finding:
    """The only finding of that kind."""
    (finding,) = [f for f in found.findings if f.code == code]
    return finding


# ---- healthy data ---------------------------------------------------------------------------------------------------
def test_nothing_is_said_of_a_healthy_table(tmp_path: Path) -> None:
    """What was understood is all there: columns with their kinds, classes, clients with their sizes."""
    found = look_at(write(tmp_path / "a.csv", table()))
    assert found.findings == ()
    assert found.usable(strict=True)
    assert (found.samples, found.classes, sum(found.class_samples)) == (240, ("0", "1"), 240)
    kinds = {"age": "number", "pressure": "number", "weight": "number", "smoker": "text"}
    assert {c.name: c.kind for c in found.columns} == kinds
    assert sorted(c.name for c in found.clients) == sorted(HOSPITALS)
    assert all((c.train, c.validation, c.test) == (42, 6, 12) and sum(c.counts) == 60 for c in found.clients)
    assert found.seen[0] == "age,pressure,weight,smoker,hospital,ill"
    assert len(found.advice) == 2
    assert "--partition natural" in found.advice[0]


# ---- damaged tables -------------------------------------------------------------------------------------------------
Damage = Callable[[list[Row]], list[Row]]


def column(name: str, value: Callable[[int, Row], Any]) -> Damage:
    """Puts a value into a column of every row."""
    return lambda rows: [{**row, name: value(i, row)} for i, row in enumerate(rows)]


def north_alone(rows: list[Row]) -> list[Row]:
    """Three rows of the hospital north are left."""
    return [r for r in rows if r["hospital"] != "north"] + [r for r in rows if r["hospital"] == "north"][:3]


def moved(rows: list[Row]) -> list[Row]:
    """Ten patients of the north are also in the files of the south."""
    return rows + [{**r, "hospital": "south"} for r in rows if r["hospital"] == "north"][:10]


def doubted(rows: list[Row]) -> list[Row]:
    """Six patients of the north stand there twice, ill and healthy."""
    return rows + [{**r, "ill": 1 - r["ill"]} for r in rows if r["hospital"] == "north"][:6]


def copied(rows: list[Row]) -> list[Row]:
    """Every patient of the east stands there three times."""
    east = [r for r in rows if r["hospital"] == "east"]
    return rows + east + east


TABLES: dict[str, tuple[Damage, str, str, dict[str, Any]]] = {
    # name: (damage, code, severity, flags)
    "one hospital never measured it": (column("weight", lambda i, r: 0 if r["hospital"] == "west" else r["weight"]),
        "constant-at-client", "warning", {}),
    "a number of the client": (column("code", lambda i, r: 10 * HOSPITALS.index(r["hospital"])),
        "client-number", "warning", {}),
    "another name of the client": (column("code", lambda i, r: r["hospital"].upper()),
        "client-number", "warning", {}),
    "missing at one client": (column("weight", lambda i, r: "" if r["hospital"] == "west" else r["weight"]),
        "missing-at-client", "warning", {}),
    "small client kept": (north_alone, "small-client", "warning", {"partition": Natural(min_samples=1)}),
    "one class at a client": (column("ill", lambda i, r: 1 if r["hospital"] == "east" else r["ill"]),
        "one-class-client", "warning", {}),
    "leaking copies": (copied, "train-test-leak", "warning", {}),
    "copies between clients": (moved, "duplicates-between-clients", "warning", {}),
    "two labels": (doubted, "label-conflict", "warning", {}),
    "the target again": (column("outcome", lambda i, r: "died" if r["ill"] else "lives"),
        "target-leak", "warning", {}),
    "a score that gives the class away": (column("score", lambda i, r: 50 * r["ill"] + i / 10),
        "target-leak", "warning", {}),
    "a numbering": (column("patient", lambda i, r: 1000 + i), "id-column", "warning", {}),
    "no client": (column("hospital", lambda i, r: "" if i < 20 else r["hospital"]), "as-read", "note", {}),
    "a text among numbers": (column("weight", lambda i, r: "heavy" if i == 7 else r["weight"]),
        "as-read", "note", {}),
    "infinite": (column("weight", lambda i, r: "inf" if i == 7 else r["weight"]), "refused", "error", {}),
    "no class": (column("ill", lambda i, r: "" if i == 3 else r["ill"]), "refused", "error", {}),
    "a measurement as class": (column("ill", lambda i, r: i % 7 + 0.5), "refused", "error", {}),
    "wrong client column": (lambda rows: rows, "refused", "error", {"client": "hopsital"}),
    "one class only": (column("ill", lambda i, r: 1), "one-class", "error", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_fault_of_a_damaged_table_is_named(name: str, tmp_path: Path) -> None:
    """Each is found with its severity, and says why it matters and what to do; errors are what a run refuses too."""
    damage, code, severity, flags = TABLES[name]
    path = write(tmp_path / "a.csv", damage(table()))
    found = look_at(path, **flags)
    finding = one(found, code)
    assert finding.severity == severity
    assert finding.what
    assert finding.why
    assert finding.todo
    assert found.usable() == (not found.of("error"))
    if severity == "error" and code != "one-class":
        asked = {"target": "ill", "client": "hospital", "binary": False, **flags}
        with pytest.raises(fedkin.FedkinError):
            fedkin.load(path, **asked)


def test_a_number_of_the_client_was_not_left_out(tmp_path: Path) -> None:
    """It is one finding, which advises to drop it, in what a run says as well."""

    def codes(rows: list[Row]) -> tuple[list[str], list[str]]:
        path = write(tmp_path / "a.csv", rows)
        data = load(path, target="ill", client="hospital")
        passing = [f.code for f in glance(data, federate(data, Natural()))]
        return [f.code for f in look_at(path).findings], passing

    assert codes(column("code", lambda i, r: HOSPITALS.index(r["hospital"]))(table())) == (["client-number"],) * 2
    for value in (lambda i, r: min(2, HOSPITALS.index(r["hospital"])), lambda i, r: 9 if i == 0 else r["hospital"]):
        assert codes(column("code", value)(table())) == (["constant-at-client"],) * 2
    numbered = column("code", lambda i, r: HOSPITALS.index(r["hospital"]))(table())
    unnamed = column("hospital", without_client)(numbered)  # their rows have the numbers of several
    assert codes(unnamed) == (["client-number", "as-read"], ["client-number"])


def drawn(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(n)


@pytest.mark.parametrize(("n", "deaths"), [(240, 0.03), (240, 0.5), (1500, 0.01)])
@pytest.mark.parametrize(
    "leak",
    [
        lambda dead, u: "died" if dead else "home",
        lambda dead, u: dead,
        lambda dead, u: 40 * dead + round(9 * u, 3),  # a threshold among many values
        lambda dead, u: round(-dead - 0.5 * u, 4),
        lambda dead, u: f"{u:.1f}" if dead else "",  # filled in for the dead alone
        lambda dead, u: round(u, 5) if dead else "",
    ],
)
def test_a_column_gives_the_class_away_however_rare_the_class_is(
    n: int, deaths: float, leak: Callable[[int, float], Any], tmp_path: Path
) -> None:
    """Half of the rows, three in a hundred or one; columns of chance are no leak, however many values they have."""
    dead = [int(i < deaths * n) for i in np.random.default_rng(2).permutation(n)]
    rows = [
        {"leak": leak(d, u), "few": int(5 * v), "some": int(n / 5 * v), "many": round(w + d, 5), "ill": d}
        for d, u, v, w in zip(dead, drawn(n), drawn(n, 1), drawn(n, 3) * 4, strict=True)
    ]
    found = inspect(write(tmp_path / "a.csv", rows), IID(), clients=2, target="ill")
    assert one(found, "target-leak").columns == ("leak",)


def test_a_nearly_perfect_column_gives_the_class_away(tmp_path: Path) -> None:
    """Three classes, of which the rarest has 4 %; one row in two hundred is wrong."""
    label = [0] * 600 + [1] * 360 + [2] * 100
    for wrong, said in ((200, True), (10, False)):
        rows = [{"x": f"c{(y + (i % wrong == 7)) % 3}", "ill": y} for i, y in enumerate(label)]
        found = inspect(write(tmp_path / "a.csv", rows), IID(), clients=2, target="ill")
        assert ("target-leak" in [f.code for f in found.findings]) == said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("patient", lambda i: 1000 + i - (i % 20 == 0), True),  # every twentieth has the number of the one before
        ("patient_id", lambda i: 31 * (i // 2) % 7919, True),  # two visits each
        ("case", lambda i: "" if i % 30 == 3 else 1000 + i, True),
        ("ward_no", lambda i: i % 7, False),
        ("steps", lambda i: 7919 * i % 100_003, False),
        ("visits", lambda i: i % 40, False),
    ],
)
def test_ids_of_which_some_come_again(name: str, value: Callable[[int], Any], said: bool, tmp_path: Path) -> None:
    rows = column(name, lambda i, r: value(i))(table())
    found = look_at(write(tmp_path / "a.csv", rows))
    assert [f.columns for f in found.findings if f.code == "id-column"] == ([(name,)] if said else [])


OF_HOSPITAL: dict[str, tuple[Callable[[int, Row], Any], bool]] = {
    "other letters": (lambda i, r: ("mw" if r["hospital"] == "west" else "MF")[i // 4 % 2], True),
    "other numbers": (lambda i, r: (i // 4 % 2) + (r["hospital"] == "west"), True),
    "units": (lambda i, r: (1 + i // 4 % 3) * (1000 if r["hospital"] == "west" else 1), True),
    "two languages at two each": (lambda i, r: ("ja", "nein", "yes", "no")[i // 4 % 2 + i % 2 * 2], True),
    "a rare code at one": (lambda i, r: "c" if i == 2 else "ab"[i // 4 % 2], False),
    "fewer at one": (lambda i, r: i // 4 % (2 if r["hospital"] == "west" else 3), False),
    "many numbers": (lambda i, r: 40 + 7 * i % 43, False),
}


@pytest.mark.parametrize("name", OF_HOSPITAL)
def test_codes_that_differ_between_clients(name: str, tmp_path: Path) -> None:
    """Found by the inspection and in passing; the clients are named, with their codes."""
    value, said = OF_HOSPITAL[name]
    path = write(tmp_path / "a.csv", column("sex", value)(table()))
    found = look_at(path)
    assert [f.columns for f in found.findings if f.code == "codes-differ"] == ([("sex",)] if said else [])
    if said:
        assert " at west" in one(found, "codes-differ").what
    data = load(path, target="ill", client="hospital")
    assert ("codes-differ" in [f.code for f in glance(data, federate(data, Natural()))]) == said


def without_client(i: int, row: Row) -> str:
    return "" if i < 20 else str(row["hospital"])


def test_a_broken_file_is_a_finding_with_its_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,ill\n1,2,0\n1,2\n")
    found = look_at(path, client=None)
    assert one(found, "refused").what.endswith("line 3: 2 fields, the header has 3")
    assert found.seen == ("a,b,ill", "1,2,0", "1,2")
    path.write_bytes(b"a,ill\n\xff\xfe,0\n1,1\n")
    assert one(look_at(path, client=None), "refused").severity == "error"
    assert not inspect(tmp_path / "nothing.csv").usable()


# ---- images ---------------------------------------------------------------------------------------------------------
def images(folder: Path, Image: Any) -> None:
    """Two classes of 30 grey images of 6 x 4 pixels."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(30):
            Image.fromarray(rng.integers(0, 256, (4, 6)).astype(np.uint8)).save(folder / label / f"{i}.png")


def test_images_that_a_run_refuses_or_that_are_in_two_classes(tmp_path: Path) -> None:
    """Mixed sizes and a file cut short are errors; one image in two classes is a warning."""
    Image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")
    images(tmp_path, Image)
    odd = tmp_path / "dog" / "3.png"
    whole = odd.read_bytes()
    odd.write_bytes((tmp_path / "cat" / "8.png").read_bytes())
    assert one(inspect(tmp_path, IID(), clients=2), "label-conflict").severity == "warning"
    Image.new("L", (5, 4)).save(odd)
    assert "--image-size" in one(inspect(tmp_path, IID(), clients=2), "refused").todo
    odd.write_bytes(whole[:50])
    assert "3.png" in one(inspect(tmp_path, IID(), clients=2), "refused").what


# ---- arrays and federations -----------------------------------------------------------------------------------------
def arrays(**changed: Any) -> dict[str, Any]:
    """Rows of six numbers in three classes of four clients."""
    rng = np.random.default_rng(0)
    plain = {"x": rng.standard_normal((240, 6)), "y": np.arange(240) % 3, "client": np.arange(240) // 60}
    return {**plain, **changed}


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    found = inspect(path)
    assert found.findings == ()
    assert found.seen[0] == "x: float64, shape 240 x 6"

    x = arrays()["x"]
    x[17, 2] = np.nan
    np.savez(path, **arrays(x=x))
    assert one(inspect(path), "refused").severity == "error"

    x = arrays()["x"]
    x[:, 4] = arrays()["y"]
    np.savez(path, **arrays(x=x))
    assert one(inspect(path), "target-leak").columns == ("input 4",)

    np.savez(path, **arrays(y=np.arange(240) % 3 * 2))
    assert one(inspect(path), "empty-class").what == "2 classes without any sample: 1, 3"

    np.savez(path, a=np.zeros(3))
    assert "it holds a" in one(inspect(path), "refused").what
    path.write_bytes(b"PK\3\4")
    assert one(inspect(path), "refused").severity == "error"


def test_a_class_that_is_only_tested() -> None:
    """All training samples are of classes 0 and 1, the test parts have class 2 as well."""
    rng = np.random.default_rng(0)

    def data(n: int, classes: int) -> Samples:
        return Samples(torch.from_numpy(rng.standard_normal((n, 4)).astype(np.float32)), torch.arange(n) % classes)

    shards = tuple(ClientData(data(40, 2), data(10, 2), data(12, 3)) for _ in range(3))
    found = inspect(Federation(shards, classes=3, name="toy"))
    finding = one(found, "class-not-trained")
    assert (finding.severity, finding.what) == ("warning", "no client has training samples of 2 (12 test samples)")


def hospitals(ill: Sequence[tuple[int, int]], test: Sequence[tuple[int, int]] = ()) -> Federation:
    """Hospitals with given numbers of healthy and ill samples for training, and by default as many for testing."""
    rng = np.random.default_rng(0)

    def data(counts: tuple[int, int]) -> Samples:
        y = torch.tensor([0] * counts[0] + [1] * counts[1], dtype=torch.int64)
        return Samples(torch.from_numpy(rng.standard_normal((len(y), 3)).astype(np.float32)), y)

    nothing = Samples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    shards = tuple(ClientData(data(n), nothing, data(t)) for n, t in zip(ill, test or ill, strict=True))
    names = ("bern", "ulm", "graz", "metz", "linz", "pisa", "gent", "york")[: len(ill)]
    return Federation(shards, 2, "hospitals", labels=("healthy", "ill"), client_names=names)


EVEN = (20, 20)


@pytest.mark.parametrize(
    ("sizes", "severity"),
    [
        ([(2, 23), EVEN, EVEN, EVEN], "warning"),  # one of four
        ([(2, 23), EVEN, EVEN, EVEN, EVEN], "note"),  # one of five
        ([(10, 40), EVEN, EVEN, EVEN], "warning"),  # exactly 80 %
        ([(11, 40), EVEN, EVEN, EVEN], None),
        ([(0, 25), EVEN, EVEN, EVEN], None),  # one class: no figure says more than accuracy
    ],
)
def test_where_a_constant_answer_is_nearly_always_right(sizes: list[tuple[int, int]], severity: str | None) -> None:
    """A finding names the hospital, its class and how often it is right; a quarter of them decides the headline."""
    found = inspect(hospitals(sizes))
    told = [f for f in found.findings if f.code == "one-sided-client"]
    assert [f.severity for f in told] == ([] if severity is None else [severity])
    if told:
        share = sizes[0][1] / sum(sizes[0])
        assert told[0].clients == ("bern",)
        assert told[0].what.endswith(f"of one class: bern (ill: {100 * share:.3g} %)")
        assert told[0].rows == ()  # the same sentence again
    fair = severity != "warning"
    assert ("accuracy, mean over clients, is a fair headline" in found.advice[-1]) == fair
    assert ("Balanced accuracy comes first" in found.advice[-1]) != fair


@pytest.mark.parametrize(("held", "found"), [([9, 0], True), ([9, 1], False), ([8, 0], False)])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_part_without_a_class_that_is_trained(held: list[int], found: bool, part: str) -> None:
    """Of a class that is five ninths of a client's training samples nine others have five: none is told, one is not,
    and of eight fewer than five are expected. One such client of twelve is a note, of two a warning."""

    def client(counts: dict[str, list[int]]) -> ClientData:
        labels = {name: torch.repeat_interleave(torch.arange(2), torch.tensor(n)) for name, n in counts.items()}
        return ClientData(**{name: Samples(torch.zeros(len(y), 1), y) for name, y in labels.items()})

    alike = {"train": [40, 50], "validation": [4, 5], "test": [4, 5]}
    for others, severity in ((11, "note"), (1, "warning")):
        clients = [client(alike | {part: held}), *(client(alike) for _ in range(others))]
        seen = [f for f in inspect(Federation(clients, 2)).findings if f.code == "parts-differ"]
        assert [(f.severity, f.clients) for f in seen] == ([(severity, ("client 0",))] if found else [])
        assert all(f"without a {part} sample of a class" in f.what and "client 0 (class 1)" in f.what for f in seen)


@pytest.mark.parametrize(
    "read", [hospitals, lambda sizes: (hospitals(sizes).save("saved"), Federation.open("saved"))[1]]
)
def test_one_class_is_refused_with_the_words_of_the_inspection(
    read: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory or on disk; a run says what an inspection says. One sample of another class anywhere is enough."""
    monkeypatch.chdir(tmp_path)
    federation = read([(0, 10), (0, 6)])
    said = one(inspect(federation), "one-class")
    with pytest.raises(DataError) as refused:
        fedkin.run(fedkin.methods.FedAvg(), federation, "linear", rounds=1)
    assert str(refused.value) == f"hospitals: {said.what}: {said.why}; {said.todo}"
    assert "all 32 samples are of the class ill" in said.what
    require_two_classes(hospitals([(0, 10), (0, 6)], test=[(0, 10), (1, 6)]))


def test_a_glance_finds_what_needs_no_file(tmp_path: Path) -> None:
    """Of a small table the same errors and warnings as the whole inspection, in its order."""
    rows = column("weight", lambda i, r: 0 if r["hospital"] == "west" else r["weight"])(copied(table()))
    rows = column("ill", lambda i, r: int(r["ill"] or i % 3 > 0) if r["hospital"] == "north" else r["ill"])(rows)
    path = write(tmp_path / "a.csv", rows)
    dataset = fedkin.load(path, target="ill", client="hospital")
    seen = glance(dataset, fedkin.federate(dataset, Natural()))
    whole = look_at(path)
    warned = [(f.severity, f.code) for f in whole.findings if f.severity != "note"]
    assert [(f.severity, f.code) for f in seen if f.severity != "note"] == warned
    assert {"train-test-leak", "constant-at-client", "one-sided-client"} <= {f.code for f in seen}


def test_a_glance_at_many_samples_is_at_labels_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inputs are not read, and a federation on disk is not looked at."""
    federation = hospitals([(2, 23), EVEN])
    doubled = replace(federation, clients=(federation.clients[0], federation.clients[0]), client_names=("a", "b"))
    assert "duplicates-between-clients" in [f.code for f in glance(doubled, doubled)]
    monkeypatch.setattr(module, "QUICK", 299)  # of 2 x 50 samples of 3 numbers
    assert [f.code for f in glance(doubled, doubled)] == ["one-sided-client"]
    federation.save(tmp_path / "saved")
    assert glance(Federation.open(tmp_path / "saved"), Federation.open(tmp_path / "saved")) == ()


def test_equal_rows_have_equal_hashes() -> None:
    """Zero and minus zero are one number; every other change makes another row."""
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, 1.0 + 2**-23]])
    found = hash_rows(x)
    assert found[0] == found[1]
    assert len(set(found.tolist())) == 3
