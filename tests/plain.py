"""Local SGD on the toy networks once more, in float64, with a formula for the network and plain autograd.

Methods are written down again on top of it, straight from their papers, and compared with the library's runs. Only the
order of the samples and the cohorts are the library's; both are drawn, not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import Method, Samples, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches
from toys import ClientData, Run, federation, mlp, run

HIDDEN, CLASSES, INPUTS = 6, 3, 4
HEAD = HIDDEN * CLASSES + CLASSES
TRAINING = Training(epochs=2, batch_size=5, lr=0.1)
"""Clients of 9, 23, 14, 30 and 11 samples take 4, 10, 6, 12 and 6 steps, the last of an epoch on a short batch."""

Extra = Callable[[Tensor, Tensor, Tensor], Tensor]


def features(w: Tensor, x: Tensor) -> Tensor:
    """The head's input ``[B, 6]`` of `toys.mlp` at a flat vector."""
    weight, bias = w[HEAD : HEAD + HIDDEN * INPUTS].view(HIDDEN, INPUTS), w[HEAD + HIDDEN * INPUTS :]
    return torch.tanh(x @ weight.T + bias)


def logits(w: Tensor, x: Tensor) -> Tensor:
    """The logits ``[B, 3]`` of `toys.mlp` at a flat vector."""
    weight, bias = w[: HIDDEN * CLASSES].view(CLASSES, HIDDEN), w[HIDDEN * CLASSES : HEAD]
    return features(w, x) @ weight.T + bias


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of `toys.mlp` at a flat vector."""
    return F.cross_entropy(logits(w, x), y)


def gradient(f: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """The gradient of a function at a vector."""
    v = w.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(f(v), v)
    return g


def drawn(data: Samples, client: int, t: int, training: Training = TRAINING, number: int = 0) -> Iterator[Tensor]:
    """The batches of a client's request of this number in round t of seed 0."""
    rng = generator(0, "batches", "update", t, client, number)
    for _, index in batches(len(data), training, rng, skip_single=False):
        yield index


def descend(
    w: Tensor,
    data: Samples,
    client: int,
    t: int,
    *,
    along: Callable[[Tensor], Tensor] = torch.zeros_like,
    extra: Extra | None = None,
    training: Training = TRAINING,
) -> tuple[Tensor, int]:
    """SGD with momentum on the loss, plus ``extra(w, x, index)``, along its gradient plus ``along(w)``; and its steps.

    Args:
        extra: a term of the loss, given the model, the inputs of the batch and the numbers of its samples.
    """
    steps, velocity = 0, torch.zeros_like(w)
    for index in drawn(data, client, t, training):
        x, y = data.x[index].double(), data.y[index]
        g = gradient(lambda v, x=x, y=y, i=index: loss(v, x, y) + (extra(v, x, i) if extra else 0), w) + along(w)
        velocity = training.momentum * velocity + g
        w, steps = w - training.lr * velocity, steps + 1
    return w, steps


def played(method: Method, rounds_: int = 4, training: Training = TRAINING) -> tuple[Run, list[ClientData], Tensor]:
    """A run of the library: five clients, three of them in each round; its clients; the start in float64."""
    shards = federation()
    return run(method, mlp(), shards, rounds_=rounds_, training=training), shards, mlp().w0.double()


def cohorts(of: Run) -> Iterator[tuple[int, Sequence[int]]]:
    """The number of each round and who took part."""
    for report in of.reports:
        yield report.round, report.cohort


def distance(got: Tensor, wanted: Tensor) -> float:
    """The largest difference of two tensors in any number."""
    return float((got.double() - wanted.double()).abs().max())
