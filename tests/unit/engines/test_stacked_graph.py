"""Steps that are recorded and played again: the same results, recorded only where it pays and can be done.

So that this can be tested without a GPU `record` is replaced: what it gives runs the step anew, in the memory of the
recording. That is what a CUDA graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedkin.engines.stacked_graph as module
from fedkin.core import Bundle, Train, Training
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_graph import Graphs
from fedkin.engines.stacked_train import StackRequest, train
from fedkin.engines.turns import Draws
from fedkin.testing.toys import network, samples

NET = network("mlp")
Made = list[Callable[[], None]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Made:
    """All steps that were recorded."""
    made: Made = []

    def record(step: Callable[[], None], place: Place, pool: Any) -> tuple[Callable[[], None], Any]:
        for _ in range(3):
            step()
        made.append(step)
        return step, "pool"

    monkeypatch.setattr(module, "record", record)
    return made


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
        (Training(epochs=30, batch_size=4), {}),
        (Training(epochs=30, batch_size=4, momentum=0.5, epoch_decay=0.9), {"center": NET.w0, "mu": 0.3}),
        (Training(steps=60, batch_size=4, momentum=0.5), {"only": NET.head, "linear": torch.ones(NET.size) / 10}),
    ],
)
def test_a_recording_gives_what_the_steps_give(training: Training, request_: dict[str, Any], recorded: Made) -> None:
    """Clients of 9, 8, 8 and 3 samples, several times over: momentum, step sizes and batches are those of the moment,
    and warming up leaves no trace."""
    place, said = Place("cpu", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(3):
        one = asked((9, 8, 8, 3), training, **request_)
        for a, b in zip(train(one, NET, place), train(one, NET, place, graphs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert recorded
    assert said == []


def test_only_shapes_that_come_often_are_recorded(recorded: Made) -> None:
    """Ten steps of one shape are taken as they come; in the second round, after the sixteenth, it is recorded, once."""
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, lambda _: None)
    counts = []
    for _ in range(4):
        train(asked((8, 8), Training(epochs=5, batch_size=4)), NET, place, graphs)
        counts.append(len(recorded))
    assert counts == [0, 1, 1, 1]


def test_another_step_size_plays_the_same_recording(recorded: Made) -> None:
    """The run's step size falls with the rounds; it is a number in the recording's memory."""
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, lambda _: None)
    for lr in (0.1, 0.05, 0.01):
        one = asked((8, 8), Training(epochs=10, batch_size=4, lr=lr))
        for a, b in zip(train(one, NET, place), train(one, NET, place, graphs), strict=True):
            torch.testing.assert_close(a, b)
    assert len(recorded) == 1


def test_a_step_that_cannot_be_recorded_is_taken_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same results; the reason is said, and it is not tried again."""
    tried = []

    def fails(*given: Any) -> Any:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    monkeypatch.setattr(module, "record", fails)
    place, said = Place("cpu", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(2):
        one = asked((8, 8), Training(epochs=20, batch_size=4))
        for a, b in zip(train(one, NET, place), train(one, NET, place, graphs), strict=True):
            assert torch.equal(a, b)
    assert len(tried) == 1
    assert said == [
        "the steps of cross_entropy are started one by one, not played from a CUDA graph: operation not permitted when "
        "stream is capturing"
    ]


def test_recordings_take_no_more_than_their_share_of_the_memory(recorded: Made) -> None:
    """Stacks of 20 rows of 73 numbers take 5,840 bytes; where a recording may take 4,000 there is none."""
    one = asked((8,) * 20, Training(epochs=20, batch_size=4))
    for share, count in ((4_000, 0), (40_000, 1)):
        place = Place("cpu", module._SHARE * share / (1 << 30), False)
        train(one, NET, place, Graphs(place, lambda _: None))
        assert len(recorded) == count


def test_forgetting_frees_what_was_recorded(recorded: Made) -> None:
    """Afterwards a shape that comes often is recorded anew."""
    place = Place("cpu", 0.0, False)
    graphs = Graphs(place, lambda _: None)
    for count in (1, 2):
        train(asked((8, 8), Training(epochs=20, batch_size=4)), NET, place, graphs)
        assert len(recorded) == count
        graphs.forget()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU, this machine has none")
@pytest.mark.parametrize("request_", [{}, {"center": NET.w0, "mu": 0.3, "clip": 0.5}, {"only": NET.head}])
def test_a_cuda_graph_gives_what_the_steps_give(request_: dict[str, Any]) -> None:
    """The recording itself, on a GPU: the vectors of the host's steps, and nothing that had to be left out."""
    training = Training(epochs=40, batch_size=4, lr=0.05, momentum=0.5)
    place, said = Place("cuda", 0.0, False), list[str]()
    graphs = Graphs(place, said.append)
    for _ in range(2):
        one = asked((9, 8, 8, 3), training, **request_)
        with place.at_work():
            found = train(one, NET, place, graphs)
        for a, b in zip(found, train(one, NET, Place("cpu", 0.0, False)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert said == []
    assert any(graphs._kept.values())
