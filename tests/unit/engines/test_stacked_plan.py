"""The plan of a stack: everybody meets the loop's very batches, and few steps are taken by few."""

from __future__ import annotations

import random

import pytest

from fedkin.core import Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches, orders
from fedkin.engines.stacked_rows import Orders, StackPlan, plan, steps_of


def drawn(sizes: list[int], training: Training, *, skip_single: bool = False) -> list[Orders]:
    """The epochs of clients of so many samples, those with most steps first."""
    found = [list(orders(n, training, generator(0, i), skip_single=skip_single)) for i, n in enumerate(sizes)]
    return sorted(found, key=lambda mine: -steps_of(mine, training.batch_size))


def members(p: StackPlan) -> list[list[int]]:
    """Who takes each segment."""
    return [list(range(s.m)) if isinstance(s.rows, slice) else s.rows.tolist() for s in p.segments]


def met(p: StackPlan, clients: int) -> list[list[list[int]]]:
    """The batches that each row meets, in order."""
    found: list[list[list[int]]] = [[] for _ in range(clients)]
    for s, rows in zip(p.segments, members(p), strict=True):
        here = slice(s.first, s.first + s.steps * s.m * s.size)
        index, row = (t[here].view(s.steps, s.m, s.size) for t in (p.index, p.row))
        assert row.tolist() == [[[i] * s.size for i in rows]] * s.steps
        for step in index.tolist():
            for i, batch in zip(rows, step, strict=True):
                found[i].append(batch)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_client_meets_the_loops_batches_in_their_order(seed: int) -> None:
    """Random sizes, batches, epochs and steps: no batch is padded, left out, moved or met twice."""
    draw = random.Random(seed)
    steps = draw.choice([None, None, 1, 3, 8])
    training = Training(epochs=draw.randint(1, 4), steps=steps, batch_size=draw.choice([1, 2, 5, 8, 40]))
    sizes = sorted(draw.choices(range(30), k=draw.randint(1, 9)), key=lambda n: -training.steps_for(n) if n else 0)
    skip = training.batch_size > 1 and draw.random() < 0.3
    clients = [list(orders(n, training, generator(0, i), skip_single=skip)) for i, n in enumerate(sizes)]
    decays = draw.random() < 0.5
    got = met(plan(clients, training.batch_size, decays=decays), len(sizes))
    for i, n in enumerate(sizes):
        wanted = [index.tolist() for _, index in batches(n, training, generator(0, i), skip_single=skip)]
        assert got[i] == wanted


def test_who_steps_with_whom() -> None:
    """Equal clients all the way; last batches of one size together; of equally many steps the smallest batch first."""
    (s,) = plan(drawn([40, 40, 40], Training(epochs=2, batch_size=10)), 10, decays=False).segments
    assert (s.rows, s.m, s.size, s.steps) == (slice(0, 3), 3, 10, 8)
    p = plan(drawn([13, 23, 33], Training(batch_size=10)), 10, decays=False)
    assert [(s.m, s.size) for s in p.segments] == [(3, 10), (2, 10), (1, 10), (3, 3)]
    p = plan(drawn([13, 20], Training(epochs=2, batch_size=10)), 10, decays=False)
    assert [(s.m, s.size) for s in p.segments[:3]] == [(2, 10), (1, 3), (2, 10)]


def test_epochs_are_told_apart_where_the_step_size_changes() -> None:
    """With a decay after each epoch no segment has steps of two, and each row says in which it is."""
    p = plan(drawn([20, 10], Training(epochs=2, batch_size=10)), 10, decays=True)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for s, rows in zip(p.segments, members(p), strict=True):
        for i, epoch in zip(rows, s.epochs, strict=True):
            seen[i] += [epoch] * s.steps
    assert seen == {0: [0, 0, 1, 1], 1: [0, 1]}


@pytest.mark.parametrize(
    ("sizes", "training", "at_most"),
    [
        ([random.Random(0).randint(50, 350) for _ in range(100)], Training(epochs=5, batch_size=10), 1.35),
        ([200 * i for i in range(1, 26)], Training(epochs=5, batch_size=100), 1.0),
        ([1000 + 250 * i + i for i in range(8)], Training(epochs=5, batch_size=10), 1.1),
    ],
    ids=["many small", "even", "few large"],
)
def test_a_stack_takes_few_steps_more_than_its_largest_client(
    sizes: list[int], training: Training, at_most: float
) -> None:
    """Nobody who is needed waits: launches, as a multiple of the steps of the client with most."""
    clients = drawn(sizes, training)
    taken = sum(s.steps for s in plan(clients, training.batch_size, decays=False).segments)
    assert taken <= at_most * steps_of(clients[0], training.batch_size)
