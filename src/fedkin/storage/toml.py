"""TOML files with settings, and in what two of them differ."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedkin.core.errors import ConfigError
from fedkin.core.grammar import Table, subtable
from fedkin.user_code.reference import CodeRef

MOST_NAMED = 6
"""Maximum number of settings in a message about two different tables."""


NETWORK = "model.model"
"""Name of the network in the table of a sweep."""


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the tables of a TOML file; user-defined files that it names are searched next to it first.

    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no config file {path}")
    try:
        return named(tomllib.loads(path.read_text(encoding="utf-8")), lambda name: CodeRef.read(name, path.parent).name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not a TOML file: {e}") from e


def named(table: Table, rename: Callable[[str], str]) -> dict[str, Any]:
    """Return the tables with other names for the methods and the network in them."""
    result = dict(table)
    for part, key in (("method", "name"), ("model", "model")):
        if isinstance(name := (own := subtable(table, part)).get(key), str):
            result[part] = {**own, key: rename(name)}
    if isinstance(methods := table.get("methods"), list):  # of a comparison
        result["methods"] = [rename(m) if isinstance(m, str) else m for m in methods]
        if own := subtable(table, "method"):
            result["method"] = {rename(name): values for name, values in own.items()}
        if isinstance(baseline := table.get("baseline"), str):
            result["baseline"] = rename(baseline)
    if isinstance(networks := (sweep := subtable(table, "sweep")).get(NETWORK), list):
        result["sweep"] = {**sweep, NETWORK: [rename(n) if isinstance(n, str) else n for n in networks]}
    return result


def differences(there: Table, here: Table) -> str:
    """Return the entries in which two tables differ, with both values: "rounds was 4000 there and is 600 here"."""
    before, now = _flat(there), _flat(here)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    said = [f"{name} {_was(name, before)} there and {_is(name, now)} here" for name in names[:MOST_NAMED]]
    more = len(names) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def _flat(table: Table, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted names; those of ``[run]`` have no prefix."""
    result: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            result |= _flat(value, "" if (prefix, name) == ("", "run") else f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def _was(name: str, values: Table) -> str:
    return f"was {values[name]!r}" if name in values else "was not set"


def _is(name: str, values: Table) -> str:
    return f"is {values[name]!r}" if name in values else "is not set"
