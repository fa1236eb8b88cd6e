"""Pixels and other numbers as inputs of a network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]


def numbers(values: Array) -> Tensor:
    """Return numbers that are not pixels as inputs: whole numbers as int64, all others and single bytes as float32.

    Whole numbers may be indices, such as those of words, which a network takes as they are. It is given floats if it
    takes only these, see `fedkin.core.net.Net.dtype`.
    """
    whole = values.dtype.kind in "iu" and values.dtype != np.uint8 and np.can_cast(values.dtype, np.int64)
    return torch.from_numpy(np.array(values, dtype=np.int64 if whole else np.float32, order="C"))


def pixels(values: Array) -> Tensor:
    """Return images of bytes as float32 ``[n, channels, height, width]`` in 0..1.

    The only place where pixels are scaled: ``value / 255``, nothing else. Papers that use mean 0.5 and standard
    deviation 0.5 differ by a linear map, which a network's first layer takes up.

    Args:
        values: uint8 ``[n, h, w]`` or ``[n, c, h, w]``; rows of any other shape are scaled as they are.
    """
    return torch.from_numpy((values[:, None] if values.ndim == 3 else values).astype(np.float32)).div_(255)
