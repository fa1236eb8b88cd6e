"""User-defined methods and networks on real hosts: code that a node's owner allows, never a file that a run names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fedkin.core import ConfigError, Method
from fedkin.core.grammar import Table, subtable
from fedkin.core.refusals import Reason
from fedkin.core.settings import DataSettings, read_settings
from fedkin.experiment.settings import Settings, settings_from
from fedkin.user_code.loading import bare_name, is_import_path
from fedkin.user_code.reference import CodeRef
from fedkin.version import __version__

_PARTS = ("core", "capabilities", "functional", "engines", "models", "data")  # of which results depend


class NotAllowed(ConfigError):
    """A run names code that the node's owner does not allow."""


@dataclass(frozen=True)
class Allowed:
    """Code that runs may name at a node, in addition to the built-in methods and networks.

    Attributes:
        modules: packages and modules; a package stands for every module in it.
        files: single files by the name of the module that each becomes.
        everything: allow any code, as in Flower's simulator: the submitter of runs owns the machine.
    """

    modules: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    everything: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Allowed:
        """Read the values of ``--allow-code``: PACKAGE, PACKAGE.MODULE, FILE.py; `ConfigError` if one is unusable."""
        modules, files = list[str](), dict[str, Path]()
        for word in words:
            file = Path(word).expanduser().resolve()
            if why := _unfit_file(file, files) if word.endswith(".py") else _unfit_module(word):
                raise ConfigError(f"--allow-code {word}: {why}")
            if word.endswith(".py"):
                files[file.stem] = file
            else:
                modules.append(word)
        return cls(tuple(modules), files)

    def covers(self, module: str) -> bool:
        """Return whether runs may name objects of this module."""
        inside = any(module == name or module.startswith(f"{name}.") for name in self.modules)
        return self.everything or inside or module in self.files

    def load(self, name: str, what: str) -> None:
        """Import the module that a run names from the places of Python's packages, never from the working folder.

        Args:
            name: ``package.module:attribute``.
            what: entry of the run's settings, for messages.

        Raises:
            NotAllowed: the module, or the module where the object is defined, is not allowed; the former was then not
                imported, and nothing was called.
            ConfigError: importing it failed.
        """
        path, _, attribute = bare_name(name).rpartition(":")
        if not self.covers(path):
            raise NotAllowed(
                f"the run's {what} is {name}, and this node uses built-in methods and networks only, so "
                f"module {path} was not imported. If it is trusted here, start the node with --allow-code {path}"
            )
        if self.everything:
            return
        try:
            module = importlib.import_module(path)
        except Exception as cause:  # the module is user-defined and may raise anything
            raise ConfigError(
                f"{name}: importing {path} failed: {type(cause).__name__}: {cause}. A node finds installed packages "
                f"and files that --allow-code names (--allow-code ./{path}.py), and nothing in its working folder"
            ) from cause
        self._require_home(module, attribute, name)

    def _require_home(self, module: ModuleType, attribute: str, name: str) -> None:
        """Raise `NotAllowed` unless plain names lead to a class or a function that allowed code defines: not to what
        the module imports, as ``os.system`` may be, nor to the insides of Python, as ``build.__globals__`` is."""
        thing: Any = module
        for part in attribute.split("."):
            thing = None if part.startswith("_") else getattr(thing, part, None)
            code = inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismethod(thing)
            home = str(getattr(thing, "__module__", None)) if code else None
            if home is None or not self.covers(home):
                where = "no class or function" if home is None else f"defined in module {home}, not allowed here"
                raise NotAllowed(
                    f"{name}: {part} is {where}; a run names classes and functions that {module.__name__} itself "
                    "defines. Other modules that are trusted here are allowed by --allow-code as well"
                )

    def findable(self) -> None:
        """Make the allowed files importable as modules of this process."""
        if self.files:
            sys.meta_path.insert(0, _Files(self.files))


