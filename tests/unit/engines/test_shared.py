"""Bundles through shared memory come out as they went in."""

from __future__ import annotations

import os
import select
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, stack
from fedkin.engines.orders import TOKEN_BYTES, OrderHeading, OrderToken, OrderWords
from fedkin.engines.shared import AnswerColumn, AnswerRows, Arena, Ring, Slab, layout_of, slab_bytes
from fedkin.engines.tasks import Step

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


# ---- places for answers ---------------------------------------------------------------------------------------------
SIZE = 4096


# ---- the ring -----------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 900), st.integers(0, 9)), max_size=80))
def test_stretches_of_a_ring_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    """Whatever is taken and given back in whatever order: inside the slab, on boundaries, apart from all others."""
    ring, held = Ring(SIZE), dict[int, tuple[int, int]]()
    for key, (taking, nbytes, which) in enumerate(steps):
        if not taking and held:
            gone = list(held)[which % len(held)]
            ring.give(gone)
            del held[gone]
            continue
        start = ring.take(key, nbytes)
        if start is None:
            assert held  # an empty ring has room for all of this
            continue
        assert start % 64 == 0
        assert 0 <= start <= start + nbytes <= SIZE
        assert all(start + nbytes <= a or b <= start for a, b in held.values())
        held[key] = (start, start + nbytes)


def test_a_ring_comes_round() -> None:
    """What the first gave back is used again while the last is still held; nothing larger than the ring fits."""
    ring = Ring(SIZE)
    assert [ring.take(k, 1024) for k in range(4)] == [0, 1024, 2048, 3072]
    assert ring.take(9, 1) is None
    ring.give(1)
    assert ring.take(9, 64) is None  # in turn: the first is still there
    ring.give(0)
    assert ring.take(4, 1024) == 0
    assert ring.take(5, 1024) == 1024
    assert ring.take(9, 1) is None
    for k in (2, 3, 4, 5):
        ring.give(k)
    assert ring.take(9, SIZE + 1) is None
    assert ring.take(9, SIZE) == 0


# ---- places for answers -------------------------------------------------------------------------------------------
def answer(i: int) -> Bundle:
    return Bundle(model=torch.full((5, 3), float(i)), size=torch.tensor(i), counts=torch.full((7,), i))


def filled(arena: Arena, count: int, first: int = 0) -> AnswerRows:
    rows = arena.rows("update", count)
    assert all(arena.fill(rows.place(i), answer(first + i)) for i in range(count))
    return rows


def learned(nbytes: int = SIZE) -> Arena:
    arena = Arena(nbytes)
    arena.learn("update", [layout_of(answer(0))])
    return arena


def test_answers_are_read_where_they_were_written_and_stacked_without_a_copy() -> None:
    rows = filled(learned(), 4)
    found = {i: rows.read(i) for i in range(4)}
    for i, b in found.items():
        assert list(b) == ["model", "size", "counts"]
        assert all(torch.equal(b[n], t) and b[n].dtype == t.dtype for n, t in answer(i).items())
    together = stack(found)
    assert all(torch.equal(t, stack({i: answer(i) for i in range(4)})[n]) for n, t in together.items())
    assert all(t.data_ptr() == found[0][n].data_ptr() for n, t in together.items())


def test_a_region_is_free_when_nobody_looks_at_it() -> None:
    """Two at a time; a single tensor keeps its region, and what it shows stays."""
    arena = learned()
    first, second = filled(arena, 3).read(1).model, filled(arena, 3, 10).read(2)
    assert arena.rows("update", 3) is None
    del second
    third = filled(arena, 3, 20)
    assert torch.equal(first, answer(1).model)
    assert torch.equal(third.read(0).model, answer(20).model)
    del third
    assert filled(arena, 1).read(0) is not None
    del first
    both = filled(arena, 1), filled(arena, 1)
    assert len(both) == 2


def test_only_what_looks_alike_has_places() -> None:
    """Unknown or different answers, empty tensors, more than a region holds: none."""
    arena = Arena(SIZE)
    assert arena.rows("update", 1) is None
    arena.learn("update", [layout_of(answer(0)), layout_of(Bundle(model=torch.ones(2)))])
    assert arena.rows("update", 1) is None
    arena.learn("update", [layout_of(Bundle(model=torch.ones(2), none=torch.ones(0)))])
    assert arena.rows("update", 1) is None
    arena.learn("update", [layout_of(answer(0))])
    assert arena.rows("survey", 1) is None
    assert arena.rows("update", 100) is None
    rows = arena.rows("update", 2)
    others = [answer(0).but(more=torch.ones(1)), answer(0).but(size=torch.tensor(1.0)), Bundle(model=torch.ones(15))]
    assert not any(arena.fill(rows.place(0), other) for other in others)


@pytest.mark.parametrize("lie", ["elsewhere", "apart", "turned", "mixed"])
def test_what_does_not_lie_side_by_side_is_copied(lie: str) -> None:
    """Tensors of their own, with a gap, in another order of places, of two types: stacked as ever."""
    whole = torch.arange(60.0).view(3, 4, 5)
    rows = {
        "elsewhere": [row.clone() for row in whole],
        "apart": list(whole[::2]),
        "turned": list(whole.transpose(1, 2)),
        "mixed": [whole[0], whole[1].double(), whole[2]],
    }[lie]
    made = stack({i: Bundle(a=row) for i, row in enumerate(rows)}).a
    assert torch.equal(made, torch.stack(rows))
    assert made.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


# ---- orders ---------------------------------------------------------------------------------------------------------
INT, LONG = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
STEPS: tuple[Step, ...] = get_args(Step)
TOKENS = st.builds(OrderToken, INT, INT, st.sampled_from(STEPS), INT, LONG, INT, st.integers(-1, 2**31 - 1), LONG, INT)


@given(TOKENS)
def test_an_entry_of_the_queue_is_read_as_written(token: OrderToken) -> None:
    """Every step, any numbers: of one size, which a reader of the queue relies on, and some fit into one write."""
    assert OrderToken.of(token.packed()) == token
    assert len(token.packed()) == TOKEN_BYTES
    assert 2 * TOKEN_BYTES <= select.PIPE_BUF


def test_a_heading_and_words_are_read_as_written() -> None:
    """Entries of tensors in a slab, empty tensors, which are in none, and places; types and shapes as they were."""
    slab = Slab(4096)
    bundle = Bundle(model=torch.ones(3, 2), none=torch.zeros(0, 4, dtype=torch.int64), size=torch.tensor(3))
    entries, _ = slab.write(bundle, 0, 4096)
    columns = [AnswerColumn("model", "float32", (3, 2), 640, 24), AnswerColumn("size", "int64", (), 1024, 8)]
    heading = OrderHeading(entries, columns)
    assert OrderHeading.of(heading.words()) == heading
    assert [column.at(2).offset for column in columns] == [640 + 48, 1024 + 16]
    for received in (None, entries):
        words = OrderWords(received, entries[:1])
        assert OrderWords.of(words.words()) == words
    found = slab.read(OrderHeading.of(heading.words()).received)
    assert list(found) == list(bundle)
    assert all(torch.equal(found[n], bundle[n]) and found[n].dtype == bundle[n].dtype for n in bundle)


def test_what_does_not_fit_into_the_common_slab_goes_with_each_bundle() -> None:
    large, common, own = torch.arange(5000.0), Slab(4096), Slab(1 << 16)
    bundles = [Bundle(a=large), Bundle(a=large)]
    known = common.share(bundles)
    assert known == {}
    assert same(own.read(own.write(bundles[0], 0, own.size, known)[0], common), bundles[0])
