"""Reading folders of images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import load

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
    with pytest.raises(DataError, match=r"2\.png: 5 x 5 pixels, .*1\.png has 2 x 3; all images need the same size"):
        load(tmp_path)


def test_no_image(tmp_path: Path) -> None:
    """A file that only has the name of an image is refused."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.png").write_text("text")
    with pytest.raises(DataError, match="not a readable image"):
        load(tmp_path)


def test_mixed_depth(tmp_path: Path) -> None:
    """Images one and two levels down are refused: what is a class would be a guess."""
    save(tmp_path / "cat" / "1.png", 0)
    save(tmp_path / "a" / "dog" / "1.png", 0)
    with pytest.raises(DataError, match="not both"):
        load(tmp_path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pillow the message says how to install it."""
    save(tmp_path / "cat" / "1.png", 0)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r'pip install "fedkin\[images\]"'):
        load(tmp_path)
