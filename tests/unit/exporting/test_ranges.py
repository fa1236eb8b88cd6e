"""What an export keeps of its training data, and what is said of data that are unlike them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from commandline import Command, Done
from fedkin.core import DataError
from fedkin.data import Federation, federation_of
from fedkin.data.columns import Input, raw_rows, scaled, unscaled
from fedkin.data.preparation import Preparation
from fedkin.data.sources.tables import read_csv
from fedkin.experiment.settings import settings_from
from fedkin.exporting import export, export_global, load_export
from fedkin.exporting.joining import join
from fedkin.exporting.ranges import Ranges, Seen, of_all, of_client, unusual_inputs, unusual_rows
from fedkin.storage.toml import read_toml
from refusals import refuses

COLUMNS = (
    Input("age", "number", mean=(50.0,), std=(10.0,)),
    Input("lab", "number", gaps=True, mean=(1e9,), std=(250.0,)),
    Input("ward", "text", categories=("", "a", "b")),
    Input("same", "number", mean=(7.0,), std=(0.0,)),
)
RAW = np.array([[29.0, 1e9 + 130, 1, 7], [77.0, np.nan, 2, 7], [50.5, 1e9 - 260, 0, 7], [50.0, 1e9, -1, 7]])
SEEN = {"age": Seen(35, 71, 29, 77)}
RUN = "--target ill --partition natural --model linear --rounds 4 --lr 0.1 --engine loop --quiet --out run"


def told(*fields: dict[str, object], columns: tuple[Input, ...] = COLUMNS[:1], seen: Any = SEEN) -> list[str]:
    """What is said of these rows."""
    return unusual_rows(fields, raw_rows(fields, columns), columns, Ranges("", columns=seen), ("ill",))


def test_inputs_give_their_rows_back() -> None:
    """Scaling undone, by hand: numbers, gaps, texts known and not, a column of one value."""
    found = unscaled(scaled(RAW, COLUMNS), COLUMNS)
    np.testing.assert_allclose(found, RAW, atol=0.002)
    assert found[:, 0].tolist() == [29.0, 77.0, 50.5, 50.0]  # to the fifth digit of the deviation, so without noise


def test_values_on_another_scale() -> None:
    """Beyond the ends by three times the width of the middle 98 percent, or by three deviations if these are wider:
    29..77 with 35..71 ends at 35 - 108 and 71 + 108."""
    assert told({"age": 54}, {"age": 179}, {"age": -73}) == []
    assert told({"age": 54}, {"age": 630000}) == ["age: 1 of 2 rows outside 29..77 (630000): another scale?"]
    assert told({"age": 179.1}, {"age": -73.1}) == ["age: 2 of 2 rows outside 29..77 (-73.1, 179.1): another scale?"]
    few = {"age": Seen(50, 52, 50, 52)}
    assert told({"age": 80}, seen=few) == []  # 3 deviations of 10 that all clients have
    assert told({"age": 83}, seen=few) == ["age: 1 of 1 rows outside 50..52 (83): another scale?"]
    assert told({"age": 5}, seen={}) == []


def test_ends_are_rounded() -> None:
    """Ranges have five digits of the deviation: a value that lies at an end is not outside of it."""
    seen = {"age": Seen(47.377, 47.377, 47.377, 47.377)}
    assert told(*[{"age": 47.3768866}] * 6, seen=seen) == []
    assert told(*[{"age": 47.37}] * 6, seen=seen) == ["age: all 6 rows outside 47.377..47.377 (47.37): another scale?"]


def test_all_rows_outside() -> None:
    """No row is far away, but five of five are outside on one side: the unit may be another."""
    rows = [{"age": 5 + i} for i in range(5)]
    assert told(*rows) == ["age: all 5 rows outside 29..77 (5 to 9): another scale?"]
    assert told(*rows[:4]) == []
    assert told(*rows, {"age": 40}) == []


def test_codes_and_texts_and_gaps_that_training_did_not_have() -> None:
    """A code of few values with another, a text of other clients, a new text, fields that are empty or filled."""
    sex = {"age": Seen(0, 1, 0, 1, values=(0, 1))}
    assert told({"age": 2}, {"age": 1}, seen=sex) == ["age: 2 in 1 of 2 rows; training had 0, 1"]
    assert told({"age": 1}, {"age": 0}, seen=sex) == []
    ward = COLUMNS[2:3]
    assert told({"ward": "a"}, {"ward": "b"}, {"ward": "z"}, columns=ward, seen={"ward": Seen(texts=("", "a"))}) == [
        "ward: 'z' in 1 of 3 rows; training had nothing, a, b. Such a field carries no information for the model",
        "ward: 'b' in 1 of 3 rows; no training row of this client had it",
    ]
    assert told({"age": ""}, {"age": 50}) == [
        "age: empty in 1 of 2 rows, and in no training row; the training mean is taken"
    ]
    assert told({"lab": ""}, {"lab": 1e9}, columns=COLUMNS[1:2], seen={}) == []
    x = scaled(np.array([[50.0, np.nan, 1, 7]] * 30), COLUMNS)
    empty = Preparation("table", (7,), columns=COLUMNS)
    seen = of_client(shard_of(torch.from_numpy(x)), empty).columns
    rows = ["lab: filled in 1 of 2 rows, and in no training row"]
    assert told({"lab": ""}, {"lab": 1e9}, columns=COLUMNS[1:2], seen=seen) == rows


def test_new_columns() -> None:
    """Named once, without the class."""
    rows = [{"age": 40, "ill": 1, "weight": 70}, {"age": 41, "height": 180}]
    assert told(*rows) == ["not looked at, since the model does not know these columns: weight, height"]


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "scale"),
    [
        (0, 0.8, 0, 255, True),  # bytes given to a model of 0..1
        (0, 0.8, -1, 1, True),  # normalised to -1..1
        (0, 0.8, -2.1, 2.6, True),  # normalised by means and deviations of a large set
        (0, 0.8, 0, 0.003, True),  # divided by 255 twice
        (0, 0.8, 0, 1, False),
        (0, 0.8, 0.2, 0.4, False),
        (0, 0.8, 0, 0, False),  # black
        (0, 255, 0, 1, True),  # pixels of 0..1 given to a model of bytes
        (0, 255, 0, 200, False),
        (0.5, 0.6, 0, 1, False),  # training pixels use a part of their scale
        (0.5, 0.6, 0, 255, True),
    ],
)
def test_pixels_on_another_scale(low: float, high: float, least: float, most: float, scale: bool) -> None:
    """Against training pixels of low to high, which come from 0..1 or from bytes."""
    seen = of_client(shard_of(torch.linspace(low, high, 2 * 3 * 8 * 8).view(2, 3, 8, 8)), None)
    assert (seen.inputs.min, seen.inputs.max, seen.inputs.pixels) == (low, high, True)
    found = unusual_inputs(np.linspace(least, most, 4 * 192).reshape(4, 3, 8, 8), seen)
    assert bool(found) == scale
    assert all(f"those of training in {low}..{high}: another scale?" in note for note in found)


def shard_of(x: torch.Tensor) -> fedkin.data.ClientData:
    y = torch.zeros(len(x), dtype=torch.int64)
    part = fedkin.core.Samples(x, y)
    return fedkin.data.ClientData(part, fedkin.core.Samples(x[:0], y[:0]), fedkin.core.Samples(x[:0], y[:0]))


# ---- exports of tables ----------------------------------------------------------------------------------------------
@pytest.fixture
def hospitals(fedkin: Command) -> Done:
    """Two hospitals with 80 and 120 rows; north alone has ward c and ages from 20, south from 50."""
    rng = np.random.default_rng(0)
    Path("t").mkdir()
    for name, n, start, wards in (("north", 80, 20, "ac"), ("south", 120, 50, "ab")):
        lines = ["age;dose;sex;ward;ill"]
        for i in range(n):
            age, dose = start + int(rng.integers(30)), f"{rng.normal(2, 0.5):.2f}".replace(".", ",")
            ill = "yes" if age > start + 15 else "no"
            lines.append(f"{age};{'' if i % 5 == 0 else dose};{i % 2};{wards[i // 2 % 2]};{ill}")
        Path(f"t/{name}.csv").write_text("\n".join(lines) + "\n")
    done = fedkin(f"run fedavg --data t {RUN}")
    assert done.code == 0, done.err
    return done


def training_rows(client: int) -> list[dict[str, str]]:
    """The rows of the training part of a client, by another way: those whose inputs are in it."""
    federation = federation_of(settings_from(read_toml(Path("run/config.toml"))).data, 0)
    rows = read_csv([Path(f"t/{('north', 'south')[client]}.csv")], "t").records()
    assert federation.preparation is not None
    there = {tuple(x.tolist()) for x in federation.clients[client].train.x}
    return [r for r, x in zip(rows, federation.preparation.apply(rows), strict=True) if tuple(x.tolist()) in there]


def test_an_export_keeps_its_clients_ranges(hospitals: Done, fedkin: Command) -> None:
    """Those of the rows that the client trains on, and of no others."""
    assert fedkin("export run --client south --out home").code == 0
    kept, rows = json.loads(Path("home/ranges.json").read_text()), training_rows(1)
    ages = [float(r["age"]) for r in rows]
    assert (kept["columns"]["age"]["min"], kept["columns"]["age"]["max"]) == (min(ages), max(ages))
    assert kept["columns"]["age"]["low"] == pytest.approx(np.quantile(ages, 0.01), abs=1e-3)
    assert kept["columns"]["sex"]["values"] == [0.0, 1.0]
    assert kept["columns"]["ward"] == {"texts": ["a", "b"]}
    assert len(rows) == 84
    assert "values of single samples: keep it" in Path("home/README.md").read_text()


def test_a_model_of_all_keeps_no_extremes(hospitals: Done) -> None:
    """Quantiles of all training rows that leave ten or more outside, to two digits; of few rows nothing at all."""
    place = export_global("run")
    kept = json.loads((place / "ranges.json").read_text())
    ages = [float(r["age"]) for client in (0, 1) for r in training_rows(client)]
    assert len(ages) == 140
    low, high = np.quantile(ages, (10 / 140, 1 - 10 / 140))
    assert kept["columns"]["age"] == {"low": float(f"{low:.2g}"), "high": float(f"{high:.2g}")}
    assert min(ages) < kept["columns"]["age"]["low"] < kept["columns"]["age"]["high"] < max(ages)
    assert set(kept["columns"]) == {"age", "dose", "sex"}
    assert set(kept["inputs"]) == {"low", "high", "std"}
    found = load_export(place).predict_file(_csv("age,dose,sex,ward\n630000,2,1,b\n50,2,0,c\n"))
    assert found.notes == (f"age: 1 of 2 rows outside {low:.2g}..{high:.2g} (630000): another scale?",)

    few = Federation.from_arrays([(np.random.default_rng(k).normal(size=(20, 3)), [0, 1] * 10) for k in range(3)])
    assert of_all(few).inputs.low > of_all(few, exact=True).inputs.min
    assert of_all(Federation.from_arrays([(np.ones((20, 3)), [0, 1] * 10)])).inputs == Seen()  # 42 values


def test_clients_that_scale_their_own_way_have_no_model_of_all(hospitals: Done, fedkin: Command) -> None:
    """Each export of one client has that client's means; a model of all clients would hold those of each."""
    again = RUN.replace("--out run", "--out own --scaling client")
    assert fedkin(f"run fedavg --data t {again}").code == 0
    refused = fedkin("export own --global --out home")
    assert (refused.code, Path("home").exists()) == (2, False)
    said = " ".join(refused.err.split())
    assert "each client scales its columns by its own values" in said
    assert "(--client NAME) or of all clients (--all)" in said
    assert fedkin("export own --client south --out home").code == 0
    columns = json.loads(Path("home/card.json").read_text())["preparation"]["columns"]
    assert {len(c["mean"]) for c in columns if c["kind"] == "number"} == {1}


