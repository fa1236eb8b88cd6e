"""Noise on the inputs of clients, more at some than at others: feature skew with the same labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError
from fedkin.core.samples import ClientData, Samples
from fedkin.data.checks import PARTS, check_range
from fedkin.data.draws import generator
from fedkin.data.federation import Federation


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
        return Samples(data.x + deviation * _normal(rng, data.x.shape), data.y)

    train, held, tested = map(noisy, PARTS)
    drift = None if shard.drift is None else (shard.drift[0], _noisy(shard.drift[1], deviation, seed, client))
    return replace(shard, train=train, validation=held, test=tested, drift=drift)


def _normal(rng: np.random.Generator, shape: torch.Size) -> Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(shape), dtype=np.float32))
