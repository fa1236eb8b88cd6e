"""What an engine is asked to do for one client, and what comes back: the seam under which engines are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedkin.core import Bundle, Method, Net, Samples, Train, Training
from fedkin.core.method import Moment
from fedkin.core.samples import ClientData
from fedkin.engines.steps import Gradient
from fedkin.privacy.dp_sgd import Private, PrivateSteps

Step = Literal["describe", "survey", "update", "evaluate", "keep"]
Told = Callable[[int, Tensor], Tensor]
"""``(client, its class counts) -> those it tells``. The same ones whenever it is asked: a second draw of noise would
undo a part of what the first one hides."""


class Trainer(Protocol):
    """Local training; ``private``, if given, draws the batches and takes the gradients."""

    def __call__(
        self,
        request: Train,
        data: Samples,
        net: Net,
        run: Training,
        rng: torch.Generator,
        private: PrivateSteps | None = ...,
        /,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Job:
    """All that stays the same during a run: what an engine's processes are made with.

    Attributes:
        told: noise on the class counts that clients know of themselves when they join; then they know no more.
        private: local training hides single samples.
        gradient: how gradients are found, see `fedkin.engines.steps`.
        outcomes: the round whose evaluation sends whether each test sample was classified correctly; None: no round.
        evaluate: which of a client's models is scored and kept.
    """

    method: Method
    net: Net
    training: Training
    shards: Sequence[ClientData]
    seed: int
    told: Told | None = None
    private: Private | None = None
    gradient: Gradient = "auto"
    outcomes: int | None = None
    evaluate: Moment = "delivered"


@dataclass(frozen=True)
class Task:
    """One step of one client: what it was sent and the state it keeps."""

    step: Step
    client: int
    round: int
    received: Bundle
    state: Bundle


@dataclass(frozen=True)
class Answer:
    """What a client's step gave: what leaves it, its proposed new state, and the seconds spent in local training.

    Attributes:
        spent: private training: steps taken at each sampling rate.
    """

    client: int
    reply: Bundle
    state: Bundle
    training_s: float = 0.0
    spent: dict[float, int] = field(default_factory=dict)


class Session(Protocol):
    """An engine at work on one job."""

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Carries out the tasks, in any order.

        Nobody writes to the tensors of an answer again; those of one map may lie side by side in one piece of memory.
        """

    def close(self) -> None:
        """Ends processes and frees memory; may be called twice."""


class Engine(Protocol):
    """How local training is carried out: how many clients at once, in which process, on which device."""

    def start(self, job: Job) -> Session:
        """Makes everything ready for a job."""
