"""Small synthetic data with true groups of clients: for tests, demos and comparisons of methods."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fedkin.core.errors import ConfigError
from fedkin.data.dataset import Dataset
from fedkin.data.draws import generator
from fedkin.data.federate import federate
from fedkin.data.federation import Federation
from fedkin.data.partition import Natural


def planted_dataset(
    *,
    clients: int = 12,
    groups: int = 3,
    samples: int = 100,
    classes: int = 4,
    shape: tuple[int, ...] = (16,),
    kind: Literal["labels", "inputs"] = "labels",
    noise: float = 0.5,
    seed: int = 0,
) -> Dataset:
    """Return Gaussian blobs, one per class, seen differently by each group of clients.

    ``labels``: group g calls class c by the number ``(c + g) mod classes``, so that no model can serve two groups.
    ``inputs``: group g sees the inputs rotated by its own orthogonal matrix (group 0: not rotated).

    Args:
        clients: number of clients; client k belongs to group ``k mod groups``.
        groups: number of true groups.
        samples: samples of each client, the same number of each class.
        classes: number of classes.
        shape: shape of one input.
        kind: what differs between groups.
        noise: size of the noise relative to that of a blob's centre.
        seed: of everything drawn.

    Raises:
        ConfigError: numbers that do not fit each other.
    """
    _check(clients, groups, samples, classes, kind)
    rng, width = generator(seed, "planted"), int(np.prod(shape))
    centres = rng.standard_normal((classes, width))
    turns = [np.eye(width)] + [np.linalg.qr(rng.standard_normal((width, width)))[0] for _ in range(groups - 1)]
    x, y = [], []
    for k in range(clients):
        true = rng.permutation(np.arange(samples) % classes)
        seen = centres[true] + noise * rng.standard_normal((samples, width))
        group = k % groups
        x.append(seen @ turns[group] if kind == "inputs" else seen)
        y.append((true + group) % classes if kind == "labels" else true)
    return Dataset(
        x=torch.from_numpy(np.concatenate(x).astype(np.float32).reshape(-1, *shape)),
        y=torch.from_numpy(np.concatenate(y).astype(np.int64)),
        classes=classes,
        name="synthetic",
        client=torch.arange(clients).repeat_interleave(samples),
        groups=torch.arange(clients) % groups,
    )


def planted_groups(
    *,
    clients: int = 12,
    groups: int = 3,
    samples: int = 100,
    classes: int = 4,
    shape: tuple[int, ...] = (16,),
    kind: Literal["labels", "inputs"] = "labels",
    noise: float = 0.5,
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.1,
) -> Federation:
    """Return `planted_dataset` as a federation; ``groups`` of the result are the true ones."""
    data = planted_dataset(
        clients=clients, groups=groups, samples=samples, classes=classes, shape=shape, kind=kind, noise=noise, seed=seed
    )
    return federate(data, Natural(min_samples=1), seed=seed, test=test, validation=validation)


def _check(clients: int, groups: int, samples: int, classes: int, kind: str) -> None:
    most = min(clients, classes) if kind == "labels" else clients
    if kind not in ("labels", "inputs") or not 1 <= groups <= most or classes < 2 or samples < classes:
        raise ConfigError(
            f"expected kind 'labels' or 'inputs', groups in 1..{most} for {clients} clients, at least 2 classes and as "
            f"many samples per client, got {kind!r}, {groups} groups, {classes} classes and {samples} samples"
        )
