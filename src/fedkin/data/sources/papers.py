"""Data sets of the papers by name, from files in their makers' own format."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.dataset import Dataset
from fedkin.data.preparation import Preparation
from fedkin.data.sources.hub import from_hub
from fedkin.data.sources.npz import read_npz
from fedkin.data.sources.upstream import (
    Files,
    read_cifar,
    read_emnist,
    read_idx_folder,
    read_leaf,
    read_svhn,
    read_tiny_imagenet,
)

ROOT = "FEDKIN_DATA"

_PATH_CLASSES = (
    "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
    "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
)  # fmt: skip
_TISSUE_CLASSES = (
    "Collecting Duct, Connecting Tubule", "Distal Convoluted Tubule", "Glomerular endothelial cells",
    "Interstitial endothelial cells", "Leukocytes", "Podocytes", "Proximal Tubule Segments", "Thick Ascending Limb",
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Data set that is known by name.

    Attributes:
        what: one line on it.
        read: makes it from a folder.
        files: what must lie in the folder.
        source: where its makers give it out.
        folder: name of its folder, where that is not its own name.
        hub: its place at the Hugging Face hub and the columns of input, label and client there.
    """

    what: str
    read: Callable[[Path], Dataset]
    files: str
    source: str
    folder: str | None = None
    hub: tuple[str, str, str, str | None] | None = None


def _mnist(folder: Path) -> Dataset:
    return read_idx_folder(Files(folder).folder_of("train-images-idx3-ubyte", "train-images.idx3-ubyte"))


def _medmnist(name: str, labels: tuple[str, ...]) -> Callable[[Path], Dataset]:
    return lambda folder: read_npz(Files(folder).folder_of(f"{name}.npz") / f"{name}.npz", labels=labels)


_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (plain or .gz)"
_EMNIST = (
    "emnist-{0}-train-images-idx3-ubyte, emnist-{0}-train-labels-idx1-ubyte and the same with -test- (plain or .gz), "
    "or gzip.zip with them"
)
_CIFAR100 = "train.bin and test.bin, or cifar-100-binary.tar.gz (the binary version)"
_NIST = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_KRIZ = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MED = "https://zenodo.org/records/10519652"

KNOWN: dict[str, Known] = {
    "mnist": Known("70,000 handwritten digits, 28 x 28, 10 classes", _mnist, _IDX,
        "https://yann.lecun.com/exdb/mnist", hub=("ylecun/mnist", "image", "label", None)),
    "fashion-mnist": Known("70,000 pieces of clothing, 28 x 28, 10 classes", _mnist, _IDX,
        "https://github.com/zalandoresearch/fashion-mnist",
        hub=("zalando-datasets/fashion_mnist", "image", "label", None)),
    "emnist-letters": Known("145,600 handwritten letters, 28 x 28, 26 classes",
        lambda folder: read_emnist(folder, "letters"), _EMNIST.format("letters"), _NIST, folder="emnist"),
    "emnist-byclass": Known("814,255 handwritten digits and letters, 28 x 28, 62 classes",
        lambda folder: read_emnist(folder, "byclass"), _EMNIST.format("byclass"), _NIST, folder="emnist"),
    "cifar10": Known("60,000 colour images, 32 x 32, 10 classes", lambda folder: read_cifar(folder, fine=False),
        "data_batch_1.bin to data_batch_5.bin and test_batch.bin, or cifar-10-binary.tar.gz (the binary version)",
        _KRIZ, hub=("uoft-cs/cifar10", "img", "label", None)),
    "cifar100": Known("60,000 colour images, 32 x 32, 100 classes", lambda folder: read_cifar(folder, fine=True),
        _CIFAR100, _KRIZ, hub=("uoft-cs/cifar100", "img", "fine_label", None)),
    "cifar100-first20": Known("the fine classes 0 to 19 of CIFAR-100",
        lambda folder: read_cifar(folder, fine=True, first=20), _CIFAR100, _KRIZ, folder="cifar100"),
    "svhn": Known("99,289 house numbers in colour, 32 x 32, 10 classes", read_svhn,
        "train_32x32.mat and test_32x32.mat", "http://ufldl.stanford.edu/housenumbers"),
    "femnist": Known("handwritten digits and letters by writer, 28 x 28, 62 classes (LEAF)", read_leaf,
        "the .json files that LEAF's preprocess.sh makes, in train/ and test/ or in all_data/",
        "https://github.com/TalwalkarLab/leaf", hub=("flwrlabs/femnist", "image", "character", "writer_id")),
    "tiny-imagenet": Known("110,000 colour images, 64 x 64, 200 classes", read_tiny_imagenet,
        "wnids.txt, train/ and val/ of tiny-imagenet-200.zip, unpacked",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    "pathmnist": Known("107,180 images of tissue in colour, 28 x 28, 9 classes (MedMNIST)",
        _medmnist("pathmnist", _PATH_CLASSES), "pathmnist.npz", _MED),
    "tissuemnist": Known("236,386 images of kidney cells, 28 x 28, 8 classes (MedMNIST)",
        _medmnist("tissuemnist", _TISSUE_CLASSES), "tissuemnist.npz", _MED),
}  # fmt: skip
"""Data sets by name: their files are looked for in ``NAME:FOLDER``, else in ``$FEDKIN_DATA/NAME``, by default
``~/.cache/fedkin/data/NAME``."""

BY_CLIENT = frozenset({"femnist"})
"""Those of them that are given out by client."""


def is_known(spec: str) -> bool:
    """Return whether a text names one of these data sets: ``cifar10``, or ``cifar10:FOLDER``."""
    return spec.partition(":")[0] in KNOWN


def read_known(spec: str) -> Dataset:
    """Read one of `KNOWN`: ``NAME`` or ``NAME:FOLDER``."""
    name, colon, place = spec.partition(":")
    known = KNOWN[name]
    folder = Path(place).expanduser() if colon else data_root() / (known.folder or name)
    if folder.is_dir() and any(folder.iterdir()):
        return replace(known.read(folder), name=name)
    why = ""
    if known.hub is not None and not colon:
        result, reason = from_hub(*known.hub)
        if result is not None:
            return replace(result, name=name)
        why = f"; {reason}"
    raise DataError(
        f"no data for {name}: {folder} {'is empty' if folder.is_dir() else 'is not there'}{why}. Put there: "
        f"{known.files}; from {known.source}. Another place: --data {name}:FOLDER, or set {ROOT} to the folder that "
        f"holds {known.folder or name}/"
    )


def data_root() -> Path:
    """Return the folder of all data sets that are known by name."""
    return Path(os.environ.get(ROOT) or "~/.cache/fedkin/data").expanduser()


def read_digits() -> Dataset:
    """Return 1,797 images, float32 ``[1, 8, 8]`` in 0..1 (values / 16), 10 classes, about 180 of each.

    Source: UCI optical recognition of handwritten digits, test part (Alpaydin and Kaynak), bundled with scikit-learn.
    """
    x, y = (t.clone() for t in _arrays())
    labels = tuple("0123456789")
    made = Preparation("array", (1, 8, 8), labels, factor=1 / 16)
    return Dataset(x=x, y=y, classes=10, name="digits", labels=labels, preparation=made)


@cache
def _arrays() -> tuple[Tensor, Tensor]:
    """Return images and labels; the compressed text that they come as is decoded once per process."""
    from sklearn.datasets import load_digits  # here: it takes a second to import, and other data do not need it

    images, target = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16).astype(np.float32).reshape(-1, 1, 8, 8))
    return x, torch.from_numpy(target.astype(np.int64))
