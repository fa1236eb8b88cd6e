"""Named settings of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedkin.core import ConfigError, Method
from fedkin.core.capability import Capability, has

TABLES = ("training", "run")
"""Tables of settings that a preset may hold next to fields of its method."""
Table = Mapping[str, Mapping[str, Any]]
M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Presets(Capability):
    """Settings with a name.

    Attributes:
        table: name -> fields of the method, of training under ``training`` and of the run itself under ``run``; those
            of a wrapped method under ``inner``.
    """

    table: Table


def presets_of(method: Method) -> Table:
    """Return the presets of a method; they may depend on its settings."""
    return {} if (own := has(method, Presets)) is None else own.table


def preset(kind: type[M], name: str, **changes: Any) -> M:
    """Return a method with the fields of a named preset.

    Raises:
        ConfigError: the method, as ``changes`` make it, has no such preset.
    """
    presets = presets_of(kind(**changes))
    if name not in presets:
        raise ConfigError(f"{kind.__name__} has no preset {name!r}; it has {sorted(presets) or 'none'}")
    fields = {k: v for k, v in presets[name].items() if k not in TABLES}
    if isinstance(inner := changes.get("inner"), Method) and "inner" in fields:  # those of a wrapped method
        changes["inner"] = type(inner)(**{**vars(inner), **fields["inner"]})
    return kind(**{**fields, **changes})
