"""Convolutions of a stack as products of matrices.

`torch.func.vmap` makes one grouped convolution of a stack's, a group for each client, which a GPU's library may compute
far below its peak in float32. Unfolded inputs times weights are batched products of matrices, which it computes near
the peak, for more memory: each input is stored once for every position of the kernel that sees it.

Where a layer has many weights, a client's product is one for all samples of a batch, so that it is large; where it has
few, samples have products of their own, so that there are many. Inputs are unfolded by one copy of a view of them, and
their gradients added up by two kernels, for all clients: `torch.nn.functional.unfold` starts a kernel for each sample
on a GPU, and `fold` is several times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Two = int | tuple[int, int]
_TILE = 64  # rows and columns of a product that a GPU's library computes on one processor
_TILES = 48  # of them that keep a GPU at work, other clients' beside them


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
    (above, left), (count, *_channels, height, width) = layer.padding, weight.shape
    x = F.pad(input, (left, left, above, above)) if above or left else input
    rows, columns = _places(x.shape, (height, width), layer.stride)
    parts = parts_of(len(x), count, weight[0].numel(), rows * columns)
    seen: Tensor = Unfolded.apply(x, (height, width), layer.stride, parts)  # type: ignore[no-untyped-call]
    each = weight.reshape(1, count, -1).expand(parts, -1, -1)
    out = torch.bmm(each, seen).view(parts, count, -1, rows, columns)
    out = out.transpose(1, 2).flatten(0, 1).contiguous()  # layers after this one may rely on the usual order
    return out if bias is None else out + bias[:, None, None]


def parts_of(batch: int, outputs: int, inputs: int, places: int) -> int:
    """Return the number of parts of a batch, each of which has a product of its own.

    The gradient in the weights, ``[outputs, inputs]``, is a sum over all samples and positions. A GPU computes a tile
    of it on one of its processors; if it has few tiles, sums over parts of the batch keep the other processors at work.
    Results of parts are copied into the order of samples; if a sample has more positions than a weight has inputs,
    that takes longer than gradients for each sample, whose results are in order.
    """
    tiles = -(-inputs // _TILE) * -(-outputs // _TILE)
    enough = (parts for parts in range(1, batch) if batch % parts == 0 and parts * tiles >= _TILES)
    return batch if places > inputs else next(enough, batch)


class Unfolded(torch.autograd.Function):
    """Values that each position of a kernel sees, ``[parts, C h w, B/parts rows columns]`` of ``[B, C, H, W]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], parts: int) -> Tensor:
        """Copy a view of the inputs in which each of them is seen several times."""
        seen = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).unflatten(0, (parts, -1))
        # [parts, B/parts, C, rows, columns, h, w]
        columns: Tensor = seen.permute(0, 2, 5, 6, 1, 3, 4).reshape(parts, x.shape[1] * kernel[0] * kernel[1], -1)
        return columns

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the sizes; the backward pass needs no values."""
        x, ctx.kernel, ctx.stride, ctx.parts = inputs
        ctx.size = tuple(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Add up the gradients of all places that saw an input."""
        return Folded.apply(grad, ctx.size, ctx.kernel, ctx.stride), None, None, None  # type: ignore[no-untyped-call]


class Folded(torch.autograd.Function):
    """Sums of what all places that see an input have for it: ``[B, C, H, W]`` of what `Unfolded` returns."""

    @staticmethod
    def forward(seen: Tensor, size: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        """Add up along the width of the kernel, then along its height."""
        (batch, channels, height, width), parts, (h, w) = size, len(seen), kernel
        rows, columns = _places(size, kernel, stride)
        seen = seen.reshape(parts, channels, h, w, batch // parts, rows, columns).permute(0, 4, 1, 2, 5, 6, 3)
        wide = torch.ops.aten.unfold_backward(seen, [*seen.shape[:5], width], 5, w, stride[1])
        wide = wide.permute(0, 1, 2, 4, 5, 3)
        gradient: Tensor = torch.ops.aten.unfold_backward(wide, [*wide.shape[:3], height, width], 3, h, stride[0])
        return gradient.flatten(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the sizes."""
        seen, _size, ctx.kernel, ctx.stride = inputs
        ctx.parts = len(seen)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient, for second derivatives."""
        return Unfolded.apply(grad, ctx.kernel, ctx.stride, ctx.parts), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], seen: Tensor, size: tuple[int, ...], *how: tuple[int, int]
    ) -> tuple[Tensor, int]:
        """Fold all batches of a stack as one: torch would fold one after another."""
        stack, clients = seen.movedim(in_dims[0] or 0, 0), info.batch_size
        columns = Folded.apply(stack.flatten(0, 1), (clients * size[0], *size[1:]), *how)  # type: ignore[no-untyped-call]
        return columns.unflatten(0, (clients, size[0])), 0


def _places(size: Sequence[int], kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of rows and columns of positions of a kernel on inputs ``[B, C, H, W]``."""
    return (size[2] - kernel[0]) // stride[0] + 1, (size[3] - kernel[1]) // stride[1] + 1


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
