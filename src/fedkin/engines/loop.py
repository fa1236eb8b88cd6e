"""The reference engine: clients one after another in this process; and local SGD, the only one on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.core import Batch, Data, Net, Recipe, Train
from fedkin.engines.private import PrivateSteps
from fedkin.engines.tasks import Answer, Job, Task, perform


@dataclass(frozen=True)
class Loop:
    """One client at a time in this process. Slow and obvious: the reference for every other engine."""

    def start(self, job: Job) -> LoopSession:
        return LoopSession(job)


class LoopSession:
    def __init__(self, job: Job) -> None:
        self._job = job

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        for task in tasks:
            done = perform(self._job, task, sgd)
            yield replace(done, reply=done.reply.owned(), state=done.state.owned())

    def close(self) -> None:
        pass


def sgd(
    request: Train, data: Data, net: Net, run: Recipe, rng: torch.Generator, private: PrivateSteps | None = None
) -> Tensor:
    """The vector ``[P]`` that a request for training gives on one client's data.

    Plain SGD with a new momentum buffer: ``d = clip(grad + linear) + decay + mu (w - center)``, ``v = momentum v + d``,
    ``w -= lr v``. Gradients are taken with respect to the flat vector at once, so that one addition is the whole step.

    Args:
        private: draws the batches and takes the loss's gradient instead; the other terms depend on no sample.
    """
    recipe = request.recipe(run)
    moving = net.training(request.only)
    w = request.start.detach().clone()
    part = request.only or slice(0, len(w))
    if part.start == part.stop:  # nothing moves
        return w
    terms = Terms.of(request, recipe, net, len(w), part)
    velocity: Tensor | None = None
    lr = recipe.lr
    if private is None:
        drawn = batches(len(data), recipe, rng, skip_single=net.batchnorm)
    else:
        drawn = private.batches(len(data), recipe)
    for epoch_end, index in drawn:
        if private is None:
            grad = _gradient(request, moving, w, data, index)[part].contiguous()
        else:
            grad = private.gradient(request, moving, w, data, index, part)
        velocity = terms.step(w[part], grad, velocity, lr)
        if epoch_end:
            lr *= recipe.epoch_decay
    return w


def _gradient(request: Train, net: Net, w: Tensor, data: Data, index: Tensor) -> Tensor:
    """Of the loss at one batch, ``[P]``."""
    aux = request.aux
    if request.per_sample:
        aux = aux.but(**{name: rows[index] for name, rows in request.per_sample.items()})
    w.requires_grad_(True)
    loss = request.loss(net, w, Batch(take(data.x, index), data.y[index]), aux)
    (grad,) = torch.autograd.grad(loss, w)
    w.requires_grad_(False)
    return grad


@dataclass(frozen=True)
class Terms:
    """What the request and the recipe put beside the loss's gradient, and one step by the sum: the part of a model
    that moves ``[p]``, or a stack of such parts ``[S, p]``.

    Attributes:
        linear, center: ``[..., p]`` or None.
        mu: weight of the proximal term, for a stack also one per row ``[S, 1]``.
        decay: weight decay, or one per parameter ``[p]``.
        tail: running statistics, which no term may move.
    """

    linear: Tensor | None
    clip: float | None
    center: Tensor | None
    mu: float | Tensor
    after: bool
    decay: float | Tensor
    momentum: float
    tail: slice | None

    @classmethod
    def of(cls, request: Train, recipe: Recipe, net: Net, length: int, part: slice) -> Terms:
        """The terms of one request on a vector of this length."""
        decay: float | Tensor = recipe.weight_decay
        if recipe.weight_decay and not recipe.decay_biases:
            decay = net.matrices(length)[part] * recipe.weight_decay
        # running statistics are the tail of a network's vector
        tail = None
        if length >= net.size and net.buffers.start < net.buffers.stop:
            a, b = max(net.buffers.start, part.start), min(net.buffers.stop, part.stop)
            tail = slice(a - part.start, b - part.start) if a < b else None
        return cls(
            linear=None if request.linear is None else request.linear[part],
            clip=request.clip,
            center=request.center[part] if request.mu != 0 and request.center is not None else None,
            mu=request.mu,
            after=request.prox_after,
            decay=decay,
            momentum=recipe.momentum,
            tail=tail,
        )

    def step(self, w: Tensor, grad: Tensor, velocity: Tensor | None, lr: float | Tensor) -> Tensor | None:
        """Moves ``w`` in place by the loss's gradient, which is used up; gives the momentum buffer for the next step.

        Args:
            velocity: the buffer, None before the first step.
            lr: step size, for a stack also one per row ``[S, 1]``.
        """
        d = self._direction(grad, w)
        if self.momentum:
            velocity = d.clone() if velocity is None else velocity.mul_(self.momentum).add_(d)
            d = velocity
        pull = self._still(w - self.center) if self.center is not None and self.after else None
        _add(w, d, -lr)
        if pull is not None:
            _add(w, pull, -(lr * self.mu))
        return velocity

    def _direction(self, grad: Tensor, w: Tensor) -> Tensor:
        if self.linear is not None:
            grad.add_(self.linear)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self._still(grad), dim=-1, keepdim=True).double()
            grad.mul_(torch.where(norm > self.clip, self.clip / norm, 1.0).to(grad.dtype))
        if isinstance(self.decay, Tensor):
            grad.addcmul_(self.decay, w)
        elif self.decay:
            grad.add_(w, alpha=self.decay)
        if self.center is not None and not self.after:
            _add(_add(grad, w, self.mu), self.center, -self.mu)
        return self._still(grad)

    def _still(self, step: Tensor) -> Tensor:
        if self.tail is not None:
            step[..., self.tail] = 0
        return step


def _add(to: Tensor, what: Tensor, times: float | Tensor) -> Tensor:
    """In place, by a number or by one for each row."""
    return to.addcmul_(what, times) if isinstance(times, Tensor) else to.add_(what, alpha=times)


def orders(n: int, recipe: Recipe, rng: torch.Generator, *, skip_single: bool) -> Iterator[tuple[bool, Tensor]]:
    """The samples of each epoch in the order in which they are trained on, without replacement; ``(whole, index)``.

    The last epoch may be cut short (not whole) where training is counted in steps. ``skip_single`` leaves out batches
    of one sample, on which BatchNorm cannot train.
    """
    left = recipe.steps_for(n) if n else 0
    while left > 0:
        order = torch.randperm(n, generator=rng)
        if skip_single and (n - 1) % recipe.batch == 0:
            left -= 0 if recipe.steps is not None else 1
            order = order[:-1]
            if len(order) == 0:
                return
        count = math.ceil(len(order) / recipe.batch)
        if left > 0:
            yield left >= count, order[: left * recipe.batch]
        left -= count


def batches(n: int, recipe: Recipe, rng: torch.Generator, *, skip_single: bool) -> Iterator[tuple[bool, Tensor]]:
    """The index batches of `orders`, a last short one of each epoch too; ``(last of its epoch, index [B])``."""
    for whole, order in orders(n, recipe, rng, skip_single=skip_single):
        parts = order.split(recipe.batch)
        for i, index in enumerate(parts):
            yield whole and i == len(parts) - 1, index


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``x`` in ``x``'s own memory layout."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return x.index_select(0, index)
