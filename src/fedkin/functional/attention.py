"""Who a client's model is mixed from, and how strongly, by attention of models on models (FedAMP, HeurFedAMP)."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(d: Tensor, others: Tensor, me: Tensor, sigma: float, step: float) -> Tensor:
    """FedAMP's weights float64 ``[m, a]``, rows sum to 1: one gradient step on the sum of 1 - exp(-d/sigma).

    The own weight is what the others leave; it is negative where ``step`` is larger than `largest_step`.

    Args:
        d: squared distances of m models to a models, their own among them, ``[m, a]``.
        others: bool ``[m, a]``, row i: whom client i may learn from; never itself.
        me: int64 ``[m]``, the column of each client's own model.
        sigma: scale of distances, above 0.
        step: length of the gradient step (its factor of 2 is absorbed).
    """
    xi = step * _slope(d, others, sigma)
    return xi.scatter_(1, me[:, None], 1 - xi.sum(1, keepdim=True))


def largest_step(d: Tensor, others: Tensor, sigma: float) -> float:
    """The longest step of `attention` that leaves nobody a negative own weight; infinite if nobody learns."""
    largest = float(_slope(d, others, sigma).sum(1).max()) if len(d) else 0.0
    return 1 / largest if largest > 0 else torch.inf


def _slope(d: Tensor, others: Tensor, sigma: float) -> Tensor:
    """A'(d) of A(d) = 1 - exp(-d/sigma), 0 where a client may not learn."""
    return torch.where(others, torch.exp(-d.double() / sigma) / sigma, 0.0)


def cosine_attention(cos: Tensor, others: Tensor, me: Tensor, scale: float, own: Tensor) -> Tensor:
    """HeurFedAMP's weights float64 ``[m, a]``, rows sum to 1: ``own [m]``, the rest a softmax of scale * cos.

    A client with nobody to learn from keeps all of its own.

    Args:
        cos: cosines of m models with a models ``[m, a]``; others, me: as in `attention`.
    """
    anybody = others.any(1, keepdim=True)
    logits = torch.where(others, scale * cos.double(), -torch.inf)
    shares = torch.where(anybody, logits, 0.0).softmax(1)
    kept = torch.where(anybody, own.double()[:, None], 1.0)
    return ((1 - kept) * shares).scatter_(1, me[:, None], kept)
