"""One generator per (seed, purpose, round, client)."""

from itertools import product

import torch

from fedkin.core.seeds import generator, key


def test_keys_are_fixed_and_distinct() -> None:
    """2,400 lists of arguments, 2,400 different 63-bit numbers, the same in every call."""
    lists = list(product(range(4), ["batches", "client", "server"], range(10), range(20)))
    keys = {key(*parts) for parts in lists}
    assert len(keys) == len(lists)
    assert all(0 <= k < 2**63 for k in keys)
    assert key(3, "batches", 1) == key(3, "batches", 1)


def test_arguments_do_not_run_into_each_other() -> None:
    """(1, 23), (12, 3) and (123) are different lists; so are the orders and an empty text."""
    assert len({key(0, 1, 23), key(0, 12, 3), key(0, 123), key(0, 23, 1), key(0, "", 123)}) == 5


def test_key_is_the_same_in_every_process() -> None:
    """No salt of the interpreter enters: the value itself, from BLAKE2b of the text "0/init/0", is pinned."""
    from hashlib import blake2b

    assert key(0, "init", 0) == int.from_bytes(blake2b(b"0/init/0", digest_size=8).digest(), "big") >> 1


def test_generators_are_independent_of_each_other() -> None:
    """Drawing from one changes no other, and neighbours are unrelated."""
    a = torch.rand(1000, generator=generator(0, "x", 1))
    torch.rand(10, generator=generator(0, "x", 2))
    assert torch.equal(a, torch.rand(1000, generator=generator(0, "x", 1)))
    b = torch.rand(1000, generator=generator(0, "x", 2))
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.15
