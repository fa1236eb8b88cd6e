"""The reference engine: clients one after another in this process; and local SGD, the only one on the CPU."""

from __future__ import annotations

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
    add_terms = _terms(request, recipe, net, w, part)
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
        d = add_terms(grad, w[part])
        if recipe.momentum:
            velocity = d.clone() if velocity is None else velocity.mul_(recipe.momentum).add_(d)
            d = velocity
        pull = add_terms.pull(w[part])
        w[part].add_(d, alpha=-lr)
        if pull is not None:
            w[part].sub_(pull, alpha=lr * request.mu)
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


class _terms:
    """Adds what the request and the recipe put beside the loss's gradient, on the trainable parameters only."""

    def __init__(self, request: Train, recipe: Recipe, net: Net, w: Tensor, part: slice) -> None:
        self.linear = None if request.linear is None else request.linear[part]
        self.clip = request.clip
        self.center = request.center[part] if request.mu != 0 and request.center is not None else None
        self.mu, self.after = request.mu, request.prox_after
        self.decay: float | Tensor = recipe.weight_decay
        if recipe.weight_decay and not recipe.decay_biases:
            self.decay = net.matrices(len(w))[part] * recipe.weight_decay
        # running statistics are the tail of a network's vector: no term may move them
        self.tail: slice | None = None
        if len(w) >= net.size and net.buffers.start < net.buffers.stop:
            a, b = max(net.buffers.start, part.start), min(net.buffers.stop, part.stop)
            self.tail = slice(a - part.start, b - part.start) if a < b else None

    def __call__(self, grad: Tensor, w: Tensor) -> Tensor:
        if self.linear is not None:
            grad.add_(self.linear)
        if self.clip is not None:
            norm = float(torch.linalg.vector_norm(self._still(grad)))
            if norm > self.clip:
                grad.mul_(self.clip / norm)
        if isinstance(self.decay, Tensor):
            grad.addcmul_(self.decay, w)
        elif self.decay:
            grad.add_(w, alpha=self.decay)
        if self.center is not None and not self.after:
            grad.add_(w, alpha=self.mu).sub_(self.center, alpha=self.mu)
        return self._still(grad)

    def pull(self, w: Tensor) -> Tensor | None:
        """``w - center``, where the proximal term makes a step of its own."""
        return self._still(w - self.center) if self.center is not None and self.after else None

    def _still(self, step: Tensor) -> Tensor:
        if self.tail is not None:
            step[self.tail] = 0
        return step


def batches(n: int, recipe: Recipe, rng: torch.Generator, *, skip_single: bool) -> Iterator[tuple[bool, Tensor]]:
    """Index batches without replacement inside an epoch; ``(last of its epoch, index [B])``.

    A last short batch is used, too. ``skip_single`` leaves out batches of one sample, on which BatchNorm cannot train.
    """
    left = recipe.steps_for(n) if n else 0
    while left > 0:
        parts = torch.randperm(n, generator=rng).split(recipe.batch)
        if skip_single and len(parts[-1]) == 1:
            left -= 0 if recipe.steps is not None else 1
            parts = parts[:-1]
            if not parts:
                return
        for i, index in enumerate(parts[:left]):
            yield i == len(parts) - 1, index
        left -= len(parts)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``x`` in ``x``'s own memory layout."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return x.index_select(0, index)
