"""The papers' data by name, from small files in their makers' own format."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.core.errors import ConfigError, DataError
from fedkin.data import KNOWN, Dirichlet, absolute, federate, federation_of, load
from fedkin.data.sources import papers
from fedkin.experiment.settings import DataSettings
from refusals import refuses

RNG = np.random.default_rng(0)
Idx = Callable[[Path, np.ndarray], None]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the data are looked for; and the hub cannot be asked."""
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    monkeypatch.setattr(papers, "from_hub", lambda *_: (None, "the hub cannot be reached"))
    return tmp_path


def cifar(folder: Path, *, fine: bool, n: int = 4) -> dict[str, np.ndarray]:
    """Records of the binary version, by file."""
    folder.mkdir(parents=True)
    names = ["train.bin", "test.bin"] if fine else [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    made = {}
    for at, name in enumerate(names):
        x = RNG.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
        y = np.array([(at + 30 * i) % 100 if fine else (at + i) % 10 for i in range(n)], dtype=np.uint8)
        labels = np.stack([np.full(n, 7, dtype=np.uint8), y], axis=1) if fine else y[:, None]
        (folder / name).write_bytes(np.concatenate([labels, x.reshape(n, -1)], axis=1).tobytes())
        made[name] = x
    return made


def test_cifar10(root: Path) -> None:
    """Five files and a test file; planes of red, green and blue; pixels are bytes until they are shared out."""
    made = cifar(root / "cifar10", fine=False)
    d = load("cifar10")
    assert (len(d), d.shape, d.classes, d.name, d.x.dtype) == (20, (3, 32, 32), 10, "cifar10", torch.uint8)
    assert np.array_equal(d.x[4:8].numpy(), made["data_batch_2.bin"])
    assert d.y[:8].tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
    assert np.array_equal(d.official_test.x.numpy(), made["test_batch.bin"])
    assert (d.labels[0], d.labels[9]) == ("airplane", "truck")
    f = federate(d, Dirichlet(alpha=100.0, min_samples=1), clients=2)
    given = torch.cat([x for s in f.clients for x in (s.train.x, s.validation.x, s.test.x)])
    assert given.dtype == torch.float32
    want = f.preparation.apply(list(np.concatenate(list(made.values()))))
    assert sorted(given.sum(dim=(1, 2, 3)).tolist()) == sorted(want.sum(dim=(1, 2, 3)).tolist())


def test_cifar100_and_its_first_20(root: Path) -> None:
    """The second byte is the fine label; the first 20 of the fine classes are a set of their own."""
    made = cifar(root / "cifar100" / "cifar-100-binary", fine=True, n=10)
    d = load("cifar100")
    assert (d.classes, d.y.tolist()) == (100, [30 * i % 100 for i in range(10)])
    e = load("cifar100-first20")
    assert (e.classes, e.y.tolist()) == (20, [0, 10, 0][: len(e)])
    own = [i for i in range(10) if 30 * i % 100 < 20]
    assert np.array_equal(e.x.numpy(), made["train.bin"][own])
    assert int(e.official_test.y.max()) < 20


def test_an_archive_is_read(root: Path) -> None:
    """The archive as it was fetched will do; one that is cut short is named."""
    made = cifar(root / "made", fine=True)
    (root / "cifar100").mkdir()
    archive = root / "cifar100" / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(root / "made", "cifar-100-binary")
    assert np.array_equal(load("cifar100").x.numpy(), made["train.bin"])
    archive.write_bytes(archive.read_bytes()[:-3000])
    with pytest.raises(DataError):
        load("cifar100")


def test_bad_cifar(root: Path) -> None:
    """A file cut short, a label out of range, a file that is not there, also next to an npz."""
    cifar(root / "cifar10", fine=False)
    file = root / "cifar10" / "data_batch_3.bin"
    whole = file.read_bytes()
    for content in (whole[:-1], b"\x0a" + whole[1:]):
        file.write_bytes(content)
        with pytest.raises(DataError):
            load("cifar10")
    file.unlink()
    with refuses(DataError, "data_batch_3.bin"):
        load("cifar10")
    (root / "cifar100").mkdir()
    (root / "cifar100" / "cifar-100-python.tar.gz").write_bytes(b"\x80\x04.")
    with refuses(DataError, "binary version"):
        load("cifar100")
    (root / "cifar10" / "own.npz").write_bytes(b"")
    with refuses(DataError, "/cifar10/own.npz"):
        load("cifar10")


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("byclass", 0, 62)])
@pytest.mark.parametrize("packed", [False, True])
def test_emnist(root: Path, write_idx: Idx, split: str, first: int, classes: int, packed: bool) -> None:
    """Images are transposed in the files, letters numbered from 1; plain, .gz, or inside gzip.zip."""
    folder = root / "emnist"
    folder.mkdir()
    x, y = RNG.integers(0, 256, (5, 28, 28)), np.array([first, first + 1, classes - 1 + first, first, first + 2])
    for part in ("train", "test"):
        write_idx(folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz", x)
        write_idx(folder / f"emnist-{split}-{part}-labels-idx1-ubyte", y)
    if packed:
        with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
            for path in sorted(folder.glob("emnist-*")):
                archive.write(path, f"gzip/{path.name}")
                path.unlink()
    d = load(f"emnist-{split}")
    assert d.y.tolist() == [0, 1, classes - 1, 0, 2]
    assert np.array_equal(d.x[:, 0].numpy(), x.transpose(0, 2, 1))
    assert (d.classes, d.labels[classes - 1]) == (classes, "Z" if split == "letters" else "z")
    assert len(d.official_test) == 5


def test_svhn(root: Path) -> None:
    """X [32, 32, 3, n], and 10 stands for the digit 0."""
    io_ = pytest.importorskip("scipy.io")
    (root / "svhn").mkdir()
    x = RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for part in ("train", "test"):
        io_.savemat(root / "svhn" / f"{part}_32x32.mat", {"X": x, "y": np.array([[10], [1], [9], [5]], dtype=np.uint8)})
    d = load("svhn")
    assert (d.y.tolist(), d.shape) == ([0, 1, 9, 5], (3, 32, 32))
    assert np.array_equal(d.x[2].numpy(), x[:, :, :, 2].transpose(2, 0, 1))
    io_.savemat(root / "svhn" / "test_32x32.mat", {"X": x, "y": np.array([[0], [1], [9], [5]])})
    with pytest.raises(DataError):
        load("svhn")
    (root / "svhn" / "test_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(DataError):
        load("svhn")


def leaf(path: Path, users: dict[str, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        u: {"x": np.full((n, 784), k / 10).tolist(), "y": [61, 0] * (n // 2)} for k, (u, n) in enumerate(users.items())
    }
    path.write_text(json.dumps({"users": list(users), "num_samples": list(users.values()), "user_data": data}))


def test_femnist(root: Path) -> None:
    """Writers are the clients, also without a flag; the files of test/ are their test samples."""
    leaf(root / "femnist" / "train" / "all_data_0_niid_1_keep_0_train_9.json", {"f1_1": 20, "f0_0": 24})
    leaf(root / "femnist" / "train" / "all_data_1_niid_1_keep_0_train_9.json", {"f2_2": 30})
    leaf(root / "femnist" / "test" / "all_data_0_niid_1_keep_0_test_9.json", {"f0_0": 4, "f1_1": 4, "f2_2": 4})
    d = load("femnist")
    assert (len(d), d.shape, d.classes) == (74, (1, 28, 28), 62)
    assert d.client_names == ("writer f0_0", "writer f1_1", "writer f2_2")
    assert d.client is not None
    assert torch.bincount(d.client).tolist() == [24, 20, 30]
    assert d.x[20].max() == pytest.approx(0.1)
    f = federation_of(DataSettings(data="femnist", split="official"), 0)
    assert (len(f), f.sizes()[:, 2].tolist()) == (3, [4, 4, 4])
    (root / "femnist" / "test" / "bad.json").write_text('{"users": ["u"]}')
    with pytest.raises(DataError):
        load("femnist")
    (root / "femnist" / "test" / "bad.json").write_text(
        json.dumps({"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[0.5]], "y": [1]}}})
    )
    with pytest.raises(DataError):
        load("femnist")


def test_tiny_imagenet(root: Path) -> None:
    """Classes in the order of wnids.txt, val as the test part; grey images become three channels."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, the extra 'images'")
    top = root / "tiny-imagenet" / "tiny-imagenet-200"
    for wnid, mode in (("n02", "RGB"), ("n01", "L")):
        (top / "train" / wnid / "images").mkdir(parents=True)
        for i in range(2):
            image.new(mode, (64, 64), 128).save(top / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    (top / "val" / "images").mkdir(parents=True)
    image.new("RGB", (64, 64)).save(top / "val" / "images" / "val_0.JPEG")
    (top / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t63\t63\n")
    (top / "wnids.txt").write_text("n02\nn01\n")
    (top / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\ttench\nn03\tother\n")
    d = load("tiny-imagenet")
    assert (d.y.tolist(), d.labels, d.shape) == ([0, 0, 1, 1], ("tench", "goldfish"), (3, 64, 64))
    assert d.official_test.y.tolist() == [1]
    assert d.x[2].tolist() == torch.full((3, 64, 64), 128).tolist()
    (top / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\n")
    with pytest.raises(DataError):
        load("tiny-imagenet")


@pytest.mark.parametrize(("name", "classes", "shape"), [("pathmnist", 9, (28, 28, 3)), ("tissuemnist", 8, (28, 28))])
def test_medmnist(root: Path, name: str, classes: int, shape: tuple[int, ...]) -> None:
    """train and val are shared out, test is the official test part; the classes have their names."""
    (root / name).mkdir()
    parts = {
        f"{part}_{what}": RNG.integers(0, 256, (6, *shape), dtype=np.uint8)
        if what == "images"
        else np.arange(6)[:, None]
        for part in ("train", "val", "test")
        for what in ("images", "labels")
    }
    np.savez(root / name / f"{name}.npz", **parts)
    d = load(name)
    assert (len(d), d.classes, len(d.labels)) == (12, classes, classes)
    assert d.shape == ((3, 28, 28) if len(shape) == 3 else (1, 28, 28))


@pytest.mark.parametrize("name", KNOWN)
def test_what_to_put_where(root: Path, name: str) -> None:
    """Without the files the message names the folder, the files, their source, and the other ways to say it."""
    with pytest.raises(DataError) as caught:
        load(name)
    text = str(caught.value)
    folder = KNOWN[name].folder or name
    for part in (f"{root}/{folder} is not there", KNOWN[name].files, KNOWN[name].source, f"--data {name}:FOLDER"):
        assert part in text
    (root / folder).mkdir()
    with pytest.raises(DataError):
        load(name)
    with pytest.raises(DataError):
        load(f"{name}:{root}/nowhere")


def test_settings_and_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of tables are refused; a folder of the same name is the folder; paths become absolute."""
    with pytest.raises(ConfigError):
        load("cifar10", target="y")
    cifar(root / "cifar10", fine=False)
    monkeypatch.chdir(root)
    assert absolute("cifar10:cifar10") == f"cifar10:{root}/cifar10"
    assert absolute("./f.py:g") == f"{root}/f.py:g"
    assert absolute("package.module:f") == "package.module:f"
    assert len(load("cifar10:cifar10")) == 20
