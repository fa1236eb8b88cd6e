"""Reading folders of images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import federation_of, load, resolved
from fedkin.experiment.settings import DataSettings
from refusals import refuses

Image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")


def save(path: Path, value: int, mode: str = "L", size: tuple[int, int] = (3, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)


def test_classes(tmp_path: Path) -> None:
    """root/class/file: classes are the folders in alphabetical order; grey images have one channel in 0..1."""
    save(tmp_path / "dog" / "1.png", 255)
    save(tmp_path / "cat" / "1.png", 51)
    save(tmp_path / "cat" / "2.PNG", 0)
    d = load(tmp_path)
    assert (d.shape, d.labels, d.y.tolist(), d.client) == ((1, 2, 3), ("cat", "dog"), [0, 0, 1], None)
    assert np.allclose(d.x.mean(dim=(1, 2, 3)).numpy(), [0.2, 0.0, 1.0])


def test_colour(tmp_path: Path) -> None:
    """One colour image makes all of them three channels; grey ones have the same value in each."""
    save(tmp_path / "x" / "1.png", 255, "RGB")
    save(tmp_path / "x" / "2.png", 102)
    d = load(tmp_path)
    assert d.shape == (3, 2, 3)
    assert np.allclose(d.x.mean(dim=(2, 3)).numpy(), [[1, 0, 0], [0.4, 0.4, 0.4]])


CLIENTS = ("s1/cat/1.png", "s1/dog/1.png", "s2/cat/1.png")
PARTS = ("train/cat/1.png", "test/cat/1.png")
ODD: list[tuple[tuple[str, ...], str]] = [
    (("x/1.png",), "x/2.png"),  # of another size
    (("x/1.png",), "x/bad.png"),
    (("x/1.png",), "x/program.png"),  # Pillow would hand PostScript to Ghostscript
    (("a/dog/1.png",), "cat/1.png"),  # what is a class would be a guess
    *((CLIENTS, f"{place}/3.png") for place in ("s2/dog/extra", "s3/dog/a/b", "dogs/a/b/c")),
    *((("train/cat/1.png", "val/cat/1.png"), f"{part}/s1/cat/3.png") for part in ("val", "test")),
    *((PARTS, place) for place in ("3.png", "train/3.png", "test/3.png")),
    (("cat/1.png",), "3.png"),
]


@pytest.mark.parametrize(("whole", "odd"), ODD, ids=[odd for _, odd in ODD])
def test_an_image_that_does_not_fit_the_others_is_named(whole: tuple[str, ...], odd: str, tmp_path: Path) -> None:
    """It is refused rather than left out: of another size or depth, outside the folders of classes, or no image."""
    for path in (*whole, ".cache/deep/2.png"):
        save(tmp_path / "p" / path, 0)
    assert len(load(tmp_path / "p")) + len([p for p in whole if p.startswith("test")]) == len(whole)
    save(tmp_path / "p" / odd, 0, size=(5, 5) if odd == "x/2.png" else (3, 2))
    if odd == "x/bad.png":
        (tmp_path / "p" / odd).write_text("text")
    if odd == "x/program.png":
        Image.new("L", (3, 2)).save(tmp_path / "p" / odd, format="EPS")
    with refuses(DataError, str(tmp_path / "p")):
        load(tmp_path / "p")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pillow the message says how to install it."""
    save(tmp_path / "cat" / "1.png", 0)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError):
        load(tmp_path)


def test_train_and_test(tmp_path: Path) -> None:
    """Below train/, val/ and test/: test is the official test part, val is trained on; with clients too."""
    for part, value in (("train", 51), ("val", 102), ("test", 255)):
        save(tmp_path / "a" / part / "cat" / "1.png", value)
        save(tmp_path / "a" / part / "dog" / "1.png", value)
        save(tmp_path / "b" / part / "north" / "cat" / "1.png", value)
    d = load(tmp_path / "a")
    assert (len(d), d.labels, d.client) == (4, ("cat", "dog"), None)
    assert d.official_test.y.tolist() == [0, 1]
    assert d.official_test.x.unique().tolist() == [1.0]
    e = load(tmp_path / "b")
    assert (e.client.tolist(), e.test_client.tolist(), e.client_names) == ([0, 0], [0], ("north",))
    save(tmp_path / "a" / "more" / "cat" / "1.png", 0)
    with pytest.raises(DataError):
        load(tmp_path / "a")


def test_clients_without_a_flag(tmp_path: Path) -> None:
    """Folders of clients above those of the classes are the federation's clients, in the order of their numbers."""
    for client in ("ann 10", "ann 2"):
        for kind, value in (("cat", 0), ("dog", 255)):
            for i in range(8):
                save(tmp_path / client / kind / f"{i}.png", value)
    settings = DataSettings(data=str(tmp_path))
    assert resolved(settings).partition == "natural"
    f = federation_of(settings, 0)
    assert (len(f), f.client_names, f.labels) == (2, ("ann 2", "ann 10"), ("cat", "dog"))
    made = f.preparation.apply([tmp_path / "ann 2" / "dog" / "1.png"])
    assert (tuple(made.shape), made.unique().tolist()) == ((1, 1, 2, 3), [1.0])


def test_resized(tmp_path: Path) -> None:
    """image_size brings all images to one size, and the same is done to new ones."""
    save(tmp_path / "x" / "1.png", 0)
    save(tmp_path / "y" / "2.png", 255, size=(5, 7))
    d = load(tmp_path, image_size=4)
    assert d.shape == (1, 4, 4)
    assert d.preparation.apply([tmp_path / "y" / "2.png"]).unique().tolist() == [1.0]
    with refuses(ConfigError, "1", "0"):
        load(tmp_path, image_size=0)


def test_sixteen_bits_and_hidden_files(tmp_path: Path) -> None:
    """Images of 16 bits keep their brightness; files that begin with a dot are not looked at."""
    (tmp_path / "x").mkdir()
    Image.fromarray(np.full((2, 3), 0x8000, dtype=np.uint16)).save(tmp_path / "x" / "1.png")
    (tmp_path / "x" / "._1.png").write_bytes(b"not an image")
    assert np.allclose(load(tmp_path).x.numpy(), 128 / 255)
