"""Convolutions of a stack as products of matrices.

`torch.func.vmap` makes one grouped convolution of a stack's, a group for each client, which a GPU's library may compute
far below its peak in float32. Unfolded inputs times weights are batched products of matrices, which it computes near
the peak, for more memory: each input is stored once for every position of the kernel that sees it.

`torch.nn.functional.unfold` starts a kernel for each sample on a GPU, a thousand for a stack of a hundred clients;
here inputs are unfolded by one copy of a view of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Two = int | tuple[int, int]


@dataclass(frozen=True)
class ConvLayer:
    """Two-dimensional convolution of one group without dilation, whatever the size of its batches.

    Attributes:
        input: channels, height and width of its inputs.
        weight: shape of its weight, ``[O, C, h, w]``.
        bias: whether it has one.
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool
    stride: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Two = 1,
        padding: Two | str = 0,
        dilation: Two = 1,
        groups: int = 1,
    ) -> ConvLayer | None:
        """Return the layer of a call of ``torch.conv2d`` on a batch ``[B, C, H, W]``; None for other kinds."""
        if isinstance(padding, str) or groups != 1 or _two(dilation) != (1, 1) or input.dim() != 4:
            return None
        return cls(tuple(input.shape[1:]), tuple(weight.shape), bias is not None, _two(stride), _two(padding))

    def __str__(self) -> str:
        (channels, *size), (out, _, *kernel) = self.input, self.weight
        return f"{channels}-{out}, {kernel[0]} x {kernel[1]} on {size[0]} x {size[1]}"


AsProducts: TypeAlias = bool | frozenset[ConvLayer]
"""Convolutions to compute as products: all, none, or some layers."""


class Products(TorchFunctionMode):
    """Mode in which convolutions of the kind of `ConvLayer` are computed as products: all of them, or some layers."""

    def __init__(self, layers: AsProducts = True) -> None:
        super().__init__()
        self._layers = layers

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        layer = ConvLayer.of(*args, **kwargs) if func is torch.conv2d else None
        if layer is not None and (self._layers is True or (self._layers and layer in self._layers)):
            return product(layer, *args, **kwargs)
        return func(*args, **kwargs)


def with_products(layers: AsProducts) -> AbstractContextManager[object]:
    """Return a context in which some layers are computed as products."""
    return Products(layers) if layers else nullcontext()


def product(
    layer: ConvLayer, input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: object, **__: object
) -> Tensor:
    """Return ``torch.conv2d`` of a batch ``[B, C, H, W]`` with the same arguments, of which ``layer`` was made."""
    (above, left), (height, width), count = layer.padding, weight.shape[2:], len(weight)
    x = F.pad(input, (left, left, above, above)) if above or left else input
    seen: Tensor = Unfolded.apply(x, (int(height), int(width)), layer.stride)  # type: ignore[no-untyped-call]
    # a weight for each sample: `matmul` would put the samples into one matrix, by a copy of all that was unfolded
    each = weight.reshape(1, count, -1).expand(len(x), -1, -1)
    out = torch.bmm(each, seen.flatten(2)).view(len(x), count, *seen.shape[2:])
    return out if bias is None else out + bias[:, None, None]


class Unfolded(torch.autograd.Function):
    """Values that each position of a kernel sees, ``[B, C h w, rows, columns]`` of inputs ``[B, C, H, W]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        """Copy a view of the inputs in which each of them is seen several times."""
        seen = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # [B, C, rows, columns, h, w]
        rows, columns = seen.shape[2:4]
        return seen.permute(0, 1, 4, 5, 2, 3).reshape(len(x), -1, rows, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the sizes; the backward pass needs no values."""
        x, ctx.kernel, ctx.stride = inputs
        ctx.size = x.shape[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Add up the gradients of all places that saw an input."""
        return F.fold(grad.flatten(2), ctx.size, ctx.kernel, stride=ctx.stride), None, None


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
