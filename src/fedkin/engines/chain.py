"""Chains of convolution, pooling, linear and ReLU layers, read from a network's module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedkin.core import Net


@dataclass(frozen=True)
class Linear:
    """Linear layer ``x W^T + b``: the spans of weight and bias in the flat vector."""

    weight: slice
    shape: tuple[int, int]
    bias: slice | None


@dataclass(frozen=True)
class Conv:
    """Two-dimensional convolution with zero padding."""

    weight: slice
    shape: tuple[int, ...]
    bias: slice | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


@dataclass(frozen=True)
class MaxPool:
    """Two-dimensional max pooling."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool


@dataclass(frozen=True)
class AvgPool:
    """Two-dimensional average pooling."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    ceil: bool
    count_padding: bool


@dataclass(frozen=True)
class GlobalPool:
    """Mean over all positions of each channel, as ``[B, C, 1, 1]``."""


@dataclass(frozen=True)
class Relu:
    """ReLU."""


@dataclass(frozen=True)
class Flatten:
    """Flattening of all dimensions but the batch."""


Layer = Linear | Conv | MaxPool | AvgPool | GlobalPool | Relu | Flatten


class NotAChain(Exception):
    """Raised if a network is not such a chain; the message names what was met."""


def chain_of(net: Net) -> tuple[Layer, ...]:
    """Return the layers of a network, in order.

    A ReLU before a max pooling is moved behind it: the same numbers on fewer positions.

    Raises:
        NotAChain: the network holds another layer, branches, has running statistics, or cannot be read.
    """
    if net.buffers.start < net.buffers.stop:
        raise NotAChain("it has running statistics")
    if net.fixed:
        raise NotAChain("a part of it is fixed")
    try:
        graph = fx.Tracer().trace(net.module)
    except Exception as e:  # anything that a user's forward does with a proxy for a tensor
        raise NotAChain(f"its forward pass cannot be read ({str(e).splitlines()[0] if str(e) else e!r})") from e
    modules, places = dict(net.module.named_modules()), net.places()
    layers, used = list[Layer](), list[slice]()
    for node in _one_after_another(graph):
        layer = _layer(node, modules, places, net.head_name)
        if layer is not None:
            layers.append(layer)
            used += [s for s in (getattr(layer, "weight", None), getattr(layer, "bias", None)) if s is not None]
    if sorted((s.start, s.stop) for s in used) != sorted((s.start, s.stop) for s, _ in places.values()):
        raise NotAChain("a parameter is used twice, or not by a layer")
    return tuple(_later_relu(layers))


def _later_relu(layers: list[Layer]) -> list[Layer]:
    out = list(layers)
    for i in range(len(out) - 1):
        if isinstance(out[i], Relu) and isinstance(out[i + 1], MaxPool):
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def _one_after_another(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that compute, each from the one before.

    Raises:
        NotAChain: the network branches, or takes or gives more than one tensor.
    """
    nodes = [n for n in graph.nodes if not _is_size(n)]
    if [n.op for n in nodes].count("placeholder") != 1 or nodes[0].op != "placeholder":
        raise NotAChain("it takes more than one input")
    for before, node in pairwise(nodes):
        inputs = [n for n in node.all_input_nodes if not _is_size(n)]
        if inputs != [before] or (node.op == "output" and node.args != (before,)):
            raise NotAChain(f"it branches at {node.name!r}")
    return nodes[1:-1]


def _is_size(node: fx.Node) -> bool:
    """Return whether a node only reads the size of the batch, as ``x.view(x.size(0), -1)`` does."""
    if node.op == "call_method":
        return bool(node.target == "size")
    if node.op != "call_function" or node.target not in (getattr, operator.getitem):
        return False
    return node.args[1] == "shape" if node.target is getattr else _is_size(node.args[0])  # type: ignore[arg-type]


