"""Reading folders of images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import load
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


def test_clients(tmp_path: Path) -> None:
    """root/client/class/file: the outer folders are the clients, classes are gathered over all of them."""
    save(tmp_path / "b" / "dog" / "1.png", 9)
    save(tmp_path / "a" / "cat" / "1.png", 9)
    save(tmp_path / "a" / "dog" / "1.png", 9)
    d = load(tmp_path)
    assert d.client is not None
    assert (d.client.tolist(), d.client_names, d.labels) == ([0, 0, 1], ("a", "b"), ("cat", "dog"))
    assert d.y.tolist() == [0, 1, 1]


def test_colour(tmp_path: Path) -> None:
    """One colour image makes all of them three channels; grey ones have the same value in each."""
    save(tmp_path / "x" / "1.png", 255, "RGB")
    save(tmp_path / "x" / "2.png", 102)
    d = load(tmp_path)
    assert d.shape == (3, 2, 3)
    assert np.allclose(d.x.mean(dim=(2, 3)).numpy(), [[1, 0, 0], [0.4, 0.4, 0.4]])


def test_sizes_differ(tmp_path: Path) -> None:
    """Images of different sizes are refused with both."""
    save(tmp_path / "x" / "1.png", 0)
    save(tmp_path / "x" / "2.png", 0, size=(5, 5))
    with refuses(DataError, "2.png", "5", "1.png", "3"):
        load(tmp_path)


def test_no_image(tmp_path: Path) -> None:
    """A file that only has the name of an image is refused."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.png").write_text("text")
    with pytest.raises(DataError):
        load(tmp_path)


def test_mixed_depth(tmp_path: Path) -> None:
    """Images one and two levels down are refused: what is a class would be a guess."""
    save(tmp_path / "cat" / "1.png", 0)
    save(tmp_path / "a" / "dog" / "1.png", 0)
    with pytest.raises(DataError):
        load(tmp_path)


@pytest.mark.parametrize("place", ["s2/dog/extra", "s3/dog/a/b", "dogs/a/b/c"])
def test_images_at_another_depth_are_named(tmp_path: Path, place: str) -> None:
    """Deeper than those of the other clients: they were left out."""
    for folder in ("s1/cat", "s1/dog", "s2/cat"):
        save(tmp_path / folder / "1.png", 0)
    save(tmp_path / "s1" / ".cache" / "deep" / "2.png", 0)
    assert len(load(tmp_path)) == 3
    save(tmp_path / place / "2.png", 0)
    with pytest.raises(DataError):
        load(tmp_path)


@pytest.mark.parametrize("odd", ["val", "test"])
def test_parts_of_another_depth(tmp_path: Path, odd: str) -> None:
    """Clients in one part only."""
    for part in ("train", "val", "test"):
        save(tmp_path / part / ("s1/cat" if part == odd else "cat") / "1.png", 0)
    with pytest.raises(DataError):
        load(tmp_path)


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
    assert d.official_test is not None
    assert d.official_test.y.tolist() == [0, 1]
    assert d.official_test.x.unique().tolist() == [1.0]
    e = load(tmp_path / "b")
    assert e.client is not None
    assert e.test_client is not None
    assert (e.client.tolist(), e.test_client.tolist(), e.client_names) == ([0, 0], [0], ("north",))
    save(tmp_path / "a" / "more" / "cat" / "1.png", 0)
    with pytest.raises(DataError):
        load(tmp_path / "a")


@pytest.mark.parametrize("place", [".", "train", "test"])
def test_an_image_outside_the_folders(place: str, tmp_path: Path) -> None:
    """It has no class: it is named rather than left out, next to classes and next to parts."""
    for part in ("parts/train", "parts/test", "classes"):
        save(tmp_path / part / "cat" / "1.png", 0)
    folder = tmp_path / "parts"
    assert len(load(folder)) == 1
    save(folder / place / "loose.png", 0)
    with pytest.raises(DataError):
        load(folder)
    save(tmp_path / "classes" / "loose.png", 0)
    with refuses(DataError, "loose.png"):
        load(tmp_path / "classes")


def test_clients_without_a_flag(tmp_path: Path) -> None:
    """Folders of clients above those of the classes are the federation's clients."""
    for client in ("a", "b"):
        for kind, value in (("cat", 0), ("dog", 255)):
            for i in range(8):
                save(tmp_path / client / kind / f"{i}.png", value)
    settings = DataSettings(data=str(tmp_path))
    assert settings.chosen() == "natural"
    f = settings.federation(0)
    assert (len(f), f.client_names, f.labels) == (2, ("a", "b"), ("cat", "dog"))
    assert f.preparation is not None
    made = f.preparation.apply([tmp_path / "a" / "dog" / "1.png"])
    assert (tuple(made.shape), made.unique().tolist()) == ((1, 1, 2, 3), [1.0])


def test_resized(tmp_path: Path) -> None:
    """image_size brings all images to one size, and the same is done to new ones."""
    save(tmp_path / "x" / "1.png", 0)
    save(tmp_path / "y" / "2.png", 255, size=(5, 7))
    d = load(tmp_path, image_size=4)
    assert d.shape == (1, 4, 4)
    assert d.preparation is not None
    assert d.preparation.apply([tmp_path / "y" / "2.png"]).unique().tolist() == [1.0]
    with refuses(ConfigError, "1", "0"):
        load(tmp_path, image_size=0)


def test_sixteen_bits_and_hidden_files(tmp_path: Path) -> None:
    """Images of 16 bits keep their brightness; files that begin with a dot are not looked at."""
    (tmp_path / "x").mkdir()
    Image.fromarray(np.full((2, 3), 0x8000, dtype=np.uint16)).save(tmp_path / "x" / "1.png")
    (tmp_path / "x" / "._1.png").write_bytes(b"not an image")
    assert np.allclose(load(tmp_path).x.numpy(), 128 / 255)


def test_formats_that_are_programs(tmp_path: Path) -> None:
    """Another format under the name of an image is not opened: Pillow would hand PostScript to Ghostscript."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "p" / "cat").mkdir(parents=True)
    image.new("L", (4, 4)).save(tmp_path / "p" / "cat" / "a.png", format="EPS")
    with refuses(DataError, "a.png"):
        load(tmp_path / "p")
