"""The reference engine: clients one after another in this process; and local SGD, the only one on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedkin.core import Net, Samples, Train, Training
from fedkin.core.settings import Gradient
from fedkin.engines.native import native, resolved
from fedkin.engines.steps import step_for
from fedkin.engines.tasks import Answer, Job, Task, Trainer
from fedkin.engines.turns import Begin, perform
from fedkin.privacy.dp_sgd import PrivateSteps


@dataclass(frozen=True)
class Loop:
    """Engine that trains one client at a time in this process: slow, obvious, the reference for every other engine."""

    def start(self, job: Job) -> LoopSession:
        """Return a session on a job."""
        return LoopSession(job)


class LoopSession:
    """Loop at work on one job.

    Args:
        job: the job.
        begin: as of `perform`.
    """

    def __init__(self, job: Job, begin: Begin | None = None) -> None:
        self._job, self._begin = job, begin

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Yield the answer of each task, in their order; answers and states own their memory."""
        for task in tasks:
            done = perform(self._job, task, trainer(self._job), self._begin)
            yield replace(done, reply=done.reply.owned(), state=done.state.owned())

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def trainer(job: Job) -> Trainer:
    """Return local SGD with the settings of a job."""
    return partial(sgd, gradient=job.gradient)


def sgd(
    request: Train,
    data: Samples,
    net: Net,
    run: Training,
    rng: torch.Generator,
    private: PrivateSteps | None = None,
    gradient: Gradient = "auto",
) -> Tensor:
    """Return the vector ``[P]`` that a request for training gives on one client's data.

    The optimizer is a new one. For SGD ``d = clip(grad + linear) + decay + mu (w - center)``, ``v = momentum v + d``,
    ``w -= lr v``; d is the gradient that Adam takes as well, see `fedkin.engines.terms`.

    Args:
        private: draws the batches and takes the loss's gradient instead; the other terms depend on no sample.
        gradient: how gradients are computed, see `fedkin.engines.steps`.

    Raises:
        ConfigError: compiled training was asked for, and is not possible on this machine.
    """
    training = request.training(run)
    if not request.moves.each:  # nothing moves
        return request.start.detach().clone()
    if private is None and resolved(gradient) == "compiled":
        compiled = native(request, training, data, net)
        if not isinstance(compiled, str):
            epochs = orders(len(data), training, rng, skip_single=net.batchnorm)
            return compiled.train(request, training, data, _paced(epochs, training))
    w = request.start.detach().clone()
    net.count_anew()
    step = step_for(request, training, data, net, w, private, gradient)
    if private is None:
        drawn = batches(len(data), training, rng, skip_single=net.batchnorm)
    else:
        drawn = private.batches(len(data), training)
    for index, lr in _paced(drawn, training):
        step(index, lr)
    return w


def _paced(drawn: Iterable[tuple[bool, Tensor]], training: Training) -> Iterator[tuple[Tensor, float]]:
    """Yield what was drawn with its step size, which falls where an epoch ends."""
    lr = training.lr
    for epoch_end, index in drawn:
        yield index, lr
        if epoch_end:
            lr *= training.epoch_decay


def orders(n: int, training: Training, rng: torch.Generator, *, skip_single: bool) -> Iterator[tuple[bool, Tensor]]:
    """Yield the samples of each epoch in the order of training, without replacement: ``(whole, index)``.

    The last epoch may be cut short (not whole) where training is counted in steps. ``skip_single`` leaves out batches
    of one sample, on which BatchNorm cannot train.
    """
    left = training.steps_for(n) if n else 0
    while left > 0:
        order = torch.randperm(n, generator=rng)
        if skip_single and (n - 1) % training.batch_size == 0:
            left -= 0 if training.steps is not None else 1
            order = order[:-1]
            if len(order) == 0:
                return
        count = math.ceil(len(order) / training.batch_size)
        if left > 0:
            yield left >= count, order[: left * training.batch_size]
        left -= count


def batches(n: int, training: Training, rng: torch.Generator, *, skip_single: bool) -> Iterator[tuple[bool, Tensor]]:
    """Yield the index batches of `orders`, a last short one included: ``(last of its epoch, index [B])``."""
    for whole, order in orders(n, training, rng, skip_single=skip_single):
        parts = order.split(training.batch_size)
        for i, index in enumerate(parts):
            yield whole and i == len(parts) - 1, index
