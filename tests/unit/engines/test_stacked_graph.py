"""Steps that are recorded and played again: the same results, recorded only where it pays and can be done.

Without a GPU they are recorded by `recorded`, which keeps of a step what a CUDA graph keeps.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkin.engines.stacked_graph as module
import recorded as stand_in
from fedkin.core import Bundle, Net, Train, Training
from fedkin.engines import Job, Stacked
from fedkin.engines.stacked import StackedSession
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_graph import Check, Graphs
from fedkin.engines.stacked_rows import StackRows
from fedkin.engines.stacked_train import StackRequest, train
from fedkin.engines.turns import Draws
from fedkin.methods import METHODS
from fedkin.testing.toys import network, samples
from fedkin.testing.trial import Setting, difference, play, tensors

NET = network("mlp")
Made = list[int]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Made:
    """All graphs that were recorded: how often each was replayed."""
    made: Made = []

    def capture(step: Callable[[], None], place: Place, pool: Any) -> tuple[Callable[[], None], Any, int]:
        replay, *more = stand_in.capture(step, place, pool)
        made.append(0)
        number = len(made) - 1

        def counted() -> None:
            made[number] += 1
            replay()

        return counted, *more

    monkeypatch.setattr(module, "_OFTEN", 4)
    monkeypatch.setattr(module, "_LONGEST", 8)
    monkeypatch.setattr(module, "warm_up", stand_in.warm_up)
    monkeypatch.setattr(module, "capture", capture)
    return made


def equal(one: list[StackRequest], graphs: Graphs, net: Net = NET, near: float = 1e-6) -> None:
    """Asserts that training by recordings gives what training without gives."""
    place = Place("cpu", 0.0, False)
    for a, b in zip(train(one, net, place), train(one, net, place, graphs), strict=True):
        torch.testing.assert_close(a, b, rtol=near, atol=near)


def kept(graphs: Graphs) -> dict[int, list[int]]:
    """The recordings by their number of rows, with the numbers of steps of their graphs."""
    return {made.rows: sorted(made.graphs) for found in graphs._kept.values() for made in found}


def asked(sizes: tuple[int, ...], training: Training, **request: Any) -> list[StackRequest]:
    data = [samples(0, i, "train", n) for i, n in enumerate(sizes)]
    return [
        StackRequest(
            Train(NET.w0 + i, per_sample=Bundle(offset=torch.full((len(d), 3), float(i))), **request),
            d,
            training,
            Draws(1, ("update", 1, i, 0)),
        )
        for i, d in enumerate(data)
    ]


@pytest.mark.parametrize(
    ("training", "request_"),
    [
        pytest.param(Training(epochs=7, batch_size=4), {}, marks=pytest.mark.thorough),
        (Training(epochs=7, batch_size=4, momentum=0.5, epoch_decay=0.9), {"center": NET.w0, "mu": 0.3}),
        pytest.param(
            Training(steps=14, batch_size=4, momentum=0.5),
            {"only": NET.head, "linear": torch.ones(NET.size) / 10},
            marks=pytest.mark.thorough,
        ),
        (Training(steps=14, batch_size=4, weight_decay=0.05, decay_biases=False), {"clip": 0.5}),
        pytest.param(
            Training(steps=14, batch_size=4, lr=0.001, optimizer="adamw", weight_decay=0.5, decay_biases=False),
            {},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_recording_gives_what_the_steps_give(training: Training, request_: dict[str, Any], recorded: Made) -> None:
    """Clients of 9, 8, 8 and 3 samples, several times over."""
    place, said = Place("cpu", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(3):
        gc.collect()  # as torch does before it records
        one = asked((9, 8, 8, 3), training, **request_)
        equal(one, graphs)
    assert recorded
    assert said == []


def test_only_shapes_that_come_often_are_recorded(recorded: Made) -> None:
    """Three steps of one shape are taken as they come, and those of the second round, as they began before the fourth;
    in the third they are recorded, once, and from then on a round is one replay."""
    graphs, counts = Graphs(Place("cpu", 0.0, False), pytest.fail), list[list[int]]()
    for _ in range(5):
        equal(asked((8, 8), Training(steps=3, batch_size=4)), graphs)
        counts.append(list(recorded))
    assert counts == [[], [], [1], [2], [3]]
    assert kept(graphs) == {2: [3]}
    assert (graphs.recordings, graphs.played, graphs.single) == (1, 6, 9)


def test_graphs_are_few(recorded: Made) -> None:
    """Steps of any length from graphs of 1, 2, 4 and 8; each row has the step size of its epoch; Adam's moments go
    on."""
    graphs = Graphs(Place("cpu", 0.0, False), pytest.fail)
    for steps in (7, 3, 11, 6, 11):
        equal(asked((8, 8), Training(steps=steps, batch_size=4, momentum=0.5)), graphs)
    assert kept(graphs) == {2: [1, 2, 4, 8]}
    assert graphs.played + graphs.single == 7 + 3 + 11 + 6 + 11
    assert graphs.played == 3 + 3 + 2 + 11  # what was recorded before
    recorded.clear()
    graphs = Graphs(Place("cpu", 0.0, False), pytest.fail)
    for _ in range(2):
        equal(asked((8, 4), Training(steps=8, batch_size=4, epoch_decay=0.8)), graphs)
    assert (len(recorded), graphs.played, graphs.single) == (1, 3 + 8, 4 + 1)
    graphs = Graphs(Place("cpu", 0.0, False), pytest.fail)
    for _ in range(3):
        equal(asked((4, 4), Training(steps=9, batch_size=4, optimizer="adam")), graphs)
    assert kept(graphs) == {2: [1, 4, 8]}
    assert (graphs.recordings, graphs.played, graphs.single) == (3, 1 + 9, 9 + 8)


def test_a_graph_that_computes_other_numbers_is_not_used(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that moves nothing: its steps are taken as they come, and none is played or recorded later."""
    capture = module.capture
    monkeypatch.setattr(module, "capture", lambda step, place, pool: (lambda: None, *capture(step, place, pool)[1:]))
    said = list[str]()
    graphs = Graphs(Place("cpu", 0.0, False), said.append)
    one = asked((8, 8), Training(steps=6, batch_size=4, momentum=0.5))
    for _ in range(2):
        equal(one, graphs, near=0.0)
    assert said == ["the steps of cross_entropy are started one by one: their CUDA graph computes other numbers"]
    assert (kept(graphs), graphs.recordings, graphs.played, graphs.single) == ({}, 1, 0, 12)


