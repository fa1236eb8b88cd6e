"""CUDA graphs as they are, without a GPU: what is recorded of a step are its kernels and addresses, not the step.

A recording keeps no tensor of the step alive but those made in it. Played again it reads and writes where the step did,
and where memory was given back in between it fails, while a GPU would go on with whatever lies there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Address:
    """Place of a tensor in memory that is the recording's own, or somebody else's."""

    def __init__(self, t: Tensor, own: bool) -> None:
        self._shape = (t.storage_offset(), t.shape, t.stride())
        self._dtype, self._kept = t.dtype, t.untyped_storage() if own else None
        self._weak = StorageWeakRef(t.untyped_storage())

    def tensor(self) -> Tensor:
        """The tensor that lies there now."""
        if self._kept is not None:
            storage: Any = self._kept
        else:
            assert not self._weak.expired(), "a recording reads memory that was given back"
            storage = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._shape)


class Tape(TorchDispatchMode):
    """Recording of all operations inside."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        given = self._addresses((args, kwargs or {}))
        found = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        new = [t for t in _tensors(out) if t.untyped_storage()._cdata not in found]
        self._own |= {t.untyped_storage()._cdata for t in new}
        self._operations.append((func, *given, [Address(t, own=True) for t in new]))
        return out

    def _addresses(self, of: Any) -> Any:
        def address(t: Any) -> Any:
            return Address(t, t.untyped_storage()._cdata in self._own) if isinstance(t, Tensor) else t

        return tree_map(address, of)

    def play(self) -> None:
        """Repeat the operations at their addresses."""
        for func, args, kwargs, outs in self._operations:
            args, kwargs = tree_map(lambda a: a.tensor() if isinstance(a, Address) else a, (args, kwargs))
            given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
            made = [t for t in _tensors(func(*args, **kwargs)) if t.untyped_storage()._cdata not in given]
            for place, t in zip(outs, made, strict=True):
                place.tensor().copy_(t)


def _tensors(of: Any) -> list[Tensor]:
    return [t for t in tree_leaves(of) if isinstance(t, Tensor)]


def warm_up(step: Callable[[], None], place: Any) -> None:
    """Stands for `fedkin.engines.stacked_graph.warm_up`."""
    for _ in range(3):
        step()


def capture(step: Callable[[], None], place: Any, pool: Any) -> tuple[Callable[[], None], Any, int]:
    """Stands for `fedkin.engines.stacked_graph.capture`: nothing of the step stays but what it did."""
    tape = Tape()
    with tape:
        step()
    return tape.play, "pool", 0