def _csv(text: str) -> Path:
    Path("rows.csv").write_text(text)
    return Path("rows.csv")


@pytest.mark.parametrize("take", [lambda run: export(run, 0, "home"), lambda run: export_global(run, "home")])
def test_private_training_keeps_no_ranges(take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would tell more of single samples than the noise allows; the export works without."""
    monkeypatch.chdir(tmp_path)
    data = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=5.0), clients=2, samples_per_client=40)
    pytest.importorskip("opacus", reason="private training needs Opacus, the extra 'dp'")
    how = {"compute": fedkin.Compute(engine="loop"), "privacy": fedkin.Privacy(noise_multiplier=1.0)}
    place = take(fedkin.run(fedkin.methods.FedAvg(), data, "linear", rounds=1, **how))
    assert not (place / "ranges.json").exists()
    assert load_export(place).predict(100 * torch.ones(2, 1, 8, 8)).shape == (2,)  # no warning, which would be an error


def test_predict_warns_and_predicts(hospitals: Done, fedkin: Command) -> None:
    """Each column once, on standard error; the rows are predicted and the exit code is 0."""
    assert fedkin("export run --client south --out home").code == 0
    file = _csv("age,dose,sex,ward,weight,ill\n60,2,1,a,1,no\n630000,2,2,c,1,no\n61,2,0,z,1,yes\n")
    done = fedkin(f"predict home {file} --json")
    assert done.code == 0
    assert [json.loads(line)["row"] for line in done.out.splitlines()] == ["1", "2", "3"]
    assert [line.split(";")[0] for line in done.err.splitlines()] == [
        "warning: age: 1 of 3 rows outside 51..79 (630000): another scale?",
        "warning: sex: 2 in 1 of 3 rows",
        "warning: ward: 'z' in 1 of 3 rows",
        "warning: ward: 'c' in 1 of 3 rows",
        "warning: not looked at, since the model does not know this column: weight",
    ]
    _csv("Age,sex,ward\n60,1,a\n")
    done = fedkin("predict home rows.csv")
    assert done.code == 2
    said = done.err.replace("\n", " ")
    assert "no columns 'age', 'dose'; needed are age, dose, sex, ward" in said
    assert "did you write 'Age' for 'age'?" in said
    assert fedkin("predict home t/south.csv --json").err == ""  # its own data, with class and semicolons


def test_arrays_on_another_scale(fedkin: Command) -> None:
    """Bytes saved as they are to a model of 0..1: told on the screen, and in Python as a warning. Rows of a table are
    not for it."""
    assert fedkin(f"run fedavg --clients 3 --samples-per-client 40 {RUN.split(' ', 4)[-1]}").code == 0
    assert fedkin("export run --client 0 --out home").code == 0
    x = 255 * np.random.default_rng(0).random((3, 1, 8, 8))
    np.save("x.npy", x)
    done = fedkin("predict home x.npy --json")
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    assert "warning: the inputs lie in" in done.err
    assert "those of training in 0..1: another scale?" in done.err
    model = load_export("home")
    with pytest.warns(UserWarning, match="another scale"):
        model.predict(x)
    assert model.predict(x / 255).shape == (3,)
    with refuses(DataError, "rows of a table"):
        model.predict([{"a": 1}])


# ---- join -----------------------------------------------------------------------------------------------------------
def blobs(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng, y = np.random.default_rng(seed), np.arange(n) % 2
    return (rng.normal(0, 0.5, (n, 2)) + np.where(y == 1, 2.0, -2.0)[:, None]).astype(np.float32), y


def test_join_says_what_to_know() -> None:
    """Few test samples; copies of training samples of others by name, and inside; another scale; nothing of good
    data."""
    people = Federation.from_arrays([blobs(k) for k in range(3)], classes=2, client_names=["ann", "bob", "cid"])
    loop = fedkin.Compute(engine="loop")
    result = fedkin.run(fedkin.methods.FedAvg(), people, "linear", fedkin.Training(lr=0.5), rounds=4, compute=loop)
    assert join(result, blobs(9, 200), after=(0,)).notes == ()
    small = join(result, blobs(9, 100), after=(0,))
    assert small.notes == ("only 20 test samples: accuracies are uncertain, see their intervals",)
    assert small.accuracy[0] == 1.0
    assert small.interval[0] == (pytest.approx(0.8389, abs=1e-4), 1.0)  # Wilson: 1 / (1 + 1.96^2 / 20)

    x, y = blobs(9, 200)
    x[:7], x[7:10] = people.clients[1].train.x[:7], people.clients[2].train.x[:3]
    x[100:140] = x[140:180]
    notes = join(result, (x, y), after=(0,)).notes
    assert len(notes) == 2
    assert notes[0].endswith("of 40 test samples equal training samples of the joining client")
    assert notes[1].startswith("10 of 200 samples, ")
    assert "(bob: 7, cid: 3)" in notes[1]
    assert "another scale?" in join(result, (100 * blobs(9, 200)[0], blobs(9, 200)[1]), after=(0,)).notes[0]


def test_join_by_a_table(hospitals: Done, fedkin: Command) -> None:
    """The newcomer's columns against those of all clients; copies of rows of one of them."""
    head, *lines = Path("t/north.csv").read_text().splitlines()
    rows = [f"{630000 if i == 3 else 30 + i};2,{i:02};{i % 2};c;{'yes' if i % 3 else 'no'};1" for i in range(60)]
    Path("new.csv").write_text("\n".join([f"{head};weight", *rows, *(f"{line};1" for line in lines)]) + "\n")
    done = fedkin("join run --data new.csv --after 0")
    assert done.code == 0, done.err
    said = done.err.replace("\n", " ")
    copies = len(training_rows(0))
    assert f"{copies} of 140 samples" in said
    assert f"(north: {copies})" in said
    assert "age: 1 of 140 rows outside 20..79 (630000): another scale?" in said
    assert "not looked at, since the model does not know this column: weight" in said
    assert "only 28 test samples" in said
    assert "95 % interval" in done.out
    kept = json.loads(fedkin("join run --data new.csv --after 0 --json").out)
    low, high = kept["interval"]["0"]
    assert low < kept["accuracy"]["0"] < high
    assert len(kept["notes"]) == len(done.err.split("warning: ")) - 1
    Path("short.csv").write_text("age;ill\n30;no\n")
    with refuses(DataError, "'dose', 'sex', 'ward'"):
        join("run", "short.csv")


def test_texts_that_are_written_in_another_way_are_told() -> None:
    """Capitals, and an accent that is a sign of its own (Unicode's decomposed form), make another text."""
    columns = (Input("town", "text", categories=("Graz", "K\u00f6ln")),)
    rows = [{"town": "Ko\u0308ln"}, {"town": "GRAZ"}, {"town": "Bern"}]
    (said,) = unusual_rows(rows, raw_rows(rows, columns), columns, None, ())
    pairs = "'GRAZ' is 'Graz', 'Ko\u0308ln' is 'K\u00f6ln' but for capitals or the form of its letters (Unicode)"
    assert said.endswith(f"carries no information for the model; {pairs}: write it in the same way")