def test_steps_are_compared_from_where_they_began(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models move in place: the ones before have memory of their own."""
    moved, passes = list[bool](), module.Check.passes

    def watched(self: module.Check, played: Any, stepped: Any) -> bool:
        moved.append(not torch.equal(self.start.w, stepped.w))
        moved.append(not torch.equal(self.start.moments, stepped.moments))
        return passes(self, played, stepped)

    monkeypatch.setattr(module.Check, "passes", watched)
    equal(asked((8, 8), Training(steps=6, batch_size=4, momentum=0.5)), Graphs(Place("cpu", 0.0, False), pytest.fail))
    assert moved == [True, True]


def test_recordings_that_are_not_used_give_way(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two graphs at most, a third kind of step is recorded when one of them was not used for five segments, and
    has its memory."""
    monkeypatch.setattr(module, "_MOST", 2)
    monkeypatch.setattr(module, "_IDLE", 5)
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, pytest.fail)
    room, found = graphs._room, list[dict[int, list[int]]]()
    for rows in (4, 2, 8, 4, 4, 4, 4, 8):
        train(asked((8,) * rows, Training(steps=8, batch_size=4)), NET, place, graphs)
        found.append(kept(graphs))
    assert found[:4] == [{4: [4]}, *[{2: [4], 4: [4]}] * 3]
    assert found[-1] == {4: [4], 8: [8]}
    assert graphs._room == room - sum(made.taken for one in graphs._kept.values() for made in one)


