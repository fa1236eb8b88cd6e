"""Settings of runs by their plain names, for tests that try many of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.core.grammar import plain
from fedkin.core.settings import Group, Settings, leaf_groups
from fedkin.experiment.settings import completed
from fedkin.methods import get_method


def tables(how: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return tables of a config file with these settings."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in how.items():
        found.setdefault(leaf_groups()[name], {})[name] = value
    return found


def described(name: str, method: Any = None, **groups: Group) -> Settings:
    """Return all settings of a run of a method of the catalogue, complete; those of the method as of an object."""
    made = get_method(name) if method is None else method
    return completed(Settings().but(method={"name": name, **plain(made)}, **groups))
