"""The handwritten digits that come with scikit-learn: 1,797 images of 8 x 8, no download."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedkin.data.dataset import Dataset
from fedkin.data.preparation import Preparation


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
