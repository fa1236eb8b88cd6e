"""FLamby's model for Fed-Heart-Disease: logistic regression, as a network with two logits.

Used as ``--model ./logistic.py:Logistic --head head``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OneOutput(nn.Linear):
    """A linear layer with one output z, given as the logits (0, z): their softmax is (1 - sigmoid(z), sigmoid(z)), so
    the cross-entropy is the binary cross-entropy of z."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return torch.cat([torch.zeros_like(z), z], dim=1)


class Logistic(nn.Module):
    """Logistic regression on ``shape`` inputs; start as torch's ``nn.Linear``, uniform within 1/sqrt(inputs)."""

    def __init__(self, shape: tuple[int, ...] = (13,)) -> None:
        super().__init__()
        self.head = OneOutput(shape[0], 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


def flamby_start(seed: int) -> Logistic:
    """The model that FLamby's benchmark starts from with this seed: its first draw after ``torch.manual_seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Logistic()
