"""Conversion of a name, a module or a function to a function that makes fresh networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from torch import nn

from fedkin.core import ModelError
from fedkin.models.registry import get_model
from fedkin.models.weights import started

Model = str | nn.Module | Callable[[], nn.Module]


def factory(
    model: Model, shape: tuple[int, ...], classes: int, weights: Path | str | None = None
) -> Callable[[], nn.Module]:
    """Return a function that makes the network anew, with the values that the global random state gives.

    A module is first copied as it is, so that a run can start from trained values; further copies are drawn anew. So it
    is with a safetensors file of ``weights``: the first network has its values.
    """
    if weights is not None:
        return started(factory(model, shape, classes), weights)
    if isinstance(model, str):
        return lambda: get_model(model, shape, classes)
    if isinstance(model, nn.Module):
        return _Again(model)
    return model


class _Again:
    """Maker of copies of a module: the first as it is, the others with new random values."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._first = module, True

    def __call__(self) -> nn.Module:
        made = copy.deepcopy(self._module)
        if not self._first:
            for name, m in made.named_modules():
                _draw_anew(m, name)
        self._first = False
        return made


def _draw_anew(module: nn.Module, name: str) -> None:
    """Give a module's own parameters new random values.

    Raises:
        ModelError: the module has no method for it, and a parameter that is not constant, as a scale would be.
    """
    for reset in ("reset_parameters", "_reset_parameters"):  # the second in attention layers
        if callable(drawn := getattr(module, reset, None)):
            drawn()
            return
    for part, p in module.named_parameters(recurse=False):
        if p.numel() > 1 and bool((p != p.flatten()[0]).any()):
            where = f"{name}.{part}" if name else part
            raise ModelError(
                f"a second random start is needed, and {where!r} of {type(module).__name__} cannot be drawn anew; give "
                "the module a method reset_parameters(), or pass a function that makes the network"
            )
