"""The mean cross-entropy of a stack's batches by few operations.

Under `torch.func.vmap`, torch computes it by some 25 operations, most of which look for labels to leave out; labels of
samples are checked when data are read. On a GPU each operation is a kernel, a third of those of a small network's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_USUAL = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}  # all other settings are None


class MeanEntropy(TorchFunctionMode):
    """Mode in which ``F.cross_entropy(logits [B, C, ...], labels)`` takes ten operations; its results are torch's own.

    Args:
        labels: of a batch's samples, ``[B, ...]``; of other tensors, and with other arguments, torch computes it.
    """

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self._labels = labels

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy and self._plain(*args[1:], **kwargs):
            return -F.log_softmax(args[0], 1).gather(1, self._labels[:, None]).mean()
        return func(*args, **kwargs)

    def _plain(self, target: Tensor, weight: Tensor | None = None, **settings: object) -> bool:
        usual = all(value is None or value == _USUAL.get(name) for name, value in settings.items())
        return usual and weight is None and target is self._labels
