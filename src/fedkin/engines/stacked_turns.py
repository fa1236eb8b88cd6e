"""Clients and steps of the stacked engine: programs on the host whose forward passes run on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from fedkin.core import Bundle, Client, Samples, Work
from fedkin.engines.drive import requests_of
from fedkin.engines.scoring import logits_of
from fedkin.engines.tasks import Job, Task
from fedkin.engines.turns import Turn, named


class Passes(Protocol):
    """Forward passes on the device; what goes in and comes out is on the host."""

    def outputs(self, f: Callable[[Bundle, Tensor], Tensor], given: Bundle, data: Samples) -> Tensor:
        """Return ``f(given, inputs)`` of all samples."""

    def guesses(self, b: Bundle, data: Samples) -> Tensor:
        """Return the class that the method predicts for each sample."""

    def expect(self, asked: Sequence[tuple[Bundle, Samples]]) -> None:
        """Note calls of `guesses` that will follow."""


@dataclass(kw_only=True)
class _DeviceClient(Client):
    """A client whose forward passes over all its data run on the device."""

    _passes: Passes

    def logits(self, w: Tensor) -> Tensor:
        return self._passes.outputs(lambda b, x: self.net(b.w, x), Bundle(w=w), self.data)

    def features(self, w: Tensor) -> Tensor:
        return self._passes.outputs(lambda b, x: self.net.features_and_logits(b.w, x)[0], Bundle(w=w), self.data)


class DeviceTurn(Turn):
    """A client's step with its forward passes on the device."""

    def __init__(self, job: Job, task: Task, passes: Passes) -> None:
        self._passes, self.expected = passes, passes.expect
        super().__init__(job, task)

    def seat(self, **known: Any) -> Client:
        """Return a client that computes on the device."""
        return _DeviceClient(**known, _passes=self._passes)

    def logits(self, b: Bundle, data: Samples) -> Tensor:
        """Return the logits by which the method predicts, computed on the device for this client alone."""
        return self._passes.outputs(partial(logits_of, self.job.method, self.job.net), b, data)

    def guesses(self, b: Bundle, data: Samples) -> Tensor:
        """Return the class that the method predicts for each sample, computed on the device."""
        return self._passes.guesses(b, data)

    def parts(self) -> list[tuple[str, Samples]]:
        """Return the client's data by the name of the part, as the program and its evaluation see them."""
        c, shard = self.client, self.shard
        return [("train", c.data), ("validation", c.validation), ("validation", shard.validation), ("test", shard.test)]


def naming(turn: Turn) -> Work:
    """Run a turn's program with errors that name step, client and round."""
    work, got = turn.program(), None
    with named(turn.task):
        while True:
            try:
                wanted = work.send(got)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            requests_of(wanted)
            got = yield wanted
