"""Terms that are added to a loss's gradient, and an optimizer's step: bit for bit alike for one vector and a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.core import Net, Train, Training

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # of Adam and AdamW, torch's defaults


@dataclass(frozen=True)
class Terms:
    """Terms that the request and the run add to the loss's gradient, and one step of SGD by the sum.

    They are of the hull of the part that moves ``[p]``, or of a stack of such hulls ``[S, p]``.

    Attributes:
        linear, center: ``[..., p]`` or None.
        mu: weight of the proximal term, for a stack also one per row ``[S, 1]``.
        after: step size of a separate proximal step after that of the optimizer; None: the term is part of the
            gradient.
        decay: weight decay, or one per parameter ``[p]``.
        still: what no step may move: running statistics, and what lies between the spans of a part; a slice of the
            part's hull, or a mask ``[p]``.
    """

    linear: Tensor | None
    clip: float | None
    center: Tensor | None
    mu: float | Tensor
    after: float | None
    decay: float | Tensor
    momentum: float
    still: slice | Tensor | None

    @classmethod
    def of(cls, request: Train, training: Training, net: Net) -> Terms:
        """Return the terms of one request, with the step of its optimizer."""
        length, part = len(request.start), request.moves.hull
        decay: float | Tensor = training.decay
        if training.decay and not training.decay_biases:
            decay = _matrices(_networks(request, net), length)[part] * training.decay
        terms = cls(
            linear=None if request.linear is None else request.linear[part],
            clip=training.clip,
            center=request.center[part] if request.mu != 0 and request.center is not None else None,
            mu=request.mu,
            after=training.lr if request.prox_after else None,  # before epoch_decay
            decay=decay,
            momentum=training.momentum,
            still=_still(request, net),
        )
        if training.optimizer == "sgd":
            return terms
        apart = training.optimizer == "adamw"
        return AdamTerms(**{**vars(terms), "decay": 0.0 if apart else decay}, decay_apart=decay if apart else 0.0)

    def moments(self, w: Tensor) -> Tensor | None:
        """Return what the optimizer keeps from step to step, before the first one: ``[..., k]`` for ``w [..., p]``.

        It is the momentum buffer, k = p; None without momentum.
        """
        return torch.zeros_like(w) if self.momentum else None

    def step(self, w: Tensor, grad: Tensor, moments: Tensor | None, lr: float | Tensor) -> Tensor | None:
        """Move ``w`` in place by the loss's gradient, which is used up; return the optimizer's next moments.

        Args:
            moments: as of `moments`; for one vector also None before the first step.
            lr: step size, for a stack also one per row ``[S, 1]``.
        """
        d = self.direction(grad, w)
        if self.momentum:
            moments = d.clone() if moments is None else moments.mul_(self.momentum).add_(d)
            d = moments
        self.along(w, d, lr)
        return moments

    def along(self, w: Tensor, d: Tensor, lr: float | Tensor) -> None:
        """Move ``w`` in place against a direction, and by the proximal term if that is a separate step."""
        if self.center is None or self.after is None:
            _add(w, d, -lr)
            return
        pull = self.kept(w - self.center)
        _add(w, d, -lr)
        _add(w, pull, -(self.after * self.mu))

    def force(self, mu: float) -> Tensor | None:
        """Return ``mu center - linear``, which depends neither on the batch nor on w; None if it is zero."""
        force = None if self.linear is None else -self.linear
        if self.center is not None:
            pull = mu * self.center
            force = pull if force is None else force + pull
        return None if force is None else self.kept(force)

    def direction(self, grad: Tensor, w: Tensor) -> Tensor:
        """Return ``clip(grad + linear) + decay + mu (w - center)``, in place of ``grad``."""
        if self.linear is not None:
            grad.add_(self.linear)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(self.kept(grad), dim=-1, keepdim=True).double()
            grad.mul_(torch.where(norm > self.clip, self.clip / norm, 1.0).to(grad.dtype))
        if isinstance(self.decay, Tensor):
            grad.addcmul_(self.decay, w)
        elif self.decay:
            grad.add_(w, alpha=self.decay)
        if self.center is not None and self.after is None:
            _add(_add(grad, w, self.mu), self.center, -self.mu)
        return self.kept(grad)

    def kept(self, step: Tensor) -> Tensor:
        """Return a step or gradient with zeros, put in place, where nothing may move."""
        if isinstance(self.still, Tensor):
            step.masked_fill_(self.still, 0)
        elif self.still is not None:
            step[..., self.still].zero_()
        return step


@dataclass(frozen=True)
class AdamTerms(Terms):
    """Terms with a step of Adam or AdamW instead, with torch's default constants.

    Kingma, Ba: Adam, A Method for Stochastic Optimization, ICLR 2015, Algorithm 1; Loshchilov, Hutter: Decoupled Weight
    Decay Regularization, ICLR 2019, Algorithm 2. Its gradient is that of the whole objective of a request (linear and
    proximal term included), which it minimises; a proximal step that is separate stays so.

    Attributes:
        decay_apart: weight decay that is not part of the gradient (AdamW), or one per parameter ``[p]``; ``decay`` is
            then 0.
    """

    decay_apart: float | Tensor

    def moments(self, w: Tensor) -> Tensor:
        """Return zeros for ``[m | v | t]``, k = 2 p + 1: the moments and the number of steps, each row's own."""
        return w.new_zeros(*w.shape[:-1], 2 * w.shape[-1] + 1)

    def direction(self, grad: Tensor, w: Tensor) -> Tensor:
        """Return the same as `Terms.direction`, with a proximal term of exactly 0 at its center.

        Where nothing else has a slope, Adam would make a step of the rounding of ``mu w - mu center``.
        """
        if self.center is None or self.after is not None:
            return super().direction(grad, w)
        d = replace(self, center=None).direction(grad, w)
        return self.kept(_add(d, w - self.center, self.mu))

    def step(self, w: Tensor, grad: Tensor, moments: Tensor | None, lr: float | Tensor) -> Tensor:
        """Move ``w`` in place by the loss's gradient, which is used up; return the optimizer's next moments."""
        if moments is None:
            moments = self.moments(w)
        d = self.direction(grad, w)
        m, v, t = moments.split((w.shape[-1], w.shape[-1], 1), dim=-1)
        t.add_(1)  # a tensor, as rows of a stack take steps at different times, and recorded steps read no numbers
        m.lerp_(d, 1 - _BETA1)
        v.mul_(_BETA2).addcmul_(d, d, value=1 - _BETA2)
        first, second = (-torch.expm1(t * math.log(beta)) for beta in (_BETA1, _BETA2))  # 1 - beta^t, in full precision
        d = (m / first).div_((v / second).sqrt_().add_(_EPS))
        if isinstance(self.decay_apart, Tensor) or self.decay_apart:
            d = self.kept(_add(d, w, self.decay_apart))
        self.along(w, d, lr)
        return moments


