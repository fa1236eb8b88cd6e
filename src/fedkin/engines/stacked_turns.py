"""Clients and steps of the stacked engine: programs on the host whose forward passes run on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import resolve_name

from fedkin.core import Bundle, Client, MethodError, Samples, Train, Work
from fedkin.engines.drive import drive, requests_of
from fedkin.engines.scoring import logits_of
from fedkin.engines.tasks import Job, Task
from fedkin.engines.turns import Turn, named


class SealedVector(Tensor):
    """Trained vector that can be passed on, and refuses everything else, its shape included."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MethodError(f"it uses {resolve_name(func) or func} on one")


def require_as_trained(job: Job, task: Task) -> int:
    """Run a client's program without training, on vectors that cannot be read; return the bytes of its upload.

    Raises:
        MethodError: the program reads or changes a trained vector, or returns or keeps something else than vectors as
            they were trained.
    """
    turn, handed = Turn(job, task), list[tuple[Tensor, int]]()
    before, name = list(turn.client.state.values()), type(job.method).__name__
    declared = f"{name} has RobustMeans(alone=True), but client_update does not pass on trained vectors as they are"

    def train(request: Train) -> Tensor:
        handed.append((torch.empty(0).as_subclass(SealedVector), request.start.nbytes))
        return handed[-1][0]

    try:
        reply = drive(turn.program(), train)
    except MethodError as e:
        raise MethodError(f"{declared}: {e}") from e
    kept = [t for t in turn.client.state.values() if all(t is not old for old in before)]
    if any(all(t is not vector for vector, _ in handed) for t in (*reply.values(), *kept)):
        raise MethodError(f"{declared}: it returns or keeps another tensor")
    return sum(size for t in reply.values() for vector, size in handed if t is vector)


# ---- turns of a stack -------------------------------------------------------------------------------------------
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
