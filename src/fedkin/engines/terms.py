"""Terms that are added to a loss's gradient, and the step of SGD: bit for bit alike for one vector and a stack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.core import Net, Train, Training


@dataclass(frozen=True)
class Terms:
    """Terms that the request and the run add to the loss's gradient, and one step by the sum.

    They are of the part of a model that moves ``[p]``, or of a stack of such parts ``[S, p]``.

    Attributes:
        linear, center: ``[..., p]`` or None.
        mu: weight of the proximal term, for a stack also one per row ``[S, 1]``.
        after: step size of a separate proximal step after that of SGD; None: the term is part of the gradient.
        decay: weight decay, or one per parameter ``[p]``.
        tail: running statistics, which no term may move.
    """

    linear: Tensor | None
    clip: float | None
    center: Tensor | None
    mu: float | Tensor
    after: float | None
    decay: float | Tensor
    momentum: float
    tail: slice | None

    @classmethod
    def of(cls, request: Train, training: Training, net: Net, length: int, part: slice) -> Terms:
        """Return the terms of one request on a vector of this length."""
        decay: float | Tensor = training.weight_decay
        if training.weight_decay and not training.decay_biases:
            decay = net.matrices(length)[part] * training.weight_decay
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
            after=training.lr if request.prox_after else None,  # before epoch_decay
            decay=decay,
            momentum=training.momentum,
            tail=tail,
        )

    def step(self, w: Tensor, grad: Tensor, velocity: Tensor | None, lr: float | Tensor) -> Tensor | None:
        """Move ``w`` in place by the loss's gradient, which is used up; return the next momentum buffer.

        Args:
            velocity: the buffer, None before the first step.
            lr: step size, for a stack also one per row ``[S, 1]``.
        """
        d = self.direction(grad, w)
        if self.momentum:
            velocity = d.clone() if velocity is None else velocity.mul_(self.momentum).add_(d)
            d = velocity
        self.along(w, d, lr)
        return velocity

    def along(self, w: Tensor, d: Tensor, lr: float | Tensor) -> None:
        """Move ``w`` in place against a direction, and by the proximal term if that is a separate step."""
        if self.center is None or self.after is None:
            _add(w, d, -lr)
            return
        pull = self._still(w - self.center)
        _add(w, d, -lr)
        _add(w, pull, -(self.after * self.mu))

    def force(self, mu: float) -> Tensor | None:
        """Return ``mu center - linear``, which depends neither on the batch nor on w; None if it is zero."""
        force = None if self.linear is None else -self.linear
        if self.center is None:
            return force
        pull = mu * self.center
        return self._still(pull if force is None else force + pull)

    def direction(self, grad: Tensor, w: Tensor) -> Tensor:
        """Return ``clip(grad + linear) + decay + mu (w - center)``, in place of ``grad``."""
        if self.linear is not None:
            grad.add_(self.linear)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self._still(grad), dim=-1, keepdim=True).double()
            grad.mul_(torch.where(norm > self.clip, self.clip / norm, 1.0).to(grad.dtype))
        if isinstance(self.decay, Tensor):
            grad.addcmul_(self.decay, w)
        elif self.decay:
            grad.add_(w, alpha=self.decay)
        if self.center is not None and self.after is None:
            _add(_add(grad, w, self.mu), self.center, -self.mu)
        return self._still(grad)

    def _still(self, step: Tensor) -> Tensor:
        if self.tail is not None:
            step[..., self.tail].zero_()
        return step


def _add(to: Tensor, what: Tensor, times: float | Tensor) -> Tensor:
    """Add in place, with one factor or one for each row."""
    return to.addcmul_(what, times) if isinstance(times, Tensor) else to.add_(what, alpha=times)
