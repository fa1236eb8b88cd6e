"""One generator per (seed, purpose, round, client)."""

from itertools import product

import torch

from fedkin.core.seeds import generator, key


def test_keys_are_fixed_and_distinct() -> None:
    """2,400 lists, 2,400 numbers of 63 bits, from BLAKE2b of the text and without a salt of the process."""
    lists = list(product(range(4), ["batches", "client", "server"], range(10), range(20)))
    keys = {key(*parts) for parts in lists}
    assert len(keys) == len(lists)
    assert all(0 <= k < 2**63 for k in keys)
    assert key(3, "batches", 1) == key(3, "batches", 1)
    assert len({key(0, 1, 23), key(0, 12, 3), key(0, 123), key(0, 23, 1), key(0, "", 123)}) == 5
    from hashlib import blake2b

    assert key(0, "init", 0) == int.from_bytes(blake2b(b"0/init/0", digest_size=8).digest(), "big") >> 1


def test_generators_are_independent_of_each_other() -> None:
    """Drawing from one changes no other, and neighbours are unrelated."""
    a = torch.rand(1000, generator=generator(0, "x", 1))
    torch.rand(10, generator=generator(0, "x", 2))
    assert torch.equal(a, torch.rand(1000, generator=generator(0, "x", 1)))
    b = torch.rand(1000, generator=generator(0, "x", 2))
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.15
