"""Room for tasks on their way, and places in which answers lie side by side."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, stack
from fedkin.engines.shared import AnswerRows, Arena, Ring, layout_of

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
