"""From files to predictions: images, folders of images and tables are read as they were for training."""

from __future__ import annotations

import csv
import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commandline import Command, Kept
from fedkin.data import load
from fedkin.exporting import load_export
from fedkin.exporting.model import Export

RUN = "--model mlp --rounds 12 --lr 0.2 --engine loop --quiet --out run"


def pictures(root: Path, image: Any, *, colour: bool, sizes: bool = False) -> None:
    """Two clients with bright cats and dark dogs, 12 images each."""
    rng = np.random.default_rng(0)
    for client in ("ann", "bob"):
        for label, low in (("cat", 128), ("dog", 0)):
            (root / client / label).mkdir(parents=True)
            for i in range(12):
                shape = (8 + i if sizes else 8, 8, *((3,) if colour else ()))
                pixels = rng.integers(low, low + 128, shape).astype(np.uint8)
                image.fromarray(pixels).save(root / client / label / f"{i}.png")


def predicted(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def image() -> Any:
    return pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")


@pytest.fixture
def model(image: Any, fedkin: Command, kept: Kept) -> Path:
    """An export trained on grey images of 8 x 8."""
    pictures(Path("p"), image, colour=False)
    return kept("images", "home", lambda: exported(fedkin, "--data p", "bob"))


def exported(fedkin: Command, data: str, client: str) -> None:
    """Exports a client's model of a run on these data to the folder home."""
    assert fedkin(f"run fedavg {data} {RUN}").code == 0
    assert fedkin(f"export run --client {client} --out home").code == 0


def test_images(model: Path, fedkin: Command) -> None:
    """Names of the classes, files in the order of their names, the probabilities of the inputs of the training."""
    done = fedkin("predict home p --out all.csv")
    assert done.code == 0, done.err
    assert "and 28 more rows" in done.out
    rows = list(csv.DictReader(Path("all.csv").read_text().splitlines()))
    assert [r["row"] for r in rows] == sorted(str(f.relative_to("p")) for f in Path("p").rglob("*.png"))
    assert list(rows[0]) == ["row", "label", "probability cat", "probability dog"]
    assert [r["label"] for r in rows] == ["cat" if "cat" in r["row"] else "dog" for r in rows]
    trained = load("p").x  # by client, class and name, too
    wanted = load_export(model).probabilities(trained)
    found = [[float(r["probability cat"]), float(r["probability dog"])] for r in rows]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    (one,) = predicted(fedkin("predict home p/ann/dog/3.png --json").out)
    assert (one["row"], one["label"]) == ("3.png", "dog")
    assert one["probabilities"]["dog"] == pytest.approx(
        float(rows[[r["row"] for r in rows].index("ann/dog/3.png")]["probability dog"]), rel=1e-5
    )
    assert "the row is in one.csv" in fedkin("predict home p/ann/dog/3.png --out one.csv").out


def test_images_of_other_modes_and_hidden_files(model: Path, image: Any, fedkin: Command) -> None:
    """Colour becomes grey, transparency is left out; hidden files are none."""
    Path("odd").mkdir()
    plain = image.open("p/ann/cat/0.png")
    for name, mode in (("a", "L"), ("b", "RGB"), ("c", "RGBA"), ("d", "LA")):
        plain.convert(mode).save(f"odd/{name}.png")
    Path("odd/._a.png").write_bytes(b"of a file system")
    rows = predicted(fedkin("predict home odd --json").out)
    assert [r["row"] for r in rows] == ["a.png", "b.png", "c.png", "d.png"]
    assert len({r["probabilities"]["cat"] for r in rows}) == 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f, image: f.write_bytes(f.read_bytes()[:40]), "odd/x.png: cannot be read as an image"),
        (lambda f, image: f.write_bytes(b"text"), "odd/x.png: cannot be read as an image"),
        (
            lambda f, image: image.new("L", (9, 5)).save(f),
            "odd/x.png: uint8 [1, 5, 9], the network was trained on images of bytes (uint8) [1, 8, 8]",
        ),
        (lambda f, image: f.unlink(), "odd holds no image"),
    ],
)
def test_images_that_cannot_be_taken_are_named(
    damage: Any, said: str, model: Path, image: Any, fedkin: Command
) -> None:
    Path("odd").mkdir()
    file = Path("odd/x.png")
    file.write_bytes(Path("p/ann/cat/0.png").read_bytes())
    damage(file, image)
    done = fedkin("predict home odd")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert said in done.err.replace("\n", " ")


def test_images_that_were_resized_in_training_are_resized(image: Any, fedkin: Command) -> None:
    """Colour images of many sizes, brought to 6 x 6: a file is predicted as the same file was trained on."""
    pictures(Path("p"), image, colour=True, sizes=True)
    assert fedkin(f"run fedavg --data p --image-size 6 {RUN}").code == 0
    assert fedkin("export run --client 0 --out home").code == 0
    rows = predicted(fedkin("predict home p --json").out)
    found = load("p", image_size=6)
    files = sorted(str(f.relative_to("p")) for f in Path("p").rglob("*.png"))
    wanted = load_export("home").probabilities(found.x)
    assert [r["row"] for r in rows] == files
    assert [r["probabilities"]["cat"] for r in rows] == pytest.approx(wanted[:, 0].tolist(), rel=1e-5)
    done = fedkin("join run --data p/ann --after 0")
    assert done.code == 0, done.err  # a newcomer's images are brought to the same size
    image.open("p/ann/cat/0.png").convert("L").save("grey.png")
    assert len(predicted(fedkin("predict home grey.png --json").out)) == 1


