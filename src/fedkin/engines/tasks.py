"""Tasks of an engine, one step of one client each, and their answers: the interface between engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedkin.core import Bundle, Method, Net, Samples, Train, Training
from fedkin.core.samples import ClientData
from fedkin.core.settings import Gradient, Moment
from fedkin.privacy.dp_sgd import Private, PrivateSteps

Step = Literal["describe", "survey", "consult", "update", "evaluate", "keep"]
CountNoise = Callable[[int, Tensor], Tensor]
"""``(client, its class counts) -> those it sends``. Every call gives the same ones: a second draw of noise would undo a
part of what the first one hides."""

ChoiceNoise = Callable[[int, int, int], int]
"""``(client, its choice, of) -> the one that it reports``; the same for the same choice on every call."""


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
    """Everything that stays the same during a run; an engine's processes are made with it.

    Attributes:
        count_noise: noise on class counts; when clients join, their code sees these counts and no other data.
        choice_noise: noise on what `Client.choice` reports.
        private: local training hides single samples.
        gradient: how gradients are computed, see `fedkin.engines.steps`.
        outcomes: the first round whose evaluation sends whether each test sample was classified correctly; None: none.
        evaluate: which of a client's models is scored and kept.
        rounds: number of rounds of the run, for its schedule of step sizes.
        means_only: nothing of the run looks at single uploads but their check and `Round.mean`: no rule, no attack.
    """

    method: Method
    net: Net
    training: Training
    shards: Sequence[ClientData]
    seed: int
    count_noise: CountNoise | None = None
    choice_noise: ChoiceNoise | None = None
    private: Private | None = None
    gradient: Gradient = "auto"
    outcomes: int | None = None
    evaluate: Moment = "delivered"
    rounds: int = 1
    means_only: bool = False

    def sends_outcomes(self, round: int) -> bool:
        """Return whether evaluations of a round send the outcome of every test sample."""
        return outcomes_due(self.outcomes, round)


def outcomes_due(first: int | None, round: int) -> bool:
    """Return whether evaluations of a round send the outcome of every test sample: clients and server ask the same.

    Args:
        first: the first round that does; None: none.
        round: the round.
    """
    return first is not None and round >= first


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
    """Result of a client's step: what leaves it, its proposed new state, and the seconds of local training.

    Attributes:
        spent: private training: steps taken at each sampling rate.
    """

    client: int
    reply: Bundle
    state: Bundle
    training_s: float = 0.0
    spent: dict[float, int] = field(default_factory=dict)


class Session(Protocol):
    """Engine at work on one job."""

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Carry out the tasks, in any order.

        The tensors of an answer are not written to again; those of one map may lie side by side in one piece of memory.
        Uploads lie on the host, or where `RobustMeans.alone` and `Job.means_only` hold on the engine's device.
        """

    def close(self) -> None:
        """End processes and free memory; may be called twice."""


class Engine(Protocol):
    """Way of carrying out local training: how many clients at once, in which process, on which device."""

    def start(self, job: Job) -> Session:
        """Prepare everything for a job."""
