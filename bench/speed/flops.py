"""Floating-point operations of an SGD step, counted from a network's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def of_step(module: nn.Module, shape: tuple[int, ...], batch: int) -> int:
    """Operations of one step on a batch: those of its matrix products, each multiplication and addition counted.

    A layer with ``m`` multiplications per sample in its forward pass costs ``2 m`` forward, ``2 m`` for the gradient of
    its weight and ``2 m`` for that of its input. Nobody needs the gradient of the network's input, so the first layer
    costs ``4 m``. Only convolutions and linear layers are counted: what pooling, ReLU, normalisation, the loss and the
    update take is left out, so that a share of the peak is never flattered.
    """
    forward = _products(module, shape)
    return batch * (6 * sum(forward) - 2 * forward[0])


def _products(module: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Multiplications per sample of each convolution and linear layer, in the order in which they are called."""
    found: list[int] = []

    def seen(layer: nn.Module, _args: Any, out: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            found.append(out[0].numel() * layer.weight[0].numel())
        elif isinstance(layer, nn.Linear):
            found.append(layer.weight.numel())

    hooks = [m.register_forward_hook(seen) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(torch.zeros(1, *shape))
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return found
