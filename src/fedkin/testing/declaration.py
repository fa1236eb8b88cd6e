"""Rules of a method's declaration: frozen, final, equal to its repr, every field with type, default and docstring."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from difflib import get_close_matches
from typing import Any

from fedkin.core import Method
from fedkin.core.method import FAMILIES
from fedkin.testing.spy import RuleBroken


def check_declaration(method: Method) -> None:
    """Check for a frozen dataclass, equal to its repr, with documented fields of plain values (or a nested method)."""
    cls = type(method)
    made = cls.__dict__.get("__dataclass_params__")
    if made is None or not made.frozen:
        raise RuleBroken(f"{cls.__name__} is not a frozen dataclass; write @dataclass(frozen=True) above it")
    parents = [b.__name__ for b in cls.__mro__[1:] if issubclass(b, Method) and b is not Method]
    if parents:
        raise RuleBroken(f"{cls.__name__} inherits from the method {parents[0]}; methods are final, wrap it")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if isinstance(value, Method):
            check_declaration(value)
        elif not _plain(value):
            raise RuleBroken(
                f"field {field.name} holds {value!r}; a setting must be a number, a text, a list of them, or a method, "
                "so that it can be written to a config file"
            )
    _check_docstrings(cls)
    _check_steps(cls)
    _check_statements(method)
    known = _classes(method)
    text = repr(method)
    for made_of in known.values():
        text = text.replace(f"{made_of.__qualname__}(", f"{made_of.__name__}(")
    try:
        again = eval(text, {"inf": math.inf, "nan": math.nan, **known})
    except Exception as e:
        raise RuleBroken(f"its repr {text} cannot be read as Python: {type(e).__name__}: {e}") from e
    if again != method:
        raise RuleBroken(f"its repr {text} makes another method: {again!r}")


def _check_steps(cls: type[Method]) -> None:
    """Check that no function has nearly the name of a step: it would never be called."""
    steps = [name for name, step in vars(Method).items() if inspect.isfunction(step) and not name.startswith("_")]
    for name, own in vars(cls).items():
        if not inspect.isfunction(own) or name.startswith("_") or hasattr(Method, name):
            continue
        if close := get_close_matches(name, steps, n=1, cutoff=0.8):
            raise RuleBroken(
                f"{cls.__name__} has a function {name}, which is not a step and is never called by the run; rename it "
                f"to {close[0]}, or to _{name} if it is a helper"
            )


def _check_statements(method: Method) -> None:
    """Check what a class states besides fields: settings without a type, unknown names."""
    cls, names = type(method), {field.name for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    typed = inspect.get_annotations(cls)
    for name, value in vars(cls).items():
        stated = name.startswith("_") or name.isupper() or hasattr(Method, name) or name in typed
        if not stated and value is not None and _plain(value):
            kind = type(value).__name__
            raise RuleBroken(
                f"{name} = {value!r} has no type, so it is not a setting; write {name}: {kind} = {value!r}, or "
                f"{name.upper()} if it is a constant"
            )
    if cls.family and cls.family not in FAMILIES:
        raise RuleBroken(f"family = {cls.family!r} is none of {', '.join(map(repr, FAMILIES))}")
    if unknown := sorted(set(method.tuned) - names):
        fields = ", ".join(sorted(names)) or "none"
        raise RuleBroken(f"tuned has {unknown[0]!r}, which is not a field; there are {fields}")


def _plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def _classes(method: Method) -> dict[str, Any]:
    classes: dict[str, Any] = {type(method).__name__: type(method)}
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        if isinstance(value := getattr(method, field.name), Method):
            classes |= _classes(value)
    return classes


def _check_docstrings(cls: type[Method]) -> None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # defined in an interactive session: there is no source
        return
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    wanted = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in wanted):
            continue
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if not (isinstance(said, str) and said.strip()):
            raise RuleBroken(
                f"field {node.target.id} has no docstring below it; it is the help text of --{node.target.id}"
            )
