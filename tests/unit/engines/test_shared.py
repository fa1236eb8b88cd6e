"""Bundles through shared memory come out as they went in."""

from __future__ import annotations

import os

import pytest
import torch

from fedkin.core import Bundle
from fedkin.engines.shared import Slab, slab_bytes

DTYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool", "complex64"]


def same(a: Bundle, b: Bundle) -> bool:
    alike = all(a[n].shape == b[n].shape and a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)
    return list(a) == list(b) and alike


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("room", [1 << 16, 0], ids=["in the slab", "as raw bytes"])
def test_every_type_survives(dtype: str, room: int) -> None:
    """Numbers of every type come back with type, shape and bits, through the slab and through the pipe's bytes."""
    t = torch.tensor([[0.0, 1.0, 2.5], [-3.0, 100.0, 1.0]]).abs().to(getattr(torch, dtype))
    bundle = Bundle(t=t, scalar=t[0, 1], column=t[:, 1], turned=t.T)
    slab = Slab(1 << 16)
    entries, _ = slab.write(bundle, 0, room)
    assert all((e.raw is None) == (room > 0) for e in entries)
    assert same(slab.read(entries), bundle)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 2)])
def test_empty_tensors_survive(shape: tuple[int, ...]) -> None:
    """A tensor without numbers keeps its shape and type, and takes no room."""
    slab = Slab(4096)
    bundle = Bundle(a=torch.empty(shape, dtype=torch.int64), b=torch.ones(2))
    entries, free = slab.write(bundle, 0, 4096)
    assert same(slab.read(entries), bundle)
    assert free == 64


def test_what_does_not_fit_goes_as_bytes() -> None:
    """A tensor larger than the room left is sent raw, a smaller one after it finds its place; exactly full is full."""
    slab = Slab(4096)
    bundle = Bundle(small=torch.ones(8), large=torch.arange(5000), last=torch.zeros(3))
    entries, free = slab.write(bundle, 0, 4096)
    assert [e.raw is None for e in entries] == [True, False, True]
    assert free == 128
    assert same(slab.read(entries), bundle)
    slab = Slab(4096)
    entries, free = slab.write(Bundle(a=torch.ones(1024)), 0, 4096)
    assert (entries[0].raw, free) == (None, 4096)
    entries, _ = slab.write(Bundle(a=torch.ones(1)), free, 4096)
    assert entries[0].raw is not None


def test_tensors_lie_on_boundaries_of_64_bytes() -> None:
    """As torch's own do: on it the last bit of a matrix product may depend."""
    slab = Slab(4096)
    bundle = Bundle({f"t{i}": torch.ones(i + 1, dtype=torch.uint8) for i in range(10)})
    entries, _ = slab.write(bundle, 2048, 4096)
    assert all(t.data_ptr() % 64 == 0 for t in slab.read(entries).values())
    assert [e.offset for e in entries] == [2048 + 64 * i for i in range(10)]


def test_slabs_stay_within_the_memory() -> None:
    """All slabs together take at most an eighth of the memory as address space, each at most 1 GiB, whole pages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for number in (5, 6, 12, 68):
        size = slab_bytes(number)
        assert (1 << 20) <= size <= (1 << 30)
        assert size % 4096 == 0
        assert size == 1 << 20 or number * size <= memory // 8


def test_what_several_bundles_hold_is_written_once() -> None:
    """The very tensor that two bundles hold goes to the common slab; equal ones that are not the same do not."""
    model, common, own = torch.arange(100.0), Slab(4096), Slab(4096)
    bundles = [Bundle(model=model, mine=torch.ones(3)), Bundle(w=model, mine=torch.ones(3)), Bundle(mine=torch.ones(3))]
    known = common.share(bundles)
    assert list(known) == [id(model)]
    for bundle in bundles:
        entries, free = own.write(bundle, 0, 4096, known)
        assert free == 64  # the model takes no room of its own
        assert same(own.read(entries, common), bundle)
    assert [e.common for e in own.write(bundles[1], 0, 4096, known)[0]] == [True, False]
