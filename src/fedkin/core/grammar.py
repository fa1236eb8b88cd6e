"""The one grammar of choices with settings of their own: NAME@FIELD=VALUE,FIELD=VALUE, such as fedprox@mu=0.1."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from fedkin.core.errors import ConfigError, nearest

NONE = "none"
"""A setting that is not set, where its default is another value."""
Value: TypeAlias = bool | int | float | str
Table: TypeAlias = Mapping[str, "Value | Sequence[Value] | Table"]
"""A table of a TOML file."""
Fields: TypeAlias = dict[str, "Value | Sequence[Value] | Table"]
"""Fields of a method, those of a wrapped one in a table of their own."""
T = TypeVar("T")
_hints = cache(get_type_hints)


def subtable(table: Table, name: str) -> Table:
    """Return a table within a table; empty where there is none of that name."""
    inner = table.get(name)
    return inner if isinstance(inner, Mapping) else {}


def value_of(text: str) -> Value:
    """Return a value that is written without quotes."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def parsed(text: str, what: str) -> tuple[str, dict[str, Value]]:
    """Return the name of a choice and its settings, in their order.

    Args:
        text: NAME or NAME@FIELD=VALUE,FIELD=VALUE.
        what: the setting, for messages.

    Raises:
        ConfigError: the text has another form.
    """
    name, _, rest = text.partition("@")
    result: dict[str, Value] = {}
    for part in rest.split(",") if rest else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        field = field.replace("-", "_")
        if not field or not equals or not value:
            raise ConfigError(f"{what} {text!r}: settings have the form NAME@FIELD=VALUE,FIELD=VALUE, got {part!r}")
        if field in result:
            raise ConfigError(f"{what} {text!r}: {field} is given twice")
        result[field] = value_of(value)
    return name, result


def chosen(text: str, kinds: Mapping[str, type[T]], what: str) -> tuple[str, T]:
    """Return the name of a choice, and the object of its class with the settings in the text.

    Args:
        text: NAME or NAME@FIELD=VALUE,FIELD=VALUE.
        kinds: name -> class, a dataclass or a Struct whose fields are the settings.
        what: the setting, for messages.

    Raises:
        ConfigError: an unknown name or field, or a value of the wrong kind or out of range.
    """
    name, given = parsed(text, what)
    if name not in kinds:
        raise ConfigError(f"unknown {what} {name!r}{nearest(name, kinds)}")
    kind = kinds[name]
    names = _names(kind)
    for field in given:
        if field not in names:
            having = [other for other, of in kinds.items() if field in _names(of)]
            also = f"; those with {field}: {', '.join(having)}" if having else ""
            raise ConfigError(f"{what} {name!r} has no setting {field}; it has {', '.join(names) or 'none'}{also}")
    return name, converted(given, kind, f"{what} {text!r}")


def converted(value: object, kind: Any, where: str) -> Any:
    """Return a value as one of a type.

    Raises:
        ConfigError: it is not; the message begins with ``where``.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        what, path = placed(str(e))
        name = f" {'.'.join(path)}" if path != [""] else ""
        if not isinstance(value, dict):
            what = f"{what.partition(', got')[0]}, got {value!r}"
        raise ConfigError(f"{where}:{name} {what}{choices_of(kind)}") from e


def choices_of(kind: Any) -> str:
    """Return the words that a type allows, as the end of a message; "" if it allows any or none."""
    own = [word for option in (kind, *get_args(kind)) if get_origin(option) is Literal for word in get_args(option)]
    return f"; there are {', '.join(own)}" if own else ""


def placed(problem: str) -> tuple[str, list[str]]:
    """Return what msgspec says of a value, and the keys that lead to it."""
    what, _, path = problem.partition(" - at `$")
    what = what.replace("`object`", "a table").replace("`array`", "a list")
    return what[:1].lower() + what[1:], path.replace("[...]", "").strip("`.").split(".")


def filled(default: T, changes: Mapping[str, object], where: str) -> T:
    """Return a copy of a method, or another dataclass, with changed fields; a table changes one inside it.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of range.
    """
    kind: Any = type(default)
    hints, names = _hints(kind), _names(kind)
    values: dict[str, object] = {}
    for key, value in changes.items():
        if key not in names:
            raise ConfigError(f"{where}: unknown setting {key}{nearest(key, names)}")
        old = getattr(default, key)
        if is_dataclass(old):
            values[key] = filled(old, converted(value, dict[str, Any], f"{where} {key}"), f"{where} {key}")
        elif value == NONE and types.NoneType in get_args(hints[key]):
            values[key] = None
        else:
            values[key] = converted(value, hints[key], f"{where} {key}")
    return replace(default, **values)  # type: ignore[type-var]


def plain(config: Any) -> dict[str, Any]:
    """Return a dataclass as a table; one inside it becomes a nested table.

    None is omitted where it is the default; elsewhere it is written as "none", since TOML has no null.
    """
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if value is None and f.default is not None:
            value = NONE
        if value is not None:
            result[f.name] = plain(value) if is_dataclass(value) else value
    return result


def _names(kind: Any) -> list[str]:
    return [f.name for f in (fields(kind) if is_dataclass(kind) else msgspec.structs.fields(kind))]
