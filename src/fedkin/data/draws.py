"""Numpy generators, one per (seed, purpose): the same draw everywhere, whatever the global random state."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return a generator keyed by the run's seed and the purpose of the draw.

    Args:
        seed: the run's seed, any integer.
        key: the purpose and, where there are several draws of one purpose, their numbers.
    """
    text = repr((int(seed), *key)).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little"))
