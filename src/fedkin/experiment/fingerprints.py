"""What a run says it is: enough to recognise it when it is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fedkin.core import Method, Net
from fedkin.core.grammar import Fields, Table, plain
from fedkin.data import Federation
from fedkin.experiment.settings import Settings, decisive
from fedkin.models.start import Model

SECOND = "second network"
"""Name of the fingerprint of a second network."""


def network_mark(net: Net) -> str:
    """Return a fingerprint of a network's layers, of which is the head, of the initial values and of what is fixed."""
    layers = json.dumps([[n, list(t.shape)] for n, t in (*net.unflatten(net.w0).items(), *net.fixed.items())])
    values = b"".join(t.contiguous().numpy().tobytes() for t in (net.w0, *net.fixed.values()))
    return hashlib.blake2b(layers.encode() + values, digest_size=16).hexdigest()


def network_marks(net: Net) -> dict[str, str]:
    """Return the fingerprint of the network and, once a second one is in use, of that as well."""
    return {name: network_mark(one) for name, one in _named(net).items()}


def _named(net: Net) -> dict[str, Net]:
    return dict(zip(("network", SECOND), net.networks, strict=False))


def about_of(table: Table, data: Table, net: Net) -> dict[str, str]:
    """Return what the fingerprints of a run stand for, as JSON, so that a message can say how two runs differ.

    Args:
        data: numbers that describe the size of the data.
    """
    parts: dict[str, Any] = {"config": decisive(table), "data": data}
    for which, one in _named(net).items():
        layers = {name: list(t.shape) for name, t in one.unflatten(one.w0).items()}
        parts[which] = {"layers": layers, "parameters": one.size}
    return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def sizes_of(federation: Federation) -> Fields:
    """Of which size a federation is."""
    samples = federation.sizes().sum(dim=0).tolist()
    sizes = {"clients": len(federation), "classes": federation.classes, "inputs": list(federation.shape)}
    return {**sizes, **dict(zip(("training samples", "validation samples", "test samples"), samples, strict=True))}


def _kind(method: Method) -> list[type]:
    """Return the class of a method and those of the methods that it wraps."""
    inside = [_kind(v) for v in vars(method).values() if isinstance(v, Method)]
    return [type(method), *(kind for kinds in inside for kind in kinds)]


def _without_none(value: Any) -> Any:
    """Return the value in types that TOML has; a value of another type is replaced by its name."""
    if isinstance(value, Mapping):
        return {str(k): _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(v) for v in value]
    return value if isinstance(value, (str, int, float)) else getattr(value, "__qualname__", type(value).__qualname__)


def made_by(method: Method, federation: Federation, model: Model | None, settings: Settings) -> Settings:
    """Return the settings of a run made by a program: enough to recognise it, not to make it again."""
    own: Fields = _without_none(plain(method)) if is_dataclass(method) else {}
    name = model if model is None or isinstance(model, str) else type(model).__name__
    return settings.but(
        made_by=f"method {' around '.join(t.__name__ for t in _kind(method))}, data {federation.name!r}",
        method={"name": type(method).__name__, **own},
        data=federation.name,
        **({} if name is None else {"model": name}),
    )
