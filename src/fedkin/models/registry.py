"""Networks by name, and user-defined ones by import path."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedkin.core.errors import ModelError
from fedkin.models import build, papers
from fedkin.models.papers import resnet18
from fedkin.user_code.loading import find

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": build.linear,
    "mlp": build.mlp,
    "small-cnn": build.small_cnn,
    "dapfl-cnn": papers.dapfl_cnn,
    "dapfl-cnn100": papers.dapfl_cnn100,
    "dapfl-mlp": papers.dapfl_mlp,
    "dapfl-mlp-code": papers.dapfl_mlp_code,
    "pfedcs-cnn": papers.pfedcs_cnn,
    "resnet18": resnet18,
    "cfic-cnn": papers.cfic_cnn,
    "cfic-cnn-cifar": papers.cfic_cnn_cifar,
    "cfic-cnn-emnist": papers.cfic_cnn_emnist,
    "cam-cnn": papers.cam_cnn,
    "cam-lenet": papers.cam_lenet,
}
"""Makers of networks, called as ``f(shape, classes)``; the first line of a maker's docstring describes the network."""

_CLASSES = ("classes", "num_classes", "n_classes", "n_class")


def get_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a new network, its parameters drawn from torch's global generator.

    Args:
        name: a name from `MODELS`, or ``package.module:attribute`` or ``./file.py:attribute``, an ``nn.Module`` class
            or a function that returns a module. It is called with ``shape`` and ``classes`` if it has parameters of
            these names, else, by the number of arguments that it must be given, as ``f(shape, classes)``,
            ``f(classes)`` or ``f()``. Modules in the current folder are found too.
        shape: shape of one input, without the batch.
        classes: number of classes.

    Raises:
        ModelError: no such name or import, or the maker failed.
    """
    if name in MODELS:
        module = MODELS[name](shape, classes)
    elif ":" in name:
        module = _make(find(name, ModelError), name, shape, classes)
    else:
        close = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ModelError(
            f"no model '{name}'{hint} Known: {', '.join(MODELS)}; or give package.module:attribute for a custom one"
        )
    return module


def _make(maker: Any, name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    if not callable(maker) or isinstance(maker, nn.Module):
        raise ModelError(
            f"{name}: expected an nn.Module class or a function that makes a module, got {_kind(maker)}; "
            "each run needs a network of its own"
        )
    args, kwargs = _arguments(maker, name, shape, classes)
    try:
        module = maker(*args, **kwargs)
    except Exception as error:  # anything that a user's maker raises
        raise ModelError(f"{name}: making the network failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name}: expected an nn.Module from the call, got {_kind(module)}")
    return module


def _arguments(
    maker: Callable[..., Any], name: str, shape: tuple[int, ...], classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to call the maker with, see `get_model`."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name}: its arguments are unknown ({error}); wrap it in a function") from error
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    kwargs: dict[str, Any] = {"shape": shape} if "shape" in named else {}
    kwargs |= {word: classes for word in _CLASSES if word in named}
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in kwargs
    ]
    if not needed:
        return (), kwargs
    if not kwargs and len(needed) <= 2:
        return ((classes,) if len(needed) == 1 else (shape, classes)), {}
    raise ModelError(
        f"{name}: cannot infer what to pass for {', '.join(needed)}; fedkin calls f(shape, classes), f(classes) or "
        "f(), so wrap it in a function with these arguments"
    )


def _kind(thing: object) -> str:
    return f"an object of type {type(thing).__name__}"