def test_arrays_of_bytes_are_pixels(model: Path, image: Any, fedkin: Command) -> None:
    """uint8 counts as pixels as in training, floats are taken as they are."""
    files = sorted(Path("p/ann").rglob("*.png"))[:5]
    pixels = np.stack([np.asarray(image.open(f)) for f in files])
    np.savez("bytes.npz", x=pixels)
    np.savez("floats.npz", x=pixels[:, None].astype(np.float32) / 255)
    a, b = (predicted(fedkin(f"predict home {name}.npz --json").out) for name in ("bytes", "floats"))
    assert [r["probabilities"]["cat"] for r in a] == pytest.approx([r["probabilities"]["cat"] for r in b], rel=1e-5)
    assert [r["row"] for r in a] == ["1", "2", "3", "4", "5"]


# ---- tables ---------------------------------------------------------------------------------------------------------
def table() -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 90).round(1).tolist()
    return {
        "age": age,
        "dose": [None if i % 5 == 0 else float(v) for i, v in enumerate(rng.normal(1, 0.3, 90).round(2))],
        "smoker": [bool(v) for v in rng.integers(0, 2, 90)],
        "ward": ["abc"[i % 3] for i in range(90)],
        "ill": ["yes" if a > 50 else "no" for a in age],
    }


def as_csv(told: dict[str, list[Any]], comma: str = ",", point: str = ".") -> str:
    def field(v: Any) -> str:
        return "NA" if v is None else str(v).replace(".", point)

    rows = zip(*told.values(), strict=True)
    return "\n".join([comma.join(told), *(comma.join(map(field, row)) for row in rows), ""])


@pytest.fixture
def hospitals(fedkin: Command, kept: Kept) -> Export:
    """An export trained on a csv file with gaps, texts, and true and false written out."""
    Path("t.csv").write_text(as_csv(table()))
    data = "--data t.csv --target ill --clients 3 --partition dirichlet@alpha=5"
    return load_export(kept("table", "home", lambda: exported(fedkin, data, "0")))


def test_the_same_rows_in_every_kind_of_table(hospitals: Export, fedkin: Command) -> None:
    """Commas, semicolons with decimal commas, tabs, parquet with true and empty values of its own: one prediction."""
    arrow: Any = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra 'parquet'")
    told = table()
    Path("a.csv").write_text(as_csv(told))
    Path("b.csv").write_text(as_csv(told, ";", ","))
    Path("c.csv").write_text(as_csv(told, "\t"))
    importlib.import_module("pyarrow.parquet").write_table(arrow.table(told), "d.parquet")
    importlib.import_module("pyarrow.parquet").write_table(arrow.table(told), "e.pq")
    first = fedkin("predict home a.csv --json")
    assert first.code == 0, first.err
    assert len(predicted(first.out)) == 90
    wanted = hospitals.probabilities(load("t.csv", target="ill").x)  # by all rows, so nearly the training's scale
    found = np.array([list(r["probabilities"].values()) for r in predicted(first.out)])
    assert (found.argmax(1) == wanted.argmax(1)).mean() > 0.9
    for name in ("b.csv", "c.csv", "d.parquet", "e.pq"):
        done = fedkin(f"predict home {name} --json")
        assert done.out == first.out, done.err
        assert done.err == ""


def test_texts_that_training_did_not_have_are_told(hospitals: Export, fedkin: Command) -> None:
    Path("a.csv").write_text("age,dose,smoker,ward\n50,1,True,a\n60,,false,z\n")
    done = fedkin("predict home a.csv")
    assert done.code == 0
    assert "ward: 'z' in 1 of 2 rows; training had a, b, c." in done.err
    assert "smoker" not in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,dose,smoker,ward\n50,1,True,a\n50,much,True,a\n", "a.csv, line 3: 'dose' is 'much'; expected a finite"),
        ("age,dose,smoker\n50,1,True\n", "a.csv: no column 'ward'; needed are age, dose, smoker, ward"),
        ("age,dose\n50\n", "a.csv, line 2: 1 fields, the header has 2"),
        ("age,dose\n", "at least one more row"),
    ],
)
def test_rows_that_cannot_be_taken_are_named(text: str, said: str, hospitals: Export, fedkin: Command) -> None:
    Path("a.csv").write_text(text)
    done = fedkin("predict home a.csv")
    assert done.code == 2
    assert said in done.err.replace("\n", " ")


def test_an_export_that_is_not_there(hospitals: Export, fedkin: Command) -> None:
    """Those that are there are named."""
    done = fedkin("predict hom t.csv")
    assert done.code == 2
    assert "no exported model hom; in . there are home" in done.err.replace("\n", " ")


def test_the_readme_of_an_export_is_a_program(model: Path) -> None:
    """The code that stands in it, with pixels of 0 to 255, gives names of classes; by onnxruntime alone."""
    (code,) = re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(encoding="utf-8"), re.S)
    pixels = np.stack([np.full((1, 8, 8), v, np.float32) for v in (230, 20)])
    found: dict[str, Any] = {"x": pixels}
    exec(code.replace("model.onnx", str(model / "model.onnx")).replace('"x": ...', '"x": x'), found)
    assert found["labels"].tolist() == ["cat", "dog"]
