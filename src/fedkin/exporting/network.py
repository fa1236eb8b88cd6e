"""Description of a network as a list of torch layers and the steps between them, for a loader without fedkin."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx, nn

from fedkin.core import Net
from fedkin.exporting.loader import FUNCTIONS, LAYERS, METHODS, Network

_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_NAMES = {function: name for name, function in FUNCTIONS.items()}


class _Strange(Exception):
    """A part of a network that a description cannot express."""


def described(net: Net) -> dict[str, Any] | None:
    """Return a description from which `loader.Network` makes the same network, tested; None if there is none.

    The network is traced by `torch.fx`, so one whose forward pass branches on values has no description.
    """
    try:
        plan = _plan(net.module)
        _require_same(net, plan)
    except Exception:  # a user-defined forward may raise anything when it is traced
        return None
    finally:
        net.release()
    return plan


def _plan(module: nn.Module) -> dict[str, Any]:
    graph = fx.Tracer().trace(module)
    layers, steps = dict[str, Any](), list[dict[str, Any]]()
    does = {"placeholder": "input", "call_module": "layer", "call_function": "function", "call_method": "method"}
    for node in graph.nodes:
        step: dict[str, Any] = {"to": node.name, "do": does.get(node.op, node.op)}
        if node.op == "call_module":
            step["target"] = str(node.target)
            layers[str(node.target)] = _layer(module.get_submodule(str(node.target)))
        elif node.op == "call_function":
            step["target"] = _named(node.target)
        elif node.op == "call_method":
            step["target"] = _known(str(node.target), METHODS)
        elif node.op not in ("placeholder", "output"):
            raise _Strange(node.op)
        if node.op != "placeholder":
            step |= {"args": [_plain(a) for a in node.args], "options": {k: _plain(v) for k, v in node.kwargs.items()}}
        steps.append(step)
    return {"layers": layers, "steps": steps}


def _layer(layer: nn.Module) -> list[Any]:
    """Return the kind of a layer and the arguments that make it."""
    kind = _known(type(layer).__name__, LAYERS)
    if type(layer) is not getattr(nn, kind):
        raise _Strange(kind)
    recurrent = isinstance(layer, nn.RNNBase)
    names = list(_RECURRENT) if recurrent else list(inspect.signature(type(layer).__init__).parameters)[1:]
    options = {n: getattr(layer, n) for n in names if n not in ("device", "dtype") and hasattr(layer, n)}
    if "bias" in options:
        options["bias"] = bool(options["bias"]) if recurrent else options["bias"] is not None
    return [kind, {n: _option(v) for n, v in options.items()}]


def _option(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_option(v) for v in value]
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise _Strange(type(value).__name__)


def _plain(value: Any) -> Any:
    """Return an argument of a step in terms of JSON."""
    if isinstance(value, fx.Node):
        return {"result": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_plain(v) for v in value]}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, slice):
        return {"slice": [_plain(v) for v in (value.start, value.stop, value.step)]}
    return _option(value)


def _named(function: Any) -> str:
    if function not in _NAMES:
        raise _Strange(str(function))
    return _NAMES[function]


def _known(name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise _Strange(name)
    return name


def _require_same(net: Net, plan: dict[str, Any]) -> None:
    """Raise `_Strange` unless the description gives exactly the network's logits."""
    made = Network(plan).eval()
    values = net.unflatten(net.w0)
    missing, strange = made.load_state_dict(values | net.fixed, strict=False)
    lacks = [name for name in missing if not name.endswith("num_batches_tracked")]
    if lacks or strange:
        raise _Strange(f"{lacks} {strange}")
    x = net.inputs(3)
    with torch.no_grad():
        if not torch.allclose(made(x), net(net.w0, x), rtol=1e-5, atol=1e-6):
            raise _Strange("other logits")
