"""Local training that hides single samples (DP-SGD): what is different from plain SGD, and what it spent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedkin.core import (
    Batch,
    Bundle,
    ConfigError,
    ModelError,
    Net,
    Samples,
    Train,
    Training,
    cross_entropy,
)
from fedkin.core.seeds import generator
from fedkin.core.settings import LEAST_NOISE, MOST_NOISE
from fedkin.privacy.noise import Keyed, Secret, Source

_NUMBERS = 1 << 23  # numbers of single samples' gradients that are held at a time: 32 MiB


@dataclass(frozen=True)
class Private:
    """Differentially private local training.

    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016.

    Attributes:
        noise: standard deviation of the noise on a sum of gradients, in units of ``clip``.
        clip: maximum norm of a single sample's gradient.
        secret: batches and noise from the operating system's generator: on real hosts, where others know the seed.

    Raises:
        ConfigError: a number is out of range.
    """

    noise: float
    clip: float = 1.0
    secret: bool = False

    def __post_init__(self) -> None:
        if self.noise != 0 and not LEAST_NOISE <= self.noise <= MOST_NOISE:
            raise ConfigError(
                f"noise_multiplier must be a number from {LEAST_NOISE:g} to {MOST_NOISE:g}, such as 1.0, or 0 for no "
                f"noise, got {self.noise:g}"
            )
        if not 0 < self.clip < math.inf:
            raise ConfigError(f"max_grad_norm must be a number above 0, such as 1.0, got {self.clip}")

    def steps(self, seed: int, *stream: int | str) -> PrivateSteps:
        """For one request. No two requests may share a stream: the difference of two noisy gradients would have no
        noise."""
        return PrivateSteps(self, Secret() if self.secret else Keyed(generator(seed, "private", *stream)))


class PrivateSteps:
    """The steps of one request.

    Attributes:
        rate: the chance with which each sample is in a step's batch.
        taken: steps so far.
    """

    def __init__(self, private: Private, source: Source) -> None:
        self._private, self._source = private, source
        self._expected = 1.0
        self.rate, self.taken = 0.0, 0

    def batches(self, n: int, training: Training) -> Iterator[tuple[bool, Tensor]]:
        """As many batches as plain SGD takes; each sample is in each of them by chance: ``(epoch's end, index)``.

        Batches differ in size and may be empty: that is what makes the noise hide more than it does on fixed ones.
        """
        if n == 0:
            return
        self._expected = float(min(training.batch_size, n))
        self.rate = self._expected / n
        per_epoch = math.ceil(n / training.batch_size)
        for step in range(training.steps_for(n)):
            self.taken += 1
            index = (self._source.uniform(n) < self.rate).nonzero().flatten()
            yield (step + 1) % per_epoch == 0, index

    def gradient(self, request: Train, net: Net, w: Tensor, data: Samples, index: Tensor) -> Tensor:
        """Return the private gradient in what moves of ``w``.

        It is the sum of clipped per-sample gradients plus noise, divided by the expected batch size, of the hull of
        the part that moves.
        """
        part, gaps = request.moves.hull, request.moves.gaps()
        total = torch.zeros(part.stop - part.start, dtype=torch.float64)
        for rows in index.split(max(1, _NUMBERS // len(w))) if len(index) else ():
            g = each(request, net, w, data, rows)[:, part]
            g = g if gaps is None else g.masked_fill(gaps, 0)
            norms = torch.linalg.vector_norm(g, dim=1, dtype=torch.float64)
            fine = norms.isfinite()  # one infinite gradient would drown the sum, and show
            total += (self._private.clip / norms[fine]).clamp(max=1) @ g[fine].double()
        if self._private.noise > 0:
            total += self._private.noise * self._private.clip * self._source.normal(len(total))
        return (total / self._expected).to(w.dtype)


def each(request: Train, net: Net, w: Tensor, data: Samples, rows: Tensor) -> Tensor:
    """Return the gradient of a request's loss at single samples ``rows [B]``: ``[B, P]``."""
    extra = {name: t[rows] for name, t in request.per_sample.items()}

    def one(w: Tensor, x: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
        own = Bundle({name: t[None] for name, t in extra.items()})
        return request.loss(net, w, Batch(x[None], y[None]), Bundle({**request.aux, **own}))

    gradients = vmap(grad(one), in_dims=(None, 0, 0, 0), randomness="different")  # dropout draws for every sample
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # layers that it takes one by one: LSTM
        per_sample: Tensor = gradients(w, data.x[rows], data.y[rows], extra)
    return per_sample


def require_single_gradients(net: Net) -> None:
    """Check that a network's loss at one sample does not depend on other samples and has its own gradient.

    Raises:
        ModelError: it has batch normalisation or other statistics of its inputs, or layers that torch.func cannot take.
    """
    for one in net.networks:
        _require_single_gradients(one)


def _require_single_gradients(net: Net) -> None:
    if net.batchnorm:
        raise ModelError(
            "noise_multiplier needs a network without batch normalisation, which mixes the samples of a batch; take "
            "one with GroupNorm instead (torch.nn.GroupNorm(groups, channels)) or without normalisation, such as mlp "
            "or small-cnn"
        )
    if net.buffers.start < net.buffers.stop:
        raise ModelError(
            f"noise_multiplier needs a network without running statistics, which would leave a client without noise; "
            f"it has {', '.join(net.names[-(len(net.names) - len(net.layers())) :])}"
        )
    try:
        each(
            Train(net.w0, loss=cross_entropy),
            net.training(),
            net.w0,
            Samples(net.inputs(2), torch.zeros(2).long()),
            torch.arange(2),
        )
    except (RuntimeError, NotImplementedError) as e:
        raise ModelError(
            f"noise_multiplier needs the gradient of single samples, which torch.func.vmap cannot find for this "
            f"network (GRU layers, for example): {str(e).splitlines()[0]}"
        ) from e
