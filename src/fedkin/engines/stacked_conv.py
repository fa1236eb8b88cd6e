"""Convolutions of a stack as products of matrices.

`torch.func.vmap` makes one grouped convolution of a stack's, a group for each client, which a GPU's library may compute
far below its peak in float32. Unfolded inputs times weights are batched products of matrices, which it computes near
the peak, for more memory: each input is stored once for every position of the kernel that sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Two = int | tuple[int, int]


class Products(TorchFunctionMode):
    """Mode in which two-dimensional convolutions of one group without dilation are computed as products."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and (made := product(*args, **(kwargs or {}))) is not None:
            return made
        return func(*args, **(kwargs or {}))


def product(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Two = 1,
    padding: Two | str = 0,
    dilation: Two = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return ``torch.conv2d`` of a batch ``[B, C, H, W]`` with the same arguments; None for other kinds."""
    if isinstance(padding, str) or groups != 1 or _two(dilation) != (1, 1) or input.dim() != 4:
        return None
    (down, right), (above, left), (height, width) = _two(stride), _two(padding), weight.shape[2:]
    rows = (input.shape[2] + 2 * above - height) // down + 1
    columns = (input.shape[3] + 2 * left - width) // right + 1
    seen = F.unfold(input, (height, width), padding=(above, left), stride=(down, right))  # [B, C h w, places]
    out = seen.transpose(1, 2).reshape(-1, seen.shape[1]) @ weight.reshape(len(weight), -1).T
    out = out if bias is None else out + bias
    return out.view(len(input), rows, columns, len(weight)).permute(0, 3, 1, 2).contiguous()  # some layers ask for it


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
