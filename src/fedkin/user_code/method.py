"""User-defined methods: ``./file.py:Class`` or ``package.module:Class``."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any

from fedkin.core import ConfigError, FedkinError, Method
from fedkin.user_code.loading import find

RESERVED = ("name", "code")
"""Entries of a config's ``[method]`` table that are not fields."""


def own_method(name: str) -> Method:
    """Return the method of a class in a file or a module, with its defaults.

    Raises:
        ConfigError: no such file, module or class; its code failed; or the class is not a complete method.
    """
    try:
        value = find(name)
    except FedkinError as e:
        raise ConfigError(f"{e}{_there(name)}") from e
    if isinstance(value, Method):
        raise ConfigError(f"{name} is a method that has its settings already; name its class, {type(value).__name__}")
    if not (inspect.isclass(value) and issubclass(value, Method)) or value is Method:
        kind = f"the class {value.__name__}" if inspect.isclass(value) else f"an object of type {type(value).__name__}"
        raise ConfigError(
            f"{name}: expected a class that inherits from fedkin.Method, got {kind}{_methods_in(value, name)}"
        )
    _require_complete(value, name)
    try:
        return value()
    except FedkinError:
        raise
    except Exception as e:  # user-defined checks may raise anything
        raise ConfigError(f"{name}: {value.__name__}() failed: {type(e).__name__}: {e}") from e


def _require_complete(cls: type[Method], name: str) -> None:
    """Raise `ConfigError` if a step is missing, or if it is not a dataclass whose fields all have defaults."""
    if missing := sorted(cls.__abstractmethods__):
        lines = [f"def {step}{inspect.signature(getattr(Method, step))}".replace("'", "") for step in missing]
        raise ConfigError(f"{name} lacks {', '.join(missing)}; every method has:\n    " + "\n    ".join(lines))
    made: Any = cls.__dict__.get("__dataclass_params__")
    if made is None or not made.frozen:
        raise ConfigError(f"{name} is not a frozen dataclass; write @dataclass(frozen=True) above class {cls.__name__}")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # it is one, see above
        if field.name in RESERVED:
            raise ConfigError(f"{name}: a field cannot be called {field.name!r}, which a config uses itself; rename it")
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{name}: field {field.name} needs a default, such as {field.name}: float = 0.5")


def _there(name: str) -> str:
    """Return the methods of a file that was found and run, as the end of a message."""
    path, _, attribute = name.rpartition(":")
    try:
        anything = find(f"{path}:__name__")
    except FedkinError:
        return ""
    return _methods(str(anything), attribute)


def _methods_in(value: Any, name: str) -> str:
    return _there(name) if getattr(value, "__name__", "") != "Method" else ""


def _methods(module: str, but: str) -> str:
    kinds = [
        n
        for n, v in vars(sys.modules[module]).items()
        if inspect.isclass(v) and issubclass(v, Method) and v is not Method and n != but
    ]
    return f"; methods in it: {', '.join(kinds) or 'none'}"