def _networks(request: Train, net: Net) -> Sequence[Net]:
    """Return the networks whose vectors a request's vector begins with."""
    return [net] * request.models if isinstance(request.models, int) else request.models


def _matrices(networks: Sequence[Net], length: int) -> Tensor:
    """Return 1 at parameters with two dimensions or more and after the networks, 0 at biases and norms ``[length]``."""
    masks = [net.matrices(net.size) for net in networks]
    return torch.cat([*masks, torch.ones(max(0, length - sum(map(len, masks))))])[:length]


def _still(request: Train, net: Net) -> slice | Tensor | None:
    """Return what stands still inside the hull of the part that moves; running statistics are a network's tail."""
    part, mask = request.moves.hull, request.moves.gaps()
    tails = list[slice]()
    shift = 0
    for one in _networks(request, net):
        a, b = max(one.buffers.start + shift, part.start), min(one.buffers.stop + shift, part.stop)
        tails += [slice(a - part.start, b - part.start)] if a < b and shift + one.size <= len(request.start) else []
        shift += one.size
    if mask is None and len(tails) < 2:
        return tails[0] if tails else None
    mask = torch.zeros(part.stop - part.start, dtype=torch.bool) if mask is None else mask
    for tail in tails:
        mask[tail] = True
    return mask


def _add(to: Tensor, what: Tensor, times: float | Tensor) -> Tensor:
    """Add in place, with one factor or one for each row."""
    return to.addcmul_(what, times) if isinstance(times, Tensor) else to.add_(what, alpha=times)
