"""Prototypes: one vector per class, averaged over the clients that have the class; the nearest one predicts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import Batch, Bundle, ModelError, Net
from fedkin.core.rows import weighted_mean


def no_prototypes(net: Net) -> Bundle:
    """Return ``prototypes [C, d]`` of zeros, none of them ``known`` (bool ``[C]``).

    Raises:
        ModelError: what the head is given is not one vector per sample.
    """
    z, logits = net.features_and_logits(net.w0, net.inputs(1))
    if z.dim() != 2:
        raise ModelError(f"prototypes are vectors, and the head {net.head_name!r} is given {list(z.shape[1:])}")
    c, d = logits.shape[1], z.shape[1]
    return Bundle(prototypes=torch.zeros(c, d), known=torch.zeros(c, dtype=torch.bool))


def class_average(rows: Tensor, weight: Tensor, otherwise: Tensor) -> Tensor:
    """Return the mean of every class over the clients that have it, ``[C, ...]``.

    A class that no client has keeps its row.

    Args:
        rows: ``[m, C, ...]``, the value of each client for each class.
        weight: non-negative ``[m, C]``; 0 where a client does not have the class. Bool for a plain mean.
        otherwise: ``[C, ...]``, the rows kept.
    """
    out = otherwise.clone()
    for c in (weight > 0).any(0).nonzero().flatten().tolist():
        has = weight[:, c] > 0
        out[c] = weighted_mean(rows[has, c], weight[has, c])
    return out


def nearness(z: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return minus the squared distance of features ``z [B, d]`` to every prototype ``[C, d]``: ``[B, C]``.

    Minus infinity for classes that are not ``known``, bool ``[C]``. It is computed from differences, not from a Gram
    matrix, which cannot distinguish close ones.
    """
    d = torch.stack([(z - p).square().sum(1) for p in prototypes], 1)
    return torch.where(known, -d, -torch.inf)


def prototype_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return CE + lam MSE(z, prototype of y), the mean over all ``B d`` numbers; 0 for classes without prototype.

    ``aux`` holds ``prototypes [C, d]``, ``known [C]`` and ``lam []``.
    """
    z, logits = net.features_and_logits(w, batch.x)
    away = (z - aux.prototypes[batch.y]) * aux.known[batch.y, None]
    return F.cross_entropy(logits, batch.y) + aux.lam * away.square().mean()
