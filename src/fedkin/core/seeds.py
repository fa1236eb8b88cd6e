"""Random generators, one per (seed, purpose, round, client).

No draw depends on what was drawn before it elsewhere, so the number of workers, the order in which clients are trained
and an interruption change nothing.
"""

from __future__ import annotations

from hashlib import blake2b

import torch


def key(seed: int, *parts: int | str) -> int:
    """Return a 63-bit number that is fixed by its arguments and unrelated for any two different lists of them."""
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """Return a CPU generator for one purpose, e.g. ``generator(seed, "batches", round, client)``."""
    return torch.Generator().manual_seed(key(seed, *parts))
