"""The way of computing convolutions is chosen by timing, once for each layer and number of rows; on a CPU it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkin.engines.stacked_choice as module
import fedkin.engines.stacked_conv as products
from fedkin.core import Bundle, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines import Job, Loop, Stacked, Task
from fedkin.engines.stacked_choice import ConvolutionChoice, passes, timed
from fedkin.engines.stacked_conv import ConvLayer
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_train import StackRequest
from fedkin.engines.turns import Draws
from fedkin.methods import FedAvg
from fedkin.testing.toys import ClientData

FIRST = ConvLayer((2, 6, 6), (4, 2, 3, 3), True, (1, 1), (0, 0))
SECOND = ConvLayer((4, 4, 4), (3, 4, 3, 3), False, (1, 1), (1, 1))


def made() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(48, 3)
    )


NET = Net(made, (2, 6, 6), 3)


class Clock(Place):
    """A GPU on which layers take given times, each first as a grouped convolution; it has memory for some rows.

    Attributes:
        asked: numbers of rows that were timed.
    """

    def __init__(self, *times: float, rows: int = 1000) -> None:
        super().__init__("cpu", 0.0, False)
        self.cuda, self._times, self._rows = True, list(times), rows
        self.asked: list[int] = []

    def _staged(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    def milliseconds(self, f: Callable[[], Any], times: int = 3) -> float:
        found = f()
        self.asked.append(len(found[0] if isinstance(found, tuple) else found))
        if self.asked[-1] > self._rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._times.pop(0)


def part(i: int, n: int) -> Samples:
    x = torch.randn(n, 2, 6, 6, generator=generator(i, n))
    return Samples(x, torch.randint(0, 3, (n,), generator=generator(i, n)))


def request(n: int = 9) -> StackRequest:
    return StackRequest(Train(NET.w0), part(0, n), Training(batch_size=4), Draws(1, ("update", 1, 0, 0)))


def test_each_layer_is_computed_in_the_way_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second as a product; each is timed once for a doubling of the rows, and for eight of them at most."""
    monkeypatch.setattr(module, "_ROWS", 8)
    choice = ConvolutionChoice(Clock(1.0, 2.0, 3.0, 2.5, 1.0, 0.5, 2.0, 3.0), None, pytest.fail)
    for rows in (5, 7, 4):
        assert choice.of(("a",), request(), NET, rows) == {SECOND}
    assert [(t.layer, t.rows, t.batch, t.grouped, t.products) for t in choice.times] == [
        (FIRST, 5, 4, 1.0, 2.0),
        (SECOND, 5, 4, 3.0, 2.5),
    ]
    assert choice.of(("a",), request(), NET, 100) == {FIRST}
    assert choice.of(("b",), request(), NET, 8) == {FIRST}
    assert [t.rows for t in choice.times] == [5, 5, 8, 8]


def test_nothing_is_timed_on_a_cpu_or_where_the_way_is_given() -> None:
    """On a CPU convolutions are grouped; a request without data has none."""
    cpu = Place("cpu", 0.0, False)
    assert ConvolutionChoice(cpu, None, pytest.fail).of((), request(), NET, 8) is False
    for wanted in (True, False):
        assert ConvolutionChoice(cpu, wanted, pytest.fail).of((), request(), NET, 8) is wanted
        assert ConvolutionChoice(Clock(), wanted, pytest.fail).of((), request(), NET, 8) is wanted
    assert ConvolutionChoice(Clock(), None, pytest.fail).of((), request(0), NET, 8) is False


def test_fewer_rows_are_timed_where_memory_is_short() -> None:
    """Of 20 rows 20 and 10 do not fit, then 5 do; where a single one does not the layer is a grouped convolution."""
    place = Clock(1.0, 0.5, rows=9)
    found = timed(SECOND, 20, 4, True, place)
    assert (found.rows, place.asked) == (5, [20, 10, 5, 5])
    assert timed(SECOND, 20, 4, True, Clock(rows=0)) is None
    assert ConvolutionChoice(Clock(rows=0), None, pytest.fail).of((), request(), NET, 8) == frozenset()


class Broken(Clock):
    """A GPU that fails."""

    def milliseconds(self, f: Callable[[], Any], times: int = 3) -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_layer_that_cannot_be_timed_is_a_grouped_convolution() -> None:
    said = list[str]()
    choice = ConvolutionChoice(Clock(), None, said.append)
    assert choice.of((), request(), NET, 8) == choice.of((), request(), NET, 8) == frozenset()
    for line, layer in zip(said, ("2-4, 3 x 3 on 6 x 6", "4-3, 3 x 3 on 4 x 4"), strict=True):
        assert layer in line
        assert line.endswith("pop from empty list")
    with pytest.raises(RuntimeError):
        ConvolutionChoice(Broken(), None, pytest.fail).of((), request(), NET, 8)


def test_what_is_timed_are_the_passes_of_training() -> None:
    """Both ways give the same gradients; the inputs of the first layer need none."""
    for layer, inner in ((FIRST, False), (SECOND, True)):
        ways = [f() for f in passes(layer, 3, 5, inner, torch.device("cpu"))]
        assert [isinstance(way, tuple) for way in ways] == [inner] * 2
        assert [(way[0] if inner else way).shape for way in ways] == [(3, *layer.weight)] * 2
        torch.testing.assert_close(ways[1], ways[0], rtol=1e-4, atol=1e-4)


def test_stacks_train_in_the_way_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second layer is computed as a product, the first only while it is timed; results are the loop's."""
    met, product = list[tuple[int, ...]](), products.product

    def noted(layer: ConvLayer, *given: Any, **rest: Any) -> Tensor:
        met.append(layer.weight)
        return product(layer, *given, **rest)

    monkeypatch.setattr(products, "product", noted)
    j = Job(
        FedAvg(), NET, Training(batch_size=4), [ClientData(part(i, 9), part(i, 3), part(i, 5)) for i in range(3)], 1
    )
    asked = [Task("update", i, 1, Bundle(model=NET.w0), Bundle()) for i in range(3)]
    session = Stacked("cpu").start(j)
    session.convolutions = ConvolutionChoice(Clock(1.0, 2.0, 2.0, 1.0), None, pytest.fail)
    got = {a.client: a.reply.model for a in session.map(asked)}
    assert met.count(FIRST.weight) == 1
    assert met.count(SECOND.weight) == 1 + 1 + 3  # timed, measured for memory, three steps
    for a in Loop().start(j).map(asked):
        torch.testing.assert_close(got[a.client], a.reply.model, rtol=1e-5, atol=1e-5)