def _layer(
    node: fx.Node, modules: Mapping[str, nn.Module], places: Mapping[str, tuple[slice, Any]], head: str
) -> Layer | None:
    """Return the layer that a node computes; None if it computes nothing."""
    if node.op == "call_module":
        name = str(node.target)
        module = modules[name]
        make, own_hooks = _MODULES.get(type(module)), int(name == head)  # `Net` itself watches what the head is given
        if make is None or module._forward_hooks or len(module._forward_pre_hooks) > own_hooks:
            raise NotAChain(f"it has a layer {type(module).__name__} ({name!r})")
        if not _usual(module):
            raise NotAChain(f"it has a layer with unusual settings, {module} ({name!r})")
        if any(f"{name}.{p}" not in places for p, _ in module.named_parameters(recurse=False)):
            raise NotAChain(f"it has a layer that shares a parameter with another one ({name!r})")
        where = {p: places[f"{name}.{p}"][0] for p in ("weight", "bias") if f"{name}.{p}" in places}
        return make(module, where)
    if node.op == "call_function" and node.target in (torch.relu, F.relu):
        return Relu()
    if node.op == "call_method" and node.target == "relu":
        return Relu()
    if _flattens(node):
        return Flatten()
    raise NotAChain(f"it calls {getattr(node.target, '__name__', node.target)} ({node.name!r})")


def _flattens(node: fx.Node) -> bool:
    """Return whether a node is ``flatten(x, 1)``, ``x.view(len, -1)``, ``x.reshape(len, -1)`` or ``x.view(-1, d)``."""
    if node.kwargs and node.kwargs != {"start_dim": 1}:
        return False
    rest = list(node.args[1:]) + list(node.kwargs.values())
    if (node.op == "call_function" and node.target is torch.flatten) or node.target == "flatten":
        return rest == [1]
    if node.op != "call_method" or node.target not in ("view", "reshape"):
        return False
    if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
        rest = list(rest[0])
    if len(rest) != 2:
        return False
    by_length = isinstance(rest[0], fx.Node) and rest[1] == -1
    by_width = rest[0] == -1 and isinstance(rest[1], int) and rest[1] > 0
    return bool(by_length or by_width)


def _pair(value: Any) -> list[int]:
    return [int(value), int(value)] if isinstance(value, int) else [int(v) for v in value]


def _usual(m: Any) -> bool:
    """Return whether a module's settings are those that are written out."""
    match m:
        case nn.Conv2d():
            return m.padding_mode == "zeros" and not isinstance(m.padding, str)
        case nn.MaxPool2d():
            return not m.return_indices
        case nn.AvgPool2d():
            return m.divisor_override is None
        case nn.AdaptiveAvgPool2d():
            return m.output_size in (1, (1, 1))
        case nn.Flatten():
            return (m.start_dim, m.end_dim) == (1, -1)
    return True


def _conv(m: nn.Conv2d, where: Mapping[str, slice]) -> Conv:
    shape = (m.out_channels, m.in_channels // m.groups, *m.kernel_size)
    steps = (_pair(m.stride), _pair(m.padding), _pair(m.dilation))
    return Conv(where["weight"], shape, where.get("bias"), *steps, m.groups)


_MODULES: dict[type[nn.Module], Callable[[Any, Mapping[str, slice]], Layer | None]] = {
    nn.Linear: lambda m, where: Linear(where["weight"], (m.out_features, m.in_features), where.get("bias")),
    nn.Conv2d: _conv,
    nn.MaxPool2d: lambda m, where: MaxPool(
        _pair(m.kernel_size), _pair(m.stride), _pair(m.padding), _pair(m.dilation), m.ceil_mode
    ),
    nn.AvgPool2d: lambda m, where: AvgPool(
        _pair(m.kernel_size), _pair(m.stride), _pair(m.padding), m.ceil_mode, m.count_include_pad
    ),
    nn.AdaptiveAvgPool2d: lambda m, where: GlobalPool(),
    nn.ReLU: lambda m, where: Relu(),
    nn.Flatten: lambda m, where: Flatten(),
    nn.Identity: lambda m, where: None,
}