def test_memory_of_recordings_goes_with_the_last_one(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is recorded in memory of its own, and what the former ones worked in is free again."""
    pools, capture = list[Any](), module.capture

    def grown(step: Callable[[], None], place: Place, pool: Any) -> Any:
        pools.append(pool)
        return (*capture(step, place, pool)[:2], 1000)

    monkeypatch.setattr(module, "capture", grown)
    monkeypatch.setattr(module, "_MOST", 1)
    monkeypatch.setattr(module, "_IDLE", 2)
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, pytest.fail)
    room = graphs._room
    for rows in (2, 4, 4, 4):
        train(asked((8,) * rows, Training(steps=8, batch_size=4)), NET, place, graphs)
    (made,) = graphs._kept[next(iter(graphs._kept))]
    assert (made.rows, pools, place.recorded) == (4, [None, None], 1000)
    assert graphs._room == room - made.taken - 1000


def test_few_recordings_and_memory(recorded: Made) -> None:
    """Rows of 12 down to one need five recordings; forgetting frees them, and they may take half each time."""
    graphs = Graphs(Place("cpu", 0.0, False), pytest.fail)
    for t in range(7):
        equal(asked(tuple(range(4, 49, 4)), Training(batch_size=4, lr=0.1 / (t + 1), momentum=0.5)), graphs)
    assert kept(graphs) == {rows: [1] for rows in (1, 2, 4, 8, 12)}
    assert len(recorded) == 5
    recorded.clear()
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, lambda _: None)
    assert not graphs.give_up()
    room = graphs._room
    for count, left in ((1, room // 2), (2, room // 4)):
        train(asked((8, 8), Training(steps=8, batch_size=4)), NET, place, graphs)
        assert len(recorded) == count
        assert graphs.give_up()
        assert graphs._room == left


def test_dropout_draws_the_same_whenever_a_step_is_recorded(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what the steps give, in every round; also where recording fails, after warming up has drawn."""
    net = Net(lambda: nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.5), nn.Linear(7, 3)), (6,), 3)
    place, said = Place("cpu", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(3):
        data = [samples(0, i, "train", n) for i, n in enumerate((40, 40, 20))]
        one = [StackRequest(Train(net.w0), d, Training(batch_size=4), Draws(1, ("update", 1, 0, 0))) for d in data]
        equal(one, graphs, net, near=0.0)
    assert sorted(kept(graphs)) == [2, 3]
    assert said == []
    capture = module.capture
    monkeypatch.setattr(module, "capture", lambda *given: capture(*given) and 1 / 0)
    net = Net(lambda: nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.5), nn.Linear(7, 3)), (6,), 3)
    place, said = Place("cpu", 0.0, False), list[str]()
    data = [samples(0, i, "train", 40) for i in range(2)]
    one = [StackRequest(Train(net.w0), d, Training(batch_size=4), Draws(1, ("update", 1, 0, 0))) for d in data]
    equal(one, Graphs(place, said.append), net, near=0.0)
    (why,) = said
    assert why.endswith("division by zero")


@dataclass(frozen=True)
class Recorded(Stacked):
    """The stacked engine with recordings, as on a GPU."""

    def start(self, job: Job) -> StackedSession:
        session = super().start(job)
        session._run = Graphs(session._place, session.say)
        return session


@pytest.mark.parametrize(("name", "kind"), [("ditto", "mlp"), ("fedavg", "norm without dropout")])
def test_runs_with_recordings_are_the_loops(name: str, kind: Any, recorded: Made) -> None:
    training = Training(
        4, batch_size=4, lr=0.05, momentum=0.5, weight_decay=0.01, decay_biases=False, schedule="step@factor=0.9"
    )
    setting = Setting(kind, training=training)
    loop, engine = tensors(play(METHODS[name](), setting)), Recorded(device="cpu")
    assert difference(loop, tensors(play(METHODS[name](), setting, engine)), 1e-5 if kind == "mlp" else 1e-3) is None
    assert recorded


