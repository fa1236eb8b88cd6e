"""Load user-defined objects from an import path: ``package.module:attribute`` or ``./file.py:attribute``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from fedkin.core.errors import ConfigError, FedkinError

_STAMP = "__fedkin_stamp__"


def is_import_path(spec: str) -> bool:
    """Return whether a text has the form of an import path: ``package.module:attribute`` or ``file.py:attribute``.

    A method's name may have settings and end with ``-safe``, see `bare_name`.
    """
    path, colon, attribute = bare_name(spec).rpartition(":")
    if not colon or not path or not all(part.isidentifier() for part in attribute.split(".")):
        return False
    return path.endswith(".py") or all(part.isidentifier() for part in path.split("."))


def plain_name(spec: str) -> str:
    """Return the name of a method without the suffix of its safe form."""
    return spec.removesuffix("-safe")


def without_settings(spec: str) -> tuple[str, str]:
    """Return the name of a method without the settings in it, and their text: "mu=0.1" of ``fedprox@mu=0.1``."""
    path, colon, attribute = spec.rpartition(":")
    name, _, text = attribute.partition("@")
    return f"{path}{colon}{name}", text


def bare_name(spec: str) -> str:
    """Return the name of a method without settings and without the suffix of its safe form."""
    return plain_name(without_settings(spec)[0])


def find(spec: str, error: type[FedkinError] = ConfigError) -> Any:
    """Return the object with this import path.

    Modules in the current folder are found, and a file finds the modules next to it. A file is run once; the same
    name gives the same object again as long as the file has not changed.

    Args:
        spec: ``package.module:attribute`` or ``path/to/file.py:attribute``; the attribute may have dots.
        error: class of the raised exception.

    Raises:
        FedkinError: of class ``error``: invalid form, no such module or file, its code failed, or no such attribute.
    """
    path, _, attribute = spec.rpartition(":")
    if not is_import_path(spec):
        raise error(f"{spec!r} is not an import path; write package.module:attribute or ./file.py:attribute")
    module = _from_file(path, spec, error) if path.endswith(".py") else _from_module(path, spec, error)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            close = get_close_matches(part, dir(value), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise error(
                f"{spec}: {'file' if path.endswith('.py') else 'module'} {path!r} has no attribute {part!r}{hint}"
            )
        value = getattr(value, part)
    return value


def _from_module(path: str, spec: str, error: type[FedkinError]) -> ModuleType:
    known = list(sys.path)
    try:
        sys.path.append(str(Path.cwd()))  # a console script does not search the current folder by default
        return importlib.import_module(path)
    except Exception as cause:  # user-defined modules may raise anything at import
        raise error(f"{spec}: importing {path!r} failed: {type(cause).__name__}: {cause}") from cause
    finally:
        sys.path[:] = known


def _from_file(path: str, spec: str, error: type[FedkinError]) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        around = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = get_close_matches(file.name, around, n=1)
        raise error(f"{spec}: there is no file {path}" + (f"; did you mean {close[0]!r}?" if close else ""))
    content = file.read_bytes()
    stamp = hashlib.blake2b(content, digest_size=8).hexdigest()
    # a name derived from its path, so that two files of one name do not replace each other
    name = f"{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    there = sys.modules.get(name)
    if there is not None and getattr(there, _STAMP, None) == stamp:
        return there
    made = importlib.util.spec_from_file_location(name, file)
    if made is None:
        raise error(f"{spec}: {path} cannot be run as Python")
    module, known, written = importlib.util.module_from_spec(made), list(sys.path), sys.dont_write_bytecode
    setattr(module, _STAMP, stamp)
    sys.modules[name] = module  # before it is run: dataclasses search for their module there
    try:
        sys.path.append(str(file.parent))
        sys.dont_write_bytecode = True  # no cache files appear in the user's folder
        exec(compile(content, str(file), "exec"), vars(module))  # the content that was read, not a cached form of it
    except Exception as cause:  # user-defined files may raise anything
        if there is None:
            del sys.modules[name]
        else:
            sys.modules[name] = there
        line = _line(cause, file)
        raise error(f"{spec}: running {path} failed{line}: {type(cause).__name__}: {cause}") from cause
    finally:
        sys.path[:], sys.dont_write_bytecode = known, written
    return module


def _line(cause: Exception, file: Path) -> str:
    """Return the line of a user's file that raised an error; "" if the message contains it."""
    lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(file)]
    return f" in line {lines[-1]}" if lines else ""
