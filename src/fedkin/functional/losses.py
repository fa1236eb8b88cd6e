"""Losses that several papers share; each is a module-level function, so that equal requests can be recognised."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import Batch, Bundle, Net


def distillation(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """CE + kappa T^2 KL(teacher || student) (Eqs. 11-12); the teacher's probabilities have no gradient."""
    z, logits = net.features_and_logits(w, batch.x)
    with torch.no_grad():
        taught = F.softmax(net.classify(aux.teacher, aux.get("z", z)) / aux.temperature, dim=1)
    student = F.log_softmax(logits / aux.temperature, dim=1)
    kl = F.kl_div(student, taught, reduction="batchmean")
    return F.cross_entropy(logits, batch.y) + aux.kappa * aux.temperature**2 * kl
