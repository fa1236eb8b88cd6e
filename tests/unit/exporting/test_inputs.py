"""Files that a model predicts are read as the files that it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commandline import Command
from fedkin.core import DataError
from fedkin.data import load
from fedkin.exporting import load_export
from refusals import refuses

RUN = "--partition natural --model linear --rounds 2 --engine loop --quiet --out run"
N = 60
RNG = np.random.default_rng(0)
Y = np.arange(N) % 2
LAYOUTS = {
    "floats without channels": RNG.normal(size=(N, 8, 8)).astype(np.float32),
    "floats with channels last": RNG.normal(size=(N, 8, 8, 3)).astype(np.float32),
    "bytes with four channels last": RNG.integers(0, 255, (N, 8, 8, 4)).astype(np.uint8),
    "whole numbers with one channel last": RNG.integers(0, 255, (N, 8, 8, 1)).astype(np.int16),
    "grey bytes": RNG.integers(0, 255, (N, 8, 8)).astype(np.uint8),
    "colour bytes": RNG.integers(0, 255, (N, 8, 8, 3)).astype(np.uint8),
    "floats that are no images": RNG.normal(size=(N, 4, 6)).astype(np.float32),
    "true and false": RNG.random((N, 8, 8)) < 0.5,
}


def exported(fedkin: Command, **arrays: np.ndarray) -> None:
    """The folder ``home`` with a model of the first of two clients with these data, ``all.npz``."""
    np.savez("all.npz", y=Y, subject=np.arange(N) // (N // 2), **arrays)
    done = fedkin(f"run fedavg --data all.npz {RUN}")
    assert done.code == 0, done.err
    assert fedkin("export run --client 0 --out home").code == 0


@pytest.mark.filterwarnings("ignore:the inputs lie in")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_file_that_was_trained_on(layout: str, fedkin: Command) -> None:
    """Its samples give the probabilities of the inputs that training made of them, as npz, as npy and prepared."""
    x = LAYOUTS[layout]
    exported(fedkin, x=x)
    np.save("x.npy", x)
    inputs, model = load("all.npz").x, load_export("home")
    np.save("prepared.npy", inputs.numpy())
    wanted = model.probabilities(inputs)
    for file in ("all.npz", "x.npy", "prepared.npy"):
        np.testing.assert_allclose(model.predict_file(file).probabilities, wanted, rtol=0, atol=1e-6)


def test_other_shapes_are_refused(fedkin: Command) -> None:
    """Images of another size, and channels last of another number."""
    exported(fedkin, x=LAYOUTS["floats with channels last"])
    for name in ("floats without channels", "bytes with four channels last"):
        np.save("x.npy", LAYOUTS[name].astype(np.float32))
        with refuses(DataError, "[n, 3, 8, 8]", "float32 [60, "):
            load_export("home").predict_file("x.npy")


@pytest.mark.parametrize("own", [0.001, 0.0005, None])
def test_fixed_point_numbers(own: float | None, fedkin: Command) -> None:
    """The same numbers by another factor, as floats, and without a file's own factor by that of training."""
    x = RNG.normal(size=(N, 5))
    fine = {"x": np.round(x / 0.001).astype(np.int16), "scale": np.float32(0.001)}
    exported(fedkin, **fine)
    other = {"x": np.round(x / own).astype(np.int16), "scale": np.array([own])} if own else {"x": fine["x"]}
    np.savez("other.npz", **other)
    model = load_export("home")
    wanted = model.probabilities(load("all.npz").x)
    np.testing.assert_allclose(model.predict_file("other.npz").probabilities, wanted, atol=1e-3)
    np.save("x.npy", x.astype(np.float32))
    np.testing.assert_allclose(model.predict_file("x.npy").probabilities, wanted, atol=1e-3)
    np.savez("other.npz", x=fine["x"], scale=np.ones(5))
    with refuses(DataError, "other.npz, scale", "size 1"):
        model.predict_file("other.npz")


def test_columns_that_the_reader_found(fedkin: Command) -> None:
    """The class and the client of a table of Hugging Face, which no setting names: training data have them, so they
    raise no warning, in predict and in join."""
    datasets = pytest.importorskip("datasets", reason="needs the library datasets, the extra 'hf'")
    rows = {"age": [float(20 + i) for i in range(N)], "sex": ["f", "m"] * (N // 2)}
    rows |= {"label": ["no" if i < N // 2 else "yes" for i in range(N)], "hospital": ["north", "north", "south"] * 20}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk("d")
    done = fedkin(
        "run fedavg --data hf:d --partition natural --model linear --rounds 1 --engine loop --quiet --out run"
    )
    assert done.code == 0, done.err
    assert fedkin("export run --client 0 --out home").code == 0
    lines = [",".join(rows), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
    Path("all.csv").write_text("\n".join(lines))
    assert load_export("home").predict_file("all.csv").notes == ()
    joined = fedkin("join run --data all.csv --after 0")
    assert joined.code == 0, joined.err
    assert "not looked at" not in joined.err
