"""Convert settings dataclasses to and from TOML; the only settings known by name are those of user-defined code."""

from __future__ import annotations

import copy
import dataclasses
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedkin.core.errors import ConfigError, nearest
from fedkin.user_code.reference import CodeRef

NONE = "none"
"""A setting that is not set, where its default is another value."""
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


def fill(default: Any, changes: Mapping[str, Any], where: str, *, checked: bool = True) -> Any:
    """Return a copy of a settings dataclass with changed values.

    Args:
        default: the dataclass.
        changes: field -> value.
        where: the place of the changes, for messages.
        checked: check the values against each other as well; not yet where flags may still change them.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where} must be a table, got {changes!r}")
    hints = _hints(type(default))  # type: ignore[arg-type]  # classes are hashable
    names = [f.name for f in fields(default)]
    values: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in names:
            raise ConfigError(f"{where}: unknown setting {key}{nearest(key, names)}")
        old = getattr(default, key)
        if is_dataclass(old):
            values[key] = fill(old, value, f"{where} {key}", checked=checked)
        else:
            values[key] = _fitting(value, hints[key], f"{where} {key}")
    if checked:
        return dataclasses.replace(default, **values)
    made = copy.copy(default)
    for key, value in values.items():
        object.__setattr__(made, key, value)  # without __post_init__
    return made


def value_of(text: str) -> int | float | bool | str:
    """Return the value of a setting that is written without quotes, such as on the command line."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the resolved annotations of a class; a host reads the settings of every message."""
    return get_type_hints(kind)


def _fitting(value: Any, hint: Any, where: str) -> Any:
    """Return the value if it has the hinted type; integers may stand for floats."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value == NONE and types.NoneType in options:
        return None
    allowed: list[str] = []
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
            allowed += [repr(v) for v in get_args(option)]
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif type(value) is option:
            return value
        elif option is not types.NoneType:
            allowed.append({int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[option])
    raise ConfigError(f"{where} must be {' or '.join(allowed)}, got {value!r}")


def plain(config: Any) -> dict[str, Any]:
    """Return a settings dataclass as a table; a nested one becomes a nested table.

    None is omitted where it is the default; elsewhere it is written as "none", since TOML has no null.
    """
    found: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if value is None and f.default is not None:
            value = NONE
        if value is not None:
            found[f.name] = plain(value) if is_dataclass(value) else value
    return found


def changed(config: Any) -> str:
    """Return a settings dataclass as text: the fields that differ from their defaults."""
    usual = {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory() for f in fields(config)
    }
    own = [f"{name}={value!r}" for name in usual if (value := getattr(config, name)) != usual[name]]
    return f"{type(config).__name__}({', '.join(own)})"


def named(table: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """Return the tables with other names for the methods and the network in them."""
    found = dict(table)
    for part, key in (("method", "name"), ("model", "model")):
        if isinstance(own := table.get(part), Mapping) and isinstance(own.get(key), str):
            found[part] = {**own, key: rename(own[key])}
    if isinstance(methods := table.get("methods"), list):  # of a comparison
        found["methods"] = [rename(m) if isinstance(m, str) else m for m in methods]
        if isinstance(own := table.get("method"), Mapping):
            found["method"] = {rename(name): values for name, values in own.items()}
        if isinstance(found.get("baseline"), str):
            found["baseline"] = rename(found["baseline"])
    if isinstance(sweep := table.get("sweep"), Mapping) and isinstance(networks := sweep.get(NETWORK), list):
        found["sweep"] = {**sweep, NETWORK: [rename(n) if isinstance(n, str) else n for n in networks]}
    return found


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the entries in which two tables differ, with both values: "rounds was 4000 there and is 600 here"."""
    before, now = _flat(there), _flat(here)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    said = [f"{name} {_was(name, before)} there and {_is(name, now)} here" for name in names[:MOST_NAMED]]
    more = len(names) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted names; those of ``[run]`` have no prefix."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, "" if (prefix, name) == ("", "run") else f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _was(name: str, values: Mapping[str, Any]) -> str:
    return f"was {values[name]!r}" if name in values else "was not set"


def _is(name: str, values: Mapping[str, Any]) -> str:
    return f"is {values[name]!r}" if name in values else "is not set"


def whole(value: Any) -> Any:
    """Return the value with 1.0 as 1, so that both spellings are equal."""
    if isinstance(value, Mapping):
        return {k: whole(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