def test_nothing_of_an_earlier_step_is_held_while_one_is_recorded(
    recorded: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's input, with the graph behind it, would take a second step's memory where none can be freed."""
    held: list[int] = []
    step, compute = module.Steps.__call__, module.Recording.compute

    def stepped(*given: Any) -> None:
        held.append(len(NET._seen))
        step(*given)

    def watched(f: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            held.append(len(NET._seen))
            return f(*given)

        return called

    monkeypatch.setattr(module.Steps, "__call__", stepped)
    monkeypatch.setattr(module, "capture", watched(module.capture))
    monkeypatch.setattr(module.Recording, "compute", watched(compute))
    place = Place("cpu", 0.0, False)
    train(asked((8, 8), Training(steps=6, batch_size=4)), NET, place, Graphs(place, pytest.fail))
    assert held[4:11] == [0, 0, 0, 0, 0, 0, 0]  # three steps to warm up, the graph, its two steps, its first replay


def test_a_step_that_cannot_be_recorded_is_taken_as_it_comes(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same results; the first reason is said, not that the recording ended early; none is recorded after that."""
    tried = []

    def fails(*given: Any) -> Any:
        tried.append(1)
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        finally:
            raise RuntimeError("the recording ended before its time")  # as a context manager of torch does

    monkeypatch.setattr(module, "capture", fails)
    place, said = Place("cpu", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for rows in (2, 2, 3):
        one = asked((8,) * rows, Training(steps=8, batch_size=4))
        equal(one, graphs, near=0.0)
    assert len(tried) == 1
    assert said == [
        "the steps of cross_entropy are started one by one, not played from a CUDA graph: operation not permitted when "
        "stream is capturing"
    ]


class Measured(Place):
    """Device on which a step takes 20,000 bytes."""

    def peak(self, step: Callable[[], None]) -> int:
        super().peak(step)
        return 20_000


def test_the_memory_that_a_step_takes_counts(recorded: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording keeps it for good: none is made where it exceeds the share, and what it took is used up."""
    one = asked((8,) * 20, Training(steps=8, batch_size=4))
    capture = module.capture
    monkeypatch.setattr(module, "capture", lambda *given: (*capture(*given)[:2], 25_000))
    for share, count in ((25_000, 0), (40_000, 1)):
        place = Measured("cpu", module._SHARE * share / (1 << 30), False)
        graphs = Graphs(place, lambda _: None)
        train(one, NET, place, graphs)
        assert len(recorded) == count
        assert place.recorded == 25_000 * count
        assert len(kept(graphs)) == count
    assert graphs._room < 40_000 - 25_000
    graphs.forget()
    assert place.recorded == 0


def test_what_recordings_work_in_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 900 bytes that torch has taken 500 are in use and 300 belong to recordings: 100 are free, and the device's."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 900)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    place = Place("cpu", 0.0, False)
    place.cuda, place.recorded = True, 300
    assert place._free() == 1100


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU, this machine has none")
@pytest.mark.parametrize(
    ("request_", "settings"),
    [
        ({}, {"weight_decay": 0.05, "decay_biases": False}),
        ({"center": NET.w0, "mu": 0.3, "clip": 0.5}, {}),
        ({"only": NET.head}, {}),
    ],
)
def test_a_cuda_graph_gives_what_the_steps_give(request_: dict[str, Any], settings: dict[str, Any]) -> None:
    """The recording itself, on a GPU: the vectors of the host's steps, and nothing that had to be left out."""
    training = Training(epochs=40, batch_size=4, lr=0.05, momentum=0.5, **settings)
    place, said = Place("cuda", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(3):
        one = asked((9, 8, 8, 3), training, **request_)
        with place.at_work():
            found = train(one, NET, place, graphs)
            train(asked((7, 5), Training(batch_size=3, weight_decay=0.3, decay_biases=False)), NET, place, graphs)
        for a, b in zip(found, train(one, NET, Place("cpu", 0.0, False)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert said == []
    assert any(graphs._kept.values())


# ---- what a recording is compared with ------------------------------------------------------------------------------
Step = Callable[[StackRows], None]
START = torch.ones(2, 400)


def rows(w: Tensor, moments: Tensor | None = None) -> StackRows:
    return StackRows(w, moments, None, None, 0.0, {})


def passes(played: StackRows, stepped: StackRows, again: Step = lambda _: None, tf32: bool = False) -> bool:
    place = Place("cpu", 0.0, tf32)
    check = Check(place, rows(START.clone(), stepped.moments), place.generators(), again)
    return check.passes((played.w, played.moments), stepped)


def by(amount: float) -> Step:
    """Steps that move all by an amount, whatever they start from."""

    def again(given: StackRows) -> None:
        given.w += amount

    return again


def test_rows_are_compared_one_by_one() -> None:
    """Of two rows the second moved another way, or has other moments; a row that diverges in both ways is alike."""
    moved = torch.full_like(START, 0.5)
    other = moved.clone()
    other[1] = 0.6
    lost = torch.full_like(START, float("nan"))
    again = by(-0.5)
    assert passes(rows(moved + 1e-4), rows(moved))
    assert not passes(rows(other), rows(moved), again)
    assert not passes(rows(moved, other), rows(moved, moved), again)
    assert passes(rows(lost), rows(lost * 2))
    assert not passes(rows(lost), rows(moved), again)


def magnifying(given: StackRows) -> None:
    """Steps that move each number by 1, one number in 50 up or down by the last digits of where it starts."""
    given.w += torch.where((given.w >= 1) | (torch.arange(400) % 50 != 1), 1.0, -1.0)


def stepped_and_played(wrong: int) -> tuple[StackRows, StackRows]:
    """Rows after `magnifying`, and with some numbers of each moved the other way."""
    stepped = rows(START.clone())
    magnifying(stepped)
    played = rows(stepped.w.clone())
    played.w[:, :wrong] = START[:, :wrong] - (stepped.w - START)[:, :wrong]
    return stepped, played


@pytest.mark.parametrize(("wrong", "passed"), [(1, True), (4, True), (30, False)])
def test_steps_that_magnify_rounding_set_the_scale(wrong: int, passed: bool) -> None:
    """A number in 400 that moves the other way is a tenth of the distance: with steps that would do so after other
    rounding it is let pass, and without not. Half of the distance is never let pass."""
    stepped, played = stepped_and_played(wrong)
    assert passes(played, stepped, magnifying) == passed
    assert not passes(played, stepped, by(1.0))


def test_how_far_a_recording_may_be() -> None:
    """What moves nothing never passes; a tenth of the distance is rounding with tf32, half is not."""

    def anywhere(given: StackRows) -> None:
        given.w.normal_()

    stepped, _ = stepped_and_played(0)
    assert not passes(rows(START.clone()), stepped, anywhere)
    moved = START + 1.0
    assert passes(rows(moved + 0.1), rows(moved), by(1.0), tf32=True)
    assert not passes(rows(moved + 0.1), rows(moved), by(1.0))
    assert not passes(rows(moved + 0.6), rows(moved), by(1.0), tf32=True)


def test_steps_are_taken_again_with_the_same_draws_and_leave_none() -> None:
    place, seen = Place("cpu", 0.0, False), list[Tensor]()
    place.seed(3)
    draws, moments = place.generators(), torch.ones(2, 400)
    first, _ = torch.rand(4), torch.rand(3)
    after = place.generators()

    def again(given: StackRows) -> None:
        seen.append(torch.rand(4))
        assert given.moments is not None
        given.moments += 1

    check = Check(place, rows(START.clone(), moments), draws, again)
    assert not check.passes((START, moments), rows(START + 1, moments))
    (drawn,) = seen
    assert torch.equal(drawn, first)
    assert all(torch.equal(a, b) for a, b in zip(place.generators(), after, strict=True))
    assert torch.equal(moments, torch.ones(2, 400))