class _Files(MetaPathFinder):
    """Finds the given single files as modules, and no other file in their folders."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else importlib.util.spec_from_file_location(fullname, file)


def _unfit_module(word: str) -> str:
    """Return why a text is not the name of a module; "" if it is."""
    name = all(part.isidentifier() for part in word.split("."))
    return "" if name else "expected a package (team), a module (team.nets) or a file (./nets.py)"


def _unfit_file(file: Path, others: Mapping[str, Path]) -> str:
    """Return why a file cannot become a module of its name; "" if it can."""
    name = file.stem
    if not file.is_file():
        return f"there is no file {file}"
    if not name.isidentifier():
        return f"{name}, as which runs would name it, is no name of a module; use letters, digits and _ only"
    if others.get(name, file) != file:
        return f"{others[name]} has the same name; rename one of the two"
    taken = name in sys.stdlib_module_names or name == "__main__"
    there = None if taken else importlib.util.find_spec(name)
    if taken or (there is not None and there.origin != str(file)):
        return f"a module {name} is installed already; give the file another name"
    return ""


def settings_of(table: Table, allowed: Allowed | None = None) -> Settings:
    """Read the settings of a run that another host sent.

    Args:
        table: the settings.
        allowed: code that they may name. Default: built-in methods and networks only.

    Raises:
        NotAllowed: they name code that is not allowed here; it was not imported.
        ConfigError: they name a file (of code, or of initial weights), a setting is unknown, or the source of a method
            differs on this machine.
    """
    where = "the run's settings"
    asked = read_settings(table, where)
    for part, key, name in (("method", "name", str(asked.method.get("name"))), ("model", "model", asked.model.model)):
        require_installed(name)
        if is_import_path(name):
            (allowed or Allowed()).load(name, f"[{part}] {key}")
            code = asked.code.get(part)
            if code is not None and code != CodeRef(name).fingerprint():
                raise ConfigError(
                    f"{name} differs between this node and the server; install the same version of its package on "
                    "both, and start this node again"
                )
    if asked.model.init_weights is not None:
        raise ConfigError(f"{where}: [model] init_weights names a file, which no run can choose on this machine")
    # a client uses its own data: it must not look on its disk for a path that the server names
    elsewhere = {**table, "data": {**subtable(table, "data"), "data": DataSettings().data}}
    return settings_from(elsewhere, where).but(data=asked.data)


def require_installed(*names: str) -> None:
    """Raise `ConfigError` if a method or a network is in a file: no code travels between hosts, and no message chooses
    a file to run."""
    for name in names:
        if CodeRef(name).file is not None:
            raise ConfigError(
                f"{name} is a file of this machine, and no code is sent to nodes: make it a package, install it on the "
                "server and on every node, allow it at every node (fedkin node --allow-code PACKAGE) and name it "
                "package.module:attribute; or run it on this machine with fedkin run"
            )


def versions(method: Method) -> dict[str, str]:
    """Return the versions of fedkin, flwr and torch, and fingerprints of fedkin's engine and of the method's text."""
    return {
        "fedkin": __version__,
        "flwr": version("flwr"),
        "torch": torch.__version__.partition("+")[0],
        "engine": _engine(),
        "method": _text_of(method),
    }


def unlike(theirs: Mapping[str, str], ours: Mapping[str, str]) -> Reason | None:
    """Return the differences with both values; None if there are none."""
    names = {"engine": "the text of fedkin's engine", "method": "the text of the method"}
    parts = [
        f"{names.get(name, name)} is {theirs.get(name, 'none')} there and {ours[name]} here"
        for name in ("fedkin", "flwr", "torch", "method", "engine")
        if theirs.get(name, "none") != ours[name]
    ]
    return Reason("versions", value=f"{'; '.join(parts)}; install the same on both") if parts else None


@cache
def _engine() -> str:
    root = Path(inspect.getfile(Method)).parents[1]
    files = sorted(path for part in _PARTS for path in (root / part).rglob("*.py"))
    return _digest(*(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() for path in files))


def _text_of(method: Method) -> str:
    """Return the text of the files that define the method and those that it wraps."""
    inside = [m for m in vars(method).values() if isinstance(m, Method)]
    kinds = [type(method), *(type(m) for m in inside)]
    return _digest(*(Path(inspect.getfile(kind)).read_bytes() for kind in kinds))


def _digest(*parts: bytes) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()
