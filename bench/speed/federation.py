"""Made-up data, written to a folder that every program reads: the same arrays and the same first weights for all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench.speed.workloads import Workload

from fedkin.core import Net
from fedkin.models.start import factory

_SIDE = 4  # a class is a coarse pattern of so many squares a side, which networks learn in a few steps
_APART = 8.0  # distance of two classes, in standard deviations of the noise: learned in a few rounds, but not at once


def write(w: Workload, folder: Path, seed: int = 0) -> None:
    """``{train,test}_x.npy [clients, n, *shape]``, ``{train,test}_y.npy [clients, n]`` and ``start.npz``.

    Inputs are a pattern per class and normal noise, labels uniform, all drawn from the seed. ``start.npz`` holds the
    network's first weights by their names in a ``state_dict``: those that a fedkin run with this seed starts from.
    """
    rng = np.random.default_rng(seed)
    patterns = _patterns(w, rng)
    for part, size in (("train", w.samples), ("test", w.tests)):
        y = rng.integers(0, w.classes, size=(w.clients, size))
        x = np.empty((w.clients, size, *w.shape), dtype=np.float32)
        for client in range(w.clients):
            rng.standard_normal(out=x[client], dtype=np.float32)
            x[client] += patterns[y[client]]
        np.save(folder / f"{part}_x.npy", x)
        np.save(folder / f"{part}_y.npy", y)
    net = Net(factory(w.model, w.shape, w.classes), w.shape, w.classes, seed=seed)
    weights: dict[str, Any] = {name: t.numpy() for name, t in net.unflatten(net.w0).items()}
    np.savez(folder / "start.npz", **weights)


def _patterns(w: Workload, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """One input of the workload's shape per class: ``[classes, *shape]``."""
    coarse = rng.standard_normal(size=(w.classes, w.shape[0], _SIDE, _SIDE), dtype=np.float32)
    fine = coarse.repeat(-(-w.shape[1] // _SIDE), axis=2).repeat(-(-w.shape[2] // _SIDE), axis=3)
    pattern = fine[:, :, : w.shape[1], : w.shape[2]]
    return pattern * np.float32(_APART / math.sqrt(2 * math.prod(w.shape)))
