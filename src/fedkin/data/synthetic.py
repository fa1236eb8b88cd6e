"""Synthetic data with true groups of clients, true groups planted into any federation, and noise on clients' inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, PartitionError, counted
from fedkin.core.grammar import chosen
from fedkin.core.samples import ClientData, Samples
from fedkin.core.settings import PLANTS
from fedkin.data.checks import PARTS, check_range
from fedkin.data.dataset import Dataset
from fedkin.data.federate import federate
from fedkin.data.federation import Federation
from fedkin.data.partition import Natural
from fedkin.data.splitting import generator


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
    """
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
        y=torch.from_numpy(np.concatenate(y).astype(np.int64)), classes=classes, name="synthetic",
        client=torch.arange(clients).repeat_interleave(samples), groups=torch.arange(clients) % groups,
    )  # fmt: skip


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


@dataclass(frozen=True)
class Drift:
    """Change of planted groups during a run: from a round on some clients see the data as the next group does.

    Raises:
        ConfigError: a round before the second, or a fraction out of range.
    """

    start: int
    """First round with the new groups."""
    fraction: float = 0.5
    """Fraction of the clients that change their group, drawn at random; at least one does."""

    def __post_init__(self) -> None:
        if self.start < 2:
            raise ConfigError(f"drift_round must be at least 2, the first round with other data, got {self.start}")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"drift_fraction must be above 0 and at most 1, got {self.fraction}")


def plant(
    federation: Federation,
    kind: str,
    groups: int = 4,
    *,
    drift: Drift | None = None,
    seed: int = 0,
) -> Federation:
    """Return the same clients, client k in group ``k mod groups``, each group with its own view of the data.

    ``labels``: group g calls class c by the number ``(c + g) mod classes``; no model can serve two groups.
    ``rotations``: group g sees the images turned by ``g`` quarters (Ghosh et al., IFCA, Section 6; at most 4 groups).

    With a drift, some clients of group g are in group ``(g + 1) mod groups`` from its round on, with the same samples.

    Args:
        federation: the clients.
        kind: how groups differ, ``labels`` or ``rotations``.
        groups: how many there are.
        drift: when groups change, and how many clients change theirs; None: they stay.
        seed: fixes which clients drift.

    Raises:
        PartitionError: the federation has true groups or drifting data already, or inputs that are not square images.
        ConfigError: an unknown kind, or a number of groups that does not fit.
    """
    chosen(kind, PLANTS, "plant")
    least, most = 1 if drift is None else 2, min(len(federation), 4 if kind == "rotations" else federation.classes)
    if not least <= groups <= most:
        what = f"{kind} in {federation.name}, {len(federation)} clients with {federation.classes} classes"
        raise ConfigError(f"groups must lie in {least}..{most} to plant {what}; got {groups}")
    if federation.groups is not None or any(shard.drift is not None for shard in federation.clients):
        raise PartitionError(f"{federation.name} has true groups or data that drift already; plant into others")
    square = len(federation.shape) >= 2 and federation.shape[-1] == federation.shape[-2]
    if kind == "rotations" and not square:
        raise PartitionError(f"only square images can be turned; inputs of {federation.name} are {federation.shape}")
    count, name = len(federation), f"{federation.name}, {groups} groups by {kind}"
    which = torch.arange(count) % groups
    clients = [_seen(d, kind, g, federation.classes) for d, g in zip(federation.clients, which.tolist(), strict=True)]
    if drift is not None:
        moved = max(1, math.floor(drift.fraction * count + 0.5))
        for k in generator(seed, "drift").choice(count, size=moved, replace=False).tolist():
            then = _seen(federation.clients[k], kind, (k + 1) % groups, federation.classes)
            clients[k] = replace(clients[k], drift=(drift.start, then))
        name += f", {counted(moved, 'client')} in another from round {drift.start} on"
    return replace(federation, clients=tuple(clients), groups=which, name=name)


def _seen(shard: ClientData, kind: str, group: int, classes: int) -> ClientData:
    """Return a client's data as a group sees them."""
    train, held, tested = (_view(d, kind, group, classes) for d in (shard.train, shard.validation, shard.test))
    return replace(shard, train=train, validation=held, test=tested, group=group)


def _view(data: Samples, kind: str, group: int, classes: int) -> Samples:
    if kind == "labels":
        return Samples(data.x, (data.y + group) % classes)
    turned: Tensor = torch.rot90(data.x, group, (-2, -1)).contiguous()
    return Samples(turned, data.y)


def add_feature_noise(federation: Federation, variance: float, seed: int = 0) -> Federation:
    """Return the same clients with Gaussian noise on their inputs, of larger variance at each next client.

    Client i of N, counted from 1, has noise of mean 0 and variance ``variance * i / N`` on every number of its inputs:
    the noise-based feature skew of Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE
    2022 (NIID-Bench), where the variance is called sigma and samples are shared out at random and equally (`IID`).
    Training, validation and test samples have the same noise, so a client is tested on its own distribution. It is
    drawn once; inputs are not clipped afterwards.

    The authors' program differs from the paper: it takes ``sigma * (i - 1) / (N - 1)`` as the standard deviation and
    draws anew whenever a sample is read. It tests on the whole test part once with each client's noise.

    Args:
        federation: the clients.
        variance: of the last client; 0 changes nothing.
        seed: fixes the noise, together with the client's number, the part and the position of the sample in it.

    Raises:
        ConfigError: a variance that is not a number of at least 0, or inputs that are whole numbers.
    """
    check_range("feature_noise, a variance,", variance, least=0)
    if variance == 0:
        return federation
    if not federation.clients[0].train.x.is_floating_point():
        raise ConfigError(
            f"feature_noise adds fractions to inputs, and those of {federation.name} are whole numbers (int64); leave "
            "it out, or save measured values as floats: x.astype('float32')"
        )
    count = len(federation)
    clients = tuple(
        _noisy(shard, (variance * (k + 1) / count) ** 0.5, seed, k) for k, shard in enumerate(federation.clients)
    )
    name = f"{federation.name}, feature noise of variance up to {variance:g}"
    return replace(federation, clients=clients, name=name)


def _noisy(shard: ClientData, deviation: float, seed: int, client: int) -> ClientData:
    def noisy(part: str) -> Samples:
        data: Samples = getattr(shard, part)
        rng = generator(seed, "feature noise", client, part)
        noise = rng.standard_normal(tuple(data.x.shape), dtype=np.float32)
        return Samples(data.x + deviation * torch.from_numpy(noise), data.y)

    train, held, tested = map(noisy, PARTS)
    drift = None if shard.drift is None else (shard.drift[0], _noisy(shard.drift[1], deviation, seed, client))
    return replace(shard, train=train, validation=held, test=tested, drift=drift)
